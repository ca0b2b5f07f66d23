"""The words for kinds, which fields each has, what they mean, and which values they take."""

from pathlib import Path
from typing import Any

import pytest

from penstock.api import manifests as api
from penstock.errors import ManifestError
from penstock.specs.dataset import wrong_with
from penstock.specs.explain import explain, explain_all
from penstock.specs.fields import NotAQuantity, parse_quantity
from penstock.specs.kinds import KINDS, find_kind, find_kinds
from penstock.specs.models import MODELS
from penstock.specs.schema import fields_without_effect, find
from tests.support.jobs import job
from tests.support.manifests import dataset, level, manifest, problem, problems, read_one

# From the custom resource definitions of Fluid 1.1, down to where Kubernetes' own objects (volumes,
# probes, a pod's spec) begin. Each line: kind, path, and the fields at that path.
LINES = (Path(__file__).parent / "fluid-fields.txt").read_text().splitlines()


def test_every_field_of_fluid_is_known() -> None:
    assert len(LINES) > 100
    for kind, above, *names in map(str.split, LINES):
        assert [name for name in names if not _known(kind, f"{above}.{name}")] == [], (kind, above)


def _known(kind: str, path: str) -> bool:
    """At its place, or inside something that is taken as it is."""
    if find(MODELS[kind], path) is not None:
        return True
    above = find(MODELS[kind], path.rpartition(".")[0])
    return above is not None and above.model is None and (above.is_list or above.is_map)


@pytest.mark.parametrize(
    ("kind", "spec", "where", "hint"),
    [("JuiceFSRuntime", "fuse:\n  image_tag: v1", "fuse.image_tag", "did you mean imageTag?"),
     ("JuiceFSRuntime", "tieredstore:\n  fuse: []", "tieredstore.fuse", "belongs to: spec.fuse"),
     ("JuiceFSRuntime", "fuse:\n  jvmOptions: []", "fuse.jvmOptions", "a field of AlluxioRuntime"),
     ("JuiceFSRuntime", "fuse:\n  zebra: 1", "fuse.zebra", "fields of spec.fuse: "),
     # It is not said to be missing as well.
     ("Dataset", "mounts:\n- mountpoint: s3://bucket", "mounts.0.mountpoint", "mean mountPoint?")],
)  # fmt: skip
def test_an_unknown_field_gets_the_nearest_name_as_a_hint(
    kind: str, spec: str, where: str, hint: str
) -> None:
    what, found = problem(manifest(kind, spec))
    assert what == f"f.yaml:7: spec.{where}: unknown field"
    assert hint in found


ADDED_BY_A_SERVER = """status: {phase: Bound, ufsTotal: 5}
metadata: {uid: x, resourceVersion: '5', creationTimestamp: null, finalizers: [a], generation: 2,
  managedFields: [{manager: kubectl}], ownerReferences: [], name: imagenet}
"""


@pytest.mark.parametrize(
    "text",
    [
        manifest(
            "AlluxioRuntime",
            "volumes: [{name: x, whatever: {deep: 1}}]\n"
            "fuse: {resources: {limits: {nvidia.com/gpu: 1}}, podMetadata: {labels: {a: b}}}",
        ),
        manifest(
            "AlluxioRuntime",
            "dataReplicas: 3\nfuse: {shortCircuitPolicy: x, global: true}\n"
            "tieredstore: {levels: [{mediumtype: MEM, storageType: Memory}]}",
        ),
        manifest("Dataset", "mounts: [{mountPoint: s3://b}]").replace(
            "metadata:\n  name: imagenet\n", ADDED_BY_A_SERVER
        ),
    ],
)
def test_a_manifest_is_valid(text: str) -> None:
    assert problems(text) == ()


LEVEL = "mediumtype: SSD\n"
ON_X = "dataset: {name: x}\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [(level(LEVEL + "path: a"), "spec.tieredstore.levels.0.path: 'a' is not an absolute path"),
     (level(LEVEL + "path: /a,/b\nquotaList: 1Gi"), "quotaList: 1 quotas for 2 paths"),
     (level(LEVEL + "quotaList: 1Gi,x"), "quotaList: 'x' is not a quantity"),
     (level(LEVEL + "high: 0.5\nlow: 0.9"), "low: low (0.9) is above high (0.5)"),
     (level(LEVEL + "high: 95"), "high: '95' is not a share of the quota"),
     (level(LEVEL + "quota: 500m"), "quota: '500m' is a fraction of a byte"),
     (manifest("Dataset", "mounts: []"), "spec.mounts: is empty"),
     (manifest("DataLoad", ON_X + "policy: Cron"), "spec.schedule: is missing"),
     (manifest("DataLoad", ON_X + "schedule: 0 2 * * *"), "needs policy Cron"),
     (manifest("DataLoad", ON_X + "policy: Cron\nschedule: daily"), "not a schedule"),
     (manifest("DataLoad", ON_X + "target: [{path: /../x}]"), "is outside the data set"),
     (manifest("DataMigrate", "from: {}\nto: {dataset: {name: x}}"), "spec.from: is empty"),
     (manifest("DataProcess", "dataset: {name: x, mountPath: /d}\nprocessor: {}"),
      "spec.processor: is empty"),
     (manifest("DataProcess", "dataset: {name: x, mountPath: d}\nprocessor: {script: {source: x}}"),
      "spec.dataset.mountPath: 'd' is not an absolute path"),
     (manifest("DataBackup", "dataset: x\nbackupPath: pvc://x/y"), "'pvc' is not supported")],
)  # fmt: skip
def test_an_impossible_level_or_operation_is_rejected(text: str, what: str) -> None:
    assert what in problem(text)[0]


def mpi(name: str = "net", command: str = "./train.sh", **spec: Any) -> dict[str, Any]:
    return job(name, command, **{"trainer": "mpi", **spec})


def data(*paths: str) -> dict[str, Any]:
    return {"data": [{"dataset": f"set{i}", "mountPath": path} for i, path in enumerate(paths)]}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(mpi(**data("/")), "spec.data.0.mountPath: / would hide all files of the job"),
     (mpi(**data("data")), "'data' is not an absolute path"),
     (mpi(**data("/a/../b")), "has .. in it"),
     (mpi(**data("/proc/x")), "is a folder of the system"),
     (mpi(**data("/etc")), "'/etc' is a folder of the system"),
     (mpi(**data("/usr//lib/./python3")), "is a folder of the system"),
     (mpi(**data("/lib64")), "is a folder of the system"),
     (mpi(**data("/home")), "'/home' is a folder of the system"),
     (mpi(data=[{"dataset": "../evil", "mountPath": "/d"}]), "'../evil' is not a name"),
     (mpi(data=[{"dataset": "evil", "namespace": "..", "mountPath": "/d"}]),
      "spec.data.0.namespace: '..' is not a namespace"),
     (mpi(**data("/data", "/data/")), "spec.data.1: is mounted at /data, like spec.data.0"),
     (mpi(**data("/data", "/data/sub")), "/data/sub is inside /data"),
     (mpi(command=" "), "spec.command: is empty"),
     (mpi(cpu="two"), "spec.cpu: 'two' is not a number of cores"),
     (mpi(trainer="tf", launch="ranks"), "spec.launch: has no effect for tf"),
     (mpi(ps=1), "spec.ps: mpi has no parameter servers"),
     (mpi(workers=100_000), "too many for one machine"),
     (mpi(image="torch:2", plan=True), "spec.plan: needs Penstock inside the job"),
     (mpi(workingDir="x"), "'x' is not an absolute path"),
     (mpi(env=[{"name": "A B", "value": "c"}]), "'A B' is not the name of a variable"),
     (mpi(env=[{"name": "PENSTOCK_JOB", "value": "c"}]), "Penstock sets PENSTOCK_JOB for each job"),
     (mpi(name="n" * 64), "metadata.name: has 64 characters")],
)  # fmt: skip
def test_an_impossible_job_is_rejected(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ManifestError) as caught:
        api.validate(wrong)
    assert what in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("path", ["/data", "/home/me/data", "/tmp/data", "/var/data", "/mnt"])
def test_a_job_may_see_its_data_at_another_path(path: str) -> None:
    api.validate(mpi(**data(path)))


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("150Gi", 150 * 2**30), ("180G", 180 * 10**9), ("1.5Ti", 3 * 2**39), ("1E", 10**18),
     ("1.5E3", 1500), ("0", 0), (".5Ki", 512), ("1.", 1), ("+1k", 1000),
     ("0.0001", 1),  # rounded up: a little is not nothing
     ("1000000000.0", 10**9),  # 1e9 without quotes, as YAML hands it over
     (" 5Mi ", 5 * 2**20)],
)  # fmt: skip
def test_a_quantity_is_a_number_of_bytes(text: str, size_bytes: int) -> None:
    assert parse_quantity(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("100GB", "did you mean 100Gi (powers of 1024) or 100G (of 1000)?"),
        ("100GiB", "did you mean 100Gi?"),
        ("64K", "did you mean 64Ki (powers of 1024) or 64k (of 1000)?"),
        ("500m", "500M is 10**6 bytes each, 500Mi 2**20"),
        *((text, "write it like 150Gi") for text in ("lots", "", "-5Gi", "20Ei", "1e999", "١٢")),
    ],
)
def test_an_invalid_quantity_is_rejected_with_the_right_form(text: str, hint: str) -> None:
    with pytest.raises(NotAQuantity) as caught:
        parse_quantity(text)
    assert caught.value.hint.startswith(hint)


def test_a_kind_has_many_spellings_and_a_word_may_name_several_kinds() -> None:
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


@pytest.mark.parametrize(
    ("address", "what", "hint"),
    [("hdfs://namenode:9000/x", "scheme 'hdfs' is not supported", "local:///FOLDER"),
     ("oos://bucket", "scheme 'oos' is not supported", "did you mean oss://?"),
     ("S3://bucket", "scheme 'S3' is not supported", "did you mean s3://?"),
     ("zzz://bucket", "scheme 'zzz' is not supported", "schemes: s3,"),
     ("/data", "is a folder without a scheme", "local:///data"),
     ("10.0.0.1:/export", "looks like an NFS export", "local:///FOLDER"),
     ("bucket", "has no scheme", "s3://BUCKET/PREFIX"),
     ("local://data", "is not an absolute path", "local:///data"),
     ("s3://", "names no bucket", "s3://BUCKET/PREFIX"),
     ("oss://<OSS_BUCKET>/x", "still holds a <PLACEHOLDER>", "name of your bucket"),
     ("s3://AKIA:hunter2@bucket", "holds a user or a key", "encryptOptions"),
     ("https://host/folder?sig=hunter2", "has a query", "into a Secret")],
)  # fmt: skip
def test_a_wrong_mount_point_is_rejected_with_a_hint(address: str, what: str, hint: str) -> None:
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
    assert [one.path for one in fields_without_effect(read_one(text).resource)] == paths


def test_every_kind_and_every_field_is_explained_with_type_and_effect() -> None:
    kinds = explain_all()
    assert {kind.kind for kind in kinds} == set(KINDS) == set(MODELS)
    for kind in kinds:
        assert kind.description
        assert kind.fields
        for field in kind.fields:
            found = explain(f"{kind.kind}.{field.path}")
            assert found.description == field.description
            assert found.description.endswith("."), field.path
            assert found.type, field.path
    assert explain("Dataset.SPEC.mounts[].mountPoint").required
    assert explain("dataset.spec.mounts").effect is None
    assert explain("jindo.spec.tieredstore.levels.0.quota").type == "quantity"
    reported = explain("jindoruntime.spec.replicas").effect or ""
    assert reported.startswith("more than one has no effect (replicas: one machine is one")
    with pytest.raises(ManifestError) as caught:
        explain("dataset.spec.zebra")
    assert (caught.value.hint or "").startswith("its fields: mounts,")
