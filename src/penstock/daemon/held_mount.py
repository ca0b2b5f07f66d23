"""A mount as its supervisor holds it: what is kept open for its servers, and how it ends.

Used by one thread.
"""

import logging
import os
import select
import subprocess
from pathlib import Path

from penstock.errors import MountpointError
from penstock.fuse import mounting
from penstock.mounttable import find_mount

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
        """Everyone gets EIO, until `accept`: see penstock.daemon.refuse."""
        if self._refuser is not None and self._refuser.poll() is None:
            return
        descriptors = [self.kept[name] for name in ("fuse", "journal") if name in self.kept]
        try:
            self._refuser = subprocess.Popen(
                [python, "-m", "penstock.daemon.refuse", str(self._mountpoint),
                 *map(str, descriptors)],
                pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
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
