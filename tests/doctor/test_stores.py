"""What the doctor finds out about a store: asked of real servers, judged in plain words."""

import socket
import socketserver
import ssl
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.bench.workspace import free_port
from penstock.doctor.facts import stores
from penstock.doctor.facts.stores import (
    Address,
    Refusal,
    StoreFacts,
    look_at_endpoint,
    look_at_store,
    with_keys_of,
)
from penstock.doctor.findings import exit_code
from penstock.doctor.rules.stores import judge_store
from penstock.settings import Part
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys
from penstock.store.source import parse_source
from tests.support.certificates import certify
from tests.support.declared_samples import assert_told, only
from tests.support.s3 import ACCESS_KEY, KEYS, S3, SECRET_KEY
from tests.support.trees import write_tree


def part(source: str, endpoint: str | None = None, keys: Keys | None = None) -> Part:
    return Part("", parse_source(source), StoreOptions(endpoint=endpoint, keys=keys))


@pytest.fixture(scope="module")
def bucket(_s3_server: S3) -> str:
    files = {f"p/{number}": b"x" * 5000 for number in range(3)}
    found = _s3_server.bucket("doctors-stores")
    write_tree(found, {**files, "large": b"y" * 2_000_000})
    return found.bucket


def test_a_healthy_store_is_measured_and_an_empty_one_is_noted(s3: S3, bucket: str) -> None:
    seen = look_at_store(part(f"s3://{bucket}", s3.endpoint))
    assert (seen.refusal, seen.objects, seen.too_slow) == (None, 4, False)
    assert seen.endpoint is not None
    assert seen.endpoint.error is None
    assert (len(seen.get_ms), seen.large_bytes) == (5, 2_000_000)
    findings = judge_store(seen, "imagenet")
    assert {one.severity for one in findings} <= {"ok", "slow"}  # as busy as the machine is now
    assert any("clocks agree" in one.what for one in findings)
    seen = look_at_store(part(f"s3://{bucket}/P", s3.endpoint))
    assert "it is empty" in only(judge_store(seen, "imagenet"), "note").what


WRONG_KEY = {"AWS_SECRET_ACCESS_KEY": "not-the-secret-of-it"}
NO_KEYS = dict.fromkeys(KEYS)


@pytest.mark.parametrize(
    ("environment", "source", "endpoint", "says", "code"),
    [(WRONG_KEY, "s3://{bucket}", "{s3}", "secret key does not belong to its key id", 2),
     ({"AWS_ACCESS_KEY_ID": "AKIANOBODYSKEYID"}, "s3://{bucket}", "{s3}",
      "the store does not know its key id", 2),
     (NO_KEYS, "s3://{bucket}", "{s3}", "there are no keys for it", 2),
     ({}, "s3://nobodys-bucket", "{s3}", "the bucket does not exist", 2),
     ({}, "s3://{bucket}", "https{address}", "write the endpoint as http{address}", 2),
     ({}, "s3://{bucket}", "http://127.0.0.1:{port}",
      "it does not accept connections|Connection refused", 3)],
)  # fmt: skip
def test_a_store_that_refuses_is_reported_with_the_reason(
    s3: S3,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str | None],
    source: str,
    endpoint: str,
    says: str,
    code: int,
) -> None:
    names = {
        "bucket": bucket,
        "s3": s3.endpoint,
        "address": s3.endpoint.removeprefix("http"),
        "port": free_port(),
    }
    for name, value in environment.items():
        monkeypatch.delenv(name)
        if value is not None:
            monkeypatch.setenv(name, value)
    seen = look_at_store(part(source.format(**names), endpoint.format(**names)))
    found = only(judge_store(seen, "imagenet"))
    assert_told([found], "bad", says.format(**names))
    assert exit_code([found]) == code
    assert "not-the-secret" not in repr(found)


def test_each_part_is_checked_with_its_own_keys(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    environment = {**KEYS, "AWS_ENDPOINT_URL": s3.endpoint}
    filled = with_keys_of(part(f"s3://{bucket}"), environment)
    assert (filled.store.keys, filled.store.endpoint) == (keys, s3.endpoint)
    for given in (part(f"s3://{bucket}", keys=Keys(access_key_id="given")), part("file:///data")):
        assert with_keys_of(given, environment) is given
    # Those of the part win over those of the shell.
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-the-shell")
    assert look_at_store(part(f"s3://{bucket}", s3.endpoint, keys)).refusal is None


@pytest.mark.parametrize(
    ("skew_s", "severity", "message"),
    [(3620, "bad", "1h00m ahead of"), (-7220, "bad", "2h00m behind"), (62, "note", "1m0")],
)
def test_a_wrong_clock_is_reported_once_with_its_offset(
    s3: S3, monkeypatch: pytest.MonkeyPatch, skew_s: float, severity: str, message: str
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + skew_s, monotonic=time.monotonic)
    monkeypatch.setattr(stores, "time", clock)
    host, _, port = s3.endpoint.removeprefix("http://").partition(":")
    endpoint = look_at_endpoint(Address("http", host, int(port)))
    assert endpoint.skew_s == pytest.approx(skew_s, abs=5)
    skewed = Refusal("denied", "RequestTimeTooSkewed", "the difference is too large", "")
    seen = StoreFacts("s3://b", "", endpoint, objects=1)
    seen = replace(seen, refusal=skewed) if severity == "bad" else seen
    found = only(judge_store(seen, "imagenet"), severity)
    assert f"clock is {message}" in found.what
    assert exit_code([found]) == (2 if severity == "bad" else 0)


def test_an_http_address_of_a_tls_server_is_reported(tmp_path: Path) -> None:
    certify(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plain = look_at_endpoint(Address("http", "127.0.0.1", port))
        secured = look_at_endpoint(Address("https", "127.0.0.1", port))
        server.shutdown()
    assert plain.other_scheme == "https"
    found = only(judge_store(StoreFacts("s3://b", "", plain), "x"))
    assert f"https://127.0.0.1:{port}" in found.remedy
    assert (secured.step, secured.other_scheme) == ("tls", None)
    found = only(judge_store(StoreFacts("s3://b", "", secured), "x"))
    assert "certificate is not trusted" in found.what
    assert found.unreachable


def test_a_server_that_never_answers_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_DIAL_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seen = look_at_endpoint(Address("http", "127.0.0.1", silent.getsockname()[1]))
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it was not asked a second time, for TLS
            silent.accept()
    assert (seen.step, "no answer within 1 s" in str(seen.error)) == ("answer", True)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (
            StoreFacts("s3://b", "", objects=10, get_ms=(180.0, 200.0, 220.0)),
            "took 200 ms or more|160 small files a second",
        ),
        (
            StoreFacts("s3://b", "", objects=1, large_bytes=8 << 20, large_s=8.0),
            "1.0 MiB a second|readers fetch 2.0 MiB a second now",
        ),
    ],
    ids=["far away", "a narrow line"],
)
def test_a_slow_store_is_reported_with_its_effect_on_readers(seen: StoreFacts, says: str) -> None:
    findings = judge_store(seen, "x", threads=32, reading_bytes_per_s=2.0 * (1 << 20))
    assert_told(findings, "slow", says)
    assert exit_code(findings) == 0


def test_a_store_without_an_answer_is_unreachable() -> None:
    unknown = look_at_endpoint(Address("https", "no-such-host.invalid", 443))
    findings = judge_store(StoreFacts("s3://b", "", unknown), "x")
    assert "cannot be resolved" in only(findings).what
    failed = Refusal("unreachable", None, "s3://b: it failed", "look at it")
    for seen in (StoreFacts("s3://b", "", refusal=failed), StoreFacts("s3://b", "", too_slow=True)):
        findings += judge_store(seen, "x")
    assert [exit_code([one]) for one in findings if one.severity == "bad"] == [3, 3, 3]


def test_the_checked_addresses_are_those_of_requests() -> None:
    for source, identity, region, address in (
        ("s3://b", "s3://b?endpoint=http://h:9000", None, "http://h:9000"),
        ("s3://b", "", "eu-west-1", "https://s3.eu-west-1.amazonaws.com:443"),
        ("https://h/p", "", None, "https://h:443"),
        ("http://h:81/p", "", None, "http://h:81"),
        ("gs://b", "", None, "https://storage.googleapis.com:443"),
        ("az://c", "", None, "None"),
    ):
        assert str(stores.address_of(parse_source(source), identity, region)) == address
