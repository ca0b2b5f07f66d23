"""Makes a store look far away: delays each answer, and shares one bandwidth among all bodies.

    python -m penstock.bench.shaper [HOST:]PORT UPSTREAM LATENCY_S BYTES_PER_S [PROCESSES]

Stands in front of a real S3 server (UPSTREAM: [HOST:]PORT), passes requests on unchanged, signature
included, and counts them. The first byte of an answer comes `latency` after the request, or later
when the server itself took longer; bodies then go out in small pieces, in the order in which
connections ask for a piece, so that many bodies at once share the bandwidth evenly. What is sent to
the server is neither delayed nor shaped, and a new connection costs nothing. Bodies go from socket
to socket by splice, inside the kernel: 0.3 ms of CPU for a GET of 110 KiB. A bandwidth of `inf` is
none; what must not be measured may go by at once meanwhile (`/.shaper/free`).

One process passes about 3,000 GETs in a second, and several as many times that. They share the
counts, but no clock: with several, the bandwidth must be `inf`.

A program of its own, one thread per connection. It knows HTTP framing, and of S3 only how the
name of an object looks.
"""

import contextlib
import ctypes
import fcntl
import json
import math
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Protocol

COUNTERS_PATH = b"/.shaper/counters"
FREE_PATH = b"/.shaper/free"  # neither latency nor bandwidth from now on; requests are counted
SHAPED_PATH = b"/.shaper/shaped"  # as before
# What a connection gets in a turn. Smaller ones cost CPU: at 250 MB/s pieces of 32 KiB took two
# thirds of a core.
_TURN_S = 0.0005
_LEAST_PIECE_BYTES = 32 << 10
# A thread that was woken late may catch up by this much; without it, each late wake-up would be
# bandwidth lost for ever.
_SLACK_S = 0.005
_BODILESS = (b"204", b"304")
_COUNTED = ("gets", "get_bytes", "other_requests")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PIPE_BYTES = 1 << 20
_HEAD_BYTES = 64 << 10
_F_SETPIPE_SZ = 1031


class Bandwidth:
    """A clock of bytes, shared by all connections: returns when a piece has passed."""

    def __init__(self, bytes_per_s: float) -> None:
        self.piece_bytes = max(_LEAST_PIECE_BYTES, int(bytes_per_s * _TURN_S))
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait(self, size_bytes: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            start_s = max(self._free_at_s, now_s - _SLACK_S)
            self._free_at_s = start_s + size_bytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)


class Unlimited:
    """The other bandwidth: none that would matter."""

    piece_bytes = 1 << 20

    def wait(self, size_bytes: int) -> None:
        return None


class Tally:
    """What passed through. Counts only grow: take a difference for a stretch of time.

    In memory that all processes share, with a row for each, which it alone writes; and whether
    the line is free at present.
    """

    def __init__(self, processes: int = 1) -> None:
        self._lock = threading.Lock()
        cells = memoryview(mmap.mmap(-1, (processes * len(_COUNTED) + 1) * 8)).cast("Q")
        self._counts, self._free = cells[:-1], cells[-1:]
        self.row = 0

    @property
    def free(self) -> bool:
        return bool(self._free[0])

    @free.setter
    def free(self, value: bool) -> None:
        self._free[0] = value

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[self.row * len(_COUNTED) + _COUNTED.index(name)] += count

    def text(self) -> bytes:
        sums = {name: sum(self._counts[at :: len(_COUNTED)]) for at, name in enumerate(_COUNTED)}
        return json.dumps(sums).encode()


class Shaper:
    """Serves connections, each by a thread that calls `serve`."""

    def __init__(
        self, upstream: tuple[str, int], latency_s: float, bytes_per_s: float, tally: Tally
    ) -> None:
        self._upstream = upstream
        self._latency_s = latency_s
        self._bandwidth = Unlimited() if math.isinf(bytes_per_s) else Bandwidth(bytes_per_s)
        self._tally = tally

    def serve(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(self._upstream) as server,
            _open_pipe() as pipe,
            contextlib.suppress(_Disconnected, ConnectionError),
        ):
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, server, pipe)
            while True:
                self._pass_one(connection)

    def _pass_one(self, connection: "_Connection") -> None:
        request = connection.next_request()
        method, target, _ = request.split(b" ", 2)
        if target == COUNTERS_PATH:
            connection.answer(self._tally.text())
            return
        if target in (FREE_PATH, SHAPED_PATH):
            self._tally.free = target == FREE_PATH
            connection.answer(b"")
            return
        latency_s, bandwidth = self._latency_s, self._bandwidth
        if self._tally.free:
            latency_s, bandwidth = 0.0, Unlimited()
        answer_at_s = time.monotonic() + latency_s
        of_object = method == b"GET" and _names_object(target)
        # When it is asked, not when it is answered: a GET that is given up half way was one.
        self._tally.add(**{"gets" if of_object else "other_requests": 1})
        connection.send_request(request)
        head = connection.next_answer()
        time.sleep(max(0.0, answer_at_s - time.monotonic()))
        body = _CountedBody(bandwidth, self._tally) if of_object else bandwidth
        connection.send_answer(head, body, bodiless=method == b"HEAD")


class _Disconnected(Exception):
    """One side has closed; the connection is over."""


class _Pace(Protocol):
    """Lets a body go by in pieces, each when its time has come."""

    piece_bytes: int

    def wait(self, size_bytes: int) -> None: ...


class _Inlet:
    """Reads heads, lines and bodies from a socket, keeping what came too early."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._early = b""

    def until(self, mark: bytes) -> bytes:
        while mark not in self._early:
            got = self._source.recv(_HEAD_BYTES)
            if not got or len(self._early) > _HEAD_BYTES:
                raise _Disconnected
            self._early += got
        head, _, self._early = self._early.partition(mark)
        return head + mark

    def pass_on(
        self, length: int, sink: socket.socket, pipe: tuple[int, int], pace: _Pace | None = None
    ) -> None:
        """Moves `length` bytes to `sink`, those not yet read without ever seeing them."""
        early, self._early = self._early[:length], self._early[length:]
        if pace is not None and early:
            pace.wait(len(early))
        sink.sendall(early)
        length -= len(early)
        piece = _PIPE_BYTES if pace is None else pace.piece_bytes
        while length:
            waiting = os.splice(self._source.fileno(), pipe[1], min(length, piece))
            if not waiting:
                raise _Disconnected
            length -= waiting
            if pace is not None:
                pace.wait(waiting)
            while waiting:
                waiting -= os.splice(pipe[0], sink.fileno(), waiting)


def _names_object(target: bytes) -> bool:
    """/bucket/key; a listing names the bucket alone. Some clients add a query to a GET too."""
    return b"/" in target.split(b"?", 1)[0].strip(b"/")


class _CountedBody:
    """A body at the shared pace, counted piece by piece: given up half way, half of it counts."""

    def __init__(self, bandwidth: _Pace, tally: Tally) -> None:
        self.piece_bytes = bandwidth.piece_bytes
        self._bandwidth, self._tally = bandwidth, tally

    def wait(self, size_bytes: int) -> None:
        self._bandwidth.wait(size_bytes)
        self._tally.add(get_bytes=size_bytes)


class _Connection:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket, pipe: tuple[int, int]) -> None:
        self._client, self._server = client, server
        self._requests, self._answers = _Inlet(client), _Inlet(server)
        self._pipe = pipe

    def next_request(self) -> bytes:
        return self._requests.until(b"\r\n\r\n")

    def send_request(self, head: bytes) -> None:
        self._server.sendall(head)
        fields = _fields_of(head)
        if fields.get(b"expect", b"").lower() == b"100-continue":
            # The client holds its body back until somebody agrees; the server's own word to that
            # comes too late to be of use, and is left out by next_answer.
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fields.get(b"transfer-encoding") == b"chunked":
            _pass_chunks(self._requests, self._server, self._pipe)
        else:
            length = int(fields.get(b"content-length", b"0"))
            self._requests.pass_on(length, self._server, self._pipe)

    def next_answer(self) -> bytes:
        while (head := self._answers.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 "):
            pass
        return head

    def send_answer(self, head: bytes, pace: _Pace, *, bodiless: bool) -> None:
        fields = _fields_of(head)
        self._client.sendall(head)
        if bodiless or head.split(b" ", 2)[1] in _BODILESS:
            return
        if fields.get(b"transfer-encoding") == b"chunked":
            _pass_chunks(self._answers, self._client, self._pipe, pace)
        else:
            length = int(fields[b"content-length"])
            self._answers.pass_on(length, self._client, self._pipe, pace)

    def answer(self, body: bytes) -> None:
        """Answers by itself, without the server."""
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        self._client.sendall(head.encode() + body)


def _pass_chunks(
    source: _Inlet, sink: socket.socket, pipe: tuple[int, int], pace: _Pace | None = None
) -> None:
    """A body of chunks, as it came."""
    while True:
        line = source.until(b"\r\n")
        sink.sendall(line)
        size = int(line.split(b";", 1)[0], 16)
        source.pass_on(size + len(b"\r\n"), sink, pipe, pace)
        if not size:
            return


def _fields_of(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    return {
        name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
    }


@contextlib.contextmanager
def _open_pipe() -> Iterator[tuple[int, int]]:
    pipe = os.pipe()
    try:
        fcntl.fcntl(pipe[0], _F_SETPIPE_SZ, _PIPE_BYTES)
        yield pipe
    finally:
        for end in pipe:
            os.close(end)


def _main() -> None:
    listen_host, _, port = sys.argv[1].rpartition(":")
    host, _, upstream_port = sys.argv[2].rpartition(":")
    latency_s, bytes_per_s = map(float, sys.argv[3:5])
    processes = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    if processes > 1 and not math.isinf(bytes_per_s):
        sys.exit("several processes cannot share a bandwidth: it must be inf")
    tally = Tally(processes)
    with socket.create_server((listen_host or "127.0.0.1", int(port)), backlog=1024) as listener:
        for row in range(1, processes):
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
                tally.row = row
                break
        upstream = host or "127.0.0.1", int(upstream_port)
        shaper = Shaper(upstream, latency_s, bytes_per_s, tally)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=shaper.serve, args=(client,), daemon=True).start()


if __name__ == "__main__":
    _main()
