"""Has the loop look at what is wanted; starts one if there is none.

    who wants something            the loop, on its way out
    writes it down                 lets go of the lock
    gets the lock: starts one,     something new was written: takes the lock again, or leaves it
    which inherits it              to whoever has it by now
    it is taken: wakes it

So what was written down is always seen by somebody, and nobody starts a second one while the first
is starting.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.daemon import locks
from penstock.environment import child_environment
from penstock.paths import open_private

_WAKE, _LEAVE = b"wake", b"leave"


def wake_loop(folder: Path) -> None:
    lock = locks.take(folder / "loop.lock")
    if lock is None:
        _tell(folder, _WAKE)  # one that is starting does not hear it, and looks later than this
        return
    try:
        os.ftruncate(lock, 0)
        _start(folder, lock)
    finally:
        os.close(lock)


def is_running(folder: Path) -> bool:
    return locks.is_taken(folder / "loop.lock")


def serving_pid(folder: Path) -> int | None:
    """The process of the loop that stays, if there is one."""
    if not is_running(folder):
        return None
    return int((folder / "loop.lock").read_bytes() or b"0") or None


def ask_to_stop(folder: Path) -> None:
    """The loop that runs ends when it has done what it is doing."""
    _tell(folder, _LEAVE)


def _tell(folder: Path, what: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # Gone meanwhile, or has more wakes before it than it can keep: it looks anyway.
        with contextlib.suppress(OSError), _short(folder) as near:
            sender.sendto(what, f"{near}/loop.sock")


class LoopLock:
    """That of the one loop of a state folder: its lock, and the socket it is woken by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1
        self._socket: socket.socket | None = None
        self.asked_to_stop = False

    def acquire(self, *, wait: bool, stay: bool = False) -> bool:
        descriptor = locks.take(self._folder / "loop.lock", wait=wait)
        if descriptor is None:
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid() if stay else 0}".encode(), 0)
        self.inherit(descriptor)
        return True

    def inherit(self, descriptor: int) -> None:
        """From whoever took the lock, and started this process with it."""
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        (self._folder / "loop.sock").unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with _short(self._folder) as near:
            self._socket.bind(f"{near}/loop.sock")

    def wait(self, seconds: float) -> None:
        """Until woken, at most for so long."""
        assert self._socket is not None
        self._socket.settimeout(seconds)
        try:
            while True:  # many who woke us at once are one wake
                # No |= here: a signal that comes while we wait sets it too, and would be undone.
                if self._socket.recv(16) == _LEAVE:
                    self.asked_to_stop = True
                self._socket.settimeout(0)
        except (TimeoutError, BlockingIOError):
            return

    def wake_self(self) -> None:
        """From another thread: something that was begun is done."""
        _tell(self._folder, _WAKE)

    def ask_self_to_stop(self) -> None:
        self.asked_to_stop = True
        _tell(self._folder, _WAKE)

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path that a socket's address has room for (108 bytes), whatever the folder is called."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _start(folder: Path, lock: int) -> None:
    logs = folder / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    with (
        open(logs / "loop.log", "ab", opener=open_private) as log,
        child_environment(os.environ) as (environment, keys),
    ):
        # Through a shell that ends at once: whoever asked need not bury it, however long they live.
        # -P: a queue.py in the folder where someone stands is not ours to import.
        command = [sys.executable, "-Pm", "penstock.reconcile.loop", str(lock)]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            check=True,
            pass_fds=(lock, keys),
            env=environment,
        )
