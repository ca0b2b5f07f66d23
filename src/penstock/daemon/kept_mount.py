"""A mount as its supervisor keeps it: the descriptors kept for its servers, and how it ends."""

import logging
import os
import select
import subprocess
from collections.abc import Callable
from pathlib import Path

from penstock.daemon.channel import Message
from penstock.errors import MountpointError
from penstock.fuse import mounting
from penstock.mounttable import find_mount

log = logging.getLogger(__name__)


class KeptMount:
    """Used by one thread."""

    # The socket of the keeper, which has more privileges, made the mount and keeps it beyond us.
    keeper: Path | None = None

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self.kept: dict[str, int] = {}
        self.remembered: Message = {}
        self.on_yield: Callable[[], None] = lambda: None  # called by another thread
        self.may_be_there = False  # a server may have mounted, and not reported it yet
        self._device: str | None = None  # from the mount table
        self._responder: subprocess.Popen[bytes] | None = None

    @property
    def is_kept(self) -> bool:
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

    def remember(self, values: Message) -> None:
        """Keep values for the next server; None removes one."""
        self.remembered.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del self.remembered[name]

    @property
    def is_agreed(self) -> bool:
        """Return whether a server has answered INIT, which the kernel sends once."""
        return self.is_kept and "agreed" in self.remembered

    def note_server(self, end: int) -> None:
        """Take note of the server that reads requests from now on, by its pidfd."""

    def ask_to_leave(self) -> None:
        """Tell the keeper that this process has to end, and would rather have a successor first."""

    @property
    def is_backed_up(self) -> bool:
        """Return whether the mount goes on if this process ends now."""
        return False

    @property
    def may_be_left(self) -> bool:
        """Return whether, in addition, a successor waits, or nobody reads."""
        return False

    def refuse(self, python: str) -> None:
        """Answer all readers with EIO until `accept`: see penstock.daemon.refuse."""
        if self._responder is not None and self._responder.poll() is None:
            return
        descriptors = [self.kept[name] for name in ("fuse", "journal") if name in self.kept]
        try:
            self._responder = subprocess.Popen(
                [
                    python,
                    "-m",
                    "penstock.daemon.refuse",
                    str(self._mountpoint),
                    *map(str, descriptors),
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.error("readers cannot be answered with EIO: %s", error)

    def accept(self) -> None:
        """Stop the EIO responder: from here on a server may read requests."""
        if self._responder is not None:
            self._responder.kill()
            self._responder.wait()
            self._responder = None

    def is_over(self) -> bool:
        """Return whether it was unmounted and has no user left, or its connection was aborted."""
        if not self.is_kept:
            return False
        poll = select.poll()
        poll.register(self.kept["fuse"], 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def unmount(self) -> None:
        """Raise MountpointError if it is still in use."""
        if self._is_there():
            mounting.unmount(self._mountpoint)

    def detach(self) -> None:
        """Unmount lazily: new opens fail, and open files stay usable."""
        try:
            if self._is_there():
                mounting.unmount(self._mountpoint, lazy=True)
        except MountpointError as error:
            log.error("%s", error)

    def clear_away(self) -> None:
        """Unmount what is left of a server that died before it was ready, or of a connection that
        was aborted (umount -f)."""
        if self._device is not None:
            # If it is over, what is there now is either disconnected, or another mount that was
            # given the same device number.
            if not self.is_over() or (
                self._is_there() and mounting.is_disconnected(self._mountpoint)
            ):
                self.detach()
        elif self.may_be_there:  # its server died before it reported the mount
            entry = find_mount(self._mountpoint)
            if entry is None or entry.kind != mounting.FILESYSTEM_TYPE:
                return
            if mounting.is_disconnected(self._mountpoint):
                mounting.unmount(self._mountpoint, lazy=True)

    def _is_there(self) -> bool:
        """Return whether this very mount is there: after a lazy unmount another may have its
        place."""
        entry = find_mount(self._mountpoint)
        return entry is not None and entry.device == self._device
