"""The files of a cache directory: one for each object, in 256 folders. Opened, removed, listed.

Nothing here follows a link: what lies where a file or folder of ours should be, and is not one,
is `odd`, and goes. May be used from any thread.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# NONBLOCK changes nothing for a file; opening a FIFO that someone left here would wait for ever.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
TO_READ = os.O_RDONLY | _FLAGS
_TO_WRITE = os.O_WRONLY | _FLAGS
_SUMS = "user.penstock.sums"
# What opening or reading gives for a link, a folder, a FIFO or a socket.
_ODD = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ESPIPE)


class FileStamp(NamedTuple):
    """A file's identity and age. Any change to its bytes changes the last."""

    inode: int
    size_bytes: int
    changed_ns: int


def is_odd(error: OSError) -> bool:
    return error.errno in _ODD


def make_folders(path: Path) -> bool:
    """Makes those that are missing; True if all were."""
    all_new = not os.path.lexists(path / "objects")
    for folder in (path / "objects", *(path / "objects" / f"{n:02x}" for n in range(256))):
        try:
            folder.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                folder.unlink()  # a link would lead our writes elsewhere
                folder.mkdir(mode=0o700)
    return all_new


def open_to_write(path: str, *, whole: bool) -> tuple[int, bool]:
    """A descriptor, and whether the file may be new."""
    if whole:
        return os.open(path, _TO_WRITE | os.O_CREAT, 0o600), True
    while True:
        try:
            return os.open(path, _TO_WRITE), False
        except FileNotFoundError:
            pass
        try:
            return os.open(path, _TO_WRITE | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            continue  # another thread was faster


def sums_of(descriptor: int) -> bytes | None:
    """The checksums that an object of one block carries; None if it has none, or cannot have."""
    try:
        return os.getxattr(descriptor, _SUMS)
    except OSError:
        return None


def write_file(
    path: str, size_bytes: int, offset: int, view: memoryview, sums: bytes | None = None
) -> tuple[FileStamp | None, bool]:
    """Writes a part of an object of so many bytes. Returns what the file is now, None if it was
    removed while we wrote; and whether it is new: inode numbers alone are used again. `sums`: of a
    whole object, for those who read it before its row is there."""
    whole = len(view) == size_bytes
    try:
        descriptor, is_new = open_to_write(path, whole=whole)
    except OSError as error:
        if not is_odd(error):
            raise
        remove(path)
        return None, False
    try:
        if not whole:
            # The whole length from the start: a complete file is then exactly the object.
            os.truncate(descriptor, size_bytes)
        while view:
            written = os.pwrite(descriptor, view, offset)
            offset += written
            view = view[written:]
        if sums is not None:
            with suppress(OSError):  # not every file system has attributes
                os.setxattr(descriptor, _SUMS, sums)
        status = os.fstat(descriptor)
        stamp = FileStamp(status.st_ino, status.st_size, status.st_ctime_ns)
        return stamp if status.st_nlink else None, is_new
    except OSError:
        if is_new:  # half of it would only take room
            remove(path)
        raise
    finally:
        os.close(descriptor)


def stamp_of(path: str) -> FileStamp | None:
    """None if there is no plain file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileStamp(status.st_ino, status.st_size, status.st_ctime_ns)


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        with suppress(OSError):  # not ours, and not empty: left alone, and never read or written
            os.rmdir(path)


def names(folder: Path) -> Iterator[str]:
    """What a folder of objects holds under names of ours."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as found:
            for one in found:
                if _is_ours(folder.name, one.name):
                    yield one.name
    finally:
        os.close(descriptor)


def _is_ours(folder: str, name: str) -> bool:
    return len(name) == 32 and name.startswith(folder) and set(name) <= set("0123456789abcdef")
