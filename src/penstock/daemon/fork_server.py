"""A process with one thread that forks workers. A server forks it before it starts threads.

A process with threads cannot be forked safely, and a new interpreter takes 0.3 s of a core. A
worker that is forked here has all modules loaded, shares their memory, and serves after 20 ms.

The fork server ends with its server, however that ends, and the workers end with the fork server.
"""

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from penstock.daemon.channel import Channel
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class ForkedProcess(NamedTuple):
    pid: int
    end: int  # a descriptor that can be read once the process has ended


class ForkServer:
    """The server's side. May be called from any thread."""

    def __init__(self, link: Channel, ends: Channel) -> None:
        self._link = link
        self._ends = ends
        self._lock = threading.Lock()

    @classmethod
    def fork(cls, work: Callable[[Channel], None]) -> "ForkServer":
        """Fork it, while this process has one thread. `work` is the main function of a worker."""
        link, theirs = Channel.pair()
        ends, their_ends = Channel.pair()
        server = os.getpid()
        if os.fork():
            theirs.close()
            their_ends.close()
            return cls(link, ends)
        try:
            link.close()
            ends.close()
            _end_with(server)
            _serve_forks(Channel(theirs), Channel(their_ends), work)
        finally:
            os._exit(0)

    def spawn(self, theirs: socket.socket) -> ForkedProcess:
        """Fork a worker that gets this end of its channel."""
        with self._lock:
            self._link.send({"spawn": True}, [theirs.fileno()])
            received = self._link.receive()
        if received is None or not received[1]:
            raise PenstockError("no worker could be started")
        message, (end,) = received
        return ForkedProcess(message["pid"], end)

    def next_end(self) -> tuple[int, int] | None:
        """Wait until a worker has ended; return its pid, and its exit code as in `subprocess`. None
        once the fork server is gone. For one thread."""
        received = self._ends.receive()
        if received is None:
            return None
        return received[0]["pid"], received[0]["status"]


def _serve_forks(link: Channel, ends: Channel, work: Callable[[Channel], None]) -> None:
    def reap(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                ends.send({"pid": pid, "status": os.waitstatus_to_exitcode(status)})

    signal.signal(signal.SIGCHLD, reap)
    gc.freeze()  # the collector writes to what it inspects, which would copy shared pages
    fork_server = os.getpid()
    while (received := link.receive()) is not None:
        (descriptor,) = received[1]
        try:
            pid = os.fork()
        except OSError as error:  # no memory; a later try may succeed
            log.error("no worker could be started: %s", error)
            os.close(descriptor)
            link.send({})
            continue
        if not pid:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                link.close()
                ends.close()
                _end_with(fork_server)
                work(Channel(socket.socket(fileno=descriptor)))
            finally:
                os._exit(0)
        os.close(descriptor)
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended and been reaped already
            link.send({})
            continue
        link.send({"pid": pid}, [end])
        os.close(end)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it was gone already
