"""The CustomResourceDefinitions and the client, against a real API server."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import Conflict, NotFound
from penstock.kubernetes.client import DATASETS, NAMESPACES, RUNTIMES, Client
from penstock.kubernetes.leader import Election, Timing
from penstock.kubernetes.watch import Cache, wait_for_sync
from tests.cluster.kube import Kube
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
ALLUXIO = RUNTIMES["AlluxioRuntime"]


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client.from_environment()
    yield client
    client.close()


def a_dataset(kube: Kube, name: str = "odd", **spec: Any) -> Json:
    return {
        "apiVersion": DATASETS.group_version,
        "kind": "Dataset",
        "metadata": {"name": name, "namespace": kube.namespace},
        "spec": {"mounts": [{"mountPoint": "s3://bucket/prefix"}], **spec},
    }


def test_fields_that_no_model_has_and_values_of_other_types_are_kept(kube: Kube, client: Client):
    options = {"number": 1, "flag": True, "fraction": 0.95, "empty": None}
    mount = {"mountPoint": "s3://b/p", "options": options, "future": {"x": [1, {"y": None}]}}
    dataset = a_dataset(kube, mounts=[mount], fromALaterRelease={"deep": [{"z": 1}]}, owner=None)
    kube("apply", "--server-side", "-f", "-", stdin=json.dumps(dataset))
    assert client.get(DATASETS, kube.namespace, "odd")["spec"] == dataset["spec"]
    level = {"mediumtype": "MEM", "path": ["/a", "/b"], "quota": 2, "high": 0.95, "low": "0.7"}
    runtime = {
        "apiVersion": ALLUXIO.group_version,
        "kind": ALLUXIO.kind,
        "metadata": {"name": "alone", "namespace": kube.namespace},
        "spec": {"replicas": 2, "tieredstore": {"levels": [level]}, "fuse": {"imageTag": 1.5}},
    }
    assert client.create(ALLUXIO, runtime)["spec"] == runtime["spec"]


def test_kubectl_explains_and_scales_and_prints(kube: Kube, client: Client):
    assert "The sources of the data set" in kube("explain", "dataset.spec.mounts")
    runtime = {
        "apiVersion": ALLUXIO.group_version,
        "kind": ALLUXIO.kind,
        "metadata": {"name": "alone", "namespace": kube.namespace},
        "spec": {"replicas": 1},
    }
    client.apply(ALLUXIO, runtime)
    kube("scale", "alluxioruntime/alone", "--replicas=3")
    assert client.get(ALLUXIO, kube.namespace, "alone")["spec"]["replicas"] == 3
    titles = kube("get", "alluxio").splitlines()[0].split("   ")
    assert [one.strip() for one in titles if one.strip()] == [
        "NAME", "MASTER PHASE", "WORKER PHASE", "FUSE PHASE", "AGE",
    ]  # fmt: skip


def test_a_type_that_no_reading_can_save_is_refused_at_once(kube: Kube):
    dataset = a_dataset(kube, mounts=[{"name": "without an address"}])
    refused = kube.attempt("apply", "-f", "-", stdin=json.dumps(dataset))
    assert "spec.mounts[0].mountPoint: Required value" in refused.stderr


def test_a_cache_sees_what_others_write(kube: Kube, client: Client):
    cache: Cache[Json] = Cache(client, DATASETS, keep=lambda one: one, namespace=kube.namespace)
    cache.start()
    wait_for_sync([cache], 10)
    client.apply(DATASETS, a_dataset(kube))
    kept = wait_until(lambda: cache.get(kube.namespace, "odd"))
    assert "managedFields" not in kept["metadata"]
    uid = kept["metadata"]["uid"]
    with pytest.raises(Conflict):
        client.delete(DATASETS, kube.namespace, "odd", uid="another")
    client.delete(DATASETS, kube.namespace, "odd", uid=uid)
    wait_until(lambda: cache.get(kube.namespace, "odd") is None)
    began_s = time.monotonic()
    cache.stop()
    assert time.monotonic() - began_s < 2
    with pytest.raises(NotFound):
        client.get(DATASETS, kube.namespace, "odd")


def test_the_pages_of_a_list_join(client: Client):
    whole = {one["metadata"]["name"] for one in client.list(NAMESPACES)}
    assert {one["metadata"]["name"] for one in client.list(NAMESPACES, limit=1)} == whole


def test_one_candidate_leads_at_a_time(kube: Kube, client: Client):
    timing = Timing(renew_every_s=0.2, retry_s=(0.1, 0.2))
    first, second = (
        Election(
            client,
            namespace=kube.namespace,
            name="operator",
            identity=identity,
            on_lost=lambda: None,
            timing=timing,
        )
        for identity in ("first", "second")
    )
    assert first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    first.stop()
    waiting.join(10)  # the lease is for 15 s: it was released
    assert second.leading
    second.stop()
