"""Wake the loop, or start it if none runs; and the lock that only one loop holds.

    a client that wants something    the loop, on its way out
    writes it to the state           releases the lock
    gets the lock: starts a loop,    something new was written: acquires the lock again, or leaves
    which inherits the lock          the work to the loop that holds the lock by now
    does not get it: wakes the loop

So some loop always sees what was written, and no client starts a second loop while the first one
starts.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import file_locks
from penstock.environment import child_environment
from penstock.paths import open_private

_WAKE, _STOP = b"wake", b"leave"


def wake_loop(folder: Path) -> None:
    lock = file_locks.acquire(folder / "loop.lock")
    if lock is None:
        _send(folder, _WAKE)  # a loop that is still starting misses it, but has yet to look
        return
    try:
        os.ftruncate(lock, 0)
        _start(folder, lock)
    finally:
        os.close(lock)


def is_running(folder: Path) -> bool:
    return file_locks.is_held(folder / "loop.lock")


def serving_pid(folder: Path) -> int | None:
    """Return the process of the loop that stays (`penstock serve`), if there is one."""
    if not is_running(folder):
        return None
    return int((folder / "loop.lock").read_bytes() or b"0") or None


def ask_to_stop(folder: Path) -> None:
    """Have the running loop end once its current work is done."""
    _send(folder, _STOP)


class LoopLock:
    """The lock of a state folder's one loop, and the socket that wakes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1
        self._socket: socket.socket | None = None
        self.asked_to_stop = False

    def acquire(self, *, wait: bool, stay: bool = False) -> bool:
        descriptor = file_locks.acquire(self._folder / "loop.lock", wait=wait)
        if descriptor is None:
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid() if stay else 0}".encode(), 0)
        self.inherit(descriptor)
        return True

    def inherit(self, descriptor: int) -> None:
        """Take over the lock from the process that acquired it and started this one."""
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        (self._folder / "loop.sock").unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with _short_path(self._folder) as folder:
            self._socket.bind(f"{folder}/loop.sock")

    def wait(self, seconds: float) -> None:
        """Wait until woken, at most `seconds`."""
        assert self._socket is not None
        self._socket.settimeout(seconds)
        try:
            while True:  # drain the socket: many wakes at once are one wake
                # No |= here: a signal handler sets it too while we wait, and would be undone.
                if self._socket.recv(16) == _STOP:
                    self.asked_to_stop = True
                self._socket.settimeout(0)
        except (TimeoutError, BlockingIOError):
            return

    def wake_self(self) -> None:
        """Wake the loop from another thread of its process."""
        _send(self._folder, _WAKE)

    def ask_self_to_stop(self) -> None:
        self.asked_to_stop = True
        _send(self._folder, _WAKE)

    def release(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _send(folder: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # Fails if the loop has ended, or has too many wakes queued: then it looks anyway.
        with contextlib.suppress(OSError), _short_path(folder) as short:
            sender.sendto(message, f"{short}/loop.sock")


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the folder that fits into a socket's address (108 bytes), however long its name."""
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
        # Through a shell that ends at once, so that this process never has to reap the loop.
        # -P: a queue.py in the current folder must not be imported.
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
