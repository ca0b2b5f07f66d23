"""Manifests with mistakes, given as people give them: the file, the line, what is wrong and what to
do; and nothing of what stands beside the mistake is taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.reconcile.loop_control import is_running
from penstock.reconcile.state import State
from tests.support.mounts import fail

# Stands before each mistake, and is as good as can be. Its last line is the seventh.
GOOD = """\
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: good}
spec:
  mounts:
    - {mountPoint: local:///usr/share, name: data}
---
"""
DATASET = GOOD.replace("good", "bad").partition("    -")[0]
RUNTIME = """\
apiVersion: penstock.dev/v1alpha1
kind: PenstockRuntime
metadata: {name: good}
spec:
  options:
    polcy: lru
"""
S3_MOUNT = """\
    - mountPoint: s3://bucket
      name: data
      encryptOptions:
        - name: aws.accessKeyId
          valueFrom: {secretKeyRef: {name: keys, key: id}}
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {other: value-of-other}
---
"""


@contextmanager
def unchanged(state: State) -> Iterator[None]:
    before = state.all(), state.changes()
    yield
    assert (state.all(), state.changes()) == before
    assert not is_running(state.folder), "nothing was wanted, and a loop was started"


# What a manifest alone shows is in tests/specs/test_documents.py; these take others to see.
@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (RUNTIME, 13, "polcy", "did you mean policy?"),
        (
            DATASET + S3_MOUNT,
            16,
            "there is no Secret keys",
            "apply a Secret keys with the key id",
        ),
        (SECRET + DATASET + S3_MOUNT, 21, "has no key 'id'", "other"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_nothing_is_applied(
    declared: State, tmp_path: Path, text: str, line: int, message: str, hint: str
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(GOOD + text)
    with unchanged(declared):
        output = fail("apply", "-f", file)
        assert f"{file}:{line}: " in output
        assert message in output
        assert hint in output.partition("hint: ")[2].splitlines()[0]
        assert "value-of-other" not in output


def test_mistakes_in_several_files_are_reported_together_and_nothing_is_applied(
    declared: State, tmp_path: Path
) -> None:
    wrong = ("- a\n- b\n", "apiVersion: v1\nkind: Datsaet\n", GOOD.replace("name: data", "nmae: x"))
    (tmp_path / "1.yaml").write_text(GOOD)
    for number, text in enumerate(wrong, 2):
        (tmp_path / f"{number}.yaml").write_text(text)
    with unchanged(declared):
        output = fail("apply", "-f", tmp_path)
    assert "3 mistakes" in output
    assert all(f"{tmp_path}/{number}.yaml:" in output for number in (2, 3, 4))
    assert output.count("hint: ") == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [("get datsets", "did you mean"),
     ("get dataset nobody", "there is no dataset nobody"),
     ("delete dataset nobody", "not found: dataset nobody"),
     ("delete dataset", "which dataset?"),
     ("delete", "give either -f FILE or KIND NAME"),
     ("up --restart", "no data set to restart is named"),
     ("label no-equals", "neither KEY=VALUE nor KEY-")],
)  # fmt: skip
def test_unknown_kinds_names_and_options_are_rejected(line: str, message: str) -> None:
    assert message in fail(*line.split())
