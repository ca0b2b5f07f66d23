"""Locks between the processes that share a cache directory: flock on small files in it.

The kernel lets go of them when a process dies, however it dies. A lock file that was deleted
under us is another file from then on, so the name is compared after the lock is had.
May be used from any thread; each call opens the file anew, so threads exclude each other too.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Who holds one does so for milliseconds. A process that was stopped while it held one must not
# stop a reader of another mount for longer than this: it reads on without the cache.
_PATIENCE_S = 5.0
_INTERVAL_S = 0.005


@contextmanager
def locked(path: Path, *, alone: bool) -> Iterator[None]:
    """Holds the lock file `path`, with others who do not want it alone, or alone."""
    deadline = time.monotonic() + _PATIENCE_S
    wanted = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    while (descriptor := _try_lock(path, wanted)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds it", str(path))
        time.sleep(_INTERVAL_S)
    try:
        yield
    finally:
        os.close(descriptor)


class Membership(NamedTuple):
    """One user of a cache directory; it lasts until `descriptor` is closed."""

    descriptor: int
    alone: bool  # nobody else used the directory when we came
    since_s: float  # when we came, by the clock that dates the directory's files


def join(path: Path) -> Membership:
    """Makes us a user of the directory that has the lock file `path`."""
    descriptor = _try_lock(path, fcntl.LOCK_EX)
    alone = descriptor is not None
    if descriptor is None:
        descriptor = _open(path)
    try:
        since_s = _next_tick(descriptor)
        # Shared locks only from here on, and those never wait for long.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        os.close(descriptor)
        raise
    return Membership(descriptor, alone, since_s)


def _next_tick(descriptor: int) -> float:
    """A time after that of every file that exists: files get the time of the last tick (10 ms at
    most), so one that was written just now and one that is written next may have the same."""
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
