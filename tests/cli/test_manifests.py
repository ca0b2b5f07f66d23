"""validate and explain: what they print, and how they end."""

import io
import json
import sys
from pathlib import Path

import pytest

from tests.support.mounts import penstock, succeed
from tests.support.refusals import one_refusal

DATASET = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: imagenet}
spec: {mounts: [{mountPoint: 's3://bucket/imagenet', options: {aws.secretKey: hunter2}}]}
"""
RUNTIME = """
apiVersion: data.fluid.io/v1alpha1
kind: JindoRuntime
metadata: {name: imagenet, namespace: team}
spec:
  replicas: 4
  fuse: {image: jindo, imageTag: "4.0"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(DATASET)
    (tmp_path / "b.yml").write_text(RUNTIME)
    (tmp_path / "notes.txt").write_text("not: [a manifest")
    return tmp_path


def test_valid_manifests_are_listed_with_ignored_fields_and_without_secrets(folder: Path) -> None:
    assert succeed("validate", "-f", folder).splitlines() == [
        "dataset/imagenet: ok",
        "jindoruntime/imagenet in team: ok",
        "  no effect: spec.replicas (replicas: one machine is one worker)",
        "  no effect: spec.fuse.image, spec.fuse.imageTag "
        "(images: Penstock itself is the engine, and runs no container)",
    ]
    files = ("-f", folder / "a.yaml", "-f", folder / "b.yml")
    text = succeed("validate", *files, "-o", "json")
    assert "hunter2" not in text
    resources = json.loads(text)["resources"]
    assert [one["kind"] for one in resources] == ["Dataset", "JindoRuntime"]
    assert resources[1]["without_effect"][0]["where"] == f"{folder / 'b.yml'}:6"


def test_errors_are_listed_beside_valid_manifests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "b.yml").write_text(RUNTIME.replace("JindoRuntime", "JindoRuntim"))
    (folder / "c.json").write_bytes(b'{"kind": "\xff"}')
    result = penstock("validate", "-f", folder)
    assert (result.returncode, result.stdout) == (2, "dataset/imagenet: ok\n")
    assert result.stderr.splitlines() == [
        "penstock: 2 mistakes",
        f"{folder}/b.yml:3: 'JindoRuntim' is not a kind",
        "  hint: did you mean JindoRuntime?",
        f"{folder}/c.json:1: is not text",
        "  hint: a manifest is YAML, in UTF-8",
    ]
    unknown = RUNTIME.replace("imageTag", "tag").encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(unknown)))
    one_refusal(["validate", "-f", "-"], says="<stdin>:7: spec.fuse.tag: unknown field")
    one_refusal(["validate", "-f", str(folder / "none")], says="No such file")


def test_explain_describes_a_field() -> None:
    output = penstock("explain", "dataset.spec.placement").stdout
    assert "TYPE:   one of Exclusive, Shared" in output
    assert "EFFECT: Exclusive has no effect" in output
    whole = penstock("explain", "dataset", "--recursive").stdout
    assert "          secretKeyRef  <map, required>\n" in whole
    assert penstock("explain").stdout.startswith("Dataset             The sources of data")
    refused = ["explain", "dataset.spec.mount"]
    assert "did you mean mounts?" in one_refusal(refused, says="dataset.spec has no field 'mount'")
