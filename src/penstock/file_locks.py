"""Locks on files that can be tested without acquiring them, and passed to a child process.

They are locks of the open file and not of the process (as those of flock), so a child that inherits
the descriptor has the lock, and keeps it when its parent dies. The kernel releases the lock when
the last holder ends, however it ends.
"""

import fcntl
import os
import struct
from pathlib import Path

# type, whence, start, length, pid
_LOCK = struct.Struct("hhqqi4x")


def acquire(path: Path, *, wait: bool = False) -> int | None:
    """Return a descriptor that holds the lock; None if another process has it."""
    how = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, how, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # released and removed between our open and our lock


def release(path: Path, descriptor: int) -> None:
    """Release the lock and remove its file."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        wish = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wish)
        return _LOCK.unpack(found)[0] != fcntl.F_UNLCK
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
