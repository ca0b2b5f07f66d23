"""One server process, as its supervisor sees it, and when to start the next one."""

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

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end a mount in the foreground
WARNING = "warning: "  # begins a line for the user about what readers will meet
CHANNEL_VARIABLE = "PENSTOCK_LINK"
# Settings that the supervisor itself uses; a command of another release may not send them all.
_FROM_SETTINGS = ("watchdog_s", "grace_s", "give_up_s")
_LONGEST_S = 1e9  # 30 years; the kernel takes no timeout that is much longer
OVER_LIMITS = 75  # the exit code of a server that makes room for another
# The threads of a process that was killed end one after the other, normally far sooner than this.
HALF_DEAD_AFTER_S = 1.5
# A server that ended sooner after it was ready ended quickly: see RestartPolicy.
_QUICK_END_S = 60.0
_FREE_RESTARTS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a server is started with. The settings stay as they arrived: the supervisor does not
    parse them, so that one of an older release can start a newer server."""

    mountpoint: Path
    source: str
    settings: Message
    python: str
    environment: dict[str, str | None] = field(default_factory=dict[str, str | None])  # None: unset
    log: str | None = None
    watchdog_s: float = 30.0
    grace_s: float = 30.0
    give_up_s: float = 300.0

    @property
    def metrics(self) -> str | None:
        """Where metrics are served."""
        address = self.settings.get("metrics")
        return None if address is None else str(address)

    def upgraded(self, request: Message) -> "LaunchSpec":
        """Return the specification for an upgrade. Raises KeyError, TypeError or ValueError for a
        malformed request: the client may be of another release."""
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


_KILLED = "killed (SIGKILL): by a user, or because the machine ran out of memory"


class ServerProcess:
    def __init__(self, plan: LaunchSpec, start: Message) -> None:
        self.plan = plan
        self.link, theirs = Channel.pair()
        self.heard = False  # no message yet: on a busy machine Python starts slower than it pulses
        self.prepared = False
        self.at_work = False  # it was told to serve, so it may have taken requests
        self.ready = False
        self.hung = False
        self.unmounted = False
        self.is_reaped = False
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
        """Return whether its first thread has ended, and another one hangs in the kernel."""
        poll = select.poll()
        poll.register(self.end, select.POLLIN)
        if poll.poll(0):
            return False  # the whole process is gone
        return cannot_run(self.pid)

    def mark_killed(self) -> None:
        """Note that it was killed from outside, and is half dead."""
        self.killed_s, self._why_killed = time.monotonic(), _KILLED
        self._lingers = True

    def reap(self, timeout_s: float) -> None:
        """Wait until it is gone, or half dead for good, up to `timeout_s`."""
        dies_s = 0.0 if self._lingers else min(timeout_s, HALF_DEAD_AFTER_S)
        for within_s in (dies_s, timeout_s - dies_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
                break
            if self.is_half_dead():
                break
        os.close(self.end)
        self.link.close()
        self.is_reaped = True

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    @property
    def crashed(self) -> bool:
        """Return whether it ended through a fault of its own, and was not killed."""
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
        # Real-time signals have no names.
        return f"it crashed (signal {-status}, {signal.strsignal(-status)})"


class RestartPolicy:
    """Decides how soon the next server starts, from how the ones before it ended.

    A server that was killed from outside after it was ready says nothing about the next one, which
    starts at once, however often that happens. One that ended by itself soon after its start will
    most likely do so again, so the waits double. Used by one thread.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None  # when and how the last server ended
        # Quick ends in a row of servers that had taken requests: a request may be the cause.
        self.quick_at_work = 0
        self._quick = 0

    def add(self, server: ServerProcess) -> float:
        """Return how many seconds to wait before the next start."""
        lived_s = time.monotonic() - server.ready_s
        quick = not server.ready or (server.crashed and lived_s < _QUICK_END_S)
        if server.at_work:
            self.quick_at_work = self.quick_at_work + 1 if quick else 0
        return self._add(server.how_it_ended, quick=quick)

    def add_failed_start(self, why: str) -> float:
        return self._add(why, quick=True)

    def _add(self, how: str, *, quick: bool) -> float:
        self.count += 1
        self.last = f"{time.strftime('%F %T')} {how}"
        self._quick = self._quick + 1 if quick else 0
        if self._quick <= _FREE_RESTARTS:
            return 0.0
        doublings = min(10, self._quick - _FREE_RESTARTS - 1)
        return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**doublings)


def cannot_run(pid: int) -> bool:
    """Return whether its first thread has ended, and every other one hangs in the kernel.

    A thread that can still run, however soon it will be killed, may take another request from
    /dev/fuse, which is lost with it. That left a reader waiting on a machine with ten times more
    runnable threads than cores.
    """
    states = procfs.thread_states(pid)
    return bool(states) and states[0] == "Z" and all(state in "ZXD" for state in states)


def _spawn(plan: LaunchSpec, theirs: socket.socket) -> "subprocess.Popen[bytes]":
    merged: dict[str, str | None] = {
        **os.environ,
        **plan.environment,
        CHANNEL_VARIABLE: str(theirs.fileno()),
        # Dozens of threads with an arena each would keep the memory that they have freed.
        "MALLOC_ARENA_MAX": "4",
    }
    wanted = {name: value for name, value in merged.items() if value is not None}
    with theirs, child_environment(wanted) as (environment, keys):
        return subprocess.Popen(
            # -P: do not import a queue.py from the working directory.
            [plan.python, "-Pm", "penstock.daemon.serve", str(plan.mountpoint)],
            env=environment,
            pass_fds=(theirs.fileno(), keys),
            stdin=subprocess.DEVNULL,
            # Ctrl-C is for the supervisor, which decides what happens to the mount.
            start_new_session=True,
        )
