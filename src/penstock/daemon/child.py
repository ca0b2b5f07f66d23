"""One server process, as its supervisor sees it."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.daemon.link import Link, Message

LINK_VARIABLE = "PENSTOCK_LINK"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a server is started with. Kept as it came: the supervisor does not look inside, so
    that one of an older release can start a newer server."""

    mountpoint: Path
    source: str
    settings: Message
    python: str
    environment: dict[str, str] = field(default_factory=dict[str, str])
    log: str | None = None
    watchdog_s: float = 30.0
    grace_s: float = 30.0

    def upgraded(self, request: Message) -> "Plan":
        settings: Message = request["settings"]
        return replace(
            self, settings=settings, python=request["python"],
            environment=request["environment"], watchdog_s=settings["watchdog_s"],
            grace_s=settings["grace_s"],
        )  # fmt: skip


class Child:
    def __init__(self, plan: Plan, start: Message) -> None:
        self.plan = plan
        self.link, theirs = Link.pair()
        self.prepared = False
        self.ready = False
        self.unmounted = False
        self.error: Message | None = None
        self.killed_s: float | None = None
        self._why_killed: str | None = None
        self.heard_s = self.started_s = time.monotonic()
        self.ready_s = 0.0
        self._process = _spawn(plan, theirs)
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)
        self.link.send({"start": {**start, "settings": plan.settings, "log": plan.log}})

    def kill(self, why: str) -> None:
        if self.killed_s is None:
            self.killed_s, self._why_killed = time.monotonic(), why
        self._process.send_signal(signal.SIGKILL)

    def reap(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        os.close(self.end)
        self.link.close()

    @property
    def crashed(self) -> bool:
        """It ended through a fault of its own, and not because someone killed it."""
        return self._process.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM)

    @property
    def how_it_ended(self) -> str:
        if self._why_killed is not None:
            return self._why_killed
        if self.error is not None:
            return str(self.error["error"])
        status = self._process.returncode or 0
        if status >= 0:
            return f"it ended with status {status}"
        name = signal.Signals(-status).name
        if name == "SIGKILL":
            return "killed (SIGKILL): by someone, or because the machine ran out of memory"
        return f"it crashed ({name})"


def _spawn(plan: Plan, theirs: socket.socket) -> "subprocess.Popen[bytes]":
    environment: dict[str, Any] = {
        **os.environ, **plan.environment, LINK_VARIABLE: str(theirs.fileno()),
        # Dozens of threads with an arena each would hold on to what they have let go of.
        "MALLOC_ARENA_MAX": "4",
    }  # fmt: skip
    with theirs:
        return subprocess.Popen(
            [plan.python, "-m", "penstock.daemon.serve", str(plan.mountpoint)],
            env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
            # Ctrl-C is for the supervisor, who decides what becomes of the mount.
            start_new_session=True,
        )  # fmt: skip
