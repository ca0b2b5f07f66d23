"""Locks between the processes that share a cache directory: flock on small files in it.

The kernel releases them when a process dies, however it dies. If a lock file is deleted, the next
process locks another file of that name; so the name is compared after the lock is acquired.
Threading: any thread; each call opens the file, so threads exclude each other too.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Locks are held for milliseconds. A process that is stopped while it holds one must not block a
# reader of another mount for longer than this: that reader continues without the cache.
_PATIENCE_S = 5.0
_INTERVAL_S = 0.005


@contextmanager
def locked(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock file `path`, exclusively or shared."""
    deadline = time.monotonic() + _PATIENCE_S
    wanted = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while (descriptor := _try_lock(path, wanted)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds it", str(path))
        time.sleep(_INTERVAL_S)
    try:
        yield
    finally:
        os.close(descriptor)


class Membership(NamedTuple):
    """One user of a cache directory, until `descriptor` is closed."""

    descriptor: int
    was_alone: bool  # no other process used the directory when we joined
    since_s: float  # when we joined, by the clock that dates the directory's files


def join(path: Path) -> Membership:
    """Register this process as a user of the directory that has the lock file `path`."""
    descriptor = _try_lock(path, fcntl.LOCK_EX)
    was_alone = descriptor is not None
    if descriptor is None:
        descriptor = _open(path)
    try:
        since_s = _next_tick(descriptor)
        # Only shared locks from here on: those never wait for long.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        raise
    return Membership(descriptor, was_alone, since_s)


def _next_tick(descriptor: int) -> float:
    """Return a time later than that of every existing file. Files get the time of the last kernel
    tick (10 ms at most), so a file that was written just now and the next one may have the same
    time."""
    os.utime(descriptor)
    first_s = now_s = os.fstat(descriptor).st_mtime
    deadline = time.monotonic() + _PATIENCE_S
    while now_s <= first_s and time.monotonic() < deadline:
        time.sleep(0.001)
        os.utime(descriptor)
        now_s = os.fstat(descriptor).st_mtime
    return now_s


def _try_lock(path: Path, how: int) -> int | None:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        held, named = os.fstat(descriptor), os.stat(path)
        if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
