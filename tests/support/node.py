"""A node of a cluster without the cluster: a real node plugin, and server pods as a kubelet starts
them: another user, no capability, namespaces of their own, folders by the plugin's inline volumes.

All of it lives in a mount namespace that ends with the test.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.node.proto import csi_pb2
from penstock.procfs import thread_states
from tests.support.csi import Kubelet
from tests.support.users import arrange
from tests.support.waiting import wait_until

_UNPRIVILEGED = [
    "setpriv", f"--reuid={names.SERVER_USER}", f"--regid={names.SERVER_USER}", "--clear-groups",
    "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--",
]  # fmt: skip


class ServerPod:
    """The container of a server pod: PID 1 of its own process namespace."""

    def __init__(self, node: "Node", name: str, served: Mapping[str, Any], log: Path) -> None:
        key = served["dataset"]["metadata"]
        self._node = node
        self.volumes = {
            role: node.publish_inline(ServedKey(key["namespace"], key["name"]), role, pod=name)
            for role in ("link", "state", "cache")
        }
        places = {
            "link": names.LINK_DIR, "state": names.STATE_DIR, "cache": "/cache/ssd-0"
        }  # fmt: skip
        binds = [
            f"mkdir -p {place} && mount --bind {shlex.quote(str(self.volumes[role]))} {place}"
            for role, place in places.items()
        ]
        self.log = log
        command = [*_UNPRIVILEGED, sys.executable, "-Pm", "penstock.kubernetes.pod.main"]
        hostname = node.folder / f"{name}.hostname"
        hostname.write_text(name)
        script = " && ".join(
            ["mount -t tmpfs tmpfs /run", "mount -t tmpfs tmpfs /cache", *binds,
             f"mount --bind {hostname} /etc/hostname",
             # A machine that was a node has this folder, and pods do not see it.
             "{ ! [ -d /var/lib/kubelet ] || mount -t tmpfs tmpfs /var/lib/kubelet; }",
             "ip link set lo up",
             f"exec {shlex.join(command)}"]
        )  # fmt: skip
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                node.enter("unshare", "--mount", "--net", "--pid", "--fork",
                           "--mount-proc", "sh", "-ec", script),
                env={"PATH": os.environ["PATH"], "HOME": "/tmp",
                     names.SERVED_VARIABLE: json.dumps(served)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def kill(self) -> None:
        """As a forced deletion does: every process at once, and no time to say anything."""
        if self._process.poll() is None:
            os.kill(self._first_process(), signal.SIGKILL)
        self._process.wait(30)

    def freeze(self) -> None:
        """Stop every thread of every process, until `thaw`."""
        frozen = self.processes()
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(set(thread_states(pid)) == {"T"} for pid in frozen))

    def thaw(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        """As an eviction does: SIGTERM to the first process."""
        os.kill(self._first_process(), signal.SIGTERM)

    def wait(self, timeout_s: float = 20) -> int:
        return self._process.wait(timeout_s)

    def status(self) -> dict[str, Any]:
        """Return what /status answers; an empty dictionary until it does."""
        return json.loads(self.get("/status") or "{}")

    def get(self, path: str) -> str:
        """Return what it answers over HTTP; nothing until it does."""
        program = (
            "import urllib.request as u; "
            f"print(u.urlopen('http://127.0.0.1:{names.HTTP_PORT}{path}').read().decode())"
        )
        pid = str(self._first_process())
        done = subprocess.run(
            ["nsenter", "-t", pid, "-n", sys.executable, "-c", program],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""

    def upgrade(self, *, python: str) -> None:
        """Have a new server take over that this Python runs, as changed Secrets do."""
        program = (
            "import sys; "
            "from penstock.daemon.control_socket import ask; "
            "from penstock.paths import mounts_dir; "
            "(path,) = mounts_dir().glob('*.supervisor.sock'); "
            "settings = ask(path, 'settings')['settings']; "
            "ask(path, 'upgrade', settings=settings, python=sys.argv[1], environment={})"
        )
        subprocess.run(
            ["nsenter", "-t", str(self._first_process()), "-p", "-m", "-r", *_UNPRIVILEGED,
             sys.executable, "-Pc", program, python],
            env={**os.environ, "PENSTOCK_STATE_DIR": str(names.STATE_DIR)},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip

    def capabilities(self) -> int:
        status = Path(f"/proc/{self._first_process()}/status").read_text()
        (line,) = [one for one in status.splitlines() if one.startswith("CapBnd")]
        return int(line.split()[1], 16)

    def processes(self) -> list[int]:
        """Return PID 1 and everything below it."""
        found = [self._first_process()]
        for pid in found:
            found += _children(pid)
        return found

    def _first_process(self) -> int:
        (pid,) = wait_until(lambda: _children(self._process.pid), self.log.read_text)
        return pid


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet_dir = folder / "kubelet"
        self.kubelet = Kubelet(self.kubelet_dir / "plugins" / names.DRIVER / "csi.sock")
        (self.kubelet_dir / "pods").mkdir(parents=True)
        (folder / "caches").mkdir()
        (folder / "volumes").mkdir()
        stash = folder / "stash"
        stash.mkdir()
        script = "\n".join([arrange(stash), _new_root(stash), "echo ready", "exec cat"])
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        self._plugin: subprocess.Popen[bytes] | None = None

    def enter(self, *command: str | Path) -> list[str]:
        target = str(self._holder.pid)
        return ["nsenter", "-t", target, "-m", "-r", "--", *map(str, command)]

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.enter(*command), capture_output=True, text=True, check=check, timeout=60
        )

    def popen(self, *command: str | Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(self.enter(*command), stdout=subprocess.PIPE, text=True)

    # -- the plugin --------------------------------------------------------------------------

    def start_plugin(self) -> None:
        with open(self.folder / "plugin.log", "ab") as log:
            self._plugin = subprocess.Popen(
                self.enter(sys.executable, "-m", "tests.support.node_plugin", self.folder),
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._answers, self.plugin_log)

    def kill_plugin(self) -> None:
        assert self._plugin is not None
        self._plugin.kill()
        self._plugin.wait()

    def terminate_plugin(self, timeout_s: float = 60) -> int:
        assert self._plugin is not None
        self._plugin.terminate()
        return self._plugin.wait(timeout_s)

    def plugin_pidfds(self) -> list[int]:
        """Return the processes of which the plugin has a descriptor."""
        assert self._plugin is not None
        found: list[int] = []
        for note in Path(f"/proc/{self._plugin.pid}/fdinfo").iterdir():
            lines = dict(line.split(":", 1) for line in note.read_text().splitlines())
            found += [int(lines["Pid"])] if "Pid" in lines else []
        return found

    def plugin_log(self) -> str:
        return (self.folder / "plugin.log").read_text()

    def _answers(self) -> bool:
        assert self._plugin is not None
        assert self._plugin.poll() is None, self.plugin_log()
        try:
            return self.kubelet.call(csi_pb2.ProbeRequest(), csi_pb2.ProbeResponse).ready.value
        except grpc.RpcError:
            return False

    # -- volumes -----------------------------------------------------------------------------

    def set_volume(self, key: ServedKey, *, exists: bool) -> None:
        """Say what the API server would answer about a data set's persistent volume."""
        marker = self.folder / "volumes" / names.volume_name(*key)
        if exists:
            marker.touch()
        else:
            marker.unlink(missing_ok=True)

    def publish_inline(self, key: ServedKey, role: str, *, pod: str) -> Path:
        target = self.kubelet_dir / "pods" / pod / "volumes" / role / "mount"
        context = {
            names.ROLE: role, names.DATASET: key.name, names.EPHEMERAL: "true",
            names.POD_NAMESPACE: key.namespace, names.POD_NAME: pod, names.POD_UID: pod,
        }  # fmt: skip
        if role == "cache":
            context[names.CACHE_ROOT] = str(self.folder / "caches")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.kubelet.publish(target, context)
        return target

    def publish(
        self, key: ServedKey, pod: str, *, sub_path: str = "", timeout_s: float = 60
    ) -> Path:
        target = self.kubelet_dir / "pods" / pod / "volumes" / "data" / "mount"
        target.parent.mkdir(parents=True, exist_ok=True)
        self.kubelet.publish(target, claim_context(key, pod, sub_path), timeout_s=timeout_s)
        return target

    def mounts(self, text: str) -> list[str]:
        table = self.run("cat", "/proc/self/mountinfo").stdout
        return [line for line in table.splitlines() if text in line]

    def close(self) -> None:
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        if self._plugin is not None and self._plugin.poll() is None:
            self.kill_plugin()
        for line in self.mounts("fuse.penstock"):
            self.run("umount", "-l", line.split()[4], check=False)
        self._holder.stdin.close()
        self._holder.wait(30)
        self._holder.stdout.close()


def _new_root(stash: Path) -> str:
    """The shell's words that give the namespace a root folder of its own, with all that the
    machine's has and the folders that a node and its pods have: nothing is made on the machine."""
    root = f"{stash}/root"
    return "\n".join(
        [
            f"mkdir {root}; mount -t tmpfs -o mode=755 tmpfs {root}; mount --make-private {root}",
            "for one in /*; do",
            f'  if [ -L "$one" ]; then cp -P "$one" {root}/; ',
            f'  elif [ -d "$one" ]; then mkdir "{root}$one"; mount --rbind "$one" "{root}$one"; fi',
            "done",
            f"cd {root}; mkdir .old; pivot_root . .old; umount -l .old; rmdir .old",
            "mkdir -p /cache /host /runtime-mnt /var/lib/penstock /run/penstock",
            *(f"mount -t tmpfs tmpfs {place}" for place in ("/var/lib/penstock", "/runtime-mnt")),
        ]
    )


def claim_context(key: ServedKey, pod: str, sub_path: str = "") -> dict[str, str]:
    return {
        names.FLUID_PATH: str(names.mount_path("penstock", key)), names.MOUNT_TYPE: "penstock",
        names.RUNTIME_NAMESPACE: key.namespace, names.RUNTIME_NAME: key.name,
        names.POD_NAMESPACE: key.namespace, names.POD_NAME: pod, names.POD_UID: pod,
        names.EPHEMERAL: "false", **({names.SUB_PATH: sub_path} if sub_path else {}),
    }  # fmt: skip


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@contextmanager
def open_node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("a node plugin needs root")
    folder = Path(tempfile.mkdtemp(prefix="node-", dir="/tmp"))
    folder.chmod(0o755)
    made = Node(folder)
    try:
        made.start_plugin()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)
