"""Mounts that outlive server pods and node plugins: real processes, without a cluster."""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from tests.support.csi import status_of
from tests.support.metrics import parse
from tests.support.node import Node, ServerPod, open_node
from tests.support.waiting import wait_until

FILES = 40
KEY = ServedKey("default", "demo")
# Reads all files again and again without the page cache, compares them, and prints a line a pass:
# when it began, and the longest read so far.
READER = """
import hashlib, os, sys, time
folder, sums = sys.argv[1], dict(line.split() for line in open(sys.argv[2]))
longest = 0.0
while True:
    start = time.monotonic()
    for name, want in sums.items():
        began = time.monotonic()
        fd = os.open(f"{folder}/{name}", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        os.close(fd)
        longest = max(longest, time.monotonic() - began)
        if hashlib.sha256(data).hexdigest() != want:
            sys.exit(f"wrong bytes in {name}")
    print(start, longest, flush=True)
"""


@pytest.fixture
def node() -> Iterator[Node]:
    with open_node() as made:
        yield made


@pytest.fixture
def served(node: Node) -> dict[str, Any]:
    data = node.folder / "data"
    data.mkdir()
    sums: list[str] = []
    for number in range(FILES):
        body = hashlib.sha256(str(number).encode()).digest() * 2000
        (data / f"{number}.bin").write_bytes(body)
        sums.append(f"{number}.bin {hashlib.sha256(body).hexdigest()}")
    (data / "below").mkdir()
    (data / "below" / "file").write_text("below")
    (node.folder / "sums").write_text("\n".join(sums))
    node.run("mkdir", "-p", f"/host{data}")
    node.run("mount", "--bind", data, f"/host{data}")
    node.set_volume(KEY, exists=True)
    return manifests(data)


def manifests(data: Path, **options: str) -> dict[str, Any]:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    return {
        "dataset": {
            "apiVersion": "data.fluid.io/v1alpha1",
            "kind": "Dataset",
            "metadata": metadata,
            "spec": {"mounts": [{"mountPoint": f"local://{data}", "name": "data", "path": "/"}]},
        },
        "runtime": {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "PenstockRuntime",
            "metadata": metadata,
            "spec": {
                "tieredstore": {
                    "levels": [{"mediumtype": "SSD", "path": "/nvme", "quota": "64Mi"}]
                },
                "options": options,
            },
        },
        "references": [],
    }


@pytest.fixture
def pods(node: Node, served: dict[str, Any]) -> Iterator["Pods"]:
    made = Pods(node, served)
    yield made
    made.kill_all()
    print(made.logs())  # shown if the test failed


class Pods:
    def __init__(self, node: Node, served: dict[str, Any]) -> None:
        self._node = node
        self._served = served
        self._all: list[ServerPod] = []

    def start(self) -> ServerPod:
        name = f"demo-fuse-{len(self._all)}"
        log = self._node.folder / f"{name}.log"
        self._all.append(ServerPod(self._node, name, self._served, log))
        return self._all[-1]

    def replace(self) -> ServerPod:
        """Delete the newest pod as a DaemonSet with maxSurge does: its successor starts at once."""
        old = self._all[-1]
        old.ask_to_end()
        new = self.start()
        assert old.wait() == 0, self.logs()
        return new

    def logs(self) -> str:
        texts = [f"{pod.log.name}:\n{pod.log.read_text()}" for pod in self._all]
        return "\n".join([*texts, "plugin:", self._node.plugin_log()])

    def kill_all(self) -> None:
        for pod in self._all:
            pod.kill()


class Reader:
    def __init__(self, node: Node, folder: Path) -> None:
        self._process: subprocess.Popen[str] = node.popen(
            sys.executable, "-c", READER, folder, node.folder / "sums"
        )

    def wait_for_pass(self) -> float:
        """Wait until all files were read once from now on; return the longest read so far."""
        assert self._process.stdout is not None
        now_s, began_s, longest_s = time.monotonic(), 0.0, 0.0
        while began_s < now_s:
            line = self._process.stdout.readline()
            assert line, f"the reader ended: {self._process.wait()}"
            began_s, longest_s = map(float, line.split())
        return longest_s

    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def reader(node: Node, pods: Pods) -> Iterator[Reader]:
    pods.start()
    made = Reader(node, node.publish(KEY, "reader"))
    made.wait_for_pass()
    yield made
    made.stop()


def test_a_pod_reads_every_byte_and_the_server_has_no_privilege(node: Node, pods: Pods) -> None:
    server = pods.start()
    target = node.publish(KEY, "reader")
    listed = node.run("sha256sum", *(target / f"{number}.bin" for number in range(FILES))).stdout
    sums = [line.split()[0] for line in listed.splitlines()]
    wanted = [line.split()[1] for line in (node.folder / "sums").read_text().splitlines()]
    assert sums == wanted
    assert server.capabilities() == 0
    owner = node.run("stat", "-c", "%u:%g %A", target / "0.bin").stdout.strip()
    assert owner == "0:0 -r--r--r--"
    status = wait_until(lambda: one if (one := server.status()).get("brief") else None, pods.logs)
    assert status["error"] is None
    assert status["brief"]["files"] == FILES + 1
    metrics = parse(server.get("/metrics"))
    assert (metrics["serving"], metrics["catalog_files"]) == (1, FILES + 1)
    assert metrics["read_bytes_total"] > 0


def test_readers_see_no_error_while_server_pods_are_killed_and_evicted(
    node: Node, pods: Pods, reader: Reader
) -> None:
    for round_number in range(4):
        if round_number % 2:
            pods.replace()
        else:
            pods._all[-1].kill()
            pods.start()
        reader.wait_for_pass()
    assert reader.runs(), "it ends with an error or a wrong byte"


def test_readers_see_no_error_while_the_node_plugin_is_killed_and_upgraded(
    node: Node, pods: Pods, reader: Reader
) -> None:
    for round_number in range(4):
        if round_number % 2:
            assert node.terminate_plugin() == 0, pods.logs()
        else:
            node.kill_plugin()
        reader.wait_for_pass()
        node.start_plugin()
        reader.wait_for_pass()
        # What the plugin took back is handed to the next server.
        pods.replace()
        reader.wait_for_pass()


def test_a_server_that_is_told_to_end_serves_until_the_plugin_is_there(
    node: Node, pods: Pods, reader: Reader
) -> None:
    node.kill_plugin()
    server = pods._all[-1]
    server.ask_to_end()
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(1)
    reader.wait_for_pass()
    node.start_plugin()
    reader.wait_for_pass()
    pods.start()
    assert server.wait() == 0
    reader.wait_for_pass()


def test_a_new_server_takes_over_and_an_older_one_goes_on_after_it(
    pods: Pods, reader: Reader
) -> None:
    """As in a rollout: the old pod is deleted once the new one is Ready."""
    old = pods._all[-1]
    new = pods.start()
    wait_until(lambda: new.status().get("ready"), pods.logs)
    assert not old.status().get("ready")
    reader.wait_for_pass()
    new.kill()
    wait_until(lambda: old.status().get("ready"), pods.logs)
    reader.wait_for_pass()


def test_a_server_without_readers_ends_at_once(node: Node, pods: Pods) -> None:
    server = pods.start()
    target = node.publish(KEY, "reader")
    node.kubelet.unpublish(target)
    server.ask_to_end()
    assert server.wait(10) == 0


def test_the_end_of_a_server_process_in_its_pod_is_a_short_pause(
    pods: Pods, reader: Reader
) -> None:
    first, supervisor, *_ = pods._all[-1].processes()
    for pid in (pods._all[-1].processes()[2], supervisor):
        subprocess.run(["kill", "-9", str(pid)], check=True)
        reader.wait_for_pass()
    assert pods._all[-1].processes()[0] == first


def test_a_sub_path_is_published_and_nothing_outside_of_the_data_set(
    node: Node, pods: Pods
) -> None:
    pods.start()
    target = node.publish(KEY, "reader", sub_path="below")
    assert node.run("cat", target / "file").stdout == "below"
    with pytest.raises(grpc.RpcError) as error:
        node.publish(KEY, "other", sub_path="missing")
    assert "missing: No such file or directory" in status_of(error.value)[1]


def test_a_sub_path_that_its_server_does_not_look_up_fails_in_time_and_can_be_unpublished(
    node: Node, pods: Pods
) -> None:
    server = pods.start()
    node.publish(KEY, "reader")
    # As if it were killed between the readers' first answer and this lookup.
    server.freeze()
    with pytest.raises(grpc.RpcError) as error:
        node.publish(KEY, "other", sub_path="below", timeout_s=4)
    code, text = status_of(error.value)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "its server has not looked up below" in text
    node.kubelet.unpublish(node.kubelet_dir / "pods" / "other" / "volumes" / "data" / "mount")
    server.thaw()
    target = node.publish(KEY, "other", sub_path="below")
    assert node.run("cat", target / "file").stdout == "below"


def test_a_failed_upgrade_leaves_the_plugin_with_the_server_that_serves(
    node: Node, pods: Pods, reader: Reader
) -> None:
    """A successor waits for the end of that process: it must not be one that never served."""
    pod = pods._all[-1]
    serving = pod.processes()[2]
    assert node.plugin_pidfds() == [serving]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        pod.upgrade(python="/bin/false")
    assert "the new server could not start" in failed.value.stderr
    assert pod.processes()[2] == serving
    assert node.plugin_pidfds() == [serving]
    reader.wait_for_pass()


def test_a_publish_without_a_server_fails_in_time_and_says_why(
    node: Node, served: dict[str, Any]
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        node.publish(KEY, "reader", timeout_s=4)
    code, text = status_of(error.value)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "it has no server pod on this node" in text


def test_the_status_names_what_only_a_new_mount_would_change(
    node: Node, pods: Pods, reader: Reader
) -> None:
    first = pods._all[-1]
    assert first.status()["restart_for"] == []
    pods._served = manifests(node.folder / "data", mode="passthrough")
    second = pods.replace()
    reader.wait_for_pass()
    status = wait_until(lambda: one if (one := second.status()).get("brief") else None, pods.logs)
    assert status["restart_for"] == ["the mode"]
    assert status["brief"]["mode"] == "pagecache"


def test_a_published_volume_is_read_only_and_goes_with_its_pod(node: Node, pods: Pods) -> None:
    pods.start()
    target = node.publish(KEY, "reader")
    assert "Read-only" in node.run("touch", target / "new", check=False).stderr
    node.kubelet.unpublish(target)
    node.kubelet.unpublish(target)
    assert not node.mounts(str(target))
    assert not target.exists()


def test_nothing_of_a_deleted_data_set_stays_on_the_node(node: Node, pods: Pods) -> None:
    server = pods.start()
    target = node.publish(KEY, "reader")
    node.run("sha256sum", target / "0.bin")
    caches = node.folder / "caches" / "penstock" / KEY.namespace / KEY.name
    assert (caches / "index.sqlite").exists()
    node.kubelet.unpublish(target)
    server.ask_to_end()
    assert server.wait() == 0
    for volume in server.volumes.values():
        node.kubelet.unpublish(volume)
    wait_until(lambda: not node.mounts("/runtime-mnt/penstock"), pods.logs)
    assert caches.exists(), "the caches stay for the next pod"
    node.set_volume(KEY, exists=False)
    wait_until(lambda: not caches.parent.parent.exists(), pods.logs)
    assert node.run("find", "/var/lib/penstock", "-mindepth", "1").stdout == ""
    assert node.run("find", "/runtime-mnt", "-mindepth", "4").stdout == ""


def test_folders_of_a_server_pod_stay_while_it_starts(node: Node) -> None:
    """The API server may not know the volume yet, or not any more."""
    for role in ("state", "cache"):
        node.publish_inline(KEY, role, pod=f"{role}-first")
    other = ServedKey("default", "other")
    folder = node.folder / "caches" / "penstock" / "default"
    gone = node.publish_inline(other, "cache", pod="gone")
    node.kubelet.unpublish(gone)
    wait_until(lambda: not (folder / "other").exists(), node.plugin_log)
    assert (folder / "demo").exists()
    assert node.run("ls", "/var/lib/penstock/sets/default/demo").stdout.split() == [
        "caches.json",
        "state",
    ]


def test_a_mount_that_lost_plugin_and_server_is_replaced_for_new_pods(
    node: Node, pods: Pods, served: dict[str, Any]
) -> None:
    server = pods.start()
    lost = node.publish(KEY, "reader")
    node.kill_plugin()
    server.kill()
    failed = node.run("ls", lost, check=False)
    assert "not connected" in failed.stderr
    node.start_plugin()
    condition = node.kubelet.stats(lost).volume_condition
    assert condition.abnormal
    pods.start()
    target = node.publish(KEY, "new")
    assert len(node.run("ls", target).stdout.split()) == FILES + 1


def test_the_link_to_one_data_set_shows_no_other(node: Node, pods: Pods) -> None:
    other = ServedKey("default", "other")
    node.publish_inline(other, "link", pod="other-fuse")
    server = pods.start()
    node.publish(KEY, "reader")
    shown = node.run("ls", server.volumes["link"]).stdout.split()
    assert shown == [names.LINK_SOCKET.name]
    (folder,) = node.mounts(str(server.volumes["link"]))
    assert "/link/default/demo" in folder


@pytest.mark.parametrize(
    "message",
    [
        {"attach": {"mount_type": "../../../etc", "kept": [], "remembered": {}}},
        {"attach": {"mount_type": "penstock", "kept": ["fuse"], "remembered": {}}},
        {"attach": {}},
        {"call": "open_backing"},
        {"call": "reboot"},
    ],
)
def test_a_server_that_was_taken_over_makes_no_mount_elsewhere(
    node: Node, pods: Pods, message: dict[str, Any]
) -> None:
    pods.start()
    target = node.publish(KEY, "reader")
    before = node.mounts("fuse.penstock")
    link = node.publish_inline(KEY, "link", pod="attacker")
    socket_path = str(link / names.LINK_SOCKET.name)
    program = (
        "import json, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        "s.connect(sys.argv[1]); s.send(sys.argv[2].encode()); s.settimeout(2); "
        "print(s.recv(1 << 17) if 'attach' not in sys.argv[2] else '')"
    )
    node.run(sys.executable, "-c", program, socket_path, json.dumps(message), check=False)
    assert node.mounts("fuse.penstock") == before
    assert node.run("ls", target).stdout, "the mount is served as before"
