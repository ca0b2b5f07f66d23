"""A folder of this machine as a store (file:///path).

Plain system calls and not obstore's LocalStore: that one refuses names with control
characters, and one name that is not UTF-8 ends its whole listing.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import Buffer

from penstock.errors import AccessDenied, ObjectChanged, ObjectNotFound, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Level, ObjectInfo

_PAGE_ENTRIES = 1000
# A level is held in memory as a whole; a folder with more than this is streamed.
_LEVEL_ENTRIES = 20_000


class LocalStore:
    def __init__(self, root: str, counters: Counters) -> None:
        if not os.path.isdir(root):
            raise SourceError(f"file://{root}: no such directory")
        self._root = os.path.realpath(root)
        self._counters = counters
        self.identity = f"file://{self._root}"

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        page: list[ObjectInfo] = []
        waiting = [prefix]
        while waiting:
            for key, info in self._entries(waiting.pop()):
                if info is None:
                    waiting.append(key)
                # An empty folder is shown, as a directory marker in a bucket is.
                page.append(info or ObjectInfo(f"{key}/", 0, 0, ""))
                if len(page) >= _PAGE_ENTRIES:
                    yield page
                    page = []
        yield page

    def list_level(self, prefix: str) -> Level | None:
        level = Level([], [])
        for number, (key, info) in enumerate(self._entries(prefix)):
            if number >= _LEVEL_ENTRIES:
                return None
            if info is None:
                level.prefixes.append(key)
            else:
                level.objects.append(info)
        return level

    def _entries(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        """What one folder holds; None with a folder."""
        try:
            with self._folder(prefix) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    key = f"{prefix}/{entry.name}" if prefix else entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield key, None if is_folder else self._info(key, entry)
        except FileNotFoundError:
            if not prefix:
                raise SourceError(f"{self.identity} is gone") from None
            # Otherwise removed between two listings.
        except NotADirectoryError as error:
            raise SourceError(f"file://{error.filename} is not a directory any more") from error
        except PermissionError as error:
            raise AccessDenied(f"file://{error.filename}: permission denied") from error

    @contextmanager
    def _folder(self, prefix: str) -> Iterator[int]:
        """Open, and where it should be: a link may have taken its place since it was listed."""
        path = os.path.join(self._root, prefix)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not self._is_inside(descriptor):
                raise FileNotFoundError(errno.ENOENT, "leads out of the source", path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_inside(self, descriptor: int) -> bool:
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        return os.path.commonpath([real, self._root]) == self._root

    def _info(self, key: str, entry: os.DirEntry[str]) -> ObjectInfo:
        try:
            status = entry.stat()
        except OSError:
            return ObjectInfo(key, 0, 0, "")  # a dangling link; why_unreadable tells
        return ObjectInfo(key, status.st_size, status.st_mtime_ns, _version(status))

    def get(self, key: str, version: str, start: int, length: int, size_bytes: int) -> Buffer:
        path = os.path.join(self._root, key)
        try:
            # A pipe that has taken a file's place must not hang us.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise ObjectNotFound(f"file://{path} is gone") from error
        except PermissionError as error:
            raise AccessDenied(f"file://{path}: permission denied") from error
        except OSError as error:
            raise StoreError(f"file://{path}: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not self._is_inside(descriptor):
                raise ObjectChanged(f"file://{path} is not the file that was listed")
            data = os.pread(descriptor, length, start)
            # Checked after the read: a file rewritten in place while we read must not pass.
            if _version(os.fstat(descriptor)) != version or len(data) != length:
                raise ObjectChanged(f"file://{path} was rewritten")
            self._counters.add("store_requests", label="get")
            self._counters.add("store_bytes", len(data))
            return data
        finally:
            os.close(descriptor)

    def why_unreadable(self, key: str) -> str | None:
        path = os.path.join(self._root, key)
        real = os.path.realpath(path)
        if os.path.commonpath([real, self._root]) != self._root:
            return "a link that leaves the source"
        try:
            mode = os.stat(real).st_mode
        except OSError as error:
            return f"cannot be opened ({error.strerror})"
        if stat.S_ISDIR(mode) and not key.endswith("/"):
            return "a link to a directory"
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return "neither a file nor a directory"
        return None


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
