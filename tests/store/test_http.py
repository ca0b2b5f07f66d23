"""The client for objects of S3: what it reuses, what it refuses, what it leaves to obstore."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from penstock.errors import AccessDenied, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.http import HttpClient, ProtocolError
from penstock.store.source import parse_source
from tests.support.waiting import PATIENCE_S, wait_until

HEAD = 'HTTP/1.1 200 OK\r\nETag: "v"\r\n'
MODIFIED = "Last-Modified: Sun, 15 Nov 2026 10:00:00 GMT\r\n"


class Server:
    """Answers the requests of all its connections with these, in this order, byte by byte if asked
    to; an empty answer closes the connection."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while head := client.recv(65536):
                with self._lock:
                    self.requests.append(head.decode())
                    answer = self.answers.pop(0) if self.answers else b""
                if not answer:
                    return
                client.sendall(answer)

    def hang_up(self) -> None:
        for client in self._open:
            with suppress(OSError):  # it is closed already
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.hang_up()  # its threads close what is theirs


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN-TOKEN")
    servers: list[Server] = []

    def start(*answers: bytes) -> Server:
        servers.append(Server(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def opened(server: Server) -> Store:
    options = StoreOptions(endpoint=server.endpoint, deadline_s=5)
    return open_store(parse_source("s3://bucket"), options, Counters())


def whole(body: bytes, extra: str = "") -> bytes:
    return f"{HEAD}{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def part(body: bytes, content_range: str, status: str = "206 Partial Content") -> bytes:
    head = HEAD.replace("200 OK", status)
    return (
        f"{head}Content-Range: {content_range}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def test_one_connection_serves_one_object_after_the_other(serve: Callable[..., Server]) -> None:
    server = serve(
        whole(b"data"), whole(b"more"), whole(b"last", "Connection: close\r\n"), whole(b"anew")
    )
    store = opened(server)
    came = [bytes(store.get("a b", "v", 0, 4, 4)) for _ in range(4)]
    assert came == [b"data", b"more", b"last", b"anew"]
    assert server.connections == 2
    assert server.requests[0].startswith("GET /bucket/a%20b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert 'If-Match: "v"\r\n' in server.requests[0]


def test_a_connection_that_the_server_has_closed_is_not_used(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.http._FRESH_S", 0)
    server = serve(whole(b"data"), whole(b"more"))
    store = opened(server)
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
    server.hang_up()
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"more"


@pytest.mark.parametrize(
    "answer",
    [
        part(b"at", "bytes 1-2/4"),
        part(b"at", "bytes 1-2/4", status="200 OK"),  # rclone's server
        whole(b"data"),  # one that knows no ranges
    ],
)
def test_a_part_comes_from_servers_that_know_ranges_and_from_others(
    serve: Callable[..., Server], answer: bytes
) -> None:
    server = serve(answer, whole(b"data"))
    store = opened(server)
    assert bytes(store.get("a", "v", 1, 2, 4)) == b"at"
    assert "Range: bytes=1-2\r\n" in server.requests[0]
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data", "the connection is good, or a new one"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (part(b"da", "bytes 0-1/4"), "wrong_length"),
        (part(b"atx", "bytes 1-2/4"), "wrong_length"),
        (part(b"at", "bytes 1-2/5"), "wrong_length"),
        (part(b"at", "nonsense"), "wrong_length"),
        (whole(b"too long"), "wrong_length"),
        (b"HTTP/1.1 200 OK\r\nETag: \"v\"\r\nContent-Le", "reset"),
        (b"", "reset"),
    ],
)  # fmt: skip
def test_another_part_than_was_asked_for_is_an_error(
    serve: Callable[..., Server], answer: bytes, kind: str
) -> None:
    server = serve(answer)
    if kind == "reset" and answer:
        server.answers.append(b"")
        threading.Thread(
            target=lambda: (wait_until(lambda: server.requests), server.hang_up())
        ).start()
    with pytest.raises(StoreError) as raised:
        opened(server).get("a", "v", 1, 2, 4)
    assert raised.value.kind == kind


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
def test_no_redirect_is_followed_and_no_credential_leaves(
    serve: Callable[..., Server], status: str
) -> None:
    other = serve()
    there = f"HTTP/1.1 {status}\r\nLocation: {other.endpoint}/bucket/a\r\nContent-Length: 0\r\n\r\n"
    server = serve(there.encode())
    with pytest.raises(SourceError, match="sends us to") as raised:
        opened(server).get("a", "v", 0, 4, 4)
    assert "--region" in (raised.value.hint or "")
    assert (len(server.requests), other.connections) == (1, 0)
    assert "TOKEN-TOKEN" not in str(raised.value)


def test_an_answer_without_a_length_is_left_to_the_other_client(
    serve: Callable[..., Server],
) -> None:
    chunked = f"{HEAD}{MODIFIED}Transfer-Encoding: chunked\r\n\r\n".encode()
    server = serve(
        chunked + b"4\r\ndata\r\n0\r\n\r\n",
        whole(b"data", MODIFIED),
    )
    assert bytes(opened(server).get("a", "v", 0, 4, 4)) == b"data"
    assert len(server.requests) == 2


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_proxy_of_the_environment_is_left_to_the_other_client(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxy = serve(whole(b"data", MODIFIED))
    monkeypatch.setenv(variable, proxy.endpoint)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    options = StoreOptions(endpoint="http://storage.invalid", deadline_s=5)
    store = open_store(parse_source("s3://bucket"), options, Counters())
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
    assert proxy.requests[0].startswith("GET http://storage.invalid/bucket/a ")


def test_heads_are_bounded(serve: Callable[..., Server]) -> None:
    server = serve(HEAD.encode() + b"x: y\r\n" * 20_000)
    client = HttpClient(server.endpoint, connect_s=5, idle_s=5, deadline_s=5)
    with pytest.raises(ProtocolError, match="too long"):
        client.get("/", "")


ERROR = b"<Error><Code>ExpiredToken</Code></Error>"
CHUNKED = b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n29\r\n" + ERROR
WITH_LENGTH = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(ERROR)


@pytest.mark.parametrize("answer", [CHUNKED + b"\r\n0\r\n\r\n", WITH_LENGTH + ERROR])
@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("cut", [30, 80])
def test_the_code_of_an_error_is_waited_for(
    serve: Callable[..., Server], answer: bytes, cut: int, *, is_begun: bool
) -> None:
    server = serve(whole(b"first"), answer[:cut])
    store = opened(server)
    store.get("a", "v", 0, 5, 5)

    def send_the_rest() -> None:
        wait_until(lambda: len(server.requests) == 2)
        server._open[0].sendall(answer[cut:])

    rest = threading.Thread(target=send_the_rest)
    pending = store.begin("a", "v", 5) if is_begun else None
    assert pending is None or not pending.advance()
    rest.start()
    if pending is None:
        with pytest.raises(AccessDenied):
            store.get("a", "v", 0, 5, 5)
    else:
        wait_until(pending.advance)
        with pytest.raises(AccessDenied):
            pending.result()
    rest.join()


# -- piece by piece -----------------------------------------------------------------------


@contextmanager
def asked(answers: Callable[..., Server], answer: bytes) -> Iterator[tuple[Store, Server]]:
    server = answers(whole(b"first"), answer)
    store = opened(server)
    assert store.begin("a", "v", 5) is None, "there is no connection yet"
    store.get("a", "v", 0, 5, 5)
    yield store, server


@pytest.mark.parametrize("cut", [1, 20, len(whole(b"")) - 1, len(whole(b"")) + 1, 10**6])
def test_an_object_arrives_piece_by_piece(serve: Callable[..., Server], cut: int) -> None:
    answer = whole(b"data" * 1000)
    with asked(serve, answer[:cut]) as (store, server):
        pending = store.begin("a", "v", 4000)
        assert pending is not None
        wait_until(lambda: len(server.requests) == 2)
        if cut < len(answer):
            assert not pending.advance()
            server._open[0].sendall(answer[cut:])
        wait_until(pending.advance)
        assert bytes(pending.result()) == b"data" * 1000
        assert server.connections == 1
        again = store.begin("a", "v", 4000)
        assert again is not None, "the connection is there again"
        server.hang_up()
        wait_until(again.advance)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n", "slow_down"),
        (whole(b"another length"), "wrong_length"),
        (b"", "reset"),
    ],
)
def test_a_failure_is_told_by_the_result(
    serve: Callable[..., Server], answer: bytes, kind: str
) -> None:
    with asked(serve, answer) as (store, _):
        pending = store.begin("a", "v", 5)
        assert pending is not None
        wait_until(pending.advance)
        with pytest.raises(StoreError) as raised:
            pending.result()
        assert raised.value.kind == kind
        with pytest.raises(PenstockError) as again:
            pending.retry(raised.value)
        assert again.value is raised.value


def test_a_server_that_says_nothing_is_given_up(serve: Callable[..., Server]) -> None:
    server = serve(whole(b"first"))
    options = StoreOptions(endpoint=server.endpoint, deadline_s=0.6)
    store = open_store(parse_source("s3://bucket"), options, Counters())
    store.get("a", "v", 0, 5, 5)
    server.answers.append(b"HTTP")
    pending = store.begin("a", "v", 5)
    assert pending is not None
    wait_until(pending.advance)
    with pytest.raises(StoreError) as raised:
        pending.result()
    assert raised.value.kind == "timeout"
    assert PATIENCE_S > 0.6
