"""The files of a cache directory: one for each object, in 256 folders.

Nothing here follows a symbolic link. What lies at a path of ours and is not a regular file or
folder is removed. Threading: any thread.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# NONBLOCK changes nothing for a file, but without it opening a FIFO would block for ever.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
TO_READ = os.O_RDONLY | _FLAGS
_TO_WRITE = os.O_WRONLY | _FLAGS
_SUMS = "user.penstock.sums"
# What opening or reading returns for a symbolic link, a folder, a FIFO or a socket.
_NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ESPIPE)


class FileStamp(NamedTuple):
    """A file's identity and state. Any change to its bytes changes `changed_ns`."""

    inode: int
    size_bytes: int
    changed_ns: int


def is_not_regular(error: OSError) -> bool:
    return error.errno in _NOT_REGULAR


def make_folders(path: Path) -> bool:
    """Create the folders that are missing; True if all were."""
    all_new = not os.path.lexists(path / "objects")
    for folder in (path / "objects", *(path / "objects" / f"{n:02x}" for n in range(256))):
        try:
            folder.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                folder.unlink()  # a symbolic link would redirect our writes
                folder.mkdir(mode=0o700)
    return all_new


def open_to_write(path: str, *, whole: bool) -> tuple[int, bool]:
    """Return a descriptor, and whether the file may be new."""
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
            continue  # another thread created it first


def sums_of(descriptor: int) -> bytes | None:
    """Return the checksums that an object of one block carries; None without any, or on a file
    system without extended attributes."""
    try:
        return os.getxattr(descriptor, _SUMS)
    except OSError:
        return None


def write_file(
    path: str, size_bytes: int, offset: int, view: memoryview, sums: bytes | None = None
) -> tuple[FileStamp | None, bool]:
    """Write a part of an object of `size_bytes`.

    Return the file's stamp, or None if the file was removed meanwhile; and whether the file is new,
    since inode numbers alone are reused. `sums`: the checksums of a whole object, for readers that
    come before its row.
    """
    whole = len(view) == size_bytes
    try:
        descriptor, is_new = open_to_write(path, whole=whole)
    except OSError as error:
        if not is_not_regular(error):
            raise
        remove(path)
        return None, False
    try:
        if not whole:
            # Set the full length first: a complete file is then exactly the object.
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
        if is_new:  # a partial file would only take room
            remove(path)
        raise
    finally:
        os.close(descriptor)


def stamp_of(path: str) -> FileStamp | None:
    """None if there is no regular file."""
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
        # not ours, and not empty: leave it alone, it is never read or written
        with suppress(OSError):
            os.rmdir(path)


def object_names(folder: Path) -> Iterator[str]:
    """List the entries of an objects folder whose names are digests."""
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
