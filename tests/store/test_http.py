"""The client for objects of S3: what it reuses, what it refuses, what it leaves to obstore."""

import hashlib
import random
import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from penstock.errors import AccessDenied, OptionError, PenstockError, SourceError, StoreError
from penstock.metrics import Counters
from penstock.store import Store
from penstock.store.connect import StoreOptions, open_store
from penstock.store.http import HttpClient, ProtocolError
from penstock.store.s3objects import Limits, S3Objects, open_s3_objects
from penstock.store.source import parse_source
from tests.support.certificates import certify
from tests.support.faults import Answer
from tests.support.liar import Liar, Request, Steps, serve_liar
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
                    self.requests.append(head.decode("latin-1"))
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


def test_one_connection_serves_one_object_after_another(serve: Callable[..., Server]) -> None:
    server = serve(
        whole(b"data"), whole(b"more"), whole(b"last", "Connection: close\r\n"), whole(b"anew")
    )
    store = opened(server)
    came = [bytes(store.get("a b", "v", 0, 4, 4)) for _ in range(4)]
    assert came == [b"data", b"more", b"last", b"anew"]
    assert server.connections == 2
    assert server.requests[0].startswith("GET /bucket/a%20b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert 'If-Match: "v"\r\n' in server.requests[0]
    assert "\r\nUser-Agent: penstock\r\n" in server.requests[0]


def test_a_connection_closed_by_the_server_is_not_reused(
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
def test_a_part_is_read_from_servers_with_and_without_range_support(
    serve: Callable[..., Server], answer: bytes
) -> None:
    server = serve(answer, whole(b"data"))
    store = opened(server)
    assert bytes(store.get("a", "v", 1, 2, 4)) == b"at"
    assert "Range: bytes=1-2\r\n" in server.requests[0]
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data", "the connection is good, or a new one"


def test_a_large_part_reports_progress_while_it_arrives(serve: Callable[..., Server]) -> None:
    mib = 1 << 20
    data = random.Random(6).randbytes(3 * mib + 5)
    answers = part(data[1:], f"bytes 1-{len(data) - 1}/{len(data)}"), whole(data)
    for answer in answers:  # of a server that knows ranges, and of another
        reported: list[memoryview] = []
        store = opened(serve(answer))
        came = store.get("a", "v", 1, len(data) - 1, len(data), reported.append)
        assert came == data[1:]
        assert [len(piece) for piece in reported] == [mib, 2 * mib, 3 * mib]
        assert all(piece == data[1 : 1 + len(piece)] for piece in reported)


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
def test_another_part_than_requested_is_an_error(
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


def moved(location: str, extra: str = "", status: str = "307 Temporary Redirect") -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {location}\r\n{extra}Content-Length: 0\r\n\r\n".encode()


def test_a_redirect_is_followed_on_the_same_host_with_a_new_signature(
    serve: Callable[..., Server],
) -> None:
    server = serve(moved("/there/a?x=1"), whole(b"data"))
    assert bytes(opened(server).get("a", "v", 0, 4, 4)) == b"data"
    first, second = server.requests
    assert second.startswith("GET /there/a?x=1 HTTP/1.1\r\n")
    assert "TOKEN-TOKEN" in second
    assert first[first.index("Signature=") :] != second[second.index("Signature=") :]


def test_redirects_share_one_deadline() -> None:
    asked: list[str] = []

    def slow(_liar: Liar, request: Request, _truth: Answer) -> Steps:
        asked.append(request.target)
        head = moved(request.target).split(b"\r\n", 1)
        yield head[0]
        yield 0.2  # within what a pause may be, of which there may be many
        yield b"\r\n"
        yield 0.2
        yield head[1]

    with serve_liar() as liar, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "KEY")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
        liar.lie = slow
        options = StoreOptions(endpoint=liar.endpoint, deadline_s=0.9)
        store = open_store(parse_source("s3://bucket"), options, Counters())
        with pytest.raises(StoreError) as raised:
            store.get("a", "v", 0, 4, 4)
    assert raised.value.kind == "timeout"
    # Each takes 0.4 s at least, so a fourth would be asked for after the deadline.
    assert len(asked) <= 3


def test_a_bucket_is_found_only_in_the_region_that_aws_names(
    serve: Callable[..., Server],
) -> None:
    there = serve(whole(b"data"), whole(b"more"))
    region = "x-amz-bucket-region: eu-west-3\r\n"
    code = b"<Error><Code>PermanentRedirect</Code></Error>"
    named = f"HTTP/1.1 301 Moved\r\n{region}Content-Length: {len(code)}\r\n\r\n".encode() + code
    server = serve(named, moved("http://127.0.0.1:1/bucket/a", region.replace("eu-west-3", "a/b")))
    port = there.endpoint.rsplit(":", 1)[1]

    def objects() -> S3Objects:
        found = open_s3_objects(
            server.endpoint,
            "bucket",
            virtual_hosted=False,
            region="us-east-1",
            credentials=lambda: {
                "access_key_id": "KEY",
                "secret_access_key": "S",
                "token": "T",
                "expires_at": None,
            },
            limits=Limits(5, 5, 5),
            region_endpoint=f"http://127.0.0.1:{port}/{{region}}",
        )
        assert found is not None
        return found

    store = objects()
    assert bytes(store.get("a", "a", "v", 0, 4, 4)) == b"data"
    assert bytes(store.get("a", "a", "v", 0, 4, 4)) == b"more", "it is asked there from now on"
    assert "/eu-west-3/s3/aws4_request" in there.requests[0]
    assert len(server.requests) == 1
    with pytest.raises(SourceError, match="redirects to"):
        objects().get("a", "a", "v", 0, 4, 4)
    assert len(there.requests) == 2


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
def test_no_redirect_is_followed_and_no_credential_leaves(
    serve: Callable[..., Server], status: str
) -> None:
    other = serve()
    there = f"HTTP/1.1 {status}\r\nLocation: {other.endpoint}/bucket/a\r\nContent-Length: 0\r\n\r\n"
    server = serve(there.encode())
    with pytest.raises(SourceError, match="redirects to") as raised:
        opened(server).get("a", "v", 0, 4, 4)
    assert "--region" in (raised.value.hint or "")
    assert (len(server.requests), other.connections) == (1, 0)
    assert "TOKEN-TOKEN" not in str(raised.value)


CHUNKS = b"4;of=a thing\r\ndata\r\n0\r\ntrailer: x\r\n\r\n"
IN_CHUNKS = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("date", ["yesterday", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"])
def test_a_version_by_time_needs_a_date(serve: Callable[..., Server], date: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nLast-Modified: {date}\r\nContent-Length: 4\r\n\r\n"
    with pytest.raises(StoreError, match="is not a date"):
        opened(serve(head.encode() + b"data")).get("a", "mtime-1-4", 0, 4, 4)


def test_a_chunked_object_is_read_only_as_a_whole(serve: Callable[..., Server]) -> None:
    server = serve(IN_CHUNKS + CHUNKS, whole(b"more"), IN_CHUNKS + CHUNKS)
    store = opened(server)
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"more"
    assert server.connections == 1
    with pytest.raises(StoreError) as raised:
        store.get("a", "v", 1, 2, 4)
    assert raised.value.kind == "wrong_length"


def test_a_started_chunked_object_is_fetched_again_by_get(
    serve: Callable[..., Server],
) -> None:
    with asked(serve, IN_CHUNKS + CHUNKS) as (store, server):
        pending = store.begin("a", "v", 4)
        assert pending is not None
        wait_until(pending.advance)
        with pytest.raises(StoreError):
            pending.result()
        server.answers.append(IN_CHUNKS + CHUNKS)
        assert store.begin("a", "v", 4) is None
        assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"


@pytest.mark.parametrize(
    "body",
    [
        b"4\r\ndata\r\n",  # no last chunk
        b"4\r\ndatax\r\n0\r\n\r\n",
        b"-4\r\ndata\r\n0\r\n\r\n",
        b"fffffffff\r\n",
        b"x" * 5000,
        b"0\r\n" + b"trailer: x\r\n" * 200,
        b"5\r\ndata!\r\n0\r\n\r\n",  # longer than the object
        b"3\r\ndat\r\n0\r\n\r\n",
    ],
)
def test_invalid_chunks_are_an_error(serve: Callable[..., Server], body: bytes) -> None:
    server = serve(IN_CHUNKS + body)
    threading.Thread(target=lambda: (wait_until(lambda: server.requests), server.hang_up())).start()
    with pytest.raises(StoreError):
        opened(server).get("a", "v", 0, 4, 4)


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_a_proxy_from_the_environment_is_used(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxy = serve(whole(b"data", MODIFIED), whole(b"data", MODIFIED))
    monkeypatch.setenv(variable, proxy.endpoint.replace("//", "//me:secret%21@"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    options = StoreOptions(endpoint="http://storage.invalid", deadline_s=5)
    store = open_store(parse_source("s3://bucket"), options, Counters())
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
    assert proxy.requests[0].startswith("GET http://storage.invalid/bucket/a ")
    assert "\r\nProxy-Authorization: Basic bWU6c2VjcmV0IQ==\r\n" in proxy.requests[0]


class TlsBehindProxy(Server):
    """A proxy with one server behind it, which speaks TLS."""

    def __init__(self, folder: Path) -> None:
        certify(folder)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        super().__init__([whole(b"data"), whole(b"more")])

    def _serve(self, client: socket.socket) -> None:
        self.requests.append(client.recv(65536).decode())
        client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n")
        super()._serve(self._context.wrap_socket(client, server_side=True))


def test_tls_through_a_proxy_uses_a_tunnel_without_credentials(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy = TlsBehindProxy(tmp_path)
    refusing = serve(b"HTTP/1.1 403 No\r\n\r\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    options = StoreOptions(endpoint="https://127.0.0.1:444", deadline_s=5)
    with closing(proxy):
        monkeypatch.setenv("https_proxy", proxy.endpoint)
        store = open_store(parse_source("s3://bucket"), options, Counters())
        assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
        assert bytes(store.get("a", "v", 0, 4, 4)) == b"more"
        assert proxy.connections == 1
    asked = "CONNECT 127.0.0.1:444 HTTP/1.1\r\nHost: 127.0.0.1:444\r\n\r\n"
    assert proxy.requests[0] == asked
    monkeypatch.setenv("https_proxy", refusing.endpoint)
    store = open_store(parse_source("s3://bucket"), options, Counters())
    with pytest.raises(StoreError, match="the proxy refused"):
        store.get("a", "v", 0, 4, 4)
    assert refusing.requests == [asked]


# -- what the environment asks of S3 ------------------------------------------------------

CUSTOMER_KEY = b64encode(b"k" * 32).decode()
CUSTOMER = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": CUSTOMER_KEY,
    "x-amz-server-side-encryption-customer-key-md5": b64encode(
        hashlib.md5(b"k" * 32, usedforsecurity=False).digest()
    ).decode(),
}
KMS = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": "of-the-caller",
    "x-amz-server-side-encryption-bucket-key-enabled": "true",
}
PAYER = {"x-amz-request-payer": "requester"}
SSE = "AWS_SERVER_SIDE_ENCRYPTION"


@pytest.mark.parametrize(
    ("variables", "read", "written"),
    [
        ({"AWS_REQUEST_PAYER": "true"}, PAYER, PAYER),
        ({"AWS_REQUEST_PAYER": "false"}, {}, {}),
        ({SSE: "AES256"}, {}, {"x-amz-server-side-encryption": "AES256"}),
        ({SSE: "aws:kms", "AWS_SSE_KMS_KEY_ID": "of-the-caller",
          "AWS_SSE_BUCKET_KEY_ENABLED": "true"}, {}, KMS),
        ({SSE: "sse-c", "AWS_SSE_CUSTOMER_KEY_BASE64": CUSTOMER_KEY}, CUSTOMER, CUSTOMER),
    ],
)  # fmt: skip
def test_headers_from_the_environment_are_signed_and_sent(
    serve: Callable[..., Server],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    read: dict[str, str],
    written: dict[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server = serve(whole(b"data", MODIFIED), whole(b"", MODIFIED), whole(b"", MODIFIED))
    store = opened(server)
    store.get("a", "v", 0, 4, 4)
    store.put_file("a", lambda: iter([b"data"]), 4)
    store.delete("a")
    asked_for = PAYER if read == PAYER else {}
    for request, expected in zip(server.requests, (read, written, asked_for), strict=True):
        assert "\r\nUser-Agent: penstock\r\n" in request
        found = dict(line.split(": ", 1) for line in request.split("\r\n")[1:] if ": " in line)
        known = {name: found[name] for name in found if name in {*PAYER, *KMS, *CUSTOMER}}
        assert known == expected
        signed = re.search("SignedHeaders=([^,]+),", request)
        assert signed is not None
        assert signed[1].split(";") == sorted(
            {"host", *(name for name in found if name.startswith("x-amz-"))}
        )


def test_an_unsupported_encryption_is_an_error_in_the_options(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, key in (("rot13", ""), ("sse-c", ""), ("sse-c", "no-base-64!")):
        monkeypatch.setenv(SSE, value)
        monkeypatch.setenv("AWS_SSE_CUSTOMER_KEY_BASE64", key)
        with pytest.raises(OptionError) as refused:
            opened(serve())
        assert "no-base-64!" not in str(refused.value)


@pytest.mark.parametrize("source", ["s3://bucket", "web"])
def test_objects_read_through_obstore_are_compared_with_their_md5_too(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setattr("penstock.store.s3objects.find_proxy", lambda _: "socks5://127.0.0.1:1")
    etag = hashlib.md5(b"data", usedforsecurity=False).hexdigest()
    answers = [
        whole(body, MODIFIED).replace(b'"v"', f'"{etag}"'.encode())
        for body in (b"data", b"dat4", b"dat4")
    ]
    server = serve(*answers)
    endpoint = server.endpoint if source != "web" else None

    def opened(verify: str) -> Store:
        options = StoreOptions(endpoint=endpoint, deadline_s=5, verify=verify)
        where = source if endpoint else server.endpoint
        return open_store(parse_source(where), options, Counters())

    store = opened("always")
    assert bytes(store.get("a", etag, 0, 4, 4)) == b"data"
    with pytest.raises(StoreError, match="the ETag is") as raised:
        store.get("a", etag, 0, 4, 4)
    assert raised.value.kind == "mismatch"
    assert "User-Agent: penstock" not in server.requests[-1]
    assert bytes(opened("never").get("a", etag, 0, 4, 4)) == b"dat4"


def test_uncomparable_bodies_of_a_directory_bucket_are_reported(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    options = StoreOptions(endpoint=serve().endpoint, verify="always")
    open_store(parse_source("s3://bucket--use1-az4--x-s3"), options, Counters())
    assert "not MD5s" in caplog.text


def test_response_headers_are_bounded(serve: Callable[..., Server]) -> None:
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
def test_the_error_code_in_a_response_body_is_waited_for(
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
def test_an_object_arrives_in_pieces(serve: Callable[..., Server], cut: int) -> None:
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
def test_a_failure_is_raised_by_the_result(
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


@pytest.mark.parametrize(
    "answer", [b"not HTTP at all\r\n\r\n", whole(b"first").replace(b"Content-Length: 5", b"broken")]
)
def test_one_answer_that_is_not_http_does_not_stop_started_fetches(
    serve: Callable[..., Server], answer: bytes
) -> None:
    with asked(serve, answer) as (store, server):
        pending = store.begin("a", "v", 5)
        assert pending is not None
        wait_until(pending.advance)
        with pytest.raises(StoreError):
            pending.result()
        server.answers += [whole(b"first"), whole(b"first")]
        assert bytes(store.get("a", "v", 0, 5, 5)) == b"first"
        again = store.begin("a", "v", 5)
        assert again is not None
        wait_until(again.advance)
        assert bytes(again.result()) == b"first"


def test_started_fetches_resume_a_minute_after_a_chunked_answer(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(serve, IN_CHUNKS + CHUNKS) as (store, server):
        pending = store.begin("a", "v", 4)
        assert pending is not None
        wait_until(pending.advance)
        server.answers += [whole(b"data"), whole(b"data")]
        assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
        assert store.begin("a", "v", 4) is None
        monkeypatch.setattr("penstock.store.s3objects._BEGIN_PAUSE_S", 0.0)
        again = store.begin("a", "v", 4)
        assert again is not None
        wait_until(again.advance)
        assert bytes(again.result()) == b"data"


def test_a_silent_server_is_given_up(serve: Callable[..., Server]) -> None:
    server = serve(whole(b"first"))
    options = StoreOptions(endpoint=server.endpoint, deadline_s=3)
    store = open_store(parse_source("s3://bucket"), options, Counters())
    store.get("a", "v", 0, 5, 5)
    server.answers.append(b"HTTP")
    pending = store.begin("a", "v", 5)
    assert pending is not None
    wait_until(pending.advance)
    with pytest.raises(StoreError) as raised:
        pending.result()
    assert raised.value.kind == "timeout"
    assert PATIENCE_S > 3


def test_informational_responses_are_skipped(serve: Callable[..., Server]) -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    store = opened(serve(hints + whole(b"data"), whole(b"more")))
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"data"
    assert bytes(store.get("a", "v", 0, 4, 4)) == b"more"


def test_a_rejection_before_the_body_is_sent_is_read() -> None:
    """A server need not read a large body to refuse it."""
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(refusal)
                client.shutdown(socket.SHUT_WR)
                client.recv(1000)

        server = threading.Thread(target=refuse)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = HttpClient(url, connect_s=5, idle_s=5, deadline_s=5)
        with client.request("PUT", "/b/k", "", bytes(64 << 20)) as response:
            assert response.status == 403
        server.join()
