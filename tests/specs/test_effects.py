"""What has no effect on one machine is said, with the reason; what has one is not."""

import pytest

from penstock.errors import ManifestError
from penstock.specs.effects import without_effect
from penstock.specs.explain import explain, explain_all
from penstock.specs.models import MODELS
from tests.support.manifests import dataset, manifest, read_one

ALLUXIO = """
replicas: 4
alluxioVersion: {image: alluxio, imageTag: "2.3"}
tieredstore: {levels: [{mediumtype: MEM, path: /dev/shm, quota: 150Gi, storageType: Memory}]}
properties: {alluxio.user.block.size.bytes.default: 16MB}
master: {replicas: 1, jvmOptions: ["-Xmx6G"]}
fuse: {imageTag: x, args: [fuse, --fuse-opts=kernel_cache], jvmOptions: ["-Xmx6G"]}
"""
USUAL_VALUES = """
replicas: 1
alluxioVersion: {}
master: {}
volumes: []
fuse: {resources: {}, image: ""}
disablePrometheus: false
"""
KEYS = "master: {volumeMounts: [{name: keys, mountPath: /keys}]}\nvolumes: [{name: keys, %s}]"


@pytest.mark.parametrize(
    ("spec", "paths"),
    [(ALLUXIO, ["spec.tieredstore.levels.0.storageType", "spec.replicas", "spec.alluxioVersion",
                "spec.fuse.imageTag", "spec.fuse.jvmOptions", "spec.master"]),
     (USUAL_VALUES, []),
     (KEYS % "secret: {secretName: x}", []),
     (KEYS % "emptyDir: {}", ["spec.volumes"])],
)  # fmt: skip
def test_fields_without_effect_are_found(spec: str, paths: list[str]) -> None:
    resource = read_one(manifest("AlluxioRuntime", spec)).resource
    assert [one.path for one in without_effect(resource)] == paths


@pytest.mark.parametrize(
    ("line", "paths"),
    [("accessModes: [ReadOnlyMany]", []),
     ("accessModes: [ReadWriteMany]", ["spec.accessModes"]),
     ("placement: Shared", []),
     ("placement: Exclusive", ["spec.placement"]),
     ("tolerations: [{operator: Exists}]", ["spec.tolerations"])],
)  # fmt: skip
def test_some_values_have_an_effect_and_others_none(line: str, paths: list[str]) -> None:
    resource = read_one(dataset("mountPoint: s3://b") + f"  {line}\n").resource
    assert [one.path for one in without_effect(resource)] == paths


def test_every_kind_and_every_field_can_be_explained() -> None:
    kinds = {kind.kind: kind for kind in explain_all()}
    assert set(kinds) == set(MODELS)
    for name, kind in kinds.items():
        assert kind.description
        assert kind.fields
        for field in kind.fields:
            found = explain(f"{name}.{field.path}")
            assert found.description == field.description
            assert found.description.endswith("."), field.path
            assert found.type, field.path


def test_a_field_is_explained_with_its_type_and_whether_it_is_required() -> None:
    found = explain("dataset.spec.mounts[].shared")
    assert (found.kind, found.path) == ("Dataset", "spec.mounts.shared")
    assert found.type == "true or false"
    assert explain("jindo.spec.tieredstore.levels.0.quota").type == "quantity"
    assert explain("Dataset.SPEC.mountS.mountPoint").required


@pytest.mark.parametrize(
    ("path", "effect"),
    [("dataset.spec.mounts", ""),
     ("dataset.spec.mounts.shared", "no effect (sharing"),
     ("alluxioruntime.spec.master.properties", "no effect (master"),
     ("jindoruntime.spec.replicas", "more than one has no effect (replicas: one machine is one")],
)  # fmt: skip
def test_a_field_is_explained_with_its_effect(path: str, effect: str) -> None:
    found = explain(path).effect
    assert found is None if not effect else (found or "").startswith(effect)


@pytest.mark.parametrize(
    ("path", "hint"),
    [("dataset.spec.mount", "did you mean mounts?"), ("dataste", "did you mean dataset?"),
     ("dataset.spec.zebra", "its fields: mounts,")],
)  # fmt: skip
def test_what_is_no_field_cannot_be_explained(path: str, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        explain(path)
    assert (caught.value.hint or "").startswith(hint)
