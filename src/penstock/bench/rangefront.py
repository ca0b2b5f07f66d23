"""Mends one fault of rclone's S3 server: it answers a ranged GET with 200, where S3 says 206.

The bytes and Content-Range are right, only the status is wrong (seen in every release from 1.65 to
1.75), yet obstore rightly refuses such an answer. This passes requests on unchanged, signature
included, and corrects that one number. Bodies go from socket to socket by splice, inside the
kernel, so that the front adds little to what the server costs. Reading only: GET and HEAD.

A program of its own, one thread per connection. It knows HTTP framing and nothing of S3.
"""

import contextlib
import fcntl
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

_PIPE_BYTES = 1 << 20
_HEAD_BYTES = 64 << 10
_F_SETPIPE_SZ = 1031


class Disconnected(Exception):
    """One side has closed; the connection is over."""


class Pace(Protocol):
    """Lets a body go by in pieces, each when its time has come."""

    piece_bytes: int

    def wait(self, size_bytes: int) -> None: ...


class Inlet:
    """Reads heads, lines and bodies from a socket, keeping what came too early."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._early = b""

    def until(self, mark: bytes) -> bytes:
        while mark not in self._early:
            got = self._source.recv(_HEAD_BYTES)
            if not got or len(self._early) > _HEAD_BYTES:
                raise Disconnected
            self._early += got
        head, _, self._early = self._early.partition(mark)
        return head + mark

    def pass_on(
        self, length: int, sink: socket.socket, pipe: tuple[int, int], pace: Pace | None = None
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
                raise Disconnected
            length -= waiting
            if pace is not None:
                pace.wait(waiting)
            while waiting:
                waiting -= os.splice(pipe[0], sink.fileno(), waiting)


def _serve(client: socket.socket, upstream_port: int) -> None:
    with (
        client,
        socket.create_connection(("127.0.0.1", upstream_port)) as server,
        open_pipe() as pipe,
        contextlib.suppress(Disconnected, ConnectionError),
    ):
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests, answers = Inlet(client), Inlet(server)
        while True:
            request = requests.until(b"\r\n\r\n")
            if not request.startswith((b"GET ", b"HEAD ")):
                client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            server.sendall(request)
            head = answers.until(b"\r\n\r\n")
            fields = fields_of(head)
            client.sendall(mend(head, fields))
            if request.startswith(b"HEAD ") or head.split(b" ", 2)[1] in (b"204", b"304"):
                continue
            if fields.get(b"transfer-encoding") == b"chunked":
                pass_chunks(answers, client, pipe)
            else:
                answers.pass_on(int(fields[b"content-length"]), client, pipe)


def pass_chunks(
    source: Inlet, sink: socket.socket, pipe: tuple[int, int], pace: Pace | None = None
) -> None:
    """A body of chunks, as it came."""
    while True:
        line = source.until(b"\r\n")
        sink.sendall(line)
        size = int(line.split(b";", 1)[0], 16)
        source.pass_on(size + len(b"\r\n"), sink, pipe, pace)
        if not size:
            return


def mend(head: bytes, fields: dict[bytes, bytes]) -> bytes:
    """The head of an answer with the status that S3 gives a range."""
    if b"content-range" not in fields:
        return head
    return head.replace(b" 200 OK", b" 206 Partial Content", 1)


def fields_of(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    return {
        name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
    }


@contextlib.contextmanager
def open_pipe() -> Iterator[tuple[int, int]]:
    pipe = os.pipe()
    try:
        fcntl.fcntl(pipe[0], _F_SETPIPE_SZ, _PIPE_BYTES)
        yield pipe
    finally:
        for end in pipe:
            os.close(end)


def _main() -> None:
    port, upstream_port = map(int, sys.argv[1:3])
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, upstream_port), daemon=True).start()


if __name__ == "__main__":
    _main()
