"""Who is making a mount: a lock for each mount point, from the wish until it is there.

The mount table and the notes tell of mounts that are there. Between the wish and the mount lies a
listing, which may take minutes; without this, a second wish would begin a second mount there.
"""

import contextlib
import os
import select
import signal
from pathlib import Path

from penstock.daemon import locks
from penstock.daemon.registry import serves
from penstock.paths import mounts_dir, name_of

_ENDS_WITHIN_S = 10.0


def claim(mountpoint: Path) -> int | None:
    """A descriptor for the supervisor to inherit; None if someone has it."""
    return locks.take(_file(mountpoint))


def sign(descriptor: int) -> None:
    """The supervisor's number, for those who want it to end. Its servers do not get the claim."""
    os.set_inheritable(descriptor, False)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def let_go(mountpoint: Path, descriptor: int) -> None:
    """There is a mount now, and a note of it."""
    locks.let_go(_file(mountpoint), descriptor)


def claimed_by(mountpoint: Path) -> int | None:
    """Its supervisor's number; 0 if that has not begun yet, None if nobody has it."""
    path = _file(mountpoint)
    if not locks.is_taken(path):
        return None
    try:
        return int(path.read_bytes() or b"0")
    except FileNotFoundError:
        return None


def ask_to_end(mountpoint: Path) -> None:
    """A supervisor whose mount is not there yet, if there is one; does not wait for it."""
    pid = claimed_by(mountpoint)
    if pid and serves(pid, str(mountpoint)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def end_claim(mountpoint: Path, pid: int) -> None:
    """Ends a supervisor whose mount is not there yet."""
    if pid and serves(pid, str(mountpoint)):
        end_process(pid, gently=True)


def end_process(pid: int, *, gently: bool = False) -> None:
    """Returns once it is gone; one that waits for a dead disk is left to itself."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if is_over_within(_ENDS_WITHIN_S, process):
                return
    finally:
        os.close(process)


def is_over_within(seconds: float, process: int) -> bool:
    """`process`: a descriptor of it. With `poll`: a program that uses us as a library may have more
    descriptors than `select` can count."""
    ends = select.poll()
    ends.register(process, select.POLLIN)
    return bool(ends.poll(seconds * 1000))


def _file(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.lock"
