"""The process of the node plugin: its options, its question to the API server, its end."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.app import run
from penstock.kubernetes.client import Client
from penstock.kubernetes.node.main import ClusterVolumes, NodeOptions, serve
from penstock.kubernetes.node.proto import csi_pb2 as csi
from penstock.kubernetes.node.registration import csi_socket, registration_socket
from tests.support.api_server import Answer, ApiServer, api_server, refusal
from tests.support.csi import IMAGENET, Kubelet, ScriptedKeeper, short_folder
from tests.support.waiting import wait_until


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def volumes(server: ApiServer) -> ClusterVolumes:
    return ClusterVolumes(Client(server.connection()).impatient(2))


def test_a_data_set_exists_as_long_as_its_volume(server: ApiServer, volumes: ClusterVolumes):
    server.queue.append(Answer({"kind": "PersistentVolume"}))
    assert volumes.exists(IMAGENET) is True
    server.queue.append(refusal(404, "NotFound"))
    assert volumes.exists(IMAGENET) is False
    paths = {one.path for one in server.received}
    assert paths == {"/api/v1/persistentvolumes/default-imagenet"}


@pytest.mark.parametrize("answer", [refusal(403), refusal(500), refusal(429), Answer(breaks=True)])
def test_without_an_answer_it_is_unknown_whether_a_data_set_exists(
    server: ApiServer, volumes: ClusterVolumes, answer: Answer
):
    server.queue.append(answer)
    assert volumes.exists(IMAGENET) is None


class _Keeper(ScriptedKeeper):
    """Notes in which order it is started and closed, and what can be reached then."""

    def __init__(self, kubelet_dir: Path) -> None:
        super().__init__()
        self.kubelet_dir = kubelet_dir
        self.events: list[str] = []
        self.may_end = threading.Event()

    def start(self) -> None:
        self._note("started")

    def close(self) -> None:
        self._note("closing")
        assert self.may_end.wait(20)

    def _note(self, event: str) -> None:
        is_served = csi_socket(self.kubelet_dir).exists()
        self.events.append(f"{event}, {'served' if is_served else 'not served'}")


def test_volumes_are_served_until_every_mount_has_a_server():
    with short_folder() as folder:
        keeper = _Keeper(folder)
        kubelet = Kubelet(csi_socket(folder))
        before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}

        def end() -> None:
            wait_until(registration_socket(folder).exists)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: len(keeper.events) == 2)
            kubelet.unpublish(Path("/var/lib/kubelet/pods/x/mount"))
            kubelet.call(csi.ProbeRequest(), csi.ProbeResponse)
            keeper.events.append("unpublished")
            keeper.may_end.set()

        thread = threading.Thread(target=end)
        thread.start()
        try:
            serve(NodeOptions("node-1", kubelet_dir=folder), keeper)
        finally:
            thread.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        assert keeper.events == ["started, not served", "closing, served", "unpublished"]
        assert not csi_socket(folder).exists()
        assert not registration_socket(folder).exists()


def test_a_node_plugin_without_a_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert run(["node"]) == 2
    assert "--node-id" in capsys.readouterr().err
