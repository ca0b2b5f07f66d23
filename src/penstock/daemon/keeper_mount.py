"""A mount that another process, its keeper, has made, and that we keep together with it. Our side.

The keeper has the privileges to mount, and keeps copies of all descriptors and values that must
outlive a server. So the next supervisor gets them from the keeper, and a keeper that starts again
gets them from us. All of it goes over one Unix socket, in the messages of `channel`:

    attach     (to the keeper) what we have, with descriptors: nothing, or all after a reconnect
    attached   (from the keeper) what it has that we lack, with descriptors
    refused    (from the keeper) what we have belongs to a mount that is over
    leaving    (to the keeper) we have to end, once a successor is there
    yield      (from the keeper) a successor waits, or nobody reads: end now
    keep, drop, remember       as from a server to its supervisor
    serving    (to the keeper) whether readers are answered, or why not

The keeper answers `attach` once no other supervisor is attached; it asks an older one to yield. So
a new server takes over within the time of a hand-over. A second kind of connection, which begins
with `call`, is for the calls on /dev/fuse that need privileges (`KeeperCalls`).
"""

import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.daemon.channel import Channel, Message
from penstock.daemon.kept_mount import KeptMount
from penstock.errors import MountpointError, PenstockError

log = logging.getLogger(__name__)

SERVER_END = "server-process"  # the pidfd of the last server
INSTANCE = "mount_instance"  # identifies one mount(2); a value that the keeper remembers
# Of this supervisor alone: its socket's path goes when it ends.
_OURS = frozenset({"control"})
_RETRY_S = 0.1
_LAST_SERVER_ENDS_WITHIN_S = 30.0
_CALL_TIMEOUT_S = 5.0


class KeeperMount(KeptMount):
    """Threading: the supervisor's thread calls; a thread of its own keeps the connection."""

    def __init__(self, mountpoint: Path, mount_type: str, keeper: Path, *, since_s: float) -> None:
        """`since_s`: a supervisor yields to one with a later time."""
        super().__init__(mountpoint)
        self.keeper = keeper
        self._mount_type = mount_type
        self._since_s = since_s
        self._is_leaving = False
        self._may_leave = False
        self._lock = threading.RLock()  # of `kept`, `remembered` and the connection
        self._link: Channel | None = None
        self._serving: Message = {"serving": False, "error": None}
        self._server_end: int | None = None

    def attach(self, waiting: Callable[[str], None]) -> None:
        """Get the mount; return once no other server reads it. Raises MountpointError.

        `waiting` is told what it waits for.
        """
        link, kept, remembered = self._connect(waiting)
        self.remembered = remembered
        if (end := kept.pop(SERVER_END, None)) is not None:
            waiting("the server before this one to end")
            _wait_for_end(end)
        self.kept = kept
        self._link = link
        threading.Thread(target=self._stay_attached, name="keeper", daemon=True).start()

    def set_serving(self, serving: bool, error: str | None = None) -> None:
        """Tell the keeper whether readers are answered, or why not."""
        with self._lock:
            self._serving = {"serving": serving, "error": error}
            self._send(self._serving)

    # -- what a supervisor does with its mount ---------------------------------------------------

    def keep(self, name: str, descriptor: int) -> None:
        with self._lock:
            if name in self.kept:
                os.close(self.kept[name])
            self.kept[name] = descriptor
            if name not in _OURS:
                self._send({"keep": name}, descriptor)

    def drop(self, name: str) -> None:
        with self._lock:
            super().drop(name)
            self._send({"drop": name})

    def remember(self, values: Message) -> None:
        with self._lock:
            super().remember(values)
            self._send({"remember": values})

    def note_server(self, end: int) -> None:
        with self._lock:
            if self._server_end is not None:
                os.close(self._server_end)
            self._server_end = os.dup(end)
            self._send({"keep": SERVER_END}, end)

    def ask_to_leave(self) -> None:
        with self._lock:
            self._is_leaving = True
            self._send({"leaving": True})

    @property
    def is_backed_up(self) -> bool:
        with self._lock:
            return self._link is not None

    @property
    def may_be_left(self) -> bool:
        with self._lock:
            return self._link is not None and self._may_leave

    def unmount(self) -> None:
        """Do nothing: only the keeper can."""

    def detach(self) -> None:
        """Do nothing: only the keeper can."""

    def clear_away(self) -> None:
        """Do nothing: only the keeper can."""

    # -- the connection --------------------------------------------------------------------------

    def _connect(self, waiting: Callable[[str], None]) -> tuple[Channel, dict[str, int], Message]:
        assert self.keeper is not None
        while True:
            try:
                link = _connect(self.keeper)
            except OSError as error:
                waiting(f"the keeper of this mount ({self.keeper}: {error.strerror})")
                time.sleep(_RETRY_S)
                continue
            waiting("the mount")
            try:
                answer = self._exchange(link)
            except OSError as error:  # of the socket: too many descriptors in flight, and the like
                log.error("the keeper of this mount cannot be told what we have: %s", error)
                answer = None
            if answer is None:
                link.close()
                time.sleep(_RETRY_S)
                continue
            message, descriptors = answer
            if "refused" in message:
                link.close()
                raise MountpointError(f"{self._mountpoint}: {message['refused']}")
            attached: Message = message["attached"]
            kept = dict(zip(attached["kept"], descriptors, strict=True))
            return link, kept, attached["remembered"]

    def _exchange(self, link: Channel) -> tuple[Message, list[int]] | None:
        with self._lock:
            kept = self._lasting()
            if self._server_end is not None:
                kept[SERVER_END] = self._server_end
            attach = {
                "mount_type": self._mount_type,
                "since_s": self._since_s,
                "kept": list(kept),
                "remembered": self.remembered,
            }
            sent = link.send({"attach": attach}, list(kept.values()))
        return link.receive() if sent else None

    def _stay_attached(self) -> None:
        link = self._link
        assert link is not None
        while True:
            while (received := link.receive()) is not None:
                if "yield" in received[0]:
                    with self._lock:
                        self._may_leave = True
                    self.on_yield()
            with self._lock:
                self._link, self._may_leave = None, False
            log.warning("the keeper of this mount is gone; waiting for the next one")
            try:
                link, surplus, _ = self._connect(log.debug)
            except MountpointError as error:
                # Nobody can read through the mount that we serve any more.
                log.error("%s; this server ends", error)
                os._exit(PenstockError.exit_code)
            for descriptor in surplus.values():
                os.close(descriptor)
            with self._lock:
                self._link = link
                # What changed since `attach` was sent; to send it twice does no harm.
                self._send({"remember": self.remembered})
                for name, descriptor in self._lasting().items():
                    self._send({"keep": name}, descriptor)
                self._send(self._serving)
                if self._is_leaving:
                    self._send({"leaving": True})
            log.warning("attached to the keeper again")

    def _lasting(self) -> dict[str, int]:
        return {name: one for name, one in self.kept.items() if name not in _OURS}

    def _send(self, message: Message, *descriptors: int) -> None:
        """A failure does no harm: everything is sent again after a reconnect."""
        try:
            sent = self._link is None or self._link.send(message, descriptors)
        except OSError as error:
            log.error("the keeper of this mount cannot be told: %s", error)
            return
        if not sent:
            log.debug("the keeper is gone")


class KeeperCalls:
    """The calls on /dev/fuse that the keeper makes for us (`fuse.device.DeviceCalls`).

    Threading: any thread; one call at a time.
    """

    def __init__(self, keeper: Path) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._link: Channel | None = None

    def clone(self, fuse: int) -> int:
        del fuse  # the keeper has it
        _, descriptors = self._call({"call": "clone"})
        return descriptors[0]

    def open_backing(self, fuse: int, file: int) -> int:
        del fuse
        answer, _ = self._call({"call": "open_backing"}, file)
        return answer["number"]

    def close_backing(self, fuse: int, number: int) -> None:
        del fuse
        self._call({"call": "close_backing", "number": number})

    def _call(self, request: Message, *descriptors: int) -> tuple[Message, list[int]]:
        with self._lock:
            received = self._ask(request, descriptors)
            if received is None:  # the connection was that of an earlier keeper
                received = self._ask(request, descriptors)
        if received is None:
            raise ConnectionResetError(errno.ECONNRESET, "the keeper of this mount is gone")
        answer, got = received
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer, got

    def _ask(
        self, request: Message, descriptors: tuple[int, ...]
    ) -> tuple[Message, list[int]] | None:
        if self._link is None:
            self._link = _connect(self._keeper, _CALL_TIMEOUT_S)
        received = None
        try:
            if self._link.send(request, descriptors):
                received = self._link.receive()
        finally:
            if received is None:
                self._link.close()
                self._link = None
        return received


def _connect(path: Path, timeout_s: float | None = None) -> Channel:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(timeout_s)
    try:
        end.connect(str(path))
    except OSError:
        end.close()
        raise
    return Channel(end)


def _wait_for_end(pidfd: int) -> None:
    """Two servers must not read requests at once: one that is killed could lose a request."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(_LAST_SERVER_ENDS_WITHIN_S * 1000):
        log.error("the last server has not ended after %g s", _LAST_SERVER_ENDS_WITHIN_S)
    os.close(pidfd)
