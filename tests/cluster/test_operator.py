"""The operator on a real cluster: what it says of mistakes and failures, and deletions that end."""

import json
from typing import Any

import pytest

from tests.cluster.kube import SYSTEM, Kube
from tests.cluster.volumes import (
    READ_EVERYTHING,
    bucket_mount,
    dataset,
    fill,
    keys_secret,
    pod,
    runtime,
)
from tests.support.s3 import S3

pytestmark = pytest.mark.cluster
Json = dict[str, Any]


def condition(kube: Kube, name: str, kind: str) -> Json | None:
    found = (kube.find("dataset", name) or {}).get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), None)


def wait_for_condition(kube: Kube, name: str, kind: str, text: str) -> Json:
    def there() -> Json | None:
        found = condition(kube, name, kind)
        return found if found is not None and text in found["message"] else None

    return kube.wait_for(there, f"no condition {kind} of {name} with {text!r}", timeout_s=90)


def test_a_mistake_in_a_manifest_is_told_with_a_hint(kube: Kube) -> None:
    kube.apply(dataset("images", {"mountPoint": "s33://bucket", "name": "b"}), runtime("images"))
    found = wait_for_condition(kube, "images", "Ready", "did you mean s3://?")
    assert found["status"] == "False"
    assert kube.get("dataset", "images")["status"]["phase"] == "Failed"
    kube("delete", "dataset", "images", "--timeout=30s")


def test_wrong_keys_are_told_and_end_when_the_secret_is_right(kube: Kube, cluster_s3: S3) -> None:
    fill(cluster_s3.bucket(kube.namespace), files=2)
    wrong = keys_secret()
    wrong["stringData"]["secret"] = "not-the-secret"
    kube.apply(
        wrong, dataset("images", bucket_mount(cluster_s3, kube.namespace)), runtime("images")
    )
    kube.wait_for_phase("dataset", "images", "Bound")
    kube.apply(pod("reader", "images", READ_EVERYTHING))
    kube.wait_for_phase("dataset", "images", "Failed", timeout_s=90)
    found = condition(kube, "images", "Ready")
    assert found is not None
    assert "(hint: " in found["message"]
    assert "not-the-secret" not in json.dumps(kube.get("dataset", "images"))
    kube.apply(keys_secret())
    kube.wait_for_phase("dataset", "images", "Bound", timeout_s=150)


def test_objects_may_be_deleted_in_any_order(kube: Kube, cluster_s3: S3) -> None:
    kube.apply(keys_secret())
    orders = (
        ("alluxioruntime", "dataset"),
        ("persistentvolumeclaim", "dataset"),
        ("daemonset", "alluxioruntime", "dataset"),
        ("secret", "dataset"),
    )
    for number, order in enumerate(orders):
        name = f"images-{number}"
        kube.apply(dataset(name, bucket_mount(cluster_s3, kube.namespace)), runtime(name))
        kube.wait_for_phase("dataset", name, "Bound")
        names = {"daemonset": f"{name}-fuse", "secret": "keys"}
        for kind in order:
            kube("delete", kind, names.get(kind, name), "--wait=false", "--ignore-not-found")
    kinds = "dataset,alluxioruntime,persistentvolumeclaim,daemonset"
    kube.wait_for(lambda: not kube.list(kinds), "something stays", timeout_s=60)


def test_a_dataset_stays_while_another_one_refers_to_it(kube: Kube) -> None:
    mount = {"mountPoint": "s3://bucket", "name": "b"}
    kube.apply(dataset("images", mount), runtime("images"))
    kube.apply(dataset("shown", {"mountPoint": f"dataset://{kube.namespace}/images"}))
    kube.wait_for_phase("dataset", "shown", "Bound")
    kube("delete", "dataset", "images", "--wait=false")
    wait_for_condition(kube, "images", "Removed", f"{kube.namespace}/shown")
    kube("delete", "dataset", "shown", "--timeout=30s")
    kube.wait_for(lambda: not kube.find("dataset", "images"), "it stays", timeout_s=30)


def test_a_restarted_operator_goes_on_where_the_last_one_was(kube: Kube) -> None:
    system = Kube(SYSTEM)
    mount = {"mountPoint": "s3://bucket", "name": "b"}
    kube.apply(dataset("before", mount), runtime("before"))
    kube.wait_for_phase("dataset", "before", "Bound")
    system("delete", "pod", "--selector=app.kubernetes.io/component=operator", "--wait=false")
    kube.apply(dataset("after", mount), runtime("after"))
    kube("delete", "dataset", "before", "--wait=false")
    kube.wait_for_phase("dataset", "after", "Bound", timeout_s=90)
    kube.wait_for(lambda: not kube.find("dataset", "before"), "it stays", timeout_s=60)


def test_a_namespace_with_data_sets_can_be_deleted(kube: Kube) -> None:
    mount = {"mountPoint": "s3://bucket", "name": "b"}
    for number in range(3):
        kube.apply(dataset(f"images-{number}", mount), runtime(f"images-{number}"))
    for number in range(3):
        kube.wait_for_phase("dataset", f"images-{number}", "Bound")
    kube("delete", "namespace", kube.namespace, "--timeout=60s")
    kube("create", "namespace", kube.namespace)  # which the fixture deletes
    volumes = [one["metadata"]["name"] for one in kube.list("persistentvolumes")]
    assert not [name for name in volumes if name.startswith(kube.namespace)]
