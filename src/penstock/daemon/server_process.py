"""One server process, as its supervisor sees it."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock import procfs
from penstock.daemon.channel import Channel, Message, send_start
from penstock.environment import child_environment

CHANNEL_VARIABLE = "PENSTOCK_LINK"
# What the supervisor itself acts on; a command line of another release may not send them all.
_FROM_SETTINGS = ("watchdog_s", "grace_s", "give_up_s")
_LONGEST_S = 1e9  # 30 years; the kernel takes no timeout that is much longer
OVER_LIMITS = 75  # the exit code of a server that makes room for another
# Threads end one after the other; who dies as one should is gone long before.
HALF_DEAD_AFTER_S = 1.5


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a server is started with. Kept as it came: the supervisor does not look inside, so
    that one of an older release can start a newer server."""

    mountpoint: Path
    source: str
    settings: Message
    python: str
    environment: dict[str, str | None] = field(default_factory=dict[str, str | None])  # None: unset
    log: str | None = None
    watchdog_s: float = 30.0
    grace_s: float = 30.0
    give_up_s: float = 300.0

    def upgraded(self, request: Message) -> "LaunchSpec":
        """Raises KeyError, TypeError or ValueError for a request that is none: whoever asks is of
        another release, perhaps."""
        settings: Message = {**request["settings"]}
        times = {name: float(settings.get(name, getattr(self, name))) for name in _FROM_SETTINGS}
        for name, seconds in times.items():
            if not 0 <= seconds <= _LONGEST_S:
                raise ValueError(f"{name}: {seconds:g}")
        return replace(
            self,
            settings=settings,
            source=str(request.get("source", self.source)),
            python=request["python"],
            environment={**self.environment, **request["environment"]},
            **times,
        )


_KILLED = "killed (SIGKILL): by someone, or because the machine ran out of memory"


class ServerProcess:
    def __init__(self, plan: LaunchSpec, start: Message) -> None:
        self.plan = plan
        self.link, theirs = Channel.pair()
        self.heard = False  # starting Python takes longer on a busy machine than a pulse
        self.prepared = False
        self.at_work = False  # it was let go, so it has taken requests
        self.ready = False
        self.hung = False
        self.unmounted = False
        self.is_buried = False
        self.error: Message | None = None
        self.killed_s: float | None = None
        self._why_killed: str | None = None
        self._lingers = False
        self.heard_s = self.started_s = time.monotonic()
        self.ready_s = 0.0
        try:
            self._process = _spawn(plan, theirs)
        except BaseException:
            self.link.close()
            raise
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)
        send_start(self.link, {**start, "settings": plan.settings, "log": plan.log})

    def kill(self, why: str) -> None:
        if self.killed_s is None:
            self.killed_s, self._why_killed = time.monotonic(), why
        self._process.send_signal(signal.SIGKILL)

    def is_half_dead(self) -> bool:
        """Has its first thread ended, and all others must, but one cannot yet?"""
        poll = select.poll()
        poll.register(self.end, select.POLLIN)
        if poll.poll(0):
            return False  # gone altogether
        return cannot_run(self.pid)

    def was_killed(self) -> None:
        """By someone else, a while ago, and it is half dead."""
        self.killed_s, self._why_killed = time.monotonic(), _KILLED
        self._lingers = True

    def reap(self, timeout_s: float) -> None:
        """Waits until it is gone, or half dead for good, but no longer than this."""
        dies_s = 0.0 if self._lingers else min(timeout_s, HALF_DEAD_AFTER_S)
        for within_s in (dies_s, timeout_s - dies_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
                break
            if self.is_half_dead():
                break
        os.close(self.end)
        self.link.close()
        self.is_buried = True

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    @property
    def crashed(self) -> bool:
        """It ended through a fault of its own, and not because someone killed it."""
        harmless = (None, 0, OVER_LIMITS, -signal.SIGKILL)  # None: killed, but not yet gone
        return self.hung or self._process.returncode not in harmless

    @property
    def how_it_ended(self) -> str:
        if self._why_killed is not None:
            return self._why_killed
        if self.error is not None:
            return str(self.error["error"])
        status = self._process.returncode or 0
        if status >= 0:
            return f"it ended with status {status}"
        if -status == signal.SIGKILL:
            return _KILLED
        # Those of real time have no names.
        return f"it crashed (signal {-status}, {signal.strsignal(-status)})"


def cannot_run(pid: int) -> bool:
    """Has its first thread ended, and does every other hang in the kernel? One that could still
    run, however soon it will be killed, may take another request from /dev/fuse, which is lost
    with it. On a machine with ten times more to run than cores, a reader was left waiting so."""
    states = procfs.thread_states(pid)
    return bool(states) and states[0] == "Z" and all(state in "ZXD" for state in states)


def _spawn(plan: LaunchSpec, theirs: socket.socket) -> "subprocess.Popen[bytes]":
    merged: dict[str, str | None] = {
        **os.environ,
        **plan.environment,
        CHANNEL_VARIABLE: str(theirs.fileno()),
        # Dozens of threads with an arena each would hold on to what they have let go of.
        "MALLOC_ARENA_MAX": "4",
    }
    wanted = {name: value for name, value in merged.items() if value is not None}
    with theirs, child_environment(wanted) as (environment, keys):
        return subprocess.Popen(
            # -P: a queue.py in the folder where someone stands is not ours to import.
            [plan.python, "-Pm", "penstock.daemon.server_main", str(plan.mountpoint)],
            env=environment,
            pass_fds=(theirs.fileno(), keys),
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the supervisor, who decides what becomes of the mount.
            start_new_session=True,
        )
