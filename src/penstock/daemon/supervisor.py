"""Keeps a mount alive: holds its /dev/fuse descriptor, and a server process that works on it.

When the server ends, for whatever reason, another one is started on the same descriptor; the
kernel sends it again what was not answered, and readers see a pause. An upgrade is the same,
with the new server made ready before the old one is killed.

    starting ── ready ──> serving ── the server ends ──> restarting ── ready ──> serving
        │                    │                               │
        └── error: exit      └── unmounted: exit 0           └── ends again and again: waiting

It does little, imports little (20 MB) and knows nothing of stores and caches, so that it has no
reason to die. One thread; only the control socket has others, which hand their wishes over.
"""

import contextlib
import logging
import os
import queue
import select
import selectors
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from penstock.daemon.child import Child, Plan
from penstock.daemon.control import ControlServer, RemoteError, listen
from penstock.daemon.link import Message
from penstock.daemon.registry import MountNote, remove_note, supervisor_socket, write_note
from penstock.errors import MountpointError, PenstockError
from penstock.fuse import mounting
from penstock.mounttable import find_mount

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A server that crashes sooner than this will most likely do so again. One that was killed from
# outside once it was ready is no such case: the next one is started at once, however often.
_QUICK_END_S = 60.0
_FREE_RESTARTS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_FLUSH_WITHIN_S = 2.0
_PREPARE_WITHIN_S = 60.0
# A process that waits for a dead disk does not even die; it is left to itself then.
_DIES_WITHIN_S = 5.0


class Audience(Protocol):
    """Who waits for the mount to be ready."""

    def progress(self, count: int) -> None: ...

    def ready(self, lines: list[str]) -> None: ...

    def failed(self, what: str, hint: str | None, exit_code: int) -> None: ...


class Supervisor:
    def __init__(self, plan: Plan, audience: Audience) -> None:
        self._plan = plan
        self._audience = audience
        self._selector = selectors.DefaultSelector()
        self._wishes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._server: Child | None = None
        self._candidate: Child | None = None  # of an upgrade, until it takes over
        self._upgrade: Future[Message] | None = None
        self._swap_by_s: float | None = None
        self._paused_s = 0.0
        self._kept: dict[str, int] = {}
        self._remembered: Message = {}
        self._note: MountNote | None = None
        self._restarts = 0
        self._quick_ends = 0
        self._last_end: str | None = None
        self._start_at_s: float | None = None  # after a wait
        self._leave_by_s: float | None = None
        self._exit_code: int | None = None
        self._oom_score = _become_the_last_to_be_killed()

    def run(self) -> int:
        """Until the mount is over; returns the exit code."""
        self._listen_to_signals()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._on_wake)
        self._start()
        control: ControlServer | None = None
        try:
            while self._exit_code is None:
                for key, _ in self._selector.select(self._next_event_in_s()):
                    key.data()
                self._look_at_the_clock()
                if control is None and self._note is not None:
                    verbs = {"settings": self._answer_settings, "upgrade": self._answer_upgrade}
                    control = ControlServer(listen(supervisor_socket(self._plan.mountpoint)), verbs)
        finally:
            if control is not None:
                control.close()
            for child in (self._server, self._candidate):
                if child is not None:
                    child.kill("the mount is over")
                    child.reap(_DIES_WITHIN_S)
            self._unmount_if_dead()
            if self._note is not None:
                remove_note(self._plan.mountpoint)
        return self._exit_code

    # -- servers -----------------------------------------------------------------------

    def _start(self) -> None:
        self._start_at_s = None
        self._server = self._spawn(self._plan, asked_for=self._note is None)

    def _spawn(self, plan: Plan, *, asked_for: bool) -> Child:
        """`asked_for`: someone waits who can be told what is wrong, and mend it."""
        start = {
            "takeover": "fuse" in self._kept, "asked_for": asked_for,
            "oom_score_adj": self._oom_score,
        }  # fmt: skip
        child = Child(plan, start)
        self._selector.register(child.link, selectors.EVENT_READ, lambda: self._on_message(child))
        self._selector.register(child.end, selectors.EVENT_READ, lambda: self._on_end(child))
        return child

    def _on_message(self, child: Child) -> None:
        received = child.link.receive()
        if received is None:
            self._selector.unregister(child.link)  # its end follows
            return
        message, descriptors = received
        child.heard_s = time.monotonic()
        for name, value in message.items():
            handler = getattr(self, f"_on_{name}", None)
            if name == "keep":
                self._kept[value] = descriptors[0]
            elif handler is not None:
                handler(child, value)
            else:
                log.warning("the server said %r, which this supervisor does not know", name)

    def _on_progress(self, _child: Child, count: int) -> None:
        self._audience.progress(count)

    def _on_pulse(self, _child: Child, _value: Message) -> None:
        pass  # that it came is all

    def _on_remember(self, _child: Child, values: Message) -> None:
        self._remembered.update(values)

    def _on_error(self, child: Child, error: Message) -> None:
        child.error = error

    def _on_unmounted(self, child: Child, _value: bool) -> None:
        child.unmounted = True

    def _on_leave(self, _child: Child, _value: bool) -> None:
        self._leave()

    def _on_prepared(self, child: Child, _value: bool) -> None:
        child.prepared = True
        if child is self._server:
            self._let_go(child)
        elif child is self._candidate:
            if self._server is None:
                self._swap()
            else:
                self._swap_by_s = time.monotonic() + _FLUSH_WITHIN_S
                self._server.link.send({"flush": True})

    def _on_flushed(self, child: Child, _value: bool) -> None:
        if child is self._server and self._candidate is not None:
            self._swap()

    def _let_go(self, child: Child) -> None:
        """From here on it reads /dev/fuse, so no other server may."""
        remembered = {
            **self._remembered,
            "restarts": self._restarts, "last_end": self._last_end, "quick_ends": self._quick_ends,
            "supervisor_pid": os.getpid(),
        }  # fmt: skip
        names = list(self._kept)
        child.link.send(
            {"go": {"kept": names, "remembered": remembered}}, [self._kept[name] for name in names]
        )

    def _on_ready(self, child: Child, lines: list[str]) -> None:
        child.ready = True
        child.ready_s = time.monotonic()
        if self._note is None:
            self._note = MountNote(
                str(self._plan.mountpoint), self._plan.source, os.getpid(), time.time(),
                self._plan.log,
            )  # fmt: skip
            self._write_note(state="serving", server_pid=child.pid)
            try:
                self._audience.ready(lines)
            except PenstockError as error:  # whoever asked for it is gone
                log.warning("%s", error)
                self._leave()
            return
        self._write_note(state="serving", server_pid=child.pid)
        pause_s = child.ready_s - self._paused_s
        log.warning("a new server took over (pid %d) after %.2f s", child.pid, pause_s)
        if self._upgrade is not None and child is self._server:
            self._upgrade.set_result({"pid": child.pid, "pause_s": pause_s})
            self._upgrade = None

    # -- ends --------------------------------------------------------------------------

    def _on_end(self, child: Child) -> None:
        while child.link.fileno() in self._selector.get_map() and child.killed_s is None:
            self._on_message(child)  # what it said last: a descriptor to keep, why it ends
        self._forget(child)
        if child is self._candidate:
            self._candidate = None
            self._refuse_upgrade(child)
            if self._server is None:
                self._start()
        elif child is self._server:
            self._server = None
            self._on_server_end(child)

    def _forget(self, child: Child) -> None:
        self._selector.unregister(child.end)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.link)
        child.reap(_DIES_WITHIN_S)

    def _on_server_end(self, child: Child) -> None:
        if child.unmounted or self._is_unmounted():
            self._exit_code = 0
        elif self._leave_by_s is not None and "fuse" not in self._kept:
            self._exit_code = 128 + (self._signals[0] if self._signals else signal.SIGTERM)
        elif not self._note:
            error = child.error or {
                "error": f"the server did not get ready: {child.how_it_ended}",
                "hint": f"its log: {self._plan.log}" if self._plan.log else None,
                "exit_code": 1,
            }
            self._exit_code = error["exit_code"]
            self._audience.failed(error["error"], error["hint"], error["exit_code"])
        else:
            self._restart_after(child)

    def _restart_after(self, child: Child) -> None:
        self._paused_s = time.monotonic()
        self._restarts += 1
        self._last_end = f"{time.strftime('%F %T')} {child.how_it_ended}"
        lived_s = self._paused_s - child.ready_s
        quick = not child.ready or (child.crashed and lived_s < _QUICK_END_S)
        self._quick_ends = self._quick_ends + 1 if quick else 0
        log.error("server %d: %s; restart %d", child.pid, child.how_it_ended, self._restarts)
        if self._candidate is not None:
            if self._candidate.prepared:
                self._swap()
            return
        if self._quick_ends <= _FREE_RESTARTS:
            self._write_note(state="restarting", server_pid=None)
            self._start()
            return
        wait_s = min(
            _LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(10, self._quick_ends - _FREE_RESTARTS - 1)
        )
        self._start_at_s = self._paused_s + wait_s
        log.error("it ends again and again: the next start is in %.1f s", wait_s)
        self._write_note(state="waiting", server_pid=None)

    def _write_note(self, *, state: str, server_pid: int | None) -> None:
        if self._note is not None:
            self._note = replace(
                self._note, state=state, server_pid=server_pid, restarts=self._restarts,
                last_end=self._last_end,
            )  # fmt: skip
            write_note(self._note)

    # -- upgrades ----------------------------------------------------------------------

    def _answer_settings(self, _request: Message) -> Message:
        return {"settings": self._plan.settings}

    def _answer_upgrade(self, request: Message) -> Message:
        answer: Future[Message] = Future()
        self._wishes.put(lambda: self._begin_upgrade(request, answer))
        os.write(self._wake_writer, b"\0")
        return answer.result()

    def _begin_upgrade(self, request: Message, answer: "Future[Message]") -> None:
        if self._upgrade is not None or self._leave_by_s is not None:
            busy = "is being upgraded already" if self._upgrade else "is being unmounted"
            answer.set_exception(MountpointError(f"{self._plan.mountpoint} {busy}"))
            return
        self._upgrade = answer
        self._start_at_s = None
        self._candidate = self._spawn(self._plan.upgraded(request), asked_for=True)

    def _refuse_upgrade(self, child: Child) -> None:
        """The old server goes on as if nothing had been."""
        if self._upgrade is not None:
            error = child.error or {"error": child.how_it_ended, "hint": None, "exit_code": 1}
            self._upgrade.set_exception(
                RemoteError({**error, "error": f"the new server could not start: {error['error']}"})
            )
            self._upgrade = None

    def _swap(self) -> None:
        """The old server is killed, however well it is: that path is the best tested one."""
        old, new = self._server, self._candidate
        assert new is not None
        self._swap_by_s = None
        self._paused_s = time.monotonic()
        if old is not None:
            old.kill("replaced")
            self._forget(old)
        self._server, self._candidate = new, None
        self._plan = new.plan
        self._let_go(new)

    # -- the end of the mount ----------------------------------------------------------

    def _leave(self) -> None:
        """Unmounts. If someone still uses it, new opens fail from now on, and the server goes on
        until its last user is gone or the grace period is over."""
        if self._leave_by_s is not None:
            return
        self._leave_by_s = time.monotonic() + self._plan.grace_s
        if self._candidate is not None:
            self._candidate.kill("the mount is to end")
        if "fuse" not in self._kept:
            if self._server is not None:
                self._server.kill("the mount was not wanted any more")
            return
        mountpoint = self._plan.mountpoint
        try:
            mounting.unmount(mountpoint)
        except MountpointError as error:
            if find_mount(mountpoint) is None:
                return  # someone else was faster
            log.warning("%s; served for %g s more, at most", error, self._plan.grace_s)
            mounting.unmount(mountpoint, lazy=True)

    def _is_unmounted(self) -> bool:
        if "fuse" not in self._kept:
            return False
        poll = select.poll()
        poll.register(self._kept["fuse"], 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def _unmount_if_dead(self) -> None:
        """A server that died between mounting and handing the descriptor over leaves this."""
        entry = find_mount(self._plan.mountpoint)
        if entry is None or entry.kind != mounting.FILESYSTEM_TYPE or "fuse" in self._kept:
            return
        if mounting.is_disconnected(self._plan.mountpoint):
            mounting.unmount(self._plan.mountpoint, lazy=True)

    # -- time and signals --------------------------------------------------------------

    def _next_event_in_s(self) -> float:
        now = time.monotonic()
        times = [now + 1.0, self._start_at_s, self._swap_by_s, self._leave_by_s]
        return max(0.0, min(moment for moment in times if moment is not None) - now)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for child in (self._server, self._candidate):
            if child is None:
                continue
            if child.killed_s is not None and now - child.killed_s > _DIES_WITHIN_S:
                log.error("server %d is stuck in the kernel and cannot die", child.pid)
                self._on_end(child)
            elif child.killed_s is None and now - child.heard_s > child.plan.watchdog_s:
                child.kill(f"no sign of life for {child.plan.watchdog_s:g} s: killed")
        candidate = self._candidate
        if candidate is not None and not candidate.prepared:
            if now - candidate.started_s > _PREPARE_WITHIN_S:
                candidate.kill(f"it was not ready within {_PREPARE_WITHIN_S:g} s")
        elif candidate is not None and self._swap_by_s is not None and now >= self._swap_by_s:
            self._swap()
        if self._server is None and self._candidate is None and self._exit_code is None:
            if self._is_unmounted():
                self._exit_code = 0
            elif self._start_at_s is not None and now >= self._start_at_s:
                self._start()
        if self._leave_by_s is not None and now >= self._leave_by_s and self._exit_code is None:
            log.warning("the mount was still in use after %g s: ended", self._plan.grace_s)
            self._exit_code = 0

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda received, _frame: self._signals.append(received))

    def _on_wake(self) -> None:
        os.read(self._wake_reader, 4096)
        if self._signals:
            self._leave()
        while not self._wishes.empty():
            self._wishes.get()()


def _become_the_last_to_be_killed() -> int:
    """If memory runs out, the server goes before us; returns the score that it gives itself: ours
    as it was, and a tenth of the memory more."""
    path = "/proc/self/oom_score_adj"
    with open(path) as file:
        before = int(file.read())
    with contextlib.suppress(OSError), open(path, "w") as file:  # needs CAP_SYS_RESOURCE
        file.write("-900")
    return min(1000, before + 100)
