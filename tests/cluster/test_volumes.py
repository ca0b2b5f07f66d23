"""Data sets as volumes: what a pod reads through a claim, and that nothing stays behind."""

import hashlib
import time

import pytest

from tests.cluster.kube import Kube, on_node
from tests.cluster.volumes import (
    READ_EVERYTHING,
    bucket_mount,
    checksums,
    dataset,
    fill,
    keys_secret,
    pod,
    remains_on,
    runtime,
)
from tests.support.s3 import S3
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
KINDS = ["AlluxioRuntime", "JindoRuntime", "JuiceFSRuntime", "PenstockRuntime"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_reads_every_byte_through_the_claim(kube: Kube, cluster_s3: S3, kind: str) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images", kind),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    assert checksums(kube.run_pod(pod("reader", "images", READ_EVERYTHING))) == contents


def test_kubectl_shows_what_fluid_shows(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.run_pod(pod("reader", "images", READ_EVERYTHING))

    def columns() -> dict[str, str]:
        heads, values = kube("get", "dataset", "images").splitlines()
        starts = [heads.index(word) for word in ("NAME", "UFS", "CACHED ", "CACHE ", "CACHED P")]
        starts += [heads.index("PHASE"), heads.rindex("AGE")]
        ends = [*starts[1:], len(values) + 1]
        return {
            heads[start:end].strip(): values[start:end].strip()
            for start, end in zip(starts, ends, strict=True)
        }

    def complete() -> dict[str, str] | None:
        found = columns()
        return found if found["CACHED PERCENTAGE"] == "100.0%" else None

    found = kube.wait_for(complete, "the status does not show what is cached")
    assert found["PHASE"] == "Bound"
    assert found["CACHE CAPACITY"] == "64.00MiB"
    assert found["CACHED"] == found["UFS TOTAL SIZE"]
    status = kube.get("dataset", "images")["status"]
    assert status["fileNum"] == str(len(contents))
    assert status["runtimes"][0]["type"] == "alluxio"
    assert status["mounts"][0]["mountPoint"] == f"s3://{kube.namespace}"
    phases = kube("get", "alluxioruntime", "images").splitlines()[1].split()
    assert phases[:4] == ["images", "Ready", "Ready", "Ready"]


def test_a_runtime_may_come_before_its_dataset(kube: Kube, cluster_s3: S3) -> None:
    cluster_s3.bucket(kube.namespace)
    kube.apply(keys_secret(), runtime("images"))
    kube.apply(dataset("images", bucket_mount(cluster_s3, kube.namespace)))
    kube.wait_for_phase("dataset", "images", "Bound")


def test_a_dataset_without_a_runtime_is_not_bound(kube: Kube, cluster_s3: S3) -> None:
    kube.apply(keys_secret(), dataset("images", bucket_mount(cluster_s3, kube.namespace)))
    kube.wait_for_phase("dataset", "images", "NotBound")
    assert kube.find("persistentvolumeclaim", "images") is None


def test_a_pod_mounts_a_folder_of_the_claim(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    below = pod("reader", "images", READ_EVERYTHING, subPath="train/n1", readOnly=True)
    prefix = "train/n1/"
    expected = {
        name.removeprefix(prefix): digest
        for name, digest in contents.items()
        if name.startswith(prefix)
    }
    assert checksums(kube.run_pod(below)) == expected


def test_several_buckets_have_a_folder_each(kube: Kube, cluster_s3: S3) -> None:
    first = fill(cluster_s3.bucket(f"{kube.namespace}-a"), files=3, seed=1)
    second = fill(cluster_s3.bucket(f"{kube.namespace}-b"), files=3, seed=2)
    kube.apply(
        keys_secret(),
        dataset(
            "both",
            bucket_mount(cluster_s3, f"{kube.namespace}-a", path="/one", name="one"),
            bucket_mount(cluster_s3, f"{kube.namespace}-b", path="/two", name="two"),
        ),
        runtime("both"),
    )
    kube.wait_for_phase("dataset", "both", "Bound")
    expected = {f"one/{name}": digest for name, digest in first.items()}
    expected |= {f"two/{name}": digest for name, digest in second.items()}
    assert checksums(kube.run_pod(pod("reader", "both", READ_EVERYTHING))) == expected


def test_a_dataset_shows_one_of_another_namespace(
    kube: Kube, other_kube: Kube, cluster_s3: S3
) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    other_kube.apply(
        dataset("shown", {"mountPoint": f"dataset://{kube.namespace}/images", "name": "shown"})
    )
    other_kube.wait_for_phase("dataset", "shown", "Bound")
    log = other_kube.run_pod(pod("reader", "shown", READ_EVERYTHING))
    assert checksums(log) == contents
    # The keys stay in the namespace of the data set that is shown.
    assert other_kube.list("secrets") == []
    assert other_kube.list("daemonsets") == []


def test_a_dataset_reads_another_claim(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.apply(dataset("again", {"mountPoint": "pvc://images", "path": "/"}), runtime("again"))
    kube.wait_for_phase("dataset", "again", "Bound")
    assert checksums(kube.run_pod(pod("reader", "again", READ_EVERYTHING))) == contents


def test_a_dataset_reads_a_folder_of_the_node(kube: Kube) -> None:
    folder = f"/mnt/{kube.namespace}"
    on_node(
        "node-1", "sh", "-ec", f"mkdir {folder}; printf text >{folder}/a; chmod -R a+rX {folder}"
    )
    on_first = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
    kube.apply(
        dataset(
            "folder",
            {"mountPoint": f"local://{folder}", "name": "folder", "path": "/"},
            nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [on_first]}]}},
        ),
        runtime("folder"),
    )
    kube.wait_for_phase("dataset", "folder", "Bound")
    log = kube.run_pod(pod("reader", "folder", READ_EVERYTHING))
    assert checksums(log) == {"a": hashlib.sha256(b"text").hexdigest()}


def test_a_claim_alone_is_enough(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(f"{kube.namespace}-images"))
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": kube.namespace},
        "provisioner": "fuse.csi.fluid.io",
        "parameters": {
            "mountPoint": "s3://${namespace}-${name}",
            "option.endpoint": cluster_s3.endpoint,
            "secret.aws.accessKeyId": "keys/id",
            "secret.aws.secretKey": "keys/secret",
            "tier.medium": "MEM",
            "tier.path": "/dev/shm",
            "tier.quota": "64Mi",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "images"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": kube.namespace,
        },
    }
    try:
        kube.apply(keys_secret(), storage_class, claim)
        assert checksums(kube.run_pod(pod("reader", "images", READ_EVERYTHING))) == contents
        kube("delete", "pod", "reader")
        kube("delete", "persistentvolumeclaim", "images", "--wait=false")
        kube.wait_for(
            lambda: (
                kube.find("dataset", "images") is None
                and kube.find("persistentvolume", f"{kube.namespace}-images") is None
            ),
            "the claim's data set stays",
        )
    finally:
        kube("delete", "storageclass", kube.namespace)


def test_deletion_leaves_nothing(kube: Kube, cluster_s3: S3, nodes: list[str]) -> None:
    fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    for node in nodes:
        kube.run_pod(pod(f"on-{node}", "images", READ_EVERYTHING, node=node))
    assert all(remains_on(node, kube) for node in nodes)
    kube("delete", "pods", *(f"on-{node}" for node in nodes))
    began = time.monotonic()
    kube("delete", "dataset", "images", "--timeout=60s")
    took_s = time.monotonic() - began
    leftovers = ("persistentvolumeclaims", "daemonsets", "alluxioruntimes", "configmaps")

    def gone() -> bool:
        return (
            kube.find("persistentvolume", f"{kube.namespace}-images") is None
            and not any(
                found["metadata"]["name"].startswith("images")
                for kind in leftovers
                for found in kube.list(kind)
            )
            and not kube.list("pods")
        )

    kube.wait_for(gone, "objects of the data set stay")
    for node in nodes:
        labels = kube.get("node", node)["metadata"]["labels"]
        assert not [name for name in labels if kube.namespace in name]
        wait_until(
            lambda node=node: not remains_on(node, kube),
            lambda node=node: f"{node} keeps {remains_on(node, kube)}\n{kube.describe()}",
            timeout_s=60,
            pause_s=1,
        )
    assert took_s < 15


def test_deletion_in_use_waits_and_names_the_pods(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.apply(pod("trainer", "images", "ls /data >/dev/null; sleep 600"))
    kube.wait_for_phase("pod", "trainer", "Running", timeout_s=90)
    kube("delete", "dataset", "images", "--wait=false")

    def waits() -> bool:
        status = kube.get("dataset", "images").get("status", {})
        return any("trainer on node-" in one["message"] for one in status.get("conditions", []))

    kube.wait_for(waits, "no condition names the pod that uses it")
    read = kube("exec", "trainer", "--", "sh", "-c", READ_EVERYTHING)
    assert checksums(read) == contents
    kube("delete", "pod", "trainer")
    kube.wait_for(lambda: kube.find("dataset", "images") is None, "the data set stays")


def test_servers_run_where_pods_are_restricted(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    kube("label", "namespace", kube.namespace, "pod-security.kubernetes.io/enforce=restricted")
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    reader = pod("reader", "images", READ_EVERYTHING)
    reader["spec"]["containers"][0]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert checksums(kube.run_pod(reader)) == contents


def test_a_changed_dataset_shows_its_new_bucket(kube: Kube, cluster_s3: S3) -> None:
    first = fill(cluster_s3.bucket(f"{kube.namespace}-a"), files=3, seed=1)
    second = fill(cluster_s3.bucket(f"{kube.namespace}-b"), files=3, seed=2)
    mounts = [
        bucket_mount(cluster_s3, f"{kube.namespace}-{name}", path=f"/{name}", name=name)
        for name in ("a", "b")
    ]
    kube.apply(keys_secret(), dataset("images", mounts[0]), runtime("images"))
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.apply(pod("reader", "images", "ls /data >/dev/null; sleep 3000"))
    kube.wait_for_phase("pod", "reader", "Running", timeout_s=90)
    kube.apply(dataset("images", *mounts))
    expected = {f"a/{name}": digest for name, digest in first.items()}
    expected |= {f"b/{name}": digest for name, digest in second.items()}

    def complete() -> bool:
        found = checksums(kube("exec", "reader", "--", "sh", "-c", READ_EVERYTHING))
        return found == expected

    kube.wait_for(complete, "a pod that runs does not see the new bucket", timeout_s=120)


def test_a_volume_is_read_only(kube: Kube, cluster_s3: S3) -> None:
    fill(cluster_s3.bucket(kube.namespace), files=1)
    kube.apply(
        keys_secret(),
        dataset("images", bucket_mount(cluster_s3, kube.namespace)),
        runtime("images"),
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    log = kube.run_pod(pod("writer", "images", "touch /data/x 2>&1 || true"))
    assert "Read-only file system" in log
