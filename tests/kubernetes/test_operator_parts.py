"""The queue, what servers said, references, effects and storage classes: each alone."""

import pytest

from penstock.errors import SpecProblem, UsageError
from penstock.kubernetes.effects import effects_on_cluster
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.operator.nodes import labels_for
from penstock.kubernetes.operator.objects import StorageClass, keep_declared, keep_pod
from penstock.kubernetes.operator.provision import manifests_of
from penstock.kubernetes.operator.queue import LONGEST_PAUSE_S, WorkQueue
from penstock.kubernetes.operator.references import Reference, reference_of, resolve
from penstock.kubernetes.operator.servers import before_listing, read_report, summarize
from penstock.specs.models import model_of
from penstock.specs.schema import fields_without_effect
from tests.kubernetes.declared import BRIEF, dataset, runtime

KEY = ServedKey("default", "demo")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_key_is_in_the_queue_once() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    queue.add("a")
    queue.add("a")
    assert queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_a_key_that_is_added_while_a_worker_has_it_comes_again() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("b")
    assert queue.take() == "b"
    queue.done("a")
    assert queue.take() == "a"


def test_an_earlier_time_wins_over_a_later_one() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add("later", delay_s=10)
    queue.add("soon", delay_s=5)
    queue.add("later", delay_s=1)
    clock.now_s = 20
    assert [queue.take(), queue.take()] == ["later", "soon"]


def test_pauses_grow_with_failures_up_to_a_limit_and_begin_again() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    pauses = [queue.retry("a") for _ in range(60)]
    assert pauses[0] <= 0.2
    assert pauses[3] > pauses[0]
    assert LONGEST_PAUSE_S / 2 <= pauses[-1] <= LONGEST_PAUSE_S
    queue.forget("a")
    assert queue.retry("a") <= 0.2


def test_a_stopped_queue_gives_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    queue.add("a", delay_s=100)
    queue.stop()
    assert queue.take() is None


def test_servers_share_a_total_and_add_up_their_caches() -> None:
    text = b'{"ready": true, "error": null, "restart_for": ["the mode"], "brief": null}'
    empty = read_report(text)
    assert empty is not None
    full = type(empty)(True, None, (), BRIEF)
    found = summarize([full, full, empty])
    assert found.serving == 3
    assert found.restart_for == ["the mode"]
    assert found.amounts == {
        "ufsTotal": "2.00KiB",
        "fileNum": "10",
        "cacheStates": {
            "cacheCapacity": "8.00KiB",
            "cached": "2.00KiB",
            "cachedPercentage": "50.0%",
            "cacheHitRatio": "75.0%",
            "localHitRatio": "75.0%",
        },
    }


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b"{"])
def test_an_answer_that_is_none_is_ignored(text: bytes) -> None:
    assert read_report(text) is None


def test_an_error_of_a_server_keeps_its_hint() -> None:
    text = b'{"ready": false, "error": {"error": "denied", "hint": "check keys", "exit_code": 2}}'
    report = read_report(text)
    assert report is not None
    found = summarize([report])
    assert found.serving == 0
    assert found.error is not None
    assert (found.error.message, found.error.hint, found.error.exit_code) == (
        "denied", "check keys", 2,
    )  # fmt: skip


def test_amounts_of_a_listed_dataset_stay_without_servers() -> None:
    assert before_listing({"cacheStates": {"cached": "1.00GiB"}}, 5) == {}
    assert before_listing({"ufsTotal": "3.00GiB"}, None)["ufsTotal"] == "3.00GiB"
    assert before_listing({}, None)["ufsTotal"] == "[Calculating]"


@pytest.mark.parametrize(
    ("mount", "other", "expected"),
    [
        ("dataset://team/x", None, Reference(ServedKey("team", "x"), "")),
        ("dataset://x", None, Reference(ServedKey("default", "x"), "")),
        ("dataset://team/x/a/b", None, Reference(ServedKey("team", "x"), "a/b")),
        ("dataset://default/x", runtime("ThinRuntime"), Reference(ServedKey("default", "x"), "")),
        ("dataset://team/x", runtime("AlluxioRuntime"), Reference(ServedKey("team", "x"), "")),
        ("dataset://default/x", runtime("AlluxioRuntime"), None),
        ("s3://bucket", None, None),
    ],
)
def test_which_data_sets_need_no_servers(
    mount: str, other: dict[str, object] | None, expected: Reference | None
) -> None:
    assert reference_of(dataset({"mountPoint": mount}), other) == expected


def test_a_reference_leads_out_of_no_dataset() -> None:
    with pytest.raises(SpecProblem, match="leads out"):
        reference_of(dataset({"mountPoint": "dataset://a/b/../../c"}), None)


def test_references_of_references_are_followed_with_their_folders() -> None:
    a, b, c = (ServedKey("n", name) for name in "abc")
    found = {a: Reference(b, "inner"), b: Reference(c, "outer")}
    assert resolve(a, found.get) == (c, "outer/inner")


def test_references_in_a_circle_are_refused() -> None:
    a, b = (ServedKey("n", name) for name in "ab")
    found = {a: Reference(b, ""), b: Reference(a, "")}
    with pytest.raises(SpecProblem, match="in a circle"):
        resolve(a, found.get)


def test_labels_of_a_node_count_its_data_sets() -> None:
    found = labels_for([(KEY, ["thin"]), (ServedKey("a", "b"), [])])
    assert found == {
        "fluid.io/f-default-demo": "true",
        "fluid.io/s-default-demo": "true",
        "fluid.io/s-thin-default-demo": "true",
        "fluid.io/f-a-b": "true",
        "fluid.io/s-a-b": "true",
        "fluid.io/dataset-num": "2",
    }
    assert labels_for([]) == {}


def test_on_a_cluster_fields_of_pods_have_an_effect() -> None:
    fuse = {"nodeSelector": {"a": "b"}, "resources": {"limits": {}}, "imageTag": "v1", "new": 1}
    manifest = runtime(fuse=fuse, worker={"resources": {"limits": {"cpu": "1"}}}, replicas=3)
    manifest["metadata"] |= {"uid": "1", "generation": 1}
    kept = keep_declared(manifest)
    assert kept is not None
    on_one_machine = fields_without_effect(model_of(manifest))
    found = {one.path: one.reason for one in effects_on_cluster(kept.stored, on_one_machine)}
    assert found.keys() == {
        "spec.fuse.imageTag", "spec.fuse.new", "spec.worker.resources", "spec.replicas",
    }  # fmt: skip
    assert found["spec.worker.resources"].startswith("workers: ")
    assert "one machine" not in " ".join(found.values())


def test_only_pods_with_claims_and_servers_are_kept() -> None:
    pod = {"metadata": {"uid": "1", "name": "a", "namespace": "n"}, "spec": {}, "status": {}}
    assert keep_pod(pod) is None
    owners = [{"kind": "DaemonSet", "name": "demo-fuse"}]
    labels = {"penstock.dev/server": "true"}
    pod["metadata"] = {**pod["metadata"], "labels": labels, "ownerReferences": owners}
    found = keep_pod(pod)
    assert found is not None
    assert found.server_of == "demo"
    assert not found.uses_claims


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "mountPoint is missing"),
        ({"mountpoint": "s3://b"}, "'mountpoint' is not a parameter"),
        ({"mountPoint": "s3://b", "secret.access-key": "keys"}, "is not SECRET/KEY"),
    ],
)
def test_mistakes_of_a_storage_class_are_named(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        manifests_of(StorageClass("c", parameters, False), KEY, "uid")
