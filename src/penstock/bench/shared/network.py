"""Machines on this machine: a network namespace for each, and links that can be shaped.

    hub                       bridge 10.77.0.1: the namespace of this process, with the store in it
     ├── veth ── machine 1    10.77.0.11
     ├── veth ── machine 2    10.77.0.12
     └── …

No namespace has a name. The kernel removes one, with its links, when the last process in it ends,
so nothing of a network outlives the workspace that its processes belong to, not even after
kill -9. Machines share file systems, page cache and processors.

Needs root, and the programs `ip` and `tc` (iproute2), `nsenter` and `unshare` (util-linux).
Main thread only, and `enter_hub` before there is a second thread.
"""

import ctypes
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.workspace import BenchError, Workspace, find_program, wait_until

PART = "network"
HUB = "10.77.0.1"
_NETWORK, _FIRST_HOST, _BITS = "10.77.0", 10, 24
# More specific than the network's own route, so they win while they are there.
_HALVES = (f"{_NETWORK}.0/25", f"{_NETWORK}.128/25")
_CLONE_NEWNET = 0x40000000
# A token bucket must hold what arrives between two ticks of the kernel's clock (250 a second), and
# a whole segment of 64 KiB.
_TICKS_PER_S = 250
_LEAST_BURST_BYTES = 256 << 10


def enter_hub() -> None:
    """Move this process into a namespace of its own, with a bridge that links can end at."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise BenchError(
            f"no network namespace can be made: {os.strerror(ctypes.get_errno())}",
            hint="run it as root",
        )
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "hub", "type", "bridge")
    _run("ip", "address", "add", f"{HUB}/{_BITS}", "dev", "hub")
    _run("ip", "link", "set", "hub", "up")


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace. It lasts as long as the process `pid`."""

    number: int
    pid: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"{_NETWORK}.{_FIRST_HOST + self.number}"

    def enter(self, command: Sequence[str | Path]) -> list[str | Path]:
        """Return the command that runs this one on the machine, as the same process."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]

    def shape(self, bits_per_s: float | None) -> None:
        """Give its link a rate, in both directions; None: that of the processors."""
        ends = (["tc"], f"link{self.number}"), (self.enter(["tc"]), "eth0")
        for program, device in ends:
            _run(*program, "qdisc", "replace", "dev", device, "root", *_discipline(bits_per_s))

    def cut_off(self) -> None:
        """Drop every packet that it sends. Who waits for an answer hears nothing, no refusal."""
        for half in _HALVES:
            _run(*self.enter(["ip", "route", "add", "blackhole", half]))

    def reconnect(self) -> None:
        for half in _HALVES:
            _run(*self.enter(["ip", "route", "delete", "blackhole", half]))


def add_machine(workspace: Workspace, number: int) -> Machine:
    """Add a machine that is linked to the hub."""
    holder = workspace.spawn(PART, ["unshare", "--net", "sleep", "infinity"])
    pid, ours = holder.popen.pid, os.readlink("/proc/self/ns/net")

    def has_left() -> bool:
        holder.require_alive()
        return os.readlink(f"/proc/{pid}/ns/net") != ours

    wait_until(has_left, timeout_s=15, what="a network namespace")
    machine, link = Machine(number, pid), f"link{number}"
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "link", "set", link, "master", "hub", "up")
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{machine.address}/{_BITS}", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
    ):
        _run(*machine.enter(["ip", *words]))
    return machine


def _discipline(bits_per_s: float | None) -> list[str]:
    if bits_per_s is None:
        return ["pfifo_fast"]
    burst = max(_LEAST_BURST_BYTES, int(bits_per_s / 8 / _TICKS_PER_S))
    return ["tbf", "rate", f"{int(bits_per_s)}bit", "burst", f"{burst}b", "latency", "100ms"]


def _run(*command: str | Path) -> None:
    find_program(str(command[0]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(map(str, command))
        raise BenchError(f"{words}: status {done.returncode}: {done.stderr.strip()}")
