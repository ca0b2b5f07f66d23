"""Passthrough: files of the local cache that the kernel reads by itself.

The kernel has two rules. A backing file is registered once and then referred to by a number. And an
inode cannot be open both ways at once: while it is open through the server, a passthrough open
fails, so new opens go through the server too until all of those are closed.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.fuse.device import DeviceCalls
from penstock.fuse.journal import BACKING, DAEMON_OPENS, USERS, Ledger
from penstock.fuse.protocol import OpenFlag
from penstock.vfs.filesystem import FileSystem

log = logging.getLogger(__name__)

_DAEMON_HANDLE = 0
_PASSTHROUGH_HANDLE = 1


@dataclass(slots=True)
class _Inode:
    slot: int  # in the ledger
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    backing: int = 0  # the kernel's number of the backing file; 0: none
    daemon_opens: int = 0


class BackingFiles:
    def __init__(
        self,
        descriptor: int,
        files: FileSystem,
        drop_pages: Callable[[int], None],
        ledger: Ledger,
        calls: DeviceCalls,
    ) -> None:
        self._descriptor = descriptor
        self._calls = calls
        self._files = files
        self._drop_pages = drop_pages
        self._lock = threading.Lock()
        self._inodes: dict[int, _Inode] = {}
        self._read_by_server: set[int] = set()
        self._ledger = ledger
        self.enabled = True
        self.opens = 0
        for known in ledger.opens():  # of the previous server
            inode = _Inode(
                known.slot,
                users=known.users,
                backing=known.backing,
                daemon_opens=known.daemon_opens,
            )
            if known.users:
                self._inodes[known.ino] = inode
            else:
                self._forget(inode)

    def open(self, ino: int) -> tuple[int, int, int]:
        """Return (file handle, open flags, backing number) for the reply to OPEN."""
        with self._lock:
            inode = self._inodes.get(ino)
            if inode is None:
                inode = self._inodes[ino] = _Inode(self._ledger.enter(ino))
            inode.users += 1
            self._ledger.write(inode.slot, USERS, inode.users)
        try:
            # others that open the same file wait here, and then share the backing file
            with inode.lock:
                if not inode.backing and not inode.daemon_opens and self.enabled:
                    inode.backing = self._find_and_register(ino)
                    self._ledger.write(inode.slot, BACKING, inode.backing)
                if inode.backing:
                    self.opens += 1
                    return _PASSTHROUGH_HANDLE, OpenFlag.PASSTHROUGH, inode.backing
                inode.daemon_opens += 1
                self._ledger.write(inode.slot, DAEMON_OPENS, inode.daemon_opens)
                self._read_by_server.add(ino)
                return _DAEMON_HANDLE, OpenFlag.KEEP_CACHE, 0
        except BaseException:
            self._leave(ino, inode)
            raise

    def release(self, ino: int, handle: int, *, resent: bool) -> None:
        inode = self._inodes.get(ino)
        # A killed server may have counted it already: a count too high is better than one too low.
        if inode is None or resent:
            return
        if handle == _DAEMON_HANDLE:
            with inode.lock:
                inode.daemon_opens -= 1
                self._ledger.write(inode.slot, DAEMON_OPENS, inode.daemon_opens)
        self._leave(ino, inode)

    def _leave(self, ino: int, inode: _Inode) -> None:
        with self._lock:
            inode.users -= 1
            self._ledger.write(inode.slot, USERS, inode.users)
            if not inode.users:
                del self._inodes[ino]
                self._forget(inode)

    def _forget(self, inode: _Inode) -> None:
        """Remove the ledger entry first: a backing file in the ledger must be registered in the
        kernel."""
        self._ledger.leave(inode.slot)
        if inode.backing:
            try:
                self._calls.close_backing(self._descriptor, inode.backing)
            except OSError as error:  # a new server must start all the same
                log.warning("cannot unregister backing file %d: %s", inode.backing, error)

    def _find_and_register(self, ino: int) -> int:
        path = self._complete_file(ino)
        backing = self._register(path) if path is not None else 0
        if backing and ino in self._read_by_server:
            # Its pages in the page cache would be a second copy that is no longer read.
            self._read_by_server.discard(ino)
            self._drop_pages(ino)
        return backing

    def _complete_file(self, ino: int) -> str | None:
        if not self._files.node(ino).size_bytes:
            return None
        path = self._files.complete_file(ino)
        return str(path) if path is not None else None

    def _register(self, path: str) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0  # evicted a moment ago
        try:
            return self._calls.open_backing(self._descriptor, descriptor)
        except OSError as error:
            # EPERM: not root. ELOOP: the cache is on a stacked file system.
            self.enabled = error.errno not in (errno.EPERM, errno.ELOOP, errno.EOPNOTSUPP)
            what = "a file is read through the server" if self.enabled else "passthrough is off"
            log.warning("%s: %s (%s)", what, error.strerror, path)
            return 0
        finally:
            os.close(descriptor)
