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
import operator
import os
import queue
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from penstock import procfs
from penstock.daemon.channel import Message
from penstock.daemon.control_socket import ControlServer, RemoteError, listen
from penstock.daemon.mount_registry import (
    MountNote,
    remove_own_note,
    supervisor_socket,
    update_note,
    write_note,
)
from penstock.daemon.server_process import HALF_DEAD_AFTER_S, LaunchSpec, ServerProcess
from penstock.errors import MountpointError, PenstockError
from penstock.fuse import mounting
from penstock.mounttable import find_mount
from penstock.store.credentials import remember_settings

# What the ends of a mount's servers tell: how soon to start the next, and what is to blame.
#
# One that was killed from outside once it was ready tells nothing: the next one is started at
# once, however often. One that ended sooner will most likely do so again. Used by one thread.

_QUICK_END_S = 60.0
_FREE_RESTARTS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Ends:
    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None  # when and how
        # Quick ends in a row of servers that had taken requests: perhaps it was one of those.
        self.quick_at_work = 0
        self._quick = 0

    def add(self, child: ServerProcess) -> float:
        """How many seconds to wait before the next start; 0.0: none."""
        lived_s = time.monotonic() - child.ready_s
        quick = not child.ready or (child.crashed and lived_s < _QUICK_END_S)
        if child.at_work:
            self.quick_at_work = self.quick_at_work + 1 if quick else 0
        return self._add(child.how_it_ended, quick=quick)

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


# A mount as its supervisor holds it: what is kept open for its servers, and how it ends.
#
# Used by one thread.

log = logging.getLogger(__name__)


class HeldMount:
    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self.kept: dict[str, int] = {}
        self.may_be_there = False  # a server was let go, who mounts first and tells then
        self._device: str | None = None  # as the mount table tells it
        self._refuser: subprocess.Popen[bytes] | None = None

    @property
    def is_held(self) -> bool:
        return "fuse" in self.kept

    def keep(self, name: str, descriptor: int) -> None:
        if name in self.kept:
            os.close(self.kept[name])
        self.kept[name] = descriptor
        if name == "fuse" and (entry := find_mount(self._mountpoint)) is not None:
            self._device = entry.device

    def drop(self, name: str) -> None:
        if name in self.kept:
            os.close(self.kept.pop(name))

    def refuse(self, python: str) -> None:
        """Everyone gets EIO, until `accept`: see penstock.daemon.eio_responder."""
        if self._refuser is not None and self._refuser.poll() is None:
            return
        descriptors = [self.kept[name] for name in ("fuse", "journal") if name in self.kept]
        try:
            self._refuser = subprocess.Popen(
                [
                    python,
                    "-m",
                    "penstock.daemon.eio_responder",
                    str(self._mountpoint),
                    *map(str, descriptors),
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.error("readers cannot even be refused: %s", error)

    def accept(self) -> None:
        """No one else reads requests from here on: a server may."""
        if self._refuser is not None:
            self._refuser.kill()
            self._refuser.wait()
            self._refuser = None

    def is_over(self) -> bool:
        """Was it unmounted, and has its last user gone? (Or was its connection cut.)"""
        if not self.is_held:
            return False
        poll = select.poll()
        poll.register(self.kept["fuse"], 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def unmount(self) -> None:
        """Raises MountpointError if someone still uses it."""
        if self._is_there():
            mounting.unmount(self._mountpoint)

    def detach(self) -> None:
        """New opens fail; whoever has something open goes on."""
        try:
            if self._is_there():
                mounting.unmount(self._mountpoint, lazy=True)
        except MountpointError as error:
            log.error("%s", error)

    def clear_away(self) -> None:
        """A server that died before it was ready leaves a mount, and so does a connection that
        was cut (umount -f)."""
        if self._device is not None:
            # Over: what is there now is a dead one of ours, or another's that was given the same
            # number.
            if not self.is_over() or (
                self._is_there() and mounting.is_disconnected(self._mountpoint)
            ):
                self.detach()
        elif self.may_be_there:  # it died before it told
            entry = find_mount(self._mountpoint)
            if entry is None or entry.kind != mounting.FILESYSTEM_TYPE:
                return
            if mounting.is_disconnected(self._mountpoint):
                mounting.unmount(self._mountpoint, lazy=True)

    def _is_there(self) -> bool:
        """This one: after a lazy unmount another may be at its place."""
        entry = find_mount(self._mountpoint)
        return entry is not None and entry.device == self._device


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STARTS_WITHIN_S = 60.0  # until it is first heard of; the watchdog's time begins then
_FLUSH_WITHIN_S = 2.0
# Of a server that has to get ready, not counting what it computes: to make the catalog of a million
# files anew takes 10 s, and nobody knows how many there are.
_PREPARE_WITHIN_S = 60.0
# A process that waits for a dead disk does not even die; it is left to itself then.
_DIES_WITHIN_S = 5.0
_LOOK_EVERY_S = 1.0
# Two signals at once may be one Ctrl-C that reached us on two ways.
_SECOND_CTRL_C_AFTER_S = 1.0


class Audience(Protocol):
    """Who waits for the mount to be ready."""

    @property
    def end(self) -> int | None:
        """A descriptor that the kernel reports an event of when they are gone; None if they are
        in this process."""
        ...

    def progress(self, files: int, size_bytes: int) -> None: ...

    def ready(self, lines: list[str]) -> None: ...

    def failed(self, what: str, hint: str | None, exit_code: int) -> None: ...


class Supervisor:
    def __init__(self, plan: LaunchSpec, audience: Audience) -> None:
        self._plan = plan
        self._audience = audience
        self._audience_end = audience.end  # None once nobody waits any more
        self._selector = selectors.DefaultSelector()
        self._wishes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._server: ServerProcess | None = None
        self._candidate: ServerProcess | None = None  # of an upgrade, until it takes over
        self._upgrade: Future[Message] | None = None
        self._swap_by_s: float | None = None
        self._paused_s = 0.0
        self._unserved_since_s: float | None = None
        self._plan_before = plan
        self._mount = HeldMount(plan.mountpoint)
        self._remembered: Message = {}
        self._note: MountNote | None = None
        self._is_noted = False
        self._control: ControlServer | None = None
        self._ends = Ends()
        self._lingering: list[ServerProcess] = []  # ended, but perhaps still stuck in the kernel
        self._start_at_s: float | None = None  # after a wait
        self._leave_by_s: float | None = None
        self._looked_s = time.monotonic()
        self._exit_code: int | None = None
        self._oom_score = _become_the_last_to_be_killed()
        self._listeners: dict[str, Callable[[ServerProcess, Any], None]] = {
            "progress": self._on_progress,
            "prepared": self._on_prepared,
            "drop": self._on_drop,
            "remember": self._on_remember,
            "ready": self._on_ready,
            "pulse": _ignore,
            "flushed": self._on_flushed,
            "leave": self._on_leave,
            "unmounted": self._on_unmounted,
            "error": self._on_error,
        }

    def run(self) -> int:
        """Until the mount is over; returns the exit code."""
        self._listen_to_signals()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._on_wake)
        if self._audience_end is not None:
            self._selector.register(self._audience_end, selectors.EVENT_READ, self._on_deserted)
        try:
            self._start()
            while self._exit_code is None:
                for key, _ in self._selector.select(self._next_event_in_s()):
                    # An event before it may have been the end of whom this one is about.
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                self._look_at_the_clock()
        finally:
            self._put_away()
        return self._exit_code

    def _put_away(self) -> None:
        if self._exit_code is None and self._server is not None and self._server.ready:
            return  # a bug of ours: the server goes on by itself, as if we had been killed
        if self._control is not None:
            self._control.close()
        for child in (self._server, self._candidate):
            if child is not None:
                child.kill("the mount is over")
                child.reap(_DIES_WITHIN_S)
        self._mount.accept()
        self._mount.clear_away()
        if self._is_noted:
            remove_own_note(self._plan.mountpoint)

    # -- servers -----------------------------------------------------------------------

    def _start(self) -> None:
        self._start_at_s = None
        try:
            self._server = self._spawn(self._plan, asked_for=self._note is None)
        except OSError as error:  # no memory, or its Python is gone: both may come back
            why = f"no server could be started: {error}"
            if self._note is None:
                self._fail({"error": why, "hint": None, "exit_code": 1})
            else:
                self._start_again(why, self._ends.add_failed_start(why))

    def _spawn(self, plan: LaunchSpec, *, asked_for: bool) -> ServerProcess:
        """`asked_for`: someone waits who can be told what is wrong, and mend it."""
        start = {
            "takeover": self._mount.is_held,
            "asked_for": asked_for,
            "oom_score_adj": self._oom_score,
        }
        remember_settings(plan.settings)  # what its server says of them is logged here too
        child = ServerProcess(plan, start)
        self._selector.register(child.link, selectors.EVENT_READ, lambda: self._on_message(child))
        self._selector.register(child.end, selectors.EVENT_READ, lambda: self._on_end(child))
        return child

    def _on_message(self, child: ServerProcess) -> None:
        received = child.link.receive()
        if received is None:
            self._selector.unregister(child.link)  # its end follows
            return
        message, descriptors = received
        child.heard, child.heard_s = True, time.monotonic()
        for name, value in message.items():
            if name == "keep" and descriptors:
                self._mount.keep(value, descriptors.pop())
            elif name in self._listeners:
                self._listeners[name](child, value)
            else:
                log.warning("the server said %r, which this supervisor does not know", name)
        for descriptor in descriptors:
            os.close(descriptor)

    def _on_progress(self, _child: ServerProcess, listed: list[int]) -> None:
        files, size_bytes = listed
        self._audience.progress(files, size_bytes)

    def _on_drop(self, _child: ServerProcess, name: str) -> None:
        self._mount.drop(name)

    def _on_remember(self, _child: ServerProcess, values: Message) -> None:
        """None: that it need not be remembered any more."""
        self._remembered.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del self._remembered[name]

    def _on_error(self, child: ServerProcess, error: Message) -> None:
        child.error = error

    def _on_unmounted(self, child: ServerProcess, _value: bool) -> None:
        child.unmounted = True

    def _on_leave(self, _child: ServerProcess, _value: bool) -> None:
        self._leave()

    def _on_prepared(self, child: ServerProcess, _value: bool) -> None:
        child.prepared = True
        if child is self._server:
            self._let_go(child)
        elif child is self._candidate:
            if self._server is None or not self._server.ready:
                self._swap()
            else:
                self._swap_by_s = time.monotonic() + _FLUSH_WITHIN_S
                self._server.link.send({"flush": True})

    def _on_flushed(self, child: ServerProcess, _value: bool) -> None:
        if child is self._server and self._swap_by_s is not None:
            self._swap()

    def _let_go(self, child: ServerProcess) -> None:
        """From here on it reads /dev/fuse, so no other server may."""
        self._mount.accept()
        child.at_work = self._mount.may_be_there = True
        remembered = {
            **self._remembered,
            "restarts": self._ends.count,
            "last_end": self._ends.last,
            "quick_ends": self._ends.quick_at_work,
            "supervisor_pid": os.getpid(),
        }
        kept = self._mount.kept
        go = {"kept": list(kept), "remembered": remembered}
        child.link.send({"go": go}, list(kept.values()))

    def _on_ready(self, child: ServerProcess, lines: list[str]) -> None:
        child.ready = True
        child.ready_s = time.monotonic()
        self._unserved_since_s = None
        if self._note is None:
            self._note = MountNote(
                str(self._plan.mountpoint),
                self._plan.source,
                os.getpid(),
                time.time(),
                self._plan.log,
            )
            self._write_note(state="serving", server_pid=child.pid)
            self._listen()
            self._stop_watching_audience()
            try:
                self._audience.ready(lines)
            except PenstockError as error:  # whoever asked for it is gone
                log.warning("%s", error)
                self._leave()
            return
        self._write_note(state="serving", server_pid=child.pid)
        pause_s = child.ready_s - self._paused_s
        log.warning("a new server took over (pid %d) after %.2f s", child.pid, pause_s)
        if self._is_swapped:
            assert self._upgrade is not None
            self._upgrade.set_result({"pid": child.pid, "pause_s": pause_s})
            self._upgrade = None

    def _on_deserted(self) -> None:
        self._stop_watching_audience()
        log.warning("the command that started this mount is gone")
        self._leave()

    def _stop_watching_audience(self) -> None:
        if self._audience_end is not None:
            self._selector.unregister(self._audience_end)
            self._audience_end = None

    def _listen(self) -> None:
        verbs = {"settings": self._answer_settings, "upgrade": self._answer_upgrade}
        try:
            self._control = ControlServer(listen(supervisor_socket(self._plan.mountpoint)), verbs)
        except OSError as error:
            log.error("this mount cannot be upgraded: its socket: %s", error)

    # -- ends --------------------------------------------------------------------------

    def _on_end(self, child: ServerProcess) -> None:
        while child.killed_s is None and child.link.fileno() in self._selector.get_map():
            self._on_message(child)  # what it said last: a descriptor to keep, why it ends
        if child.is_buried:
            return  # what it said last was that it can be replaced
        self._forget(child)
        if child is self._candidate:
            self._candidate = self._swap_by_s = None
            self._refuse_upgrade(child)
            if self._server is None:
                self._start()
        elif child is self._server:
            self._server = None
            self._on_server_end(child)

    def _forget(self, child: ServerProcess) -> None:
        self._selector.unregister(child.end)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.link)
        child.reap(_DIES_WITHIN_S)
        self._lingering.append(child)

    def _on_server_end(self, child: ServerProcess) -> None:
        leaving = self._leave_by_s is not None
        if leaving and not child.unmounted and not self._mount.is_over():
            self._unmount()  # of a mount that it told us about after it was killed
        if leaving and self._note is None and not child.unmounted:
            self._exit_code = 128 + (self._signals[0] if self._signals else signal.SIGTERM)
        elif child.unmounted or self._mount.is_over():
            self._exit_code = 0
        elif not self._note:
            hint = f"its log: {self._plan.log}" if self._plan.log else None
            what = f"the server did not get ready: {child.how_it_ended}"
            self._fail(child.error or {"error": what, "hint": hint, "exit_code": 1})
        else:
            self._restart_after(child)

    def _fail(self, error: Message) -> None:
        self._exit_code = error["exit_code"]
        self._audience.failed(error["error"], error["hint"], error["exit_code"])

    def _restart_after(self, child: ServerProcess) -> None:
        self._paused_s = time.monotonic()
        if self._unserved_since_s is None:
            self._unserved_since_s = self._paused_s
        wait_s = self._ends.add(child)
        log.error("server %d: %s; restart %d", child.pid, child.how_it_ended, self._ends.count)
        if self._is_swapped:  # the upgrade did no good: back to what did
            self._plan = self._plan_before
            self._refuse_upgrade(child)
        if self._candidate is None:
            self._start_again(child.how_it_ended, wait_s)
        elif self._candidate.prepared:
            self._swap()
        else:
            self._write_note(state="restarting", server_pid=None)

    def _start_again(self, why: str, wait_s: float) -> None:
        if not wait_s:
            self._write_note(state="restarting", server_pid=None)
            self._start()
            return
        self._start_at_s = time.monotonic() + wait_s
        log.error("it ends again and again (%s): the next start is in %.1f s", why, wait_s)
        self._write_note(state="waiting", server_pid=None)

    def _write_note(self, *, state: str, server_pid: int | None) -> None:
        if self._note is None:
            return
        self._note = replace(
            self._note,
            source=self._plan.source,
            state=state,
            server_pid=server_pid,
            restarts=self._ends.count,
            last_end=self._ends.last,
        )
        write = update_note if self._is_noted else write_note
        try:
            write(self._note)
        except (OSError, PenstockError) as error:  # a full disk is no reason to end a mount
            log.error("the note of this mount could not be written: %s", error)
        else:
            self._is_noted = True

    # -- upgrades ----------------------------------------------------------------------

    def _answer_settings(self, _request: Message) -> Message:
        keys = {name: value for name, value in self._plan.environment.items() if value is not None}
        return {"settings": self._plan.settings, "environment": keys}

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
        try:
            self._candidate = self._spawn(self._plan.upgraded(request), asked_for=True)
        except OSError as error:
            answer.set_exception(PenstockError(f"the new server could not start: {error}"))
            return
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer.set_exception(PenstockError(f"bad request: {error!r}"))
            return
        self._upgrade = answer
        self._start_at_s = None

    def _refuse_upgrade(self, child: ServerProcess) -> None:
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
        self._plan_before, self._plan = self._plan, new.plan
        self._let_go(new)

    @property
    def _is_swapped(self) -> bool:
        """The server of an upgrade is at its place, and not yet ready."""
        return self._upgrade is not None and self._candidate is None

    # -- the end of the mount ----------------------------------------------------------

    def _leave(self) -> None:
        """Unmounts. If someone still uses it, new opens fail from now on, and the server goes on
        until its last user is gone or the grace period is over."""
        if self._leave_by_s is not None:
            return
        self._leave_by_s = time.monotonic() + self._plan.grace_s
        if self._candidate is not None:
            self._swap_by_s = None
            self._candidate.kill("the mount is to end")
        if not self._mount.is_held:
            if self._server is not None:
                self._server.kill("the mount was not wanted any more")
            return
        self._unmount()

    def _unmount(self) -> None:
        """Not once the mount is over: another may have its place, and its device number."""
        try:
            self._mount.unmount()
        except MountpointError as error:
            log.warning("%s; served for %g s more, at most", error, self._plan.grace_s)
            self._mount.detach()

    # -- time and signals --------------------------------------------------------------

    def _next_event_in_s(self) -> float:
        now = time.monotonic()
        times = [now + _LOOK_EVERY_S, self._start_at_s, self._swap_by_s, self._leave_by_s]
        return max(0.0, min(moment for moment in times if moment is not None) - now)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for child in (self._server, self._candidate):
            if child is not None:
                self._watch(child, now)
        self._looked_s = now
        self._lingering = [child for child in self._lingering if not child.is_gone()]
        if self._swap_by_s is not None and now >= self._swap_by_s:
            self._swap()
        if self._exit_code is not None:
            return
        if (self._server is None or not self._server.prepared) and self._mount.is_over():
            self._exit_code = 0
        elif self._start_at_s is not None and now >= self._start_at_s:
            self._start()
        elif self._start_at_s is not None and self._has_given_up(now):
            self._mount.refuse(self._plan.python)
        if self._leave_by_s is not None and now >= self._leave_by_s:
            log.warning("the mount was still in use after %g s: ended", self._plan.grace_s)
            self._exit_code = 0

    def _has_given_up(self, now: float) -> bool:
        since_s = self._unserved_since_s
        return since_s is not None and now - since_s > self._plan.give_up_s

    def _watch(self, child: ServerProcess, now: float) -> None:
        if now - self._looked_s > 2 * _LOOK_EVERY_S:
            child.heard_s = now  # we were stopped ourselves: its silence proves nothing
        within_s = child.plan.watchdog_s
        if not child.heard:
            within_s = max(within_s, _STARTS_WITHIN_S)
        if child.killed_s is not None:
            if now - child.killed_s > _DIES_WITHIN_S:
                log.error("server %d is stuck in the kernel and cannot die", child.pid)
                self._on_end(child)
        elif now - child.heard_s > HALF_DEAD_AFTER_S and child.is_half_dead():
            # A thread of it hangs in the kernel: it waits for a page whose reader waits for the
            # next server. None of it runs any more, so that one may start.
            child.was_killed()
            self._on_end(child)
        elif now - child.heard_s > within_s:
            child.hung = True
            child.kill(f"no sign of life for {within_s:g} s: killed")
        elif not child.ready and self._note and _idle_s(child, now) > _PREPARE_WITHIN_S:
            # Well otherwise, it may hang in a dead disk. Only a first start, which lists, may last.
            child.kill(f"it was not ready, and did nothing for {_PREPARE_WITHIN_S:g} s")

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                # Its number in the pipe is enough. A handler in Python could be interrupted by the
                # next signal, and that one by the next, until there are too many.
                signal.signal(number, operator.is_)

    def _on_wake(self) -> None:
        arrived = [number for number in os.read(self._wake_reader, 4096) if number]
        if arrived:
            self._signals += arrived
            self._leave()
            self._end_if_told_twice()
        while not self._wishes.empty():
            self._wishes.get()()

    def _end_if_told_twice(self) -> None:
        assert self._leave_by_s is not None
        since_s = time.monotonic() - (self._leave_by_s - self._plan.grace_s)
        if self._signals[-1] == signal.SIGINT and since_s > _SECOND_CTRL_C_AFTER_S:
            log.warning("told again: ended at once")
            self._leave_by_s = time.monotonic()


def _ignore(_child: ServerProcess, _value: object) -> None:
    """That it came is all."""


def _idle_s(child: ServerProcess, now: float) -> float:
    """For how long its first thread, the one that prepares, has waited for something else than a
    processor since it was started."""
    return now - child.started_s - procfs.scheduled_s(child.pid)


def _become_the_last_to_be_killed() -> int:
    """If memory runs out, the server goes before us; returns the score that it gives itself: ours
    as it was, and a tenth of the memory more."""
    before = procfs.oom_score()
    with contextlib.suppress(OSError):  # it needs CAP_SYS_RESOURCE
        procfs.set_oom_score(-900)
    return min(1000, before + 100)
