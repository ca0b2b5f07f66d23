"""The operator's decisions, against an API server in memory: binding, deletion, labels."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.kubernetes.client import (
    DAEMON_SETS,
    DATASETS,
    EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RUNTIMES,
    STORAGE_CLASSES,
)
from penstock.kubernetes.names import DRIVER, FINALIZER
from penstock.kubernetes.operator.main import Operator, Options
from penstock.kubernetes.server_set import Image
from tests.kubernetes.memory_api import MemoryApi, wait_until

Json = dict[str, Any]
FLUID = "data.fluid.io/v1alpha1"
ALLUXIO = RUNTIMES["AlluxioRuntime"]
THIN = RUNTIMES["ThinRuntime"]
OWN = RUNTIMES["PenstockRuntime"]


class Running:
    """An operator at work on an API server."""

    def __init__(self, idle_s: float = 0.3) -> None:
        self.api = MemoryApi()
        self.options = Options(Image("penstock:1"), leader_elect=False, idle_s=idle_s)
        self.operator = Operator(self.api, self.options, "test")  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self.operator.run)
        self._thread.start()

    def stop(self) -> None:
        self.options.stopping.set()
        self._thread.join(20)
        self.api.close()
        assert not self._thread.is_alive()

    def dataset(self, name: str = "demo", namespace: str = "default") -> Json | None:
        return self.api.find(DATASETS, namespace, name)

    def phase(self, name: str = "demo", namespace: str = "default") -> str:
        found = self.dataset(name, namespace) or {}
        return found.get("status", {}).get("phase", "")

    def condition(self, kind: str, name: str = "demo") -> Json | None:
        found = (self.dataset(name) or {}).get("status", {})
        return next((one for one in found.get("conditions", []) if one["type"] == kind), None)

    def wait_for_phase(self, phase: str, name: str = "demo", namespace: str = "default") -> None:
        wait_until(lambda: self.phase(name, namespace) == phase, f"{name} is not {phase}")

    def labels(self, node: str = "node-1") -> dict[str, str]:
        return (self.api.find(NODES, None, node) or {})["metadata"].get("labels") or {}


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.stop()


def manifest(resource: Any, name: str, spec: Json, namespace: str = "default") -> Json:
    return {
        "apiVersion": resource.group_version,
        "kind": resource.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def declare(running: Running, name: str = "demo", *, mount: str = "s3://bucket/data") -> None:
    spec = {"mounts": [{"mountPoint": mount, "name": name}]}
    running.api.create(DATASETS, manifest(DATASETS, name, spec))
    levels = [{"mediumtype": "SSD", "path": "/nvme", "quota": "10Gi"}]
    runtime = {"tieredstore": {"levels": levels}}
    running.api.create(ALLUXIO, manifest(ALLUXIO, name, runtime))


def event(running: Running, text: str) -> bool:
    return any(text in one["note"] for one in running.api.all(EVENTS))


def pod(running: Running, name: str, claim: str, node: str = "node-1") -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    one = manifest(PODS, name, {"nodeName": node, "volumes": [volume]})
    one["status"] = {"phase": "Running"}
    running.api.create(PODS, one)


def node(running: Running, name: str = "node-1") -> None:
    running.api.create(
        NODES,
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"a": "b"}}},
    )


def bound_claim(running: Running) -> Json | None:
    found = running.api.find(PERSISTENT_VOLUME_CLAIMS, "default", "demo") or {}
    return found if found.get("status", {}).get("phase") == "Bound" else None


def test_a_dataset_with_its_runtime_becomes_bound_with_few_requests(running: Running) -> None:
    declare(running)
    running.wait_for_phase("Bound")
    dataset = running.dataset()
    assert dataset is not None
    assert dataset["metadata"]["finalizers"] == [FINALIZER]
    assert dataset["status"]["ufsTotal"] == "[Calculating]"
    assert dataset["status"]["cacheStates"] == {
        "cacheCapacity": "10.00GiB",
        "cached": "0.00B",
        "cachedPercentage": "0.0%",
    }
    claim = wait_until(lambda: bound_claim(running), "the claim is not Bound")
    volume = running.api.find(PERSISTENT_VOLUMES, None, "default-demo")
    assert volume is not None
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    assert running.api.find(DAEMON_SETS, "default", "demo-fuse") is not None
    runtime = running.api.find(ALLUXIO, "default", "demo")
    assert runtime is not None
    assert runtime["status"]["fusePhase"] == "Ready"
    assert runtime["metadata"]["ownerReferences"][0]["uid"] == dataset["metadata"]["uid"]
    by_verb = running.api.requests.by_verb
    ours = sum(count for verb, count in by_verb.items() if verb not in ("list", "watch"))
    assert ours - 2 <= 10  # two are the user's


def test_a_runtime_that_comes_first_waits_for_its_dataset(running: Running) -> None:
    running.api.create(ALLUXIO, manifest(ALLUXIO, "demo", {}))
    wait_until(
        lambda: (running.api.find(ALLUXIO, "default", "demo") or {}).get("status"), "no status"
    )
    spec = {"mounts": [{"mountPoint": "s3://bucket"}]}
    running.api.create(DATASETS, manifest(DATASETS, "demo", spec))
    running.wait_for_phase("Bound")


def test_a_dataset_alone_is_not_bound(running: Running) -> None:
    spec = {"mounts": [{"mountPoint": "s3://bucket"}]}
    running.api.create(DATASETS, manifest(DATASETS, "demo", spec))
    running.wait_for_phase("NotBound")
    assert running.api.find(PERSISTENT_VOLUME_CLAIMS, "default", "demo") is None


def test_a_mistake_is_a_condition_with_a_hint_and_ends_when_it_is_corrected(
    running: Running,
) -> None:
    declare(running, mount="s33://bucket")
    running.wait_for_phase("Failed")
    ready = running.condition("Ready")
    assert ready is not None
    assert ready["status"] == "False"
    assert "did you mean s3://?" in ready["message"]
    mounts = [{"mountPoint": "s3://bucket", "name": "demo"}]
    running.api.patch(DATASETS, "default", "demo", {"spec": {"mounts": mounts}})
    running.wait_for_phase("Bound")


def test_a_deleted_dataset_leaves_nothing(running: Running) -> None:
    node(running)
    declare(running)
    running.wait_for_phase("Bound")
    running.api.delete(DATASETS, "default", "demo")
    wait_until(lambda: running.dataset() is None, "the Dataset stays")
    kinds = (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, DAEMON_SETS, ALLUXIO)
    wait_until(lambda: not any(running.api.all(one) for one in kinds), "something stays")


def test_a_dataset_in_use_is_deleted_when_its_last_pod_has_ended(running: Running) -> None:
    node(running)
    declare(running)
    running.wait_for_phase("Bound")
    pod(running, "train-1", "demo")
    wait_until(lambda: "fluid.io/f-default-demo" in running.labels(), "no label")
    running.api.delete(DATASETS, "default", "demo")
    found = wait_until(lambda: running.condition("Removed"), "no condition")
    assert "train-1 on node-1" in found["message"]
    wait_until(lambda: event(running, "train-1"), "no event names the pod")
    assert running.api.find(DAEMON_SETS, "default", "demo-fuse") is not None
    running.api.delete(PODS, "default", "train-1")
    wait_until(lambda: running.dataset() is None, "the Dataset stays")
    wait_until(lambda: running.labels() == {"a": "b"}, "labels stay")


def test_pods_of_a_node_that_is_gone_hold_no_dataset(running: Running) -> None:
    node(running)
    declare(running)
    running.wait_for_phase("Bound")
    pod(running, "train-1", "demo")
    wait_until(lambda: "fluid.io/f-default-demo" in running.labels(), "no label")
    running.api.delete(DATASETS, "default", "demo")
    wait_until(lambda: running.condition("Removed"), "no condition")
    running.api.delete(NODES, None, "node-1")
    wait_until(lambda: running.dataset() is None, "the Dataset stays")


def test_labels_of_a_node_follow_its_pods_after_an_idle_time(running: Running) -> None:
    node(running)
    declare(running)
    running.wait_for_phase("Bound")
    pod(running, "train-1", "demo")
    expected = {
        "a": "b",
        "fluid.io/f-default-demo": "true",
        "fluid.io/s-default-demo": "true",
        "fluid.io/s-alluxio-default-demo": "true",
        "fluid.io/dataset-num": "1",
    }
    wait_until(lambda: running.labels() == expected, "no labels")
    running.api.patch(PODS, "default", "train-1", {"x": 1})
    running.api.patch(
        PODS, "default", "train-1", {"status": {"phase": "Succeeded"}}, subresource="status"
    )
    wait_until(lambda: running.labels() == {"a": "b"}, "labels stay")


def test_a_runtime_that_goes_leaves_volumes_while_pods_use_them(running: Running) -> None:
    node(running)
    declare(running)
    running.wait_for_phase("Bound")
    pod(running, "train-1", "demo")
    wait_until(lambda: "fluid.io/f-default-demo" in running.labels(), "no label")
    running.api.delete(ALLUXIO, "default", "demo")
    wait_until(lambda: running.condition("Removed"), "no condition")
    assert running.api.find(PERSISTENT_VOLUMES, None, "default-demo") is not None
    running.api.delete(PODS, "default", "train-1")
    running.wait_for_phase("NotBound")
    assert running.api.find(PERSISTENT_VOLUMES, None, "default-demo") is None


@pytest.mark.parametrize("with_runtime", [True, False])
def test_a_reference_leads_to_the_servers_of_the_other_dataset(
    running: Running, with_runtime: bool
) -> None:
    node(running)
    declare(running)
    spec = {"mounts": [{"mountPoint": "dataset://default/demo/train"}]}
    running.api.create(DATASETS, manifest(DATASETS, "ref", spec, "team"))
    if with_runtime:
        running.api.create(THIN, manifest(THIN, "ref", {}, "team"))
    running.wait_for_phase("Bound", "ref", "team")
    volume = running.api.find(PERSISTENT_VOLUMES, None, "team-ref")
    assert volume is not None
    attributes = volume["spec"]["csi"]["volumeAttributes"]
    assert attributes["fluid_path"] == "/runtime-mnt/alluxio/default/demo/alluxio-fuse"
    assert attributes["fluid_sub_path"] == "train"
    assert (attributes["runtime_namespace"], attributes["runtime_name"]) == ("default", "demo")
    assert running.api.find(DAEMON_SETS, "team", "ref-fuse") is None
    one = manifest(PODS, "reader", {"nodeName": "node-1", "volumes": []}, "team")
    one["spec"]["volumes"] = [{"name": "d", "persistentVolumeClaim": {"claimName": "ref"}}]
    one["status"] = {"phase": "Running"}
    running.api.create(PODS, one)
    wait_until(lambda: "fluid.io/f-default-demo" in running.labels(), "no label")
    running.api.delete(DATASETS, "default", "demo")
    found = wait_until(lambda: running.condition("Removed"), "no condition")
    assert "team/ref" in found["message"]
    running.api.delete(PODS, "team", "reader")
    running.api.delete(DATASETS, "team", "ref")
    wait_until(lambda: running.dataset() is None, "the Dataset stays")


def test_a_claim_of_a_storage_class_of_ours_gets_a_dataset(running: Running) -> None:
    running.api.create(
        STORAGE_CLASSES,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "bucket"},
            "provisioner": DRIVER,
            "parameters": {
                "mountPoint": "s3://bucket/${namespace}/${name}",
                "option.endpoint": "http://s3:9000",
                "secret.access-key": "keys/id",
                "secret.secret-key": "keys/secret",
                "tier.medium": "SSD",
                "tier.quota": "1Gi",
            },
        },
    )
    spec = {
        "storageClassName": "bucket",
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": "5Gi"}},
    }
    claim = running.api.create(
        PERSISTENT_VOLUME_CLAIMS, manifest(PERSISTENT_VOLUME_CLAIMS, "data", spec)
    )
    running.wait_for_phase("Bound", "data")
    dataset = running.dataset("data")
    assert dataset is not None
    assert dataset["spec"]["mounts"][0]["mountPoint"] == "s3://bucket/default/data"
    volume = wait_until(
        lambda: running.api.find(PERSISTENT_VOLUMES, None, "default-data"), "no volume"
    )
    assert volume["spec"]["storageClassName"] == "bucket"
    assert volume["spec"]["capacity"] == {"storage": "5Gi"}
    assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
    running.api.delete(PERSISTENT_VOLUME_CLAIMS, "default", "data")
    kinds = (DATASETS, OWN, PERSISTENT_VOLUMES, DAEMON_SETS)
    wait_until(lambda: not any(running.api.all(one) for one in kinds), "something stays")


def test_a_claim_of_another_owner_is_left_alone(running: Running) -> None:
    spec = {"storageClassName": "other", "volumeName": "theirs"}
    running.api.create(PERSISTENT_VOLUME_CLAIMS, manifest(PERSISTENT_VOLUME_CLAIMS, "demo", spec))
    declare(running)
    running.wait_for_phase("Failed")
    found = running.condition("Ready")
    assert found is not None
    assert "exists, and is not Penstock's" in found["message"]
    running.api.delete(DATASETS, "default", "demo")
    wait_until(lambda: running.dataset() is None, "the Dataset stays")
    assert running.api.find(PERSISTENT_VOLUME_CLAIMS, "default", "demo") is not None


def test_a_dataset_that_is_made_again_gets_volumes_of_its_own(running: Running) -> None:
    for _ in range(3):
        declare(running)
        running.wait_for_phase("Bound")
        running.api.delete(DATASETS, "default", "demo")
        wait_until(lambda: running.dataset() is None, "the Dataset stays")


def test_many_datasets_take_few_requests_each(running: Running) -> None:
    count = 50
    for number in range(count):
        declare(running, f"demo-{number}")
    for number in range(count):
        running.wait_for_phase("Bound", f"demo-{number}")
    by_verb = running.api.requests.by_verb
    ours = sum(count for verb, count in by_verb.items() if verb not in ("list", "watch"))
    assert ours - 2 * count <= 10 * count


@pytest.mark.parametrize(
    ("resource", "namespace", "name"),
    [
        (DAEMON_SETS, "default", "demo-fuse"),
        (PERSISTENT_VOLUME_CLAIMS, "default", "demo"),
        (PERSISTENT_VOLUMES, None, "default-demo"),
    ],
)
def test_what_someone_deletes_is_made_again(
    running: Running, resource: Any, namespace: str | None, name: str
) -> None:
    declare(running)
    wait_until(lambda: bound_claim(running), "the claim is not Bound")
    before = running.api.get(resource, namespace, name)["metadata"]["uid"]
    running.api.delete(resource, namespace, name)

    def made_again() -> bool:
        found = running.api.find(resource, namespace, name)
        return found is not None and found["metadata"]["uid"] != before

    wait_until(made_again, f"{resource} is not made again")
    wait_until(lambda: bound_claim(running), "the claim is not Bound")


def test_a_change_of_a_runtime_changes_the_server_pods(running: Running) -> None:
    declare(running)
    running.wait_for_phase("Bound")
    levels = [{"mediumtype": "SSD", "path": "/other", "quota": "10Gi"}]
    running.api.patch(ALLUXIO, "default", "demo", {"spec": {"tieredstore": {"levels": levels}}})

    def changed() -> bool:
        found = running.api.get(DAEMON_SETS, "default", "demo-fuse")
        return "/other" in str(found["spec"]["template"])

    wait_until(changed, "the template stays")


def test_a_second_runtime_of_the_name_is_not_ready(running: Running) -> None:
    declare(running)
    running.wait_for_phase("Bound")
    running.api.create(OWN, manifest(OWN, "demo", {}))
    found = wait_until(
        lambda: (running.api.find(OWN, "default", "demo") or {}).get("status"), "no status"
    )
    assert found["fusePhase"] == "NotReady"
    assert running.phase() == "Bound"
    wait_until(lambda: event(running, "has a runtime already"), "no event names the other one")


def test_a_restarted_operator_changes_nothing(running: Running) -> None:
    declare(running)
    wait_until(lambda: bound_claim(running), "the claim is not Bound")
    wait_until(lambda: len(running.operator._queue) == 0, "it does not come to rest")
    running.options.stopping.set()
    running._thread.join(20)
    before = len(running.api.log)
    options = Options(Image("penstock:1"), leader_elect=False, http_port=None)
    second = Operator(running.api, options, "second")  # type: ignore[arg-type]
    thread = threading.Thread(target=second.run)
    thread.start()
    wait_until(lambda: second.synced and len(second._queue) == 0, "it does not come to rest")
    options.stopping.set()
    thread.join(20)
    assert running.api.log[before:] == []
