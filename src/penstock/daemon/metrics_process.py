"""The address of `--metrics` and the process that answers there, as the supervisor sees them.

Threading: one thread, that of the supervisor.
"""

import contextlib
import errno
import logging
import os
import socket
import subprocess
import time
from pathlib import Path

from penstock.environment import without_keys
from penstock.errors import OptionError

log = logging.getLogger(__name__)

_BACKLOG = 32
# A process that ended sooner than this after its start will most likely do so again.
_QUICK_END_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class MetricsProcess:
    """`prepare` another address, and then `adopt` or `abandon` it: an address that is taken by
    someone else is found before anything changes."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._address: str | None = None
        self._listener: socket.socket | None = None
        self._wanted: str | None = None
        self._candidate: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._python = ""
        self._started_s = 0.0
        self._quick_ends = 0
        self._start_at_s = 0.0

    def prepare(self, address: str | None) -> None:
        """Listen at an address, None for nowhere. Raises OptionError."""
        self.abandon()
        self._wanted = address
        if address is not None and not self._is_in_our_way(address):
            self._candidate = listen_at(address)

    def _is_in_our_way(self, address: str) -> bool:
        """Whether our own socket has the port: it can be bound to another host only afterwards."""
        return self._address is not None and _port(self._address) == _port(address)

    def abandon(self) -> None:
        if self._candidate is not None:
            self._candidate.close()
        self._candidate, self._wanted = None, self._address

    def adopt(self, python: str) -> None:
        """Answer at the prepared address, by a process of this Python."""
        self._end_process()
        self._python, self._quick_ends, self._start_at_s = python, 0, 0.0
        if self._wanted != self._address:
            self._close_listener()
            self._listener, self._candidate = self._candidate, None
            if self._listener is None and self._wanted is not None:
                try:
                    self._listener = listen_at(self._wanted)
                except OptionError as error:
                    log.error("%s", error)
                    self._wanted = None
            self._address = self._wanted
        self.keep_running()

    def keep_running(self) -> None:
        """Start the process if it should run and does not. Called now and then."""
        if self._listener is None or self._is_running():
            return
        if self._process is not None:
            self._note_end()
        if time.monotonic() >= self._start_at_s:
            self._start(self._listener)

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _note_end(self) -> None:
        assert self._process is not None
        log.error("the process that answers at --metrics ended (%s)", self._process.returncode)
        self._forget_process()
        now_s = time.monotonic()
        quick = now_s - self._started_s < _QUICK_END_S
        self._quick_ends = self._quick_ends + 1 if quick else 0
        if self._quick_ends > 1:
            doublings = min(10, self._quick_ends - 2)
            self._start_at_s = now_s + min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**doublings)

    def _start(self, listener: socket.socket) -> None:
        self._started_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                # -P: do not import a queue.py from the working directory.
                [
                    *(self._python, "-Pm", "penstock.daemon.metrics_endpoint"),
                    *(str(self._mountpoint), str(listener.fileno())),
                ],
                env=without_keys(os.environ),
                pass_fds=(listener.fileno(),),
                stdin=subprocess.PIPE,  # it ends when this end is closed, however we end
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        except OSError as error:  # no memory, or its Python is gone: both may come back
            log.error("nothing answers at --metrics: %s", error)
            self._start_at_s = self._started_s + _LONGEST_WAIT_S

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process and stop listening."""
        self.abandon()
        self._end_process()
        self._close_listener()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget_process()

    def _forget_process(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process = None

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT. Raises OptionError."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:
        raise OptionError(f"--metrics {address}: {error}", hint=_HINT) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        raise OptionError(
            f"--metrics {address}: {error.strerror}",
            hint="each mount needs a port of its own; give another one" if taken else _HINT,
        ) from error
    return listener


_HINT = "give the address of an interface of this machine, such as 127.0.0.1:9567"


def _port(address: str) -> str:
    return address.rpartition(":")[2]
