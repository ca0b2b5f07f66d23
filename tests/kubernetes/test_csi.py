"""The services Identity and Node, called as the kubelet calls them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from penstock.errors import (
    InUse,
    NoSuchVolume,
    NotServedInTime,
    PenstockError,
    VolumeBusy,
    VolumeProblem,
)
from penstock.kubernetes import names
from penstock.kubernetes.node.csi import NodeService, csi_endpoint
from penstock.kubernetes.node.proto import csi_pb2 as csi
from penstock.kubernetes.node.volume_context import Claim, VolumeUsage
from penstock.release import __version__
from tests.support.csi import (
    CLAIM,
    IMAGENET,
    INLINE,
    Kubelet,
    ScriptedKeeper,
    publish_request,
    short_folder,
    status_of,
)
from tests.support.waiting import wait_until

TARGET = Path("/var/lib/kubelet/pods/6a5f/volumes/kubernetes.io~csi/default-imagenet/mount")
_PUBLISHERS = 4


@dataclass
class Plugin:
    kubelet: Kubelet
    keeper: ScriptedKeeper


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    keeper = ScriptedKeeper()
    node = NodeService(keeper, node_id="node-1", publishing_threads=_PUBLISHERS)
    with short_folder() as folder:
        endpoint = csi_endpoint(folder / "csi.sock", node)
        endpoint.open()
        yield Plugin(Kubelet(endpoint.path), keeper)
        endpoint.close()


def refusal(plugin: Plugin, request: csi.NodePublishVolumeRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        plugin.kubelet.call(request, csi.NodePublishVolumeResponse)
    return status_of(error.value)


def test_the_plugin_tells_its_name_and_version(plugin: Plugin):
    info = plugin.kubelet.call(csi.GetPluginInfoRequest(), csi.GetPluginInfoResponse)
    assert (info.name, info.vendor_version) == (names.DRIVER, __version__)
    assert plugin.kubelet.call(csi.ProbeRequest(), csi.ProbeResponse).ready.value


def test_the_plugin_has_no_controller(plugin: Plugin):
    answer = plugin.kubelet.call(
        csi.GetPluginCapabilitiesRequest(), csi.GetPluginCapabilitiesResponse
    )
    assert answer.SerializeToString() == b""


def test_the_node_tells_its_name_and_what_it_can_do(plugin: Plugin):
    info = plugin.kubelet.call(csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse)
    assert info.node_id == "node-1"
    answer = plugin.kubelet.call(csi.NodeGetCapabilitiesRequest(), csi.NodeGetCapabilitiesResponse)
    rpcs = csi.NodeServiceCapability.RPC
    assert [one.rpc.type for one in answer.capabilities] == [
        rpcs.GET_VOLUME_STATS,
        rpcs.VOLUME_CONDITION,
    ]


@pytest.mark.parametrize("method", ["NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"])
def test_what_the_plugin_cannot_do_is_unimplemented(plugin: Plugin, method: str):
    with pytest.raises(grpc.RpcError) as error:
        plugin.kubelet.send(method, csi.ProbeRequest())
    assert status_of(error.value)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_a_claim_is_published_and_unpublished(plugin: Plugin):
    plugin.kubelet.publish(TARGET, CLAIM)
    assert plugin.keeper.published == {TARGET: Claim("alluxio", IMAGENET, "")}
    plugin.kubelet.unpublish(TARGET)
    assert plugin.keeper.published == {}


def test_the_keeper_has_less_time_than_the_kubelet(plugin: Plugin):
    plugin.kubelet.publish(TARGET, CLAIM, timeout_s=60)
    plugin.kubelet.publish(TARGET, CLAIM, timeout_s=10_000)
    first_s, second_s = plugin.keeper.timeouts_s
    assert 50 < first_s < 59
    assert 100 < second_s < 120


def test_a_request_that_lacks_a_field_is_refused_with_its_name(plugin: Plugin):
    whole = publish_request(TARGET, CLAIM)
    for field in ("volume_id", "target_path", "volume_capability"):
        request = csi.NodePublishVolumeRequest()
        request.CopyFrom(whole)
        request.ClearField(field)
        code, text = refusal(plugin, request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text.startswith(f"{field}: is missing")
    assert plugin.keeper.published == {}


def test_volumes_of_blocks_are_refused(plugin: Plugin):
    request = publish_request(TARGET, CLAIM)
    request.volume_capability.block.SetInParent()
    code, text = refusal(plugin, request)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("volume_capability: ")


@pytest.mark.parametrize("path", ["pods/x", "/a/../b", "/a//b", "/a/"])
def test_a_target_that_is_not_normalised_is_refused(plugin: Plugin, path: str):
    code, text = refusal(plugin, publish_request(path, CLAIM))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("target_path: ")


@pytest.mark.parametrize(
    "context", [{**CLAIM, names.FLUID_PATH: "/etc"}, {**INLINE, names.ROLE: "host"}]
)
def test_a_volume_that_asks_for_something_else_is_refused(plugin: Plugin, context: dict[str, str]):
    code, _ = refusal(plugin, publish_request(TARGET, context))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert plugin.keeper.published == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VolumeProblem("fluid_sub_path", "is a file"), grpc.StatusCode.INVALID_ARGUMENT),
        (NoSuchVolume("nothing is published there"), grpc.StatusCode.NOT_FOUND),
        (InUse("mounted as jindo"), grpc.StatusCode.FAILED_PRECONDITION),
        (NotServedInTime("no server"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (VolumeBusy("being unmounted"), grpc.StatusCode.ABORTED),
        (PenstockError("a bug"), grpc.StatusCode.INTERNAL),
        (OSError(5, "Input/output error"), grpc.StatusCode.INTERNAL),
    ],
)
def test_each_error_of_the_keeper_has_its_code_and_hint(
    plugin: Plugin, error: Exception, code: grpc.StatusCode
):
    def fail(*_: object, **__: object) -> None:
        raise error

    plugin.keeper.publish = fail
    found, text = refusal(plugin, publish_request(TARGET, CLAIM))
    assert found is code
    assert text.startswith(str(error))
    hint = getattr(error, "hint", None)
    assert hint is None or text.endswith(f"hint: {hint}")


def test_the_use_of_a_volume_is_told(plugin: Plugin):
    plugin.keeper.usages[TARGET] = VolumeUsage(1000, 400, 7, None)
    answer = plugin.kubelet.stats(TARGET)
    space, files = answer.usage
    assert (space.unit, space.total, space.used, space.available) == (
        csi.VolumeUsage.BYTES, 1000, 400, 600,
    )  # fmt: skip
    assert (files.unit, files.used) == (csi.VolumeUsage.INODES, 7)
    assert not answer.volume_condition.abnormal


def test_a_volume_without_a_server_is_abnormal(plugin: Plugin):
    plugin.keeper.usages[TARGET] = VolumeUsage(0, 0, 0, "no server answers")
    condition = plugin.kubelet.stats(TARGET).volume_condition
    assert (condition.abnormal, condition.message) == (True, "no server answers")


@pytest.mark.parametrize("field", ["volume_id", "volume_path"])
def test_a_question_for_usage_that_lacks_a_field_is_refused(plugin: Plugin, field: str):
    request = csi.NodeGetVolumeStatsRequest(volume_id="v", volume_path=str(TARGET))
    request.ClearField(field)
    with pytest.raises(grpc.RpcError) as error:
        plugin.kubelet.call(request, csi.NodeGetVolumeStatsResponse)
    assert status_of(error.value)[0] is grpc.StatusCode.INVALID_ARGUMENT


class _Waiting:
    """Makes publishes wait until the test lets them go on."""

    def __init__(self, keeper: ScriptedKeeper, count: int) -> None:
        self.go_on = threading.Event()
        self._arrived = threading.Semaphore(0)
        self._count = count
        self._publish = keeper.publish
        keeper.publish = self._wait

    def _wait(self, volume: Claim, target: Path, *, timeout_s: float) -> None:
        self._arrived.release()
        assert self.go_on.wait(timeout_s)
        self._publish(volume, target, timeout_s=timeout_s)

    def until_all_wait(self) -> None:
        for _ in range(self._count):
            assert self._arrived.acquire(timeout=20)


def test_publishes_that_wait_for_a_server_block_nothing_else(plugin: Plugin):
    waiting = _Waiting(plugin.keeper, _PUBLISHERS)
    targets = [TARGET / str(number) for number in range(_PUBLISHERS)]
    with ThreadPoolExecutor(_PUBLISHERS) as pods:
        pending = [pods.submit(plugin.kubelet.publish, one, CLAIM) for one in targets]
        waiting.until_all_wait()
        plugin.kubelet.unpublish(TARGET / "other")
        code, text = refusal(plugin, publish_request(TARGET / "one-more", CLAIM))
        waiting.go_on.set()
        for one in pending:
            one.result()
    assert code is grpc.StatusCode.ABORTED
    assert "too many volumes wait" in text
    assert set(plugin.keeper.published) == set(targets)
    plugin.kubelet.publish(TARGET / "one-more", CLAIM)


def test_a_target_has_one_request_at_a_time(plugin: Plugin):
    waiting = _Waiting(plugin.keeper, 1)
    with ThreadPoolExecutor(1) as pods:
        pending = pods.submit(plugin.kubelet.publish, TARGET, CLAIM)
        waiting.until_all_wait()
        code, _ = refusal(plugin, publish_request(TARGET, CLAIM))
        with pytest.raises(grpc.RpcError) as error:
            plugin.kubelet.unpublish(TARGET)
        waiting.go_on.set()
        pending.result()
    assert code is status_of(error.value)[0] is grpc.StatusCode.ABORTED
    plugin.kubelet.unpublish(TARGET)
    wait_until(lambda: not plugin.keeper.published)
