"""The sockets by which the kubelet finds the plugin."""

import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from penstock.kubernetes import names
from penstock.kubernetes.node.csi import NodeService, csi_endpoint
from penstock.kubernetes.node.proto import csi_pb2 as csi
from penstock.kubernetes.node.proto import pluginregistration_pb2 as registration
from penstock.kubernetes.node.registration import (
    SocketWatcher,
    csi_socket,
    registration_endpoint,
    registration_socket,
)
from tests.support.csi import Kubelet, ScriptedKeeper, short_folder
from tests.support.waiting import wait_until


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def start(kubelet_dir: Path) -> SocketWatcher:
    node = NodeService(ScriptedKeeper(), node_id="node-1")
    watcher = SocketWatcher(
        [csi_endpoint(csi_socket(kubelet_dir), node), registration_endpoint(kubelet_dir)],
        check_s=0.01,
    )
    watcher.start()
    return watcher


@pytest.fixture
def watcher(kubelet_dir: Path) -> Iterator[SocketWatcher]:
    watcher = start(kubelet_dir)
    yield watcher
    watcher.close()


def plugin_of(kubelet_dir: Path) -> registration.PluginInfo:
    """Find the plugin as the kubelet does: the only socket of the folder, hidden ones aside."""
    (path,) = (one for one in (kubelet_dir / "plugins_registry").iterdir() if one.name[0] != ".")
    answer = Kubelet(path).send("GetInfo", registration.InfoRequest())
    assert isinstance(answer, registration.PluginInfo)
    return answer


def probe(kubelet_dir: Path) -> bool:
    plugin = Path(plugin_of(kubelet_dir).endpoint)
    return Kubelet(plugin).call(csi.ProbeRequest(), csi.ProbeResponse).ready.value


@pytest.mark.usefixtures("watcher")
def test_the_kubelet_finds_the_plugin_and_its_services(kubelet_dir: Path):
    info = plugin_of(kubelet_dir)
    assert (info.type, info.name) == ("CSIPlugin", names.DRIVER)
    assert list(info.supported_versions) == ["1.0.0"]
    assert probe(kubelet_dir)


@pytest.mark.usefixtures("watcher")
def test_only_root_can_call_the_plugin(kubelet_dir: Path):
    for path in (csi_socket(kubelet_dir), registration_socket(kubelet_dir)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("watcher")
def test_the_plugin_logs_why_the_kubelet_did_not_take_it(
    kubelet_dir: Path, caplog: pytest.LogCaptureFixture
):
    status = registration.RegistrationStatus(error="no such node")
    Kubelet(registration_socket(kubelet_dir)).send("NotifyRegistrationStatus", status)
    assert "did not register fuse.csi.fluid.io: no such node" in caplog.text


@pytest.mark.usefixtures("watcher")
@pytest.mark.parametrize("which", [csi_socket, registration_socket])
def test_a_socket_that_was_removed_is_made_again(kubelet_dir: Path, which):
    which(kubelet_dir).unlink()
    wait_until(which(kubelet_dir).exists)
    assert probe(kubelet_dir)


@pytest.mark.usefixtures("watcher")
def test_both_sockets_come_back_after_the_folder_was_emptied(kubelet_dir: Path):
    for path in (csi_socket(kubelet_dir), registration_socket(kubelet_dir)):
        path.unlink()
        path.parent.rmdir()
    wait_until(registration_socket(kubelet_dir).exists)
    wait_until(csi_socket(kubelet_dir).exists)
    assert probe(kubelet_dir)


def test_both_sockets_are_gone_at_the_end(kubelet_dir: Path):
    start(kubelet_dir).close()
    assert [one for one in kubelet_dir.rglob("*") if not one.is_dir()] == []


def test_a_socket_that_a_killed_plugin_left_is_replaced(kubelet_dir: Path):
    for path in (csi_socket(kubelet_dir), registration_socket(kubelet_dir)):
        path.parent.mkdir(parents=True)
        path.touch()
    watcher = start(kubelet_dir)
    assert probe(kubelet_dir)
    watcher.close()


def test_a_plugin_that_ends_leaves_the_sockets_of_its_successor(kubelet_dir: Path):
    node = NodeService(ScriptedKeeper(), node_id="node-1")
    former = csi_endpoint(csi_socket(kubelet_dir), node)
    former.open()
    successor = start(kubelet_dir)
    former.close()
    assert probe(kubelet_dir)
    successor.close()
    with pytest.raises(grpc.RpcError):
        Kubelet(csi_socket(kubelet_dir)).call(csi.ProbeRequest(), csi.ProbeResponse)
