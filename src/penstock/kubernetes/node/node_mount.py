"""One FUSE mount of this node, and the supervisors of server pods that come and go. The keeper's
side of `daemon.keeper_mount`.

              a supervisor attaches         its server answers readers
    detached ───────────────────> attached ──────────────────> served
        ▲                            │                            │
        └────────────────────────────┴──── the connection ends ───┘

The mount is made when the first supervisor attaches. A supervisor that attaches again brings back
what a keeper before this one kept. While none is attached readers wait; after `GIVE_UP_S` they get
EIO.

Threading: a thread for each connection of a supervisor; `_changed` guards the state.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import select
import socket
import stat
import sys
import threading
import time
from pathlib import Path

from penstock.daemon.channel import Channel, Message
from penstock.daemon.keeper_mount import INSTANCE
from penstock.daemon.kept_mount import KeptMount
from penstock.errors import MountpointError, NotServedInTime
from penstock.fuse import mounting
from penstock.fuse.device import OwnCalls
from penstock.kubernetes.names import ServedKey
from penstock.mounttable import MountEntry, find_mount, mount_table

log = logging.getLogger(__name__)

_MAX_READ_BYTES = 1 << 20
_LOOK_EVERY_S = 0.2
# What one supervisor may have us keep; all of it must fit into one answer to the next.
_MOST_KEPT = 200
_MOST_REMEMBERED_BYTES = 64 << 10
_OWN_FOLDERS = 2  # above a mount point: NAMESPACE/NAME
# A supervisor that lives attaches again sooner than this after a keeper was replaced.
_REATTACHES_WITHIN_S = 3.0
_ANSWERS_WITHIN_S = 1.0


class NodeMount:
    def __init__(
        self, key: ServedKey, mount_type: str, mountpoint: Path, kubelet_dir: Path
    ) -> None:
        self.key = key
        self._kubelet_dir = kubelet_dir
        self.mount_type = mount_type
        self.mountpoint = mountpoint
        self._kept = KeptMount(mountpoint)
        self._calls = OwnCalls()
        self._changed = threading.Condition()
        self._attached: Channel | None = None  # the supervisor that is attached
        self._since_s = 0.0  # of that supervisor
        self._is_leaving = False  # it has to end, and waits for a successor
        self._is_asked_to_yield = False
        self._waiting: list[float] = []  # since when the supervisors are there that wait to attach
        self._publishes = 0  # that wait until it is served
        self._error: str | None = None  # why its server does not answer readers
        self._is_served = False
        self._is_closed = False
        self._started_s = self.unserved_since_s = time.monotonic()
        # Made by a keeper before this one: its supervisor will bring the descriptors.
        self._is_adopted = self._entry() is not None

    # -- what the keeper asks --------------------------------------------------------------------

    def wait_until_served(self, timeout_s: float) -> None:
        """Raise NotServedInTime if no server answers readers in time."""
        with self._changed:
            self._publishes += 1
            try:
                done = self._changed.wait_for(lambda: self._is_served or self._is_closed, timeout_s)
            finally:
                self._publishes -= 1
            if done:
                if self._is_closed:
                    raise MountpointError(f"{self.key} is being unmounted")
                return
            error, attached = self._error, self._attached
        if error is None:
            error = "its server is not ready" if attached else "it has no server pod on this node"
        raise NotServedInTime(
            f"{self.key} is not served after {timeout_s:.0f} s: {error}",
            hint=f"kubectl describe dataset -n {self.key.namespace} {self.key.name}",
        )

    def wait_until_attached(self, timeout_s: float) -> bool:
        """Wait until a supervisor keeps what this process keeps."""
        with self._changed:
            return self._changed.wait_for(lambda: self._attached is not None, timeout_s)

    @property
    def is_awaited(self) -> bool:
        """Return whether a pod waits until it is served."""
        with self._changed:
            return self._publishes > 0

    @property
    def has_supervisor(self) -> bool:
        with self._changed:
            return self._attached is not None or bool(self._waiting)

    @property
    def is_kept(self) -> bool:
        with self._changed:
            return self._kept.is_kept

    def users(self) -> list[MountEntry]:
        """Return the bind mounts that show this mount to pods: those below the kubelet's folder.

        The node's root folder, which is visible here as well, shows each mount once more.
        """
        entry = self._entry()
        if entry is None:
            return []
        return [
            one
            for one in mount_table()
            if one.device == entry.device and one.mountpoint.startswith(f"{self._kubelet_dir}/")
        ]

    def refuse_readers(self) -> None:
        """Answer all readers with EIO until a supervisor attaches."""
        with self._changed:
            if self._attached is None and self._kept.is_kept:
                self._kept.refuse(sys.executable)

    def is_dead(self) -> bool:
        """Return whether readers get ENOTCONN: nobody has /dev/fuse open any more."""
        with self._changed:
            if self._kept.is_kept:
                return self._kept.is_over()
        return self._entry() is not None and _is_disconnected(self.mountpoint)

    def close(self, *, unmount: bool) -> None:
        """Stop to accept supervisors. `unmount`: also end the mount, of which nobody is a user."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if unmount:
                self._kept.accept()
                self._unmount()

    def _entry(self) -> MountEntry | None:
        entry = find_mount(self.mountpoint)
        return entry if entry is not None and entry.kind == mounting.FILESYSTEM_TYPE else None

    def _unmount(self) -> None:
        while self._entry() is not None:
            mounting.unmount(self.mountpoint, lazy=True)
        for name in list(self._kept.kept):
            self._kept.drop(name)
        self._kept.remembered.clear()
        with contextlib.suppress(OSError):  # other data sets have folders in it
            for folder in (self.mountpoint, *self.mountpoint.parents[:_OWN_FOLDERS]):
                folder.rmdir()

    # -- supervisors -----------------------------------------------------------------------------

    def let_leave(self) -> None:
        """Let a supervisor that has to end go without a successor if nobody reads."""
        with self._changed:
            if self._is_leaving and not self.users():
                self._ask_to_yield()

    def serve(
        self, end: socket.socket, have: dict[str, int], remembered: Message, since_s: float
    ) -> None:
        """Hand the mount to a supervisor, and keep what it sends, until its connection ends.

        `have` and `remembered` are what it brings: all that a keeper before this one kept.
        `since_s`: an older supervisor yields to it.
        """
        link = Channel(end)
        if not self._wait_for_turn(link, end, since_s, returns="fuse" in have):
            _close_all(have)
            return
        try:
            self._hand_over(link, have, remembered)
            while (received := link.receive()) is not None:
                with self._changed:
                    self._note(*received)
        except MountpointError as error:
            log.error("%s: %s", self.key, error)
            link.send({"refused": str(error)})
        finally:
            with self._changed:
                if self._is_served:  # attempts that fail must not put off what gives up
                    self.unserved_since_s = time.monotonic()
                self._attached, self._is_served = None, False
                self._changed.notify_all()

    def _wait_for_turn(
        self, link: Channel, end: socket.socket, since_s: float, *, returns: bool
    ) -> bool:
        """Wait until no other is attached. Return False if this one is gone meanwhile.

        `returns`: it brings a mount that a keeper before this one has made, and comes first.
        """
        with self._changed:
            self._waiting.append(since_s)
            try:
                while not self._is_its_turn(since_s, returns=returns):
                    if self._attached is not None and since_s > self._since_s:
                        self._ask_to_yield()
                    self._changed.wait(_LOOK_EVERY_S)
                    if self._is_closed or _is_over(end):
                        return False
                if self._is_closed:
                    return False
                self._attached, self._since_s = link, since_s
                self._is_leaving = self._is_asked_to_yield = False
                self._error = None
                self._changed.notify_all()
                return True
            finally:
                self._waiting.remove(since_s)

    def _is_its_turn(self, since_s: float, *, returns: bool) -> bool:
        if self._attached is not None:
            return False
        return returns or (since_s == max(self._waiting) and self._may_start_anew())

    def _ask_to_yield(self) -> None:
        if self._attached is not None and not self._is_asked_to_yield:
            self._is_asked_to_yield = self._attached.try_send({"yield": True})

    def _may_start_anew(self) -> bool:
        """Return whether a supervisor that brings nothing may be attached: not while that of an
        adopted mount may still come back."""
        if not self._is_adopted or self._kept.is_kept:
            return True
        if time.monotonic() - self._started_s < _REATTACHES_WITHIN_S:
            return False
        return _is_disconnected(self.mountpoint)

    def _hand_over(self, link: Channel, have: dict[str, int], remembered: Message) -> None:
        with self._changed:
            if "fuse" in have:
                self._take_back(have, remembered)
                link.send({"attached": {"kept": [], "remembered": {}}})
                return
            _close_all(have)
            self._kept.accept()
            self._mount_if_needed()
            kept = dict(self._kept.kept)
            answer = {"kept": list(kept), "remembered": self._kept.remembered}
            link.send({"attached": answer}, list(kept.values()))

    def _take_back(self, have: dict[str, int], remembered: Message) -> None:
        """Keep again what a supervisor kept while there was no keeper."""
        known = self._kept.remembered.get(INSTANCE)
        if self._entry() is None or known not in (None, remembered.get(INSTANCE)):
            _close_all(have)
            raise MountpointError("the mount that this supervisor keeps is over")
        self._kept.accept()
        for name in list(self._kept.kept):
            if name not in have:
                self._kept.drop(name)
        for name, descriptor in have.items():
            self._kept.keep(name, descriptor)
        self._kept.remembered = remembered

    def _mount_if_needed(self) -> None:
        """Make the mount, unless there is one that a supervisor can go on with."""
        if self._kept.is_kept and not self._kept.is_over() and self._kept.is_agreed:
            return
        if self._entry() is not None:
            # Its connection was aborted, or its first server died before it answered INIT.
            log.warning("%s: the mount at %s is replaced", self.key, self.mountpoint)
        self._unmount()
        try:
            self.mountpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MountpointError(f"{self.mountpoint}: {error.strerror}") from error
        fuse = mounting.open_and_mount(
            self.mountpoint, str(self.key), max_read_bytes=_MAX_READ_BYTES, allow_other=True
        )
        self._is_adopted = False
        self._kept.keep("fuse", fuse)
        self._kept.remember({INSTANCE: secrets.token_hex(8)})
        log.info("%s: mounted at %s", self.key, self.mountpoint)

    def _note(self, message: Message, descriptors: list[int]) -> None:
        try:
            self._keep_and_remember(message, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _keep_and_remember(self, message: Message, descriptors: list[int]) -> None:
        """Take what is to be kept out of `descriptors`. Raises ValueError for too much."""
        for name, value in message.items():
            if name == "keep" and descriptors:
                if value not in self._kept.kept and len(self._kept.kept) >= _MOST_KEPT:
                    raise ValueError("too many descriptors")
                self._kept.keep(value, descriptors.pop())
            elif name == "drop":
                self._kept.drop(value)
            elif name == "remember":
                self._kept.remember(value)
                if len(json.dumps(self._kept.remembered)) > _MOST_REMEMBERED_BYTES:
                    raise ValueError("too many values")
            elif name == "leaving":
                self._is_leaving = True
                self.let_leave()
            elif name == "serving":
                self._set_served(value, message["error"])

    def _set_served(self, served: bool, error: str | None) -> None:
        if served and not self._is_served and (entry := self._entry()) is not None:
            mounting.raise_readahead(entry)  # INIT, which came before, can only lower it
        self._is_served, self._error = served, error
        self._changed.notify_all()

    # -- calls on /dev/fuse ----------------------------------------------------------------------

    def answer_call(self, link: Channel, request: Message, descriptors: list[int]) -> None:
        """Make one call for a server process. Raises ValueError for one that nobody may make."""
        made: list[int] = []
        try:
            with self._changed:
                if not self._kept.is_kept:
                    raise OSError(errno.ENOTCONN, "not mounted")
                fuse = os.dup(self._kept.kept["fuse"])
            try:
                answer, made = self._call(fuse, request, descriptors)
            finally:
                os.close(fuse)
        except OSError as error:
            answer = {"errno": error.errno}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        link.send(answer, made)
        for descriptor in made:
            os.close(descriptor)

    def _call(
        self, fuse: int, request: Message, descriptors: list[int]
    ) -> tuple[Message, list[int]]:
        match request["call"]:
            case "clone":
                return {}, [self._calls.clone(fuse)]
            case "open_backing":
                (file,) = descriptors
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise ValueError("a backing file must be an ordinary file")
                # The kernel will read it with our rights, so the server must have its own.
                flags = fcntl.fcntl(file, fcntl.F_GETFL)
                if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
                    raise ValueError("a backing file must be open for reading")
                return {"number": self._calls.open_backing(fuse, file)}, []
            case "close_backing":
                self._calls.close_backing(fuse, int(request["number"]))
                return {}, []
            case other:
                raise ValueError(f"unknown call {other!r}")


def _is_over(end: socket.socket) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return bool(poll.poll(0))


def _is_disconnected(mountpoint: Path) -> bool:
    """Whether nobody has /dev/fuse open. A mount that nobody answers for counts as connected."""
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(mounting.is_disconnected(mountpoint)), daemon=True
    )
    thread.start()
    thread.join(_ANSWERS_WITHIN_S)
    return found == [True]


def _close_all(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
