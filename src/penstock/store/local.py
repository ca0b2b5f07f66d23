"""A folder of this machine as a store (file:///path).

Uses plain system calls, not obstore's LocalStore: that one refuses names with control characters,
and one name that is not UTF-8 ends its whole listing.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from typing_extensions import Buffer

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    SourceError,
    StoreError,
)
from penstock.metrics import OK, Counters
from penstock.mounttable import FILESYSTEM_TYPE, mount_table
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress

_PAGE_ENTRIES = 1000
# A level is held in memory as a whole; a larger folder is streamed.
_LEVEL_ENTRIES = 20_000
# Names a file that is being written; the next attempt overwrites what a crash has left.
_PARTIAL = (".penstock-", ".part")
# Errors of a name that no file can have here: a retry does not help.
_PERMANENT = (
    errno.EINVAL,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EROFS,
)


class LocalStore:
    def __init__(self, root: str, counters: Counters) -> None:
        if not os.path.isdir(root):
            raise SourceError(f"file://{root}: no such directory")
        self._root = os.path.realpath(root)
        self._device = os.stat(root).st_dev
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
        """Yield the entries of one folder; for a folder in it, None."""
        try:
            with self._folder(prefix) as folder, os.scandir(folder) as entries:
                if self._is_mount_of_ours(folder):
                    return
                for entry in entries:
                    if entry.name.startswith(_PARTIAL[0]) and entry.name.endswith(_PARTIAL[1]):
                        continue
                    key = f"{prefix}/{entry.name}" if prefix else entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield key, None if is_folder else self._info(key, entry)
        except FileNotFoundError:
            if not prefix:
                raise SourceError(f"{self.identity} is gone") from None
            # A folder below it was removed between two listings.
        except NotADirectoryError as error:
            raise SourceError(f"file://{error.filename} is not a directory any more") from error
        except PermissionError as error:
            raise AccessDenied(f"file://{error.filename}: permission denied") from error

    @contextmanager
    def _folder(self, prefix: str) -> Iterator[int]:
        """Open a folder and check its place: it may have become a link since it was listed."""
        path = os.path.join(self._root, prefix)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not self._is_inside(descriptor):
                raise FileNotFoundError(errno.ENOENT, "leads out of the source", path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_mount_of_ours(self, folder: int) -> bool:
        """Return whether this is a Penstock mount: one in its own source would contain itself, one
        level deeper with each listing."""
        device = os.fstat(folder).st_dev
        if device == self._device:
            return False
        name = f"{os.major(device)}:{os.minor(device)}"
        return any(
            entry.device == name and entry.kind == FILESYSTEM_TYPE for entry in mount_table()
        )

    def _is_inside(self, descriptor: int) -> bool:
        real = os.readlink(f"/proc/self/fd/{descriptor}")
        return os.path.commonpath([real, self._root]) == self._root

    def _info(self, key: str, entry: os.DirEntry[str]) -> ObjectInfo:
        try:
            status = entry.stat()
        except OSError:
            return ObjectInfo(key, 0, 0, "")  # a dangling link; why_unreadable reports it
        return ObjectInfo(key, status.st_size, status.st_mtime_ns, _version(status))

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        path = os.path.join(self._root, key)
        try:
            # Non-blocking: the file may have become a pipe.
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
            self._counters.add("store_requests", label="get", outcome=OK)
            self._counters.add("store_bytes", len(data))
            return data
        finally:
            os.close(descriptor)

    # -- writing ------------------------------------------------------------------------

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        *folders, name = key.split("/")
        try:
            folder = self._make_folders(folders)
            try:
                return self._write(folder, name, chunks, size_bytes)
            finally:
                os.close(folder)
        except PermissionError as error:
            raise AccessDenied(f"{self.identity}/{key}: permission denied") from error
        except OSError as error:
            raise self._write_error(key, error) from error

    def _make_folders(self, names: list[str]) -> int:
        """Create and open the folder of a file, without following links."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(self._root, flags)
        for name in names:
            try:
                if name in ("", ".", ".."):
                    raise OSError(errno.EINVAL, f"no folder is called {name!r}")
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _write(self, folder: int, name: str, chunks: Chunks, size_bytes: int) -> str:
        if name in ("", ".", ".."):
            raise OSError(errno.EINVAL, f"no file is called {name!r}")
        partial = _partial_name(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for chunk in chunks():
                    _write_all(file.fileno(), memoryview(chunk).cast("B"))
                status = os.fstat(file.fileno())
                if status.st_size != size_bytes:
                    raise StoreError(
                        f"{self.identity}/{name}: read {status.st_size} of {size_bytes} bytes",
                        kind="wrong_length",
                    )
                os.fdatasync(file.fileno())
            os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(partial, dir_fd=folder)
            raise
        self._counters.add("store_requests", label="put", outcome=OK)
        return _version(status)

    def delete(self, key: str) -> None:
        path = os.path.join(self._root, key)
        try:
            parent = os.path.realpath(os.path.dirname(path))
            if os.path.commonpath([parent, self._root]) != self._root:
                raise OSError(errno.EINVAL, "leads out of the source")
            os.unlink(path)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise AccessDenied(f"file://{path}: permission denied") from error
        except OSError as error:
            raise self._write_error(key, error) from error
        self._counters.add("store_requests", label="delete", outcome=OK)

    def clear_partial(self, key: str) -> None:
        folder, name = os.path.split(key)
        self.delete(os.path.join(folder, _partial_name(name)))

    def _write_error(self, key: str, error: OSError) -> PenstockError:
        what = f"{self.identity}/{key}: {error.strerror or error}"
        if error.errno in _PERMANENT:
            return SourceError(what, hint="this folder cannot hold a file of that name")
        return StoreError(what, hint="check the disk: space, quota, errors", kind="disk")

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        return None

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


def _partial_name(name: str) -> str:
    return hashlib.blake2b(os.fsencode(name), digest_size=12).hexdigest().join(_PARTIAL)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
