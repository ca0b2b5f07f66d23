"""The words for kinds, the schemes of mount points, and what a field is said to mean."""

import subprocess
import sys

import pytest

from penstock.errors import ManifestError
from penstock.specs.effects import without_effect
from penstock.specs.explain import explain, explain_all
from penstock.specs.kinds import KINDS, find_kind, find_kinds
from penstock.specs.models import MODELS
from penstock.specs.schemes import wrong_with
from tests.support.manifests import dataset, manifest, read_one


def test_a_kind_has_many_spellings_and_a_word_may_stand_for_several_kinds() -> None:
    for word in ("DATASETS", "ds", "datasets.data.fluid.io"):
        assert find_kind(word).kind == "Dataset"
    assert {info.category for info in find_kinds("runtimes")} == {"runtime"}
    assert [info.kind for info in find_kinds("ds,dataload,datasets")] == ["Dataset", "DataLoad"]
    assert "Secret" not in {info.kind for info in find_kinds("all")}
    with pytest.raises(ManifestError, match="several kinds"):
        find_kind("runtimes")
    with pytest.raises(ManifestError) as caught:
        find_kind("pods")
    assert (caught.value.hint or "").startswith("kinds: datasets,")


def test_every_kind_has_a_model_that_its_words_do_not_import() -> None:
    """`penstock get` asks for a kind long before it needs pydantic, which takes 0.1 s."""
    assert set(KINDS) == set(MODELS)
    code = "import sys, penstock.specs.kinds; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("address", "what", "hint"),
    [("hdfs://namenode:9000/x", "scheme 'hdfs' is not read here", "local:///FOLDER"),
     ("oos://bucket", "scheme 'oos' is not read here", "did you mean oss://?"),
     ("S3://bucket", "scheme 'S3' is not read here", "did you mean s3://?"),
     ("zzz://bucket", "scheme 'zzz' is not read here", "schemes: s3,"),
     ("/data", "is a folder without a scheme", "local:///data"),
     ("10.0.0.1:/export", "looks like an NFS export", "local:///FOLDER"),
     ("bucket", "has no scheme", "s3://BUCKET/PREFIX"),
     ("local://data", "is not an absolute path", "local:///data"),
     ("s3://", "names no bucket", "s3://BUCKET/PREFIX"),
     ("oss://<OSS_BUCKET>/x", "still holds a <PLACEHOLDER>", "your own bucket"),
     ("s3://AKIA:hunter2@bucket", "holds a user or a key", "encryptOptions"),
     ("https://host/folder?sig=hunter2", "has a query", "into a Secret")],
)  # fmt: skip
def test_a_wrong_mount_point_is_refused_with_what_to_do(address: str, what: str, hint: str) -> None:
    wrong = wrong_with(address)
    assert wrong is not None
    assert what in wrong[0]
    assert hint in wrong[1]
    assert "hunter2" not in "".join(wrong)


ALLUXIO = """
replicas: 4
alluxioVersion: {image: alluxio, imageTag: "2.3"}
tieredstore: {levels: [{mediumtype: MEM, path: /dev/shm, quota: 150Gi, storageType: Memory}]}
master: {replicas: 1, jvmOptions: ["-Xmx6G"]}
fuse: {imageTag: x, args: [fuse, --fuse-opts=kernel_cache]}
"""
USUAL_VALUES = "{replicas: 1, master: {}, volumes: [], fuse: {image: ''}, disablePrometheus: false}"
KEYS = "master: {volumeMounts: [{name: keys, mountPath: /keys}]}\nvolumes: [{name: keys, %s}]"
ON_B = dataset("mountPoint: s3://b")


@pytest.mark.parametrize(
    ("text", "paths"),
    [(manifest("AlluxioRuntime", ALLUXIO),
      ["spec.tieredstore.levels.0.storageType", "spec.replicas", "spec.alluxioVersion",
       "spec.fuse.imageTag", "spec.master"]),
     (manifest("AlluxioRuntime", USUAL_VALUES), []),
     (manifest("AlluxioRuntime", KEYS % "secret: {secretName: x}"), []),
     (manifest("AlluxioRuntime", KEYS % "emptyDir: {}"), ["spec.volumes"]),
     (f"{ON_B}  accessModes: [ReadOnlyMany]\n", []),
     (f"{ON_B}  accessModes: [ReadWriteMany]\n", ["spec.accessModes"]),
     (f"{ON_B}  placement: Exclusive\n", ["spec.placement"])],
)  # fmt: skip
def test_fields_without_effect_are_found(text: str, paths: list[str]) -> None:
    assert [one.path for one in without_effect(read_one(text).resource)] == paths


def test_every_kind_and_every_field_is_explained_with_type_and_effect() -> None:
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
    assert explain("Dataset.SPEC.mounts[].mountPoint").required
    assert explain("dataset.spec.mounts").effect is None
    assert explain("jindo.spec.tieredstore.levels.0.quota").type == "quantity"
    effects = {
        "alluxioruntime.spec.master.properties": "no effect (master",
        "jindoruntime.spec.replicas": "more than one has no effect (replicas: one machine is one",
    }
    for path, effect in effects.items():
        assert (explain(path).effect or "").startswith(effect)
    with pytest.raises(ManifestError) as caught:
        explain("dataset.spec.zebra")
    assert (caught.value.hint or "").startswith("its fields: mounts,")
