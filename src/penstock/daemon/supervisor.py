"""The supervisor keeps a mount alive: it holds /dev/fuse, and a server process that uses it.

When the server ends, for whatever reason, the supervisor starts another one on the same
descriptor. The kernel sends the new server all requests that were not answered, and readers see a
pause. An upgrade is the same, except that the new server is prepared before the old one is killed.

    starting ── ready ──> serving ── the server ends ──> restarting ── ready ──> serving
        │                    │                               │
        └── error: exit      └── unmounted: exit 0           └── ends again and again: waiting

It does little, imports little (20 MB) and knows nothing of stores and caches, so that it has few
reasons to fail. It has one thread; those of the control socket queue their requests for it.
"""

import contextlib
import logging
import operator
import os
import queue
import selectors
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from penstock import procfs
from penstock.daemon.channel import Message
from penstock.daemon.control_socket import ControlServer, RemoteError, as_answer, listen
from penstock.daemon.kept_mount import KeptMount
from penstock.daemon.metrics_process import MetricsProcess
from penstock.daemon.mount_registry import (
    MountNote,
    remove_own_note,
    supervisor_socket,
    update_note,
    write_note,
)
from penstock.daemon.server_process import (
    END_SIGNALS,
    HALF_DEAD_AFTER_S,
    LaunchSpec,
    RestartPolicy,
    ServerProcess,
)
from penstock.errors import MountpointError, PenstockError
from penstock.store.credentials import remember_settings

log = logging.getLogger(__name__)

_STARTS_WITHIN_S = 60.0  # until its first message; the watchdog's time begins then
_FLUSH_WITHIN_S = 2.0
# How long a server that prepares may be idle. Time on a processor does not count: to rebuild the
# catalog of a million files takes 10 s, and there may be more.
_PREPARE_WITHIN_S = 60.0
# A process that waits for a dead disk does not die; after this it is abandoned.
_DIES_WITHIN_S = 5.0
_LOOK_EVERY_S = 1.0
# Two signals at once may be one Ctrl-C that arrived in two ways.
_SECOND_CTRL_C_AFTER_S = 1.0


class Requester(Protocol):
    """Who started the mount and waits until it is ready: a command, or a person."""

    @property
    def end(self) -> int | None:
        """A descriptor on which the kernel reports an event once the requester is gone; None if
        it is this process."""
        ...

    def progress(self, files: int, size_bytes: int) -> None: ...

    def ready(self, lines: list[str]) -> None: ...

    def failed(self, what: str, hint: str | None, exit_code: int) -> None: ...


class Supervisor:
    def __init__(
        self, plan: LaunchSpec, requester: Requester, mount: KeptMount | None = None
    ) -> None:
        """`mount`: one that a keeper has made; by default the server makes it."""
        self._plan = plan
        self._requester = requester
        self._requester_end = requester.end  # None once the mount is ready
        self._selector = selectors.DefaultSelector()
        self._queued: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._server: ServerProcess | None = None
        self._candidate: ServerProcess | None = None  # of an upgrade, until it takes over
        self._upgrade: Future[Message] | None = None
        self._swap_by_s: float | None = None
        self._paused_s = 0.0
        self._unserved_since_s: float | None = None
        self._plan_before = plan
        self._mount = mount or KeptMount(plan.mountpoint)
        self._mount.on_yield = self._yield
        self._note: MountNote | None = None
        self._is_noted = False
        self._control: ControlServer | None = None
        self._metrics = MetricsProcess(plan.mountpoint)
        self._restarts = RestartPolicy()
        self._lingering: list[ServerProcess] = []  # ended, but perhaps still stuck in the kernel
        self._start_at_s: float | None = None  # after a wait
        self._end_by_s: float | None = None
        self._leave_by_s: float | None = None
        self._is_flushing = False
        self._looked_s = time.monotonic()
        self._exit_code: int | None = None
        self._oom_score = _protect_from_oom_killer()
        self._listeners: dict[str, Callable[[ServerProcess, Any], None]] = {
            "progress": self._on_progress,
            "prepared": self._on_prepared,
            "drop": self._on_drop,
            "remember": self._on_remember,
            "ready": self._on_ready,
            "pulse": _ignore,
            "flushed": self._on_flushed,
            "leave": self._on_end_mount,
            "unmounted": self._on_unmounted,
            "error": self._on_error,
        }

    def run(self) -> int:
        """Run until the mount is over; return the exit code."""
        self._listen_to_signals()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._on_wake)
        if self._requester_end is not None:
            self._selector.register(
                self._requester_end, selectors.EVENT_READ, self._on_requester_gone
            )
        if self._mount.may_be_left:  # the keeper said so before we listened
            self._yield()
        try:
            self._serve_metrics()
            if self._exit_code is None:
                self._start()
            while self._exit_code is None:
                for key, _ in self._selector.select(self._next_event_in_s()):
                    # The event before may have unregistered the process that this one is about.
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                self._check_timers()
        finally:
            self._clean_up()
        return self._exit_code

    def _clean_up(self) -> None:
        if self._exit_code is None and self._server is not None and self._server.ready:
            return  # a bug of ours: the server goes on alone, as if we had been killed
        self._metrics.close()
        if self._control is not None:
            self._control.close()
        for server in (self._server, self._candidate):
            if server is not None:
                server.kill("the mount is over")
                server.reap(_DIES_WITHIN_S)
        self._mount.accept()
        self._mount.clear_away()
        if self._is_noted:
            remove_own_note(self._plan.mountpoint)

    def _serve_metrics(self) -> None:
        try:
            self._metrics.prepare(self._plan.metrics)
        except PenstockError as error:
            self._fail(as_answer(error))
        else:
            self._metrics.adopt(self._plan.python)

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
                self._restart_in(why, self._restarts.add_failed_start(why))

    def _spawn(self, plan: LaunchSpec, *, asked_for: bool) -> ServerProcess:
        """`asked_for`: a requester waits, who can be shown an error and correct it."""
        start = {
            "takeover": self._mount.is_agreed,
            "mounted": self._mount.is_kept,
            "keeper": self._mount.keeper and str(self._mount.keeper),
            "asked_for": asked_for,
            "oom_score_adj": self._oom_score,
        }
        remember_settings(plan.settings)  # its errors, which may hold keys, are logged here too
        server = ServerProcess(plan, start)
        self._selector.register(server.link, selectors.EVENT_READ, lambda: self._on_message(server))
        self._selector.register(server.end, selectors.EVENT_READ, lambda: self._on_end(server))
        return server

    def _on_message(self, server: ServerProcess) -> None:
        received = server.link.receive()
        if received is None:
            self._selector.unregister(server.link)  # the event of its end follows
            return
        message, descriptors = received
        server.heard, server.heard_s = True, time.monotonic()
        for name, value in message.items():
            if name == "keep" and descriptors:
                self._mount.keep(value, descriptors.pop())
            elif name in self._listeners:
                self._listeners[name](server, value)
            else:
                log.warning("unknown message %r from the server", name)
        for descriptor in descriptors:
            os.close(descriptor)

    def _on_progress(self, _server: ServerProcess, listed: list[int]) -> None:
        files, size_bytes = listed
        self._requester.progress(files, size_bytes)

    def _on_drop(self, _server: ServerProcess, name: str) -> None:
        self._mount.drop(name)

    def _on_remember(self, _server: ServerProcess, values: Message) -> None:
        self._mount.remember(values)

    def _on_error(self, server: ServerProcess, error: Message) -> None:
        server.error = error

    def _on_unmounted(self, server: ServerProcess, _value: bool) -> None:
        server.unmounted = True

    def _on_end_mount(self, _server: ServerProcess, _value: bool) -> None:
        self._end_mount()

    def _on_prepared(self, server: ServerProcess, _value: bool) -> None:
        server.prepared = True
        if server is self._server:
            self._let_serve(server)
        elif server is self._candidate:
            if self._server is None or not self._server.ready:
                self._swap()
            else:
                self._swap_by_s = time.monotonic() + _FLUSH_WITHIN_S
                self._server.link.send({"flush": True})

    def _on_flushed(self, server: ServerProcess, _value: bool) -> None:
        if server is self._server and self._leave_by_s is not None:
            self._exit_code = 0
        elif server is self._server and self._swap_by_s is not None:
            self._swap()

    def _let_serve(self, server: ServerProcess) -> None:
        """Hand the mount to this server: from here on only it reads /dev/fuse."""
        self._mount.accept()
        # Not earlier: the new server of an upgrade may fail while the old one goes on.
        self._mount.note_server(server.end)
        server.at_work = self._mount.may_be_there = True
        remembered = {
            **self._mount.remembered,
            "restarts": self._restarts.count,
            "last_end": self._restarts.last,
            "quick_ends": self._restarts.quick_at_work,
            "supervisor_pid": os.getpid(),
        }
        kept = self._mount.kept
        go = {"kept": list(kept), "remembered": remembered}
        server.link.send({"go": go}, list(kept.values()))

    def _on_ready(self, server: ServerProcess, lines: list[str]) -> None:
        server.ready = True
        server.ready_s = time.monotonic()
        self._unserved_since_s = None
        if self._note is None:
            self._note = MountNote(
                str(self._plan.mountpoint),
                self._plan.source,
                os.getpid(),
                time.time(),
                self._plan.log,
            )
            self._write_note(state="serving", server_pid=server.pid)
            self._listen()
            self._stop_watching_requester()
            try:
                self._requester.ready(lines)
            except PenstockError as error:  # the requester is gone
                log.warning("%s", error)
                self._end_mount()
            return
        self._write_note(state="serving", server_pid=server.pid)
        pause_s = server.ready_s - self._paused_s
        log.warning("a new server took over (pid %d) after %.2f s", server.pid, pause_s)
        if self._is_swapped:
            assert self._upgrade is not None
            self._metrics.adopt(self._plan.python)
            self._upgrade.set_result({"pid": server.pid, "pause_s": pause_s})
            self._upgrade = None

    def _on_requester_gone(self) -> None:
        self._stop_watching_requester()
        log.warning("the command that started this mount is gone")
        self._end_mount()

    def _stop_watching_requester(self) -> None:
        if self._requester_end is not None:
            self._selector.unregister(self._requester_end)
            self._requester_end = None

    def _listen(self) -> None:
        verbs = {"settings": self._answer_settings, "upgrade": self._answer_upgrade}
        try:
            self._control = ControlServer(listen(supervisor_socket(self._plan.mountpoint)), verbs)
        except OSError as error:
            log.error("this mount cannot be upgraded: its socket: %s", error)

    # -- ends --------------------------------------------------------------------------

    def _on_end(self, server: ServerProcess) -> None:
        while server.killed_s is None and server.link.fileno() in self._selector.get_map():
            self._on_message(server)  # its last messages: a descriptor to keep, why it ends
        if server.is_reaped:
            return  # its last message was that it can be replaced
        self._forget(server)
        if server is self._candidate:
            self._candidate = self._swap_by_s = None
            self._fail_upgrade(server)
            if self._server is None:
                self._start()
        elif server is self._server:
            self._server = None
            self._on_server_end(server)

    def _forget(self, server: ServerProcess) -> None:
        self._selector.unregister(server.end)
        with contextlib.suppress(KeyError):
            self._selector.unregister(server.link)
        server.reap(_DIES_WITHIN_S)
        self._lingering.append(server)

    def _on_server_end(self, server: ServerProcess) -> None:
        leaving = self._end_by_s is not None
        if leaving and not server.unmounted and not self._mount.is_over():
            self._unmount()  # it reported the mount after it was killed
        if leaving and self._note is None and not server.unmounted:
            self._exit_code = 128 + (self._signals[0] if self._signals else signal.SIGTERM)
        elif server.unmounted or self._mount.is_over():
            self._exit_code = 0
        elif not self._note:
            hint = f"its log: {self._plan.log}" if self._plan.log else None
            what = f"the server did not get ready: {server.how_it_ended}"
            self._fail(server.error or {"error": what, "hint": hint, "exit_code": 1})
        else:
            self._restart_after(server)

    def _fail(self, error: Message) -> None:
        self._exit_code = error["exit_code"]
        self._requester.failed(error["error"], error["hint"], error["exit_code"])

    def _restart_after(self, server: ServerProcess) -> None:
        self._paused_s = time.monotonic()
        if self._unserved_since_s is None:
            self._unserved_since_s = self._paused_s
        wait_s = self._restarts.add(server)
        log.error(
            "server %d: %s; restart %d", server.pid, server.how_it_ended, self._restarts.count
        )
        if self._is_swapped:  # the upgrade failed: back to the settings before it
            self._plan = self._plan_before
            self._fail_upgrade(server)
        if self._candidate is None:
            self._restart_in(server.how_it_ended, wait_s)
        elif self._candidate.prepared:
            self._swap()
        else:
            self._write_note(state="restarting", server_pid=None)

    def _restart_in(self, why: str, wait_s: float) -> None:
        if not wait_s:
            self._write_note(state="restarting", server_pid=None)
            self._start()
            return
        self._start_at_s = time.monotonic() + wait_s
        log.error("servers end again and again (%s); next start in %.1f s", why, wait_s)
        self._write_note(state="waiting", server_pid=None)

    def _write_note(self, *, state: str, server_pid: int | None) -> None:
        if self._note is None:
            return
        self._note = replace(
            self._note,
            source=self._plan.source,
            state=state,
            server_pid=server_pid,
            restarts=self._restarts.count,
            last_end=self._restarts.last,
        )
        write = update_note if self._is_noted else write_note
        try:
            write(self._note)
        except (OSError, PenstockError) as error:  # a full disk must not end a mount
            log.error("the note of this mount could not be written: %s", error)
        else:
            self._is_noted = True

    # -- upgrades ----------------------------------------------------------------------

    def _answer_settings(self, _request: Message) -> Message:
        keys = {name: value for name, value in self._plan.environment.items() if value is not None}
        return {"settings": self._plan.settings, "environment": keys}

    def _answer_upgrade(self, request: Message) -> Message:
        answer: Future[Message] = Future()
        self._queued.put(lambda: self._begin_upgrade(request, answer))
        os.write(self._wake_writer, b"\0")
        return answer.result()

    def _begin_upgrade(self, request: Message, answer: "Future[Message]") -> None:
        if self._upgrade is not None or self._end_by_s is not None:
            busy = "is being upgraded already" if self._upgrade else "is being unmounted"
            answer.set_exception(MountpointError(f"{self._plan.mountpoint} {busy}"))
            return
        try:
            plan = self._plan.upgraded(request)
            self._metrics.prepare(plan.metrics)
            self._candidate = self._spawn(plan, asked_for=True)
        except PenstockError as error:
            answer.set_exception(error)
            return
        except OSError as error:
            self._metrics.abandon()
            answer.set_exception(PenstockError(f"the new server could not start: {error}"))
            return
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer.set_exception(PenstockError(f"bad request: {error!r}"))
            return
        self._upgrade = answer
        self._start_at_s = None

    def _fail_upgrade(self, server: ServerProcess) -> None:
        """Report the error; the old server goes on."""
        self._metrics.abandon()
        if self._upgrade is not None:
            error = server.error or {"error": server.how_it_ended, "hint": None, "exit_code": 1}
            self._upgrade.set_exception(
                RemoteError({**error, "error": f"the new server could not start: {error['error']}"})
            )
            self._upgrade = None

    def _swap(self) -> None:
        """Replace the server. The old one is killed even if it is well: the best tested path."""
        old, new = self._server, self._candidate
        assert new is not None
        self._swap_by_s = None
        self._paused_s = time.monotonic()
        if old is not None:
            old.kill("replaced")
            self._forget(old)
        self._server, self._candidate = new, None
        self._plan_before, self._plan = self._plan, new.plan
        self._let_serve(new)

    @property
    def _is_swapped(self) -> bool:
        """Whether the new server of an upgrade has taken over, and is not ready yet."""
        return self._upgrade is not None and self._candidate is None

    # -- the end of the mount ----------------------------------------------------------

    def _end_mount(self) -> None:
        """Unmount. If the mount is in use, new opens fail from now on, and the server goes on until
        the last user is gone or the grace period is over."""
        if self._end_by_s is not None:
            return
        self._end_by_s = time.monotonic() + self._plan.grace_s
        if self._candidate is not None:
            self._swap_by_s = None
            self._candidate.kill("the mount is ending")
        if not self._mount.is_kept:
            if self._server is not None:
                self._server.kill("the mount was cancelled")
            return
        self._unmount()

    def _unmount(self) -> None:
        """Not to be called once the mount is over: another may have its place and number."""
        try:
            self._mount.unmount()
        except MountpointError as error:
            log.warning("%s; served for %g s more, at most", error, self._plan.grace_s)
            self._mount.detach()

    def _leave(self) -> None:
        """Stop serving a keeper's mount, once another supervisor waits to go on with it."""
        if self._leave_by_s is None:
            self._leave_by_s = time.monotonic() + self._plan.grace_s
            self._mount.ask_to_leave()
        self._leave_if_possible()

    def _yield(self) -> None:
        """Called by the thread that listens to the keeper."""
        self._queued.put(self._leave)
        os.write(self._wake_writer, b"\0")

    def _leave_if_possible(self) -> None:
        assert self._leave_by_s is not None
        now = time.monotonic()
        is_ready = self._server is not None and self._server.ready
        if now >= self._leave_by_s:
            if not self._mount.is_backed_up:
                log.error("the keeper of this mount is gone: readers will get errors")
            self._exit_code = 0
        elif self._server is None or not is_ready:
            if self._mount.is_backed_up:
                self._exit_code = 0
        elif self._mount.may_be_left and not self._is_flushing:
            self._is_flushing = True
            self._leave_by_s = now + _FLUSH_WITHIN_S
            self._server.link.send({"flush": True})

    # -- time and signals --------------------------------------------------------------

    def _next_event_in_s(self) -> float:
        now = time.monotonic()
        times = [now + _LOOK_EVERY_S, self._start_at_s, self._swap_by_s, self._end_by_s]
        times.append(self._leave_by_s)
        return max(0.0, min(moment for moment in times if moment is not None) - now)

    def _check_timers(self) -> None:
        now = time.monotonic()
        for server in (self._server, self._candidate):
            if server is not None:
                self._watch(server, now)
        self._looked_s = now
        self._metrics.keep_running()
        self._lingering = [server for server in self._lingering if not server.is_gone()]
        if os.getpid() == 1:  # of a container
            self._reap_orphans()
        if self._swap_by_s is not None and now >= self._swap_by_s:
            self._swap()
        if self._leave_by_s is not None:
            self._leave_if_possible()
        if self._exit_code is not None:
            return
        if (self._server is None or not self._server.prepared) and self._mount.is_over():
            self._exit_code = 0
        elif self._start_at_s is not None and now >= self._start_at_s:
            self._start()
        elif self._start_at_s is not None and self._has_given_up(now):
            self._mount.refuse(self._plan.python)
        if self._end_by_s is not None and now >= self._end_by_s:
            log.warning("the mount was still in use after %g s: ended", self._plan.grace_s)
            self._exit_code = 0

    def _has_given_up(self, now: float) -> bool:
        since_s = self._unserved_since_s
        return since_s is not None and now - since_s > self._plan.give_up_s

    def _watch(self, server: ServerProcess, now: float) -> None:
        if now - self._looked_s > 2 * _LOOK_EVERY_S:
            server.heard_s = now  # this process was stopped: the silence means nothing
        within_s = server.plan.watchdog_s
        if not server.heard:
            within_s = max(within_s, _STARTS_WITHIN_S)
        if server.killed_s is not None:
            if now - server.killed_s > _DIES_WITHIN_S:
                log.error("server %d is stuck in the kernel and cannot die", server.pid)
                self._on_end(server)
        elif now - server.heard_s > HALF_DEAD_AFTER_S and server.is_half_dead():
            # One of its threads waits in the kernel for a page whose reader waits for the next
            # server. None of its threads can run any more, so the next server may start.
            server.mark_killed()
            self._on_end(server)
        elif now - server.heard_s > within_s:
            server.hung = True
            server.kill(f"no message for {within_s:g} s: killed")
        elif not server.ready and self._note and _idle_s(server, now) > _PREPARE_WITHIN_S:
            # It sends pulses, but may hang on a dead disk. Only a first start, which lists, may
            # take long.
            server.kill(f"not ready, and idle for {_PREPARE_WITHIN_S:g} s: killed")

    def _reap_orphans(self) -> None:
        """Reap the workers of servers that were killed: they became children of this process."""
        servers = [self._server, self._candidate, *self._lingering]
        ours = {self._metrics.pid, *(server.pid for server in servers if server is not None)}
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):  # there is no child
            while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid not in ours:
                os.waitpid(ended.si_pid, 0)

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
                # The wakeup pipe gets its number; the handler does nothing. A real handler could
                # be interrupted by the next signal, and so on, until the stack is full.
                signal.signal(number, operator.is_)
        if self._mount.keeper is None:  # the command that became this process blocked them
            signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)

    def _on_wake(self) -> None:
        arrived = [number for number in os.read(self._wake_reader, 4096) if number]
        if arrived:
            self._signals += arrived
            if self._mount.keeper is not None:
                self._leave()
            else:
                self._end_mount()
                self._end_on_second_signal()
        while not self._queued.empty():
            self._queued.get()()

    def _end_on_second_signal(self) -> None:
        assert self._end_by_s is not None
        since_s = time.monotonic() - (self._end_by_s - self._plan.grace_s)
        if self._signals[-1] == signal.SIGINT and since_s > _SECOND_CTRL_C_AFTER_S:
            log.warning("second Ctrl-C: ending at once")
            self._end_by_s = time.monotonic()


def _ignore(_server: ServerProcess, _value: object) -> None:
    """Any message shows that the server is alive."""


def _idle_s(server: ServerProcess, now: float) -> float:
    """Return for how long its first thread, which prepares, has waited for anything but a
    processor."""
    return now - server.started_s - procfs.scheduled_s(server.pid)


def _protect_from_oom_killer() -> int:
    """Have the kernel kill the server before us if memory runs out. Return the score that the
    server gives itself: ours as it was, plus a tenth of the memory."""
    before = procfs.oom_score()
    with contextlib.suppress(OSError):  # it needs CAP_SYS_RESOURCE
        procfs.set_oom_score(-900)
    return min(1000, before + 100)
