"""Lets a test have the machine to itself while several workers (`pytest -n`) run the others.

Two locks on files that the workers share: the room, in which tests are together or one is alone,
and the gate before it. Who waits to be alone keeps the gate, so that nobody goes in meanwhile and
the wait ends with the tests that run now. The kernel lets go of both when a worker dies. One use at
a time per process.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    with _open(folder / "gate") as gate, _open(folder / "room") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Said, not left to the close: a child that was forked meanwhile has the lock too.
            fcntl.flock(room, fcntl.LOCK_UN)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
