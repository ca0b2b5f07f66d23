"""Starts and stops a Kubernetes on this machine, in namespaces that vanish with it.

The binaries are those of $KUBEBUILDER_ASSETS; `up.py`, which starts them, lies in the folder
shared/cluster beside the checkout, with the binaries packed. Knows nothing of Penstock.
"""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
_START_S = 180.0
_STOP_S = 30.0
# What nodes share with the machine, as it is one machine, and where pods or caches may write.
_PRIVATE = ("/dev/shm", "/mnt", "/var/cache", "/var/lib/docker")


class KitError(Exception):
    """A cluster cannot be started; says why and what helps."""


@dataclass(frozen=True)
class Kit:
    starter: Path
    assets: Path


@dataclass(frozen=True)
class Cluster:
    home: Path
    nodes: tuple[str, ...]
    network_pid: int  # of a process in the cluster's network, as seen from outside

    @property
    def kubeconfig(self) -> Path:
        return self.home / "admin.conf"

    def enter(self, node: str | None = None) -> Path:
        """Return the program that runs a command in the cluster, or on one of its nodes."""
        return self.home / (node or "") / "enter"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time has the lock of this name, in this checkout."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    with open(folder / f".{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_to_its_end(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> int:
    """Run a command in the foreground; return its status as a shell does.

    Ctrl-C reaches the command by itself, and SIGTERM is passed on: either way it ends first, and
    what it runs in afterwards.
    """
    process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], env=env)
    before = (
        signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    )
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    return status if status >= 0 else 128 - status


def find_kit() -> Kit:
    folders = [parent / "shared" / "cluster" for parent in ROOT.parents]
    starter = next((folder / "up.py" for folder in folders if (folder / "up.py").exists()), None)
    if starter is None:
        raise KitError(
            "no kit to start a cluster with\n"
            f"hint: put the folder shared/cluster (up.py and its archives) into {ROOT.parent}"
        )
    if given := os.environ.get("KUBEBUILDER_ASSETS"):
        return Kit(starter, Path(given))
    unpacked = subprocess.run(
        [sys.executable, starter.with_name("unpack.py")], capture_output=True, text=True
    )
    if unpacked.returncode:
        raise KitError(
            f"the binaries of Kubernetes were not unpacked: {unpacked.stderr}\n"
            "hint: set KUBEBUILDER_ASSETS to a folder with kube-apiserver, kubelet, etcd and so on"
        )
    return Kit(starter, Path(unpacked.stdout.strip()))


@contextmanager
def running_cluster(kit: Kit, *, nodes: int = 2, fake_nodes: int = 0) -> Iterator[Cluster]:
    """A cluster whose nodes are Ready, until the context ends."""
    if os.geteuid() != 0:
        raise KitError("a cluster needs root\nhint: run this as root")
    # On a disk: images are unpacked there, and /tmp may be in memory.
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-", dir="/var/tmp"))
    home, log = folder / "home", folder / "log"
    with open(log, "wb") as output:
        # It ends with this process, however that ends, but not by Ctrl-C: what runs in it has to
        # end first.
        starter = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "TERM", sys.executable, kit.starter),
                *(f"--nodes={nodes}", f"--fake={fake_nodes}", home),
            ],
            stdout=output,
            stderr=output,
            env={**os.environ, "KUBEBUILDER_ASSETS": str(kit.assets)},
            start_new_session=True,
        )
    try:

        def started() -> bool:
            if starter.poll() is not None:
                raise KitError(f"the cluster did not start:\n{log.read_text()[-4000:]}")
            return b"admin.conf" in log.read_bytes()

        wait_until(started, lambda: log.read_text()[-4000:], timeout_s=_START_S)
        names = tuple(f"node-{number + 1}" for number in range(nodes))
        cluster = Cluster(home, names, _only_child(_only_child(starter.pid)))
        for node in names:
            _make_folders_private(cluster, node)
        yield cluster
    finally:
        starter.send_signal(signal.SIGTERM)
        try:
            starter.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.wait()
        # 80,000 files of two containerds; shutil.rmtree takes several times as long.
        subprocess.run(["rm", "-rf", folder], check=True)


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _make_folders_private(cluster: Cluster, node: str) -> None:
    for name in _PRIVATE:
        Path(name).mkdir(exist_ok=True)
        subprocess.run(
            [cluster.enter(node), "mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", name],
            check=True,
        )
