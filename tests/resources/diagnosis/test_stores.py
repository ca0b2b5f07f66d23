"""What the doctor finds out about a store: asked of real servers, judged in plain words."""

import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from penstock.bench.programs import free_port
from penstock.daemon.settings import Part
from penstock.resources.diagnosis.facts import endpoints
from penstock.resources.diagnosis.facts.endpoints import Address, Endpoint, look_at_endpoint
from penstock.resources.diagnosis.facts.stores import (
    Refusal,
    StoreSeen,
    look_at_store,
    with_keys_of,
)
from penstock.resources.diagnosis.finding import Finding, exit_code
from penstock.resources.diagnosis.rules.stores import judge_store
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import parse_source
from tests.support.certificates import certify
from tests.support.declared_samples import only
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import write_tree


def part(source: str, endpoint: str | None = None, keys: Keys | None = None) -> Part:
    return Part("", parse_source(source), StoreOptions(endpoint=endpoint, keys=keys))


def wrong(findings: list[Finding]) -> Finding:
    (found,) = [one for one in findings if one.severity == "bad"]
    return found


@pytest.fixture(scope="module")
def bucket(_s3_server: S3) -> str:
    files = {f"p/{number}": b"x" * 5000 for number in range(3)}
    found = _s3_server.bucket("doctors-stores")
    write_tree(found, {**files, "large": b"y" * 2_000_000})
    return found.bucket


# -- a real S3 server ------------------------------------------------------------------------


def test_a_store_that_is_well_is_measured(s3: S3, bucket: str) -> None:
    seen = look_at_store(part(f"s3://{bucket}", s3.endpoint))
    assert (seen.refusal, seen.objects, seen.too_slow) == (None, 4, False)
    assert seen.endpoint is not None
    assert seen.endpoint.error is None
    assert len(seen.get_ms) == 5
    assert seen.large_bytes == 2_000_000
    findings = judge_store(seen, "imagenet")
    assert {one.severity for one in findings} <= {"ok", "slow"}  # as busy as the machine is now
    assert any("clocks agree" in one.what for one in findings)


def test_wrong_secret_keys_are_told_as_such(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-it")
    seen = look_at_store(part(f"s3://{bucket}", s3.endpoint))
    assert seen.refusal is not None
    assert (seen.refusal.kind, seen.refusal.code) == ("denied", "SignatureDoesNotMatch")
    found = wrong(judge_store(seen, "imagenet"))
    assert "secret key is not the one of its key id" in found.what
    assert (exit_code([found]), "not-the-secret" in repr(found)) == (2, False)


@pytest.mark.parametrize(
    ("key_id", "name", "says"),
    [
        ("AKIANOBODYSKEYID", None, "the store does not know its key id"),
        ("", None, "there are no keys for it"),
        (ACCESS_KEY, "nobodys-bucket", "the bucket is not there"),
    ],
)
def test_a_store_that_refuses_is_told_with_the_reason(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, key_id: str, name: str | None, says: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
    if not key_id:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    seen = look_at_store(part(f"s3://{name or bucket}", s3.endpoint))
    found = wrong(judge_store(seen, "imagenet"))
    assert says in found.what
    assert exit_code([found]) == 2


def test_a_prefix_without_objects_is_noted(s3: S3, bucket: str) -> None:
    seen = look_at_store(part(f"s3://{bucket}/P", s3.endpoint))
    assert seen.objects == 0
    assert "nothing is there" in only(judge_store(seen, "imagenet"), "note").what


def test_a_port_that_nobody_listens_at_is_unreachable(s3: S3, bucket: str) -> None:
    seen = look_at_store(part(f"s3://{bucket}", f"http://127.0.0.1:{free_port()}"))
    found = wrong(judge_store(seen, "imagenet"))
    assert "does not take connections" in found.what
    assert "refused" in found.why
    assert exit_code([found]) == 3


def test_https_written_for_a_server_that_speaks_http(s3: S3, bucket: str) -> None:
    endpoint = s3.endpoint.replace("http://", "https://")
    found = wrong(judge_store(look_at_store(part(f"s3://{bucket}", endpoint)), "imagenet"))
    assert f"write the endpoint as {s3.endpoint}" in found.remedy
    assert exit_code([found]) == 2


def test_a_server_s_own_keys_are_used_where_the_part_has_none(bucket: str, s3: S3) -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": s3.endpoint,
    }  # fmt: skip
    filled = with_keys_of(part(f"s3://{bucket}"), environment)
    assert filled.store.keys == Keys(access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    assert filled.store.endpoint == s3.endpoint
    given = part(f"s3://{bucket}", keys=Keys(access_key_id="given"))
    assert with_keys_of(given, environment) is given
    plain = part("file:///data")
    assert with_keys_of(plain, environment) is plain


def test_the_keys_of_the_part_win_over_those_of_the_environment(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-the-shell")
    keys = Keys(access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    assert look_at_store(part(f"s3://{bucket}", s3.endpoint, keys)).refusal is None
    keys = Keys(access_key_id=ACCESS_KEY, secret_access_key="a-wrong-secret-of-its-own")
    refusal = look_at_store(part(f"s3://{bucket}", s3.endpoint, keys)).refusal
    assert refusal is not None
    assert refusal.code == "SignatureDoesNotMatch"


# -- tiny servers that do one thing ----------------------------------------------------------


@contextmanager
def answering(respond: Callable[[socket.socket], None]) -> Iterator[int]:
    """A listener on loopback; `respond` gets each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                respond(peer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def dated(offset_s: float, status: int = 200, body: bytes = b"") -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + offset_s, usegmt=True)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


SKEWED = (b"<?xml version='1.0'?><Error><Code>RequestTimeTooSkewed</Code>"
          b"<Message>The difference is too large.</Message></Error>")  # fmt: skip


@pytest.mark.parametrize(("offset_s", "told"), [(-3620, "1h00m ahead of"), (7220, "2h00m behind")])
def test_a_clock_that_is_wrong_is_told_once_and_by_how_much(
    s3: S3, offset_s: float, told: str
) -> None:
    with dated(offset_s, 403, SKEWED) as port:
        seen = look_at_store(part("s3://b", f"http://127.0.0.1:{port}"))
    assert seen.endpoint is not None
    assert seen.endpoint.skew_s == pytest.approx(-offset_s, abs=5)
    assert seen.refusal is not None
    assert seen.refusal.code == "RequestTimeTooSkewed"
    found = wrong(judge_store(seen, "imagenet"))
    assert f"clock is {told} the store's" in found.what
    assert "timedatectl" in found.remedy
    assert exit_code([found]) == 2


def test_http_written_for_a_server_that_speaks_tls(tmp_path: Path) -> None:
    certify(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    def respond(peer: socket.socket) -> None:
        try:
            context.wrap_socket(peer, server_side=True).close()
        except OSError:
            return  # it was not spoken to in TLS, and has said so with an alert

    with answering(respond) as port:
        plain = look_at_endpoint(Address("http", "127.0.0.1", port))
        secured = look_at_endpoint(Address("https", "127.0.0.1", port))
    assert plain.other_scheme == "https"
    found = wrong(judge_store(StoreSeen("s3://b", "", plain), "x"))
    assert f"https://127.0.0.1:{port}" in found.remedy
    assert (secured.step, secured.other_scheme) == ("tls", None)
    found = wrong(judge_store(StoreSeen("s3://b", "", secured), "x"))
    assert "certificate is not trusted" in found.what
    assert found.unreachable


def test_a_server_that_never_answers_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_STEP_S", 1.0)
    released = threading.Event()
    with answering(lambda _: bool(released.wait(20)) and None) as port:
        seen = look_at_endpoint(Address("http", "127.0.0.1", port))
        released.set()
    assert seen.step == "answer"
    assert seen.error is not None
    assert "no answer within 1 s" in seen.error


def test_a_name_that_nobody_knows() -> None:
    seen = look_at_endpoint(Address("https", "no-such-host.invalid", 443))
    assert seen.step == "name"
    found = wrong(judge_store(StoreSeen("s3://b", "", seen), "x"))
    assert "cannot be resolved" in found.what
    assert found.unreachable


# -- rules over facts that were made up ------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (StoreSeen("s3://b", "", objects=10, get_ms=(180.0, 200.0, 220.0)),
         "took 200 ms or more|160 small files a second"),
        (StoreSeen("s3://b", "", objects=1, large_bytes=8 << 20, large_s=8.0),
         "1.0 MiB a second|readers fetch 2.0 MiB a second now"),
    ],
    ids=["far away", "a narrow line"],
)  # fmt: skip
def test_a_slow_store_says_what_that_means_for_readers(seen: StoreSeen, says: str) -> None:
    findings = judge_store(seen, "x", threads=32, reading_bytes_per_s=2.0 * (1 << 20))
    (slow,) = [one for one in findings if one.severity == "slow"]
    for words in says.split("|"):
        assert words in slow.why
    assert exit_code([slow]) == 0


def test_a_clock_that_is_off_by_a_minute_is_only_noted() -> None:
    endpoint = Endpoint("http://h:80", "answer", connect_ms=1.0, status=200, skew_s=60.0)
    found = only(judge_store(StoreSeen("s3://b", "", endpoint, objects=1), "x"), "note")
    assert found.what == "this machine's clock is 1m00s ahead of the store's"


def test_a_store_that_fails_is_unreachable_and_one_that_takes_too_long_too() -> None:
    refusal = Refusal("unreachable", None, "s3://b: it failed", "look at it")
    assert exit_code(judge_store(StoreSeen("s3://b", "", refusal=refusal), "x")) == 3
    assert exit_code(judge_store(StoreSeen("s3://b", "", too_slow=True), "x")) == 3


def test_addresses_are_those_that_requests_go_to() -> None:
    def address(source: str, identity: str = "", region: str | None = None) -> str:
        return str(endpoints.address_of(parse_source(source), identity, region))

    assert address("s3://b", "s3://b?endpoint=http://h:9000") == "http://h:9000"
    assert address("s3://b", region="eu-west-1") == "https://s3.eu-west-1.amazonaws.com:443"
    assert address("https://h/p") == "https://h:443"
    assert address("http://h:81/p") == "http://h:81"
    assert address("gs://b") == "https://storage.googleapis.com:443"
    assert address("az://c") == "None"
