"""Manifests with mistakes, given as people give them: the file, the line, what is wrong and what to
do; and nothing of what stands beside the mistake is taken."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.cache.test_flights import wait_until
from tests.conftest import penstock
from tests.resources.conftest import condition, phase

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
    "no map": ("just text\n", 10, "neither a map nor a resource", "apiVersion and kind"),
    "another kind": ("apiVersion: v1\nkind: Pod\n", 11, "Pod of v1 is not ours", "kubectl"),
    "a kind misspelt": (
        "apiVersion: data.fluid.io/v1alpha1\nkind: Datsaet\n", 11, "'Datsaet' is not a kind",
        "did you mean Dataset?",
    ),
    "another version": (
        "apiVersion: data.fluid.io/v7\nkind: Dataset\n", 10,
        "Dataset is not known as 'data.fluid.io/v7'", "data.fluid.io/v1alpha1",
    ),
    "two of one name": (GOOD, 10, "dataset/default/good stands twice", "keep one"),
    "no quantity": (
        RUNTIME + "  tieredstore:\n    levels:\n      - {mediumtype: SSD, path: /c, quota: 4Qb}\n",
        17, "4Qb", "",
    ),
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
    "an unknown scheme": (
        DATASET + "    - mountPoint: ftp://host/x\n", 16, "ftp", "",
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
        for command in (["apply"], ["apply", "--dry-run"]):
            done = penstock(*command, "-f", file)
            assert done.returncode == 2, done.stderr
            assert done.stdout == ""
            assert f"{file}:{line}: " in done.stderr
            assert said in done.stderr
            told = [one for one in done.stderr.splitlines() if "hint: " in one]
            assert told
            assert hint in told[0]
            assert "value-of-other" not in done.stderr


def test_mistakes_of_several_files_are_told_at_once_and_nothing_is_applied(
    declared: State, tmp_path: Path
) -> None:
    (tmp_path / "1.yaml").write_text(GOOD)
    for number, what in enumerate(("a list", "another kind", "an unknown field"), 2):
        (tmp_path / f"{number}.yaml").write_text(MISTAKES[what][0])
    with unchanged(declared):
        done = penstock("apply", "-f", tmp_path)
    assert done.returncode == 2
    assert "3 mistakes" in done.stderr
    for number in (2, 3, 4):
        assert f"{tmp_path / str(number)}.yaml:" in done.stderr
    assert done.stderr.count("hint: ") == 3


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n---\n"])
def test_an_empty_file_is_a_mistake(declared: State, tmp_path: Path, text: str) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text(text)
    (tmp_path / "good.yaml").write_text(GOOD)
    with unchanged(declared):
        done = penstock("apply", "-f", tmp_path / "good.yaml", "-f", file)
    assert done.returncode == 2
    assert f"{file}: holds no resource" in done.stderr
    assert "hint: a manifest begins with apiVersion and kind" in done.stderr


def test_the_same_comes_in_through_stdin(declared: State) -> None:
    with unchanged(declared):
        done = penstock("apply", "-f", "-", input=GOOD + MISTAKES["a list"][0])
    assert done.returncode == 2
    assert "<stdin>:10: a list, and not a resource" in done.stderr


def test_what_is_no_file_is_a_mistake(declared: State, tmp_path: Path) -> None:
    with unchanged(declared):
        for name in (tmp_path / "missing.yaml", tmp_path):
            done = penstock("apply", "-f", name)
            assert done.returncode == 2
            assert str(name) in done.stderr
            assert "hint: " in done.stderr
        (tmp_path / "bytes.yaml").write_bytes(b"kind: Dataset\n\xff\xfe")
        done = penstock("apply", "-f", tmp_path)
        assert done.returncode == 2
        assert f"{tmp_path / 'bytes.yaml'}:2: is not text" in done.stderr


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


def test_an_affinity_that_is_not_met_is_no_mistake_but_told(
    declared: State, tmp_path: Path
) -> None:
    file = tmp_path / "far.yaml"
    expression = "{key: kubernetes.io/hostname, operator: In, values: [far-away]}"
    file.write_text(
        DATASET + "    - mountPoint: local:///usr/share\n  nodeAffinity:\n    required:\n"
        f"      nodeSelectorTerms:\n        - matchExpressions: [{expression}]\n"
        "---\n" + RUNTIME
    )
    done = penstock("apply", "-f", file)
    assert done.returncode == 0, done.stderr
    assert phase("bad") == "NotBound"
    told = condition("bad")
    assert told is not None
    assert (told["status"], told["reason"]) == ("False", "NodeAffinityNotMet")
    assert "kubernetes.io/hostname" in told["message"]
    assert os.uname().nodename in told["message"] or "far-away" in told["message"]
    described = penstock("describe", "dataset", "bad").stdout
    assert "NodeAffinityNotMet" in described


def test_words_that_are_no_kind_name_or_option_are_mistakes(declared: State) -> None:
    for words, said in (
        (["get", "datsets"], "did you mean"),
        (["get", "dataset", "nobody"], "there is no dataset nobody"),
        (["describe", "dataset", "nobody"], "there is no dataset nobody"),
        (["delete", "dataset", "nobody"], "not there: dataset nobody"),
        (["delete", "dataset"], "which dataset?"),
        (["delete"], "say what to delete"),
        (["load", "nobody"], "there is no dataset nobody"),
        (["up", "nobody"], "there is no dataset nobody"),
        (["up", "--restart"], "restart of what?"),
        (["label", "no-equals"], "neither KEY=VALUE nor KEY-"),
        (["apply", "--filenam", "x"], "--filename"),
        (["get", "datasets", "-o", "jsno"], "json"),
    ):
        done = penstock(*words)
        assert done.returncode == 2, (words, done.stderr)
        assert said in done.stderr
        assert done.stdout == ""
    assert declared.all() == []
