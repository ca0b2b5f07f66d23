"""The server process: `python -m penstock.daemon.serve MOUNTPOINT`, started by a supervisor.

Its settings come over the channel, and not as arguments, which every user can read. Supervisors of
earlier releases start this module, and `refuse`, by name: the names must stay.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from penstock import procfs
from penstock.daemon import worker
from penstock.daemon.channel import Channel, Message, receive_start
from penstock.daemon.fork_server import ForkServer
from penstock.daemon.keeper_mount import KeeperCalls
from penstock.daemon.log_file import open_log
from penstock.daemon.mount_registry import resolve_mountpoint
from penstock.daemon.process_setup import workers_of
from penstock.daemon.server import Handover, Ready, Server
from penstock.daemon.server_process import CHANNEL_VARIABLE, OVER_LIMITS, WARNING
from penstock.environment import keep_memory_private, take_inherited_keys
from penstock.errors import MountpointError, PenstockError, UsageError
from penstock.fuse import mounting
from penstock.settings import MountSettings, decode
from penstock.store.redaction import set_up_logging
from penstock.units import counted, format_size

log = logging.getLogger(__name__)

_PULSES_A_WATCHDOG = 6
_LONGEST_PULSE_S = 1.0


def main() -> None:
    os.environ.update(take_inherited_keys())
    link = Channel(socket.socket(fileno=int(os.environ.pop(CHANNEL_VARIABLE))))
    start = receive_start(link)
    if start is None:
        return  # the supervisor is gone already
    set_up_logging(open_log(start["log"], rotate=True))
    _accept_to_be_killed_first(start["oom_score_adj"])
    keep_memory_private()
    settings = decode(start["settings"])
    # Fork it now, while this process has one thread.
    fork_server = ForkServer.fork(worker.main) if workers_of(settings) > 1 else None
    _forward_signals(link)
    process = _Process(
        link,
        settings,
        Server(
            settings,
            takeover=start["takeover"],
            mounted=start.get("mounted", start["takeover"]),  # earlier supervisors do not say
            asked_for=start["asked_for"],
            fork_server=fork_server,
            keeper=KeeperCalls(Path(keeper)) if (keeper := start.get("keeper")) else None,
        ),
    )
    try:
        process.run()
    except PenstockError as error:
        answer = {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}
        link.send({"error": answer})
        _exit(error.exit_code)
    except BaseException as error:  # report it; then it is a crash like any other
        log.critical("the server ends: a bug", exc_info=error)
        what = f"{type(error).__name__}: {error}"
        link.send({"error": {"error": what, "hint": "its log says more", "exit_code": 1}})
        _exit(1)
    _exit(0)


class _Process:
    def __init__(self, link: Channel, settings: MountSettings, server: Server) -> None:
        self._link = link
        self._settings = settings
        self._server = server
        self._attached = False

    def run(self) -> None:
        threading.Thread(target=self._send_pulses, name="pulse", daemon=True).start()
        self._server.prepare(self._report)
        self._link.send({"prepared": True})
        received = self._link.receive()
        if received is None:
            return  # the supervisor is gone, and there is no mount yet
        message, descriptors = received
        ready = self._server.attach(self._handover(message["go"], descriptors))
        self._attached = True
        self._link.send({"ready": describe(self._settings, ready)})
        threading.Thread(target=self._handle_messages, name="link", daemon=True).start()
        self._server.wait()
        self._link.send({"unmounted": True})

    def _report(self, files: int, size_bytes: int) -> None:
        if not self._link.send({"progress": [files, size_bytes]}):
            raise PenstockError("the supervisor of this mount is gone")

    def _handover(self, go: Message, descriptors: list[int]) -> Handover:
        remembered: dict[str, Any] = go["remembered"]

        def keep(name: str, descriptor: int) -> None:
            self._link.send({"keep": name}, [descriptor])

        def remember(values: dict[str, Any]) -> None:
            remembered.update(values)
            self._link.send({"remember": values})

        def drop(name: str) -> None:
            self._link.send({"drop": name})

        kept = dict(zip(go["kept"], descriptors, strict=True))
        return Handover(kept, remembered, keep, drop, remember)

    def _handle_messages(self) -> None:
        while (received := self._link.receive()) is not None:
            if "flush" in received[0]:
                self._server.flush()
                self._link.send({"flushed": True})
        # The mount works as long as one process holds /dev/fuse: readers notice nothing.
        log.warning("the supervisor is gone: this mount is served, but not restarted")

    def _send_pulses(self) -> None:
        watchdog_s = self._settings.watchdog_s
        server = self._server
        while True:
            time.sleep(min(_LONGEST_PULSE_S, watchdog_s / _PULSES_A_WATCHDOG))
            attached = self._attached
            free_memory = server.free_memory if attached else _nothing
            why = server.limits.why_to_end(free_memory, server.worker_pids)
            if attached:
                why = server.why_to_end or why
            if why is not None:
                # Before there is a mount, another server would list just as much.
                hint = None if attached else "--memory allows more"
                code = OVER_LIMITS if attached else UsageError.exit_code
                error = {"error": why, "hint": hint, "exit_code": code}
                if self._link.send(
                    {"error": error}
                ):  # without a supervisor nothing would replace us
                    log.error("the server ends: %s", why)
                    _exit(code)
            if attached:
                server.check_for_hung_disks()
            if not attached or not server.is_stuck(watchdog_s):
                self._link.try_send({"pulse": {}})


def _nothing() -> None:
    return


def describe(settings: MountSettings, ready: Ready) -> list[str]:
    """Return the lines that a user sees once the mount is ready."""
    cache = "no cache"
    if settings.tiers:
        cache = "cache " + ", ".join(
            f"{tier.medium} {':'.join(map(str, tier.paths))}"
            + (f" ({format_size(tier.quota_bytes)})" if tier.quota_bytes else "")
            for tier in settings.tiers
        )
    lines = [
        f"{settings.shown} is mounted at {settings.mountpoint}: {counted(ready.files, 'file')}, "
        f"{format_size(ready.size_bytes)}; mode {ready.mode}; {cache}",
        f"unmount with: penstock umount {settings.mountpoint}",
    ]
    if settings.metrics is not None:
        lines.append(f"metrics: http://{settings.metrics}/metrics")
    if ready.hidden:
        lines.append(
            f"{counted(ready.hidden, 'object')} cannot be shown as files; "
            f"`penstock doctor {settings.mountpoint}` lists them"
        )
    if ready.refused is not None:
        lines.append(f"{WARNING}{ready.refused}; only what is cached can be read")
        if ready.refused.hint:
            lines.append(f"hint: {ready.refused.hint}")
    return lines + [f"note: {note}" for note in ready.notes]


def _accept_to_be_killed_first(score: int) -> None:
    """Be killed before the supervisor, which can replace us. No privilege is needed for that."""
    procfs.set_oom_score(score)


def _forward_signals(link: Channel) -> None:
    """End the mount when this process gets SIGTERM or the like. A thread waits for signals: a
    handler would run in the main thread, which sleeps in a join and may sleep on."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # threads inherit it

    def wait() -> None:
        while True:
            signal.sigwait(signals)
            if not link.send({"leave": True}):
                # The supervisor is gone: detach the mount, which ends with its last user.
                try:
                    mounting.unmount(resolve_mountpoint(sys.argv[1]), lazy=True)
                except MountpointError as error:
                    log.error("%s", error)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _exit(code: int) -> None:
    """Exit at once: threads may hang in a request to a store that does not answer."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
