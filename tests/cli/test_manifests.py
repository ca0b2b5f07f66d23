"""validate and explain: what they print, and how they end."""

import io
import json
import sys
from pathlib import Path

import pytest

from penstock.cli.app import run
from tests.support.refusals import one_refusal

DATASET = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata:
  name: imagenet
spec:
  mounts:
  - mountPoint: s3://bucket/imagenet
    options:
      aws.secretKey: hunter2
"""
RUNTIME = """
apiVersion: data.fluid.io/v1alpha1
kind: JindoRuntime
metadata:
  name: imagenet
  namespace: team
spec:
  replicas: 4
  fuse: {image: jindo, imageTag: "4.0", jindo: 1}
"""
GOOD_RUNTIME = RUNTIME.replace(", jindo: 1", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(DATASET)
    (tmp_path / "b.yml").write_text(GOOD_RUNTIME)
    (tmp_path / "notes.txt").write_text("not: [a manifest")
    return tmp_path


def test_what_is_good_is_said_with_what_has_no_effect(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", "-f", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "dataset/imagenet: ok",
        "jindoruntime/imagenet in team: ok",
        "  no effect: spec.replicas (replicas: one machine is one worker)",
        "  no effect: spec.fuse.image, spec.fuse.imageTag "
        "(images: the engine is Penstock itself, no container is run)",
    ]


def test_what_is_wrong_is_said_beside_what_is_good(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.yml").write_text(RUNTIME.replace("JindoRuntime", "JindoRuntim"))
    (folder / "c.json").write_bytes(b'{"kind": "\xff"}')
    assert run(["validate", "-f", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == "dataset/imagenet: ok\n"
    assert said.err.splitlines() == [
        "penstock: 2 mistakes",
        f"{folder}/b.yml:3: 'JindoRuntim' is not a kind",
        "  hint: did you mean JindoRuntime?",
        f"{folder}/c.json:1: is not text",
        "  hint: a manifest is YAML, in UTF-8",
    ]


def test_manifests_are_read_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RUNTIME.encode())))
    assert run(["validate", "-f", "-"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == "penstock: <stdin>:9: spec.fuse.jindo: unknown field"


def test_the_same_as_json_without_any_secret(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", "-f", str(folder / "a.yaml"), "-f", str(folder / "b.yml"),
                "-o", "json"]) == 0  # fmt: skip
    text = capsys.readouterr().out
    assert "hunter2" not in text
    resources = json.loads(text)["resources"]
    assert [one["kind"] for one in resources] == ["Dataset", "JindoRuntime"]
    assert resources[1]["without_effect"][0]["where"] == f"{folder / 'b.yml'}:8"


@pytest.mark.parametrize(("name", "says"), [("none", "No such file"), ("", "holds no manifest")])
def test_what_cannot_be_read_is_refused(name: str, says: str, tmp_path: Path) -> None:
    one_refusal(["validate", "-f", str(tmp_path / name)], says=says)


def test_a_field_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "dataset.spec.placement"]) == 0
    said = capsys.readouterr().out
    assert "FIELD:  spec.placement" in said
    assert "TYPE:   one of Exclusive, Shared" in said
    assert "EFFECT: Exclusive has no effect" in said
    assert run(["explain", "dataset", "--recursive"]) == 0
    assert "          secretKeyRef  <map, required>\n" in capsys.readouterr().out
    assert run(["explain"]) == 0
    assert capsys.readouterr().out.startswith("Dataset             Where data lies")


def test_what_is_no_field_is_refused() -> None:
    said = one_refusal(["explain", "dataset.spec.mount"], says="dataset.spec has no field 'mount'")
    assert "did you mean mounts?" in said
