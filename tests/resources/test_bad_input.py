"""Manifests with mistakes, given as people give them: the file, the line, what is wrong and what to
do; and nothing of what stands beside the mistake is taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.support.mounts import penstock
from tests.support.waiting import wait_until

# Stands before each mistake, and is as good as can be. Its last line is the ninth.
GOOD = """\
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata:
  name: good
spec:
  mounts:
    - mountPoint: local:///usr/share
      name: data
---
"""
DATASET = """\
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata:
  name: bad
spec:
  mounts:
"""
RUNTIME = """\
apiVersion: data.fluid.io/v1alpha1
kind: JindoRuntime
metadata:
  name: bad
spec:
"""
S3_MOUNT = """\
    - mountPoint: s3://bucket
      name: data
      encryptOptions:
        - name: aws.accessKeyId
          valueFrom:
            secretKeyRef:
              name: keys
              key: id
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata:
  name: keys
stringData:
  other: value-of-other
---
"""

MISTAKES = {
    "broken": ("kind: [Dataset\nspec: {\n", 11, "", ""),
    "a list": ("- a\n- b\n", 10, "a list, and not a resource", "---"),
    "a kind misspelt": (
        "apiVersion: data.fluid.io/v1alpha1\nkind: Datsaet\n", 11, "'Datsaet' is not a kind",
        "did you mean Dataset?",
    ),
    "two of one name": (GOOD, 10, "dataset/default/good stands twice", "keep one"),
    "an unknown field": (
        DATASET + "    - mountPoint: local:///usr\n      nmae: x\n", 17, "nmae",
        "did you mean name?",
    ),
    "an option misspelt": (
        RUNTIME.replace("data.fluid.io", "penstock.dev").replace("Jindo", "Penstock")
        + "  options:\n    polcy: lru\n---\n"
        + DATASET + "    - mountPoint: local:///usr/share\n",
        16, "polcy", "did you mean policy?",
    ),
    "a path clash": (
        DATASET + "    - {mountPoint: local:///usr, path: /x}\n"
        "    - {mountPoint: local:///etc, path: /x/}\n", 17, "/x", "",
    ),
    "a secret that is not there": (DATASET + S3_MOUNT, 19, "the Secret keys is not there",
                                   "apply a Secret keys with the key id"),
    "a secret without the key": (SECRET + DATASET + S3_MOUNT, 26, "has no key 'id'", "other"),
}  # fmt: skip


@contextmanager
def unchanged(state: State) -> Iterator[None]:
    before = state.all(), state.changes()
    yield
    assert (state.all(), state.changes()) == before
    assert not is_running(state.folder), "nothing was wanted, and a loop was started"


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_nothing_is_applied(
    declared: State, tmp_path: Path, what: str
) -> None:
    text, line, said, hint = MISTAKES[what]
    file = tmp_path / "all.yaml"
    file.write_text(GOOD + text)
    with unchanged(declared):
        done = penstock("apply", "-f", file)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert f"{file}:{line}: " in done.stderr
        assert said in done.stderr
        hints = [one for one in done.stderr.splitlines() if "hint: " in one]
        assert hint in hints[0]
        assert "value-of-other" not in done.stderr


def test_mistakes_of_several_files_are_told_at_once_and_nothing_is_applied(
    declared: State, tmp_path: Path
) -> None:
    (tmp_path / "1.yaml").write_text(GOOD)
    for number, what in enumerate(("a list", "a kind misspelt", "an unknown field"), 2):
        (tmp_path / f"{number}.yaml").write_text(MISTAKES[what][0])
    with unchanged(declared):
        done = penstock("apply", "-f", tmp_path)
    assert done.returncode == 2
    assert "3 mistakes" in done.stderr
    for number in (2, 3, 4):
        assert f"{tmp_path / str(number)}.yaml:" in done.stderr
    assert done.stderr.count("hint: ") == 3


def test_a_change_with_a_mistake_leaves_what_was_applied_before(
    declared: State, tmp_path: Path
) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD.removesuffix("---\n"))
    assert penstock("apply", "-f", file).returncode == 0
    wait_until(lambda: not is_running(declared.folder))
    file.write_text(GOOD.replace("/usr/share", "/usr/lib") + MISTAKES["a path clash"][0])
    with unchanged(declared):
        assert penstock("apply", "-f", file).returncode == 2
    (mount,) = declared.all()[0].spec["mounts"]
    assert mount["mountPoint"] == "local:///usr/share"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("get datsets", "did you mean"),
        ("get dataset nobody", "there is no dataset nobody"),
        ("describe dataset nobody", "there is no dataset nobody"),
        ("delete dataset nobody", "not there: dataset nobody"),
        ("delete dataset", "which dataset?"),
        ("delete", "say what to delete"),
        ("load nobody", "there is no dataset nobody"),
        ("up nobody", "there is no dataset nobody"),
        ("up --restart", "restart of what?"),
        ("label no-equals", "neither KEY=VALUE nor KEY-"),
        ("apply --filenam x", "--filename"),
        ("get datasets -o jsno", "json"),
    ],
)
def test_words_that_are_no_kind_name_or_option_are_mistakes(line: str, said: str) -> None:
    done = penstock(*line.split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr
    assert State().all() == []
