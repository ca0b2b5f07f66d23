"""A TCP proxy in front of a real S3 server that fails as stores fail, on purpose and counted.

Which request fails how is drawn from the seed, the request and how often it came before: not from
the order in which threads happen to ask, so that a seed gives the same faults again. Or a script
says what the next requests get, one by one.

It knows HTTP framing, and of S3 only what tells data from a listing. Reading only: GET and HEAD.
Each answer is taken from the server whole before any of it is passed on.

Threads: one accepts, one per connection; every method may be called from any thread.
"""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

from tests.support.faults import (
    FINAL_FOR_DATA,
    FINAL_FOR_LISTINGS,
    Answer,
    End,
    Fault,
    can_happen,
    spoil,
)

_HEAD_BYTES = 64 << 10
# Framing is ours: bodies are whole here, and connections stay open.
_NOT_PASSED_ON = ("content-length", "transfer-encoding", "connection", "keep-alive")


class Final(NamedTuple):
    """An answer after which a client does not ask again."""

    target: str
    sent_s: float  # of time.monotonic


class FaultyProxy(AbstractContextManager["FaultyProxy"]):
    def __init__(self, upstream: str, *, seed: int, elsewhere: str = "http://a.invalid") -> None:
        """In front of the server at `upstream`, an address like http://127.0.0.1:9000; redirects
        lead to `elsewhere`."""
        self.seed = seed
        self._elsewhere = elsewhere
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._rates: dict[Fault, float] = {}
        self._listing_rates: dict[Fault, float] = {}
        self._script: deque[Fault | None] = deque()
        self._wait_s = 0.0
        self._times_asked: Counter[str] = Counter()
        self._failed_in_a_row: Counter[str] = Counter()
        self._most_in_a_row: int | None = None
        self._injected: Counter[Fault] = Counter()
        self._injected_in_listings: Counter[Fault] = Counter()
        self._final: list[Final] = []
        self.requests = 0  # for data, failed ones included
        self.listings = 0  # pages of listings, failed ones included
        self._connections: set[socket.socket] = set()
        self._calm = threading.Event()
        # Holds the port's number while the proxy is down: bound, and not listening.
        self._placeholder = _bound(0)
        self._port: int = self._placeholder.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._listener: socket.socket | None = None
        self.up()

    def __exit__(self, *_: object) -> None:
        self.calm()
        self.down()
        self._placeholder.close()

    def inject(
        self,
        rates: Mapping[Fault, float],
        *,
        wait_s: float = 1.0,
        most_in_a_row: int | None = None,
        listing_rates: Mapping[Fault, float] | None = None,
    ) -> None:
        """From now on each request for data fails in one of these ways, each as likely as said; and
        each request for a page of a listing in one of `listing_rates`.

        The same request fails at most `most_in_a_row` times before it is answered well: so that a
        client with some patience has no excuse."""
        assert sum(rates.values()) <= 1
        with self._lock:
            self._rates, self._wait_s = dict(rates), wait_s
            self._listing_rates = dict(listing_rates or {})
            self._most_in_a_row = most_in_a_row
            self._calm.clear()

    def script(self, faults: Iterable[Fault | None], *, wait_s: float = 1.0) -> None:
        """The next requests for data get these, one by one; None is a good answer."""
        with self._lock:
            self._script, self._wait_s, self._most_in_a_row = deque(faults), wait_s, None
            self._calm.clear()

    def calm(self) -> None:
        """No more faults; what stalls goes on at once."""
        with self._lock:
            self._rates, self._listing_rates, self._script = {}, {}, deque()
            self._calm.set()

    def down(self) -> None:
        """Refuses connections, and ends those there are."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections = list(self._connections)
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which closing does not
            listener.close()
        for connection in connections:
            with suppress(OSError):  # it may have ended by itself
                _reset_on_close(connection)
                connection.shutdown(socket.SHUT_RDWR)

    def up(self) -> None:
        with self._lock:
            if self._listener is not None:
                return
            self._listener = listener = _bound(self._port)
            listener.listen(128)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def injected(self) -> Counter[Fault]:
        with self._lock:
            return Counter(self._injected)

    @property
    def injected_in_listings(self) -> Counter[Fault]:
        with self._lock:
            return Counter(self._injected_in_listings)

    @property
    def final(self) -> list[Final]:
        """The answers so far that no client asks for again."""
        with self._lock:
            return list(self._final)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # down
            with self._lock:
                if self._listener is not listener:
                    _reset_on_close(client)
                    client.close()
                    return  # down since it came
                self._connections.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            # A server that breaks off an answer breaks off this connection, too.
            broken = (OSError, http.client.HTTPException)
            with client, client.makefile("rb") as requests, suppress(*broken):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (request := _read_head(requests)) and self._pass_on(request, client):
                    pass
        finally:
            with self._lock:
                self._connections.discard(client)

    def _pass_on(self, request: bytes, client: socket.socket) -> bool:
        """Answers one request; False if that was the connection's last."""
        method, target = request.split(b" ", 2)[:2]
        answer = replace(self._ask_server(request, method.decode()), target=target.decode())
        if method == b"HEAD":
            client.sendall(answer.head())
            return True
        if answer.is_part and self._rates.get(Fault.WHOLE):
            answer = replace(answer, whole=self._ask_server(_without_range(request), "GET").body)
        fault, chance = self._draw(target.decode(), request, answer)
        for step in spoil(fault, answer, chance, self._wait_s, self._elsewhere):
            if isinstance(step, bytes):
                client.sendall(step)
            elif isinstance(step, float):
                self._calm.wait(step)
            elif step is not End.KEEP:
                if step is End.RESET:
                    _reset_on_close(client)
                return False
        return True

    def _draw(
        self, target: str, request: bytes, answer: Answer
    ) -> tuple[Fault | None, random.Random]:
        data, listing = is_data(target), answer.is_listing
        lines = request.lower().split(b"\r\n")
        ranges = [line.decode("latin-1") for line in lines if line.startswith(b"range:")]
        what = " ".join([target, *ranges])
        with self._lock:
            self.requests += data
            self.listings += listing
            self._times_asked[what] += 1
            chance = random.Random(f"{self.seed} {what} {self._times_asked[what]}")
            fault: Fault | None = None
            rates = self._rates if data else self._listing_rates if listing else {}
            if data and self._script:
                fault = self._script.popleft()
            elif rates:
                kinds: list[Fault | None] = [*rates, None]
                weights = [*rates.values(), 1 - sum(rates.values())]
                fault = chance.choices(kinds, weights)[0]
            most = self._most_in_a_row
            if (
                fault is None
                or not can_happen(fault, answer)
                or (most is not None and self._failed_in_a_row[what] >= most)
            ):
                self._failed_in_a_row.pop(what, None)
                return None, chance
            self._failed_in_a_row[what] += 1
            (self._injected_in_listings if listing else self._injected)[fault] += 1
            if fault in (FINAL_FOR_LISTINGS if listing else FINAL_FOR_DATA):
                self._final.append(Final(target, time.monotonic()))
            return fault, chance

    def _ask_server(self, request: bytes, method: str) -> Answer:
        with socket.create_connection(self._upstream) as server:
            server.sendall(request)
            response = http.client.HTTPResponse(server, method=method)
            response.begin()
            body = response.read()
        fields = tuple((n, v) for n, v in response.getheaders() if n.lower() not in _NOT_PASSED_ON)
        length = int(response.getheader("Content-Length", "0")) if method == "HEAD" else None
        return Answer(response.status, response.reason, fields, body, length)


def is_data(target: str) -> bool:
    """Whether a request is for an object's bytes: /bucket/key, and not /bucket?list-type=2."""
    parts = urlsplit(target)
    _, _, key = parts.path.lstrip("/").partition("/")
    return bool(key) and "list-type" not in parts.query


def _without_range(request: bytes) -> bytes:
    """The same request for the whole object. Our client does not sign the header."""
    lines = request.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"range:"))


def _read_head(requests: BinaryIO) -> bytes:
    """One request up to its empty line; nothing if the client has closed. GET has no body."""
    lines: list[bytes] = []
    while (line := requests.readline(_HEAD_BYTES)) and line != b"\r\n":
        lines.append(line)
    return b"".join([*lines, line]) if line else b""


def _bound(port: int) -> socket.socket:
    """SO_REUSEPORT, so that the placeholder and the listener may both have the port."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _reset_on_close(connection: socket.socket) -> None:
    """RST instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
