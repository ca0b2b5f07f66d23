"""DaemonSets, volumes and mount plans from Datasets and runtimes."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from penstock.errors import ManifestError, PenstockError
from penstock.kubernetes import mount_plan, names, volumes
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.server_set import (
    Image,
    Served,
    check_served,
    referenced_of,
    server_set,
)
from penstock.settings import MountSettings
from penstock.specs.dataset import Dataset
from penstock.specs.models import Runtime, model_of
from penstock.units import GIB, MIB
from tests.kubernetes.declared import dataset, levels, runtime, secret_option

Json = dict[str, Any]
KEY = ServedKey("default", "demo")


def checked(one: Json, other: Json, *references: Json) -> Served:
    return check_served(one, other, references)


def pod_of(served: Served) -> Json:
    return server_set(served, Image("penstock:1"))["spec"]["template"]["spec"]


def container_of(served: Served) -> Json:
    (found,) = pod_of(served)["containers"]
    return found


def volume_at(served: Served, path: str) -> Json:
    pod, container = pod_of(served), container_of(served)
    (name,) = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == path]
    return next(one for one in pod["volumes"] if one["name"] == name)


def test_a_server_pod_has_no_privilege() -> None:
    served = checked(dataset(), runtime())
    pod, container = pod_of(served), container_of(served)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not any("hostPath" in one for one in pod["volumes"])
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["runAsUser"] == names.SERVER_USER
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["nodeSelector"] == {"fluid.io/f-default-demo": "true"}


def test_folders_come_from_inline_volumes_of_the_own_driver() -> None:
    store = levels(
        {"mediumtype": "MEM", "path": "/dev/shm", "quota": "1Gi"},
        {"mediumtype": "SSD", "path": "/nvme0,/nvme1", "quota": "10Gi"},
        {"mediumtype": "HDD", "volumeType": "emptyDir", "quota": "2Gi"},
    )
    served = checked(dataset(), runtime(tieredstore=store))
    for path, role in ((names.LINK_DIR, "link"), (names.STATE_DIR, "state")):
        csi = volume_at(served, str(path))["csi"]
        assert csi["driver"] == names.DRIVER
        assert csi["volumeAttributes"] == {names.ROLE: role, names.DATASET: "demo"}
    roots = {
        path: volume_at(served, path)["csi"]["volumeAttributes"][names.CACHE_ROOT]
        for path in ("/cache/mem-0", "/cache/ssd-1", "/cache/ssd-2")
    }
    assert list(roots.values()) == ["/dev/shm", "/nvme0", "/nvme1"]
    assert volume_at(served, "/cache/hdd-3")["emptyDir"] == {"sizeLimit": str(2 * GIB)}


def test_an_empty_dir_in_memory_is_one_of_the_pod() -> None:
    store = levels({"mediumtype": "MEM", "volumeType": "emptyDir", "quota": "1Gi"})
    served = checked(dataset(), runtime(tieredstore=store))
    found = volume_at(served, "/cache/mem-0")["emptyDir"]
    assert found == {"medium": "Memory", "sizeLimit": str(GIB)}


@pytest.mark.parametrize(
    ("other", "root"),
    [
        (runtime(), "/var/lib/penstock/cache"),
        (runtime("PenstockRuntime", options={"tier": "SSD:/fast:10GiB"}), "/fast"),
        (runtime("JuiceFSRuntime", fuse={"options": {"cache-dir": "/jfs"}}), "/jfs"),
    ],
)
def test_every_cache_has_a_root_below_which_the_node_makes_its_folder(
    other: Json, root: str
) -> None:
    (found,) = mount_plan.cache_mounts(checked(dataset(), other).plan.settings)
    assert found.host_root == PurePosixPath(root)


def test_the_pod_reads_what_the_operator_planned() -> None:
    store = levels({"mediumtype": "SSD", "path": "/nvme", "quota": "10Gi"})
    mount = {
        "mountPoint": "s3://bucket/a",
        "path": "/",
        "options": {"alluxio.underfs.s3.endpoint": "http://s3:9000"},
        "encryptOptions": [
            secret_option("aws.accessKeyId", "keys", "id"),
            secret_option("aws.secretKey", "keys", "secret"),
        ],
    }
    served = checked(dataset(mount), runtime(tieredstore=store))
    assert served.secrets == ("keys",)
    (text,) = [
        one["value"] for one in container_of(served)["env"] if one["name"] == names.SERVED_VARIABLE
    ]
    value = json.loads(text.replace("$$", "$"))

    def secret(_namespace: str, name: str, key: str) -> str:
        return {"id": "the-id", "secret": "the-secret"}[key] if name == "keys" else ""

    one, other = model_of(value["dataset"]), model_of(value["runtime"])
    assert isinstance(one, Dataset)
    assert isinstance(other, Runtime)
    plan = mount_plan.plan_in_cluster(one, other, secret, referenced_of(value["references"]))
    settings = mount_plan.in_container(plan.settings)
    assert settings.tiers[0].paths == (Path("/cache/ssd-0"),)
    assert settings.mountpoint == Path("/runtime-mnt/alluxio/default/demo/alluxio-fuse")
    assert settings.allow_other
    (part,) = settings.parts
    assert part.store.keys is not None
    assert part.store.keys.secret_access_key == "the-secret"
    planned = mount_plan.cache_mounts(served.plan.settings)
    assert mount_plan.cache_mounts(plan.settings) == planned


@pytest.mark.parametrize(
    "name",
    ["alluxio.underfs.s3.endpoint", "alluxio.underfs.s3.region", "path-style", "verify-store"],
)
def test_any_option_of_a_store_may_be_in_a_secret(name: str) -> None:
    mount = {"mountPoint": "s3://b", "name": "b", "encryptOptions": [secret_option(name, "s", "k")]}
    assert checked(dataset(mount), runtime()).secrets == ("s",)


def test_a_juicefs_volume_may_be_all_in_a_secret() -> None:
    names_ = ("bucket", "storage", "access-key", "secret-key", "metaurl")
    options = [secret_option(name, "jfs", name) for name in names_]
    mount = {"mountPoint": "juicefs:///", "name": "j", "encryptOptions": options}
    assert checked(dataset(mount), runtime("JuiceFSRuntime")).secrets == ("jfs",)


def test_dollars_in_options_reach_the_server_unchanged() -> None:
    mount = {"mountPoint": "s3://b", "name": "b", "options": {"region": "$(HOME)"}}
    (text,) = [one["value"] for one in container_of(checked(dataset(mount), runtime()))["env"]]
    assert "$$(HOME)" in text


def test_claims_and_folders_of_the_node_are_mounted_read_only() -> None:
    mounts = (
        {"mountPoint": "pvc://source/train", "name": "a"},
        {"mountPoint": "local:///data/images", "name": "b"},
    )
    served = checked(dataset(*mounts), runtime())
    claim = volume_at(served, "/claims/source")["persistentVolumeClaim"]
    assert claim == {"claimName": "source", "readOnly": True}
    assert volume_at(served, "/host/data/images")["hostPath"]["path"] == "/data/images"
    mounts_ = container_of(served)["volumeMounts"]
    outside = [one for one in mounts_ if one["mountPath"].startswith(("/claims", "/host"))]
    assert [one["readOnly"] for one in outside] == [True, True]
    prefixes = [part.source.prefix for part in served.plan.settings.parts]
    assert prefixes == ["/claims/source/train", "/host/data/images"]


def test_the_fuse_of_a_runtime_shapes_the_pod() -> None:
    fuse = {
        "nodeSelector": {"disk": "nvme"},
        "env": {"A": "1"},
        "resources": {"limits": {"memory": "2Gi", "cpu": "4"}},
        "podMetadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
        "imagePullSecrets": [{"name": "pull"}],
    }
    served = checked(dataset(), runtime(fuse=fuse, podMetadata={"labels": {"all": "pods"}}))
    template = server_set(served, Image("penstock:1"))["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"team": "vision", "all": "pods"}.items()
    assert template["metadata"]["annotations"] == {"note": "x"}
    assert template["spec"]["nodeSelector"]["disk"] == "nvme"
    assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert container_of(served)["resources"]["limits"] == {"memory": "2Gi", "cpu": "4"}
    assert {"name": "A", "value": "1"} in container_of(served)["env"]
    assert served.plan.settings.memory_bytes == 2 * GIB - 64 * MIB


def test_memory_of_a_tier_counts_beside_the_limit() -> None:
    store = levels({"mediumtype": "MEM", "path": "/dev/shm", "quota": "4Gi"})
    fuse = {"resources": {"limits": {"memory": "1Gi"}}}
    served = checked(dataset(), runtime(fuse=fuse, tieredstore=store))
    assert container_of(served)["resources"]["limits"]["memory"] == str(5 * GIB)


def test_the_selector_stays_when_the_type_of_the_runtime_changes() -> None:
    selectors = [
        server_set(checked(dataset(), runtime(kind)), Image("p"))["spec"]["selector"]
        for kind in ("AlluxioRuntime", "JuiceFSRuntime", "PenstockRuntime")
    ]
    assert selectors[0] == selectors[1] == selectors[2]


def test_a_secret_of_another_namespace_is_refused() -> None:
    mount = {"mountPoint": "s3://b", "encryptOptions": [secret_option("aws.accessKeyId", "s", "k")]}
    other = dataset(mount, name="other", namespace="team")
    mounts = ({"mountPoint": "dataset://team/other"}, {"mountPoint": "s3://b", "name": "b"})
    with pytest.raises(PenstockError, match="Secret s is in namespace team") as caught:
        checked(dataset(*mounts), runtime(), other)
    assert "dataset://" in (caught.value.hint or "")


def test_all_mistakes_of_a_manifest_are_told_at_once() -> None:
    mounts = ({"mountPoint": "s3:/x"}, {"mountPoint": "hdfs://host/x"})
    with pytest.raises(ManifestError) as caught:
        checked(dataset(*mounts), runtime())
    assert len(caught.value.problems) == 2


# -- volumes ---------------------------------------------------------------------------------------


def test_a_volume_and_its_claim_have_the_shapes_of_fluid() -> None:
    target = volumes.Target("alluxio", KEY)
    volume = volumes.persistent_volume(dataset(), target, runtime())
    claim = volumes.volume_claim(dataset(), runtime())
    labels = {"fluid.io/s-default-demo": "true", "fluid.io/dataset-id": "default-demo"}
    assert volume["metadata"] == {
        "name": "default-demo",
        "labels": labels,
        "annotations": {"CreatedBy": "fluid"},
    }
    assert volume["spec"] == {
        "accessModes": ["ReadOnlyMany"],
        "capacity": {"storage": "100Pi"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": "default",
            "name": "demo",
        },
        "csi": {
            "driver": "fuse.csi.fluid.io",
            "volumeHandle": "default-demo",
            "volumeAttributes": {
                "fluid_path": "/runtime-mnt/alluxio/default/demo/alluxio-fuse",
                "mount_type": "alluxio",
                "runtime_namespace": "default",
                "runtime_name": "demo",
            },
        },
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "fluid",
        "volumeMode": "Filesystem",
    }
    assert claim["spec"]["volumeName"] == "default-demo"
    assert claim["spec"]["selector"] == {"matchLabels": {"fluid.io/s-default-demo": "true"}}
    assert claim["metadata"]["labels"] == labels


def test_access_modes_capacity_and_metadata_follow_the_manifests() -> None:
    one = dataset(accessModes=["ReadWriteMany"])
    one["metadata"]["annotations"] = {volumes.CAPACITY_ANNOTATION: "5Ti"}
    other = runtime()
    other["metadata"]["annotations"] = {
        volumes.METADATA_LIST: json.dumps(
            [
                {"Labels": {"a": "1"}, "selector": {"kind": "PersistentVolume"}},
                {"annotations": {"b": "2"}, "selector": {"kind": "PersistentVolumeClaim"}},
                {"labels": {"c": "3"}, "selector": {"kind": "PersistentVolume", "group": "x"}},
            ]
        )
    }
    volume = volumes.persistent_volume(one, volumes.Target("alluxio", KEY), other)
    claim = volumes.volume_claim(one, other)
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["capacity"] == {"storage": "5Ti"}
    assert volume["metadata"]["labels"]["a"] == "1"
    assert "c" not in volume["metadata"]["labels"]
    assert claim["metadata"]["annotations"]["b"] == "2"


def test_pods_are_scheduled_where_a_server_may_run() -> None:
    expressions = [{"key": "gpu", "operator": "Exists"}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    one = dataset(nodeAffinity={"required": terms})
    other = runtime(fuse={"nodeSelector": {"disk": "nvme"}})
    volume = volumes.persistent_volume(one, volumes.Target("alluxio", KEY), other)
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        *expressions,
        {"key": "disk", "operator": "In", "values": ["nvme"]},
    ]


def test_long_names_give_valid_labels() -> None:
    name = "a" * 200
    one, other = dataset(name=name), runtime(name=name)
    served = checked(one, other)
    found = server_set(served, Image("p"))
    volume = volumes.persistent_volume(one, volumes.Target("alluxio", served.key), other)
    for labels in (found["metadata"]["labels"], volume["metadata"]["labels"]):
        for label, value in labels.items():
            assert len(label.rpartition("/")[2]) <= 63
            assert len(value) <= 63


def test_caches_without_a_quota_have_no_known_capacity() -> None:
    settings = checked(dataset(), runtime()).plan.settings
    assert isinstance(settings, MountSettings)
    assert mount_plan.capacity_bytes(settings) is None
