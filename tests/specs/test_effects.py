"""What has no effect on one machine is said, with the reason; what has one is not."""

import pytest

from penstock.errors import ManifestError
from penstock.specs.effects import without_effect
from penstock.specs.explain import explain, explain_all
from tests.specs.manifests import dataset, manifest, read_one


def paths(text: str) -> list[str]:
    return [one.path for one in without_effect(read_one(text).resource)]


def test_what_is_said_in_vain_is_found() -> None:
    text = manifest(
        "AlluxioRuntime",
        """
        replicas: 4
        alluxioVersion: {image: alluxio, imageTag: "2.3"}
        tieredstore:
          levels:
          - mediumtype: MEM
            path: /dev/shm
            quota: 150Gi
            storageType: Memory
        properties: {alluxio.user.block.size.bytes.default: 16MB}
        master: {replicas: 1, jvmOptions: ["-Xmx6G"]}
        fuse:
          imageTag: x
          args: [fuse, --fuse-opts=kernel_cache]
          jvmOptions: ["-Xmx6G"]
        """,
    )
    assert paths(text) == [
        "spec.tieredstore.levels.0.storageType",
        "spec.replicas",
        "spec.alluxioVersion",
        "spec.fuse.imageTag",
        "spec.fuse.jvmOptions",
        "spec.master",
    ]


def test_the_usual_value_is_not_said_in_vain() -> None:
    text = manifest(
        "AlluxioRuntime",
        """
        replicas: 1
        alluxioVersion: {}
        master: {}
        volumes: []
        fuse: {resources: {}, image: ""}
        disablePrometheus: false
        """,
    )
    assert paths(text) == []


def test_a_volume_that_is_a_secret_is_not_mounted_in_vain() -> None:
    spec = """
    master: {volumeMounts: [{name: keys, mountPath: /keys}]}
    volumes: [{name: keys, secret: {secretName: x}}]
    """
    assert paths(manifest("AlluxioRuntime", spec)) == []
    other = spec.replace("secret: {secretName: x}", "emptyDir: {}")
    assert paths(manifest("AlluxioRuntime", other)) == ["spec.volumes"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("accessModes: [ReadOnlyMany]", []),
        ("accessModes: [ReadWriteMany]", ["spec.accessModes"]),
        ("placement: Shared", []),
        ("placement: Exclusive", ["spec.placement"]),
        ("tolerations: [{operator: Exists}]", ["spec.tolerations"]),
        ("owner: {uid: 1000, gid: 1000}", []),
    ],
)
def test_some_values_have_an_effect_and_others_none(line: str, said: list[str]) -> None:
    assert paths(dataset("mountPoint: s3://b") + f"  {line}\n") == said


def test_every_kind_and_every_field_can_be_explained() -> None:
    for kind in explain_all():
        assert kind.description
        assert kind.fields
        for field in kind.fields:
            assert explain(f"{kind.kind}.{field.path}").description == field.description


def test_a_field_is_explained_with_its_type_and_effect() -> None:
    found = explain("dataset.spec.mounts[].shared")
    assert (found.kind, found.path, found.type) == (
        "Dataset",
        "spec.mounts.shared",
        "true or false",
    )
    assert found.effect is not None
    assert found.effect.startswith("no effect (sharing")
    assert explain("jindo.spec.tieredstore.levels.0.quota").type == "quantity"
    assert explain("Dataset.SPEC.mountS.mountPoint").required
    assert explain("dataset.spec.mounts").effect is None


def test_what_lies_below_something_without_effect_has_none_either() -> None:
    effect = explain("alluxioruntime.spec.master.properties").effect
    assert effect is not None
    assert effect.startswith("no effect (master")


def test_an_effect_of_some_values_is_explained_as_such() -> None:
    effect = explain("jindoruntime.spec.replicas").effect
    assert effect == "more than one has no effect (replicas: one machine is one worker)"


@pytest.mark.parametrize(
    ("path", "hint"),
    [("dataset.spec.mount", "did you mean mounts?"), ("dataste", "did you mean dataset?"),
     ("dataset.spec.zebra", "its fields: mounts,"), ("dataset.kind.x", None)],
)  # fmt: skip
def test_what_is_no_field_cannot_be_explained(path: str, hint: str | None) -> None:
    with pytest.raises(ManifestError) as caught:
        explain(path)
    assert (caught.value.hint or "").startswith(hint or "")
