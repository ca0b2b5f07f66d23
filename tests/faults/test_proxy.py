"""The faulty proxy does what it says: each fault, as a plain HTTP client sees it."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.faults.kinds import PASSING, Fault
from tests.faults.proxy import FaultyProxy, is_data

BODY = bytes(range(256)) * 40


class _Plain(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        body = BODY
        if ranged := self.headers.get("Range"):
            first, last = map(int, ranged.removeprefix("bytes=").split("-"))
            body = BODY[first : last + 1]
            # With 200, as rclone does.
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(BODY)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Plain) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(upstream: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(upstream, seed=1) as proxy:
        yield proxy


def get(
    proxy: FaultyProxy, path: str = "/bucket/key", method: str = "GET", **fields: str
) -> tuple[int, bytes | int]:
    """Status and body; or the status, and how many bytes came before the answer broke off."""
    host, port = proxy.endpoint.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, headers=fields)
        response = connection.getresponse()
        came = b""
        try:
            while piece := response.read1(1 << 16):
                came += piece
        except ConnectionError:
            return response.status, len(came)
        if response.length:  # read1 does not say that bytes are missing
            return response.status, len(came)
        return response.status, came
    finally:
        connection.close()


def test_what_is_not_spoilt_passes_as_it_is(proxy: FaultyProxy) -> None:
    assert get(proxy) == (200, BODY)
    assert get(proxy, Range="bytes=10-19") == (206, BODY[10:20])
    assert get(proxy, method="HEAD") == (200, b"")
    assert (proxy.requests, proxy.injected.total()) == (2, 0)


@pytest.mark.parametrize("fault", list(Fault))
def test_each_fault_is_what_its_name_says(proxy: FaultyProxy, fault: Fault) -> None:
    proxy.script([fault], wait_s=0.1)
    half = len(BODY) // 2
    if fault is Fault.REFUSE:
        with pytest.raises(ConnectionResetError):
            get(proxy)
    else:
        status, body = get(proxy)
        match fault:
            case Fault.RESET | Fault.TRUNCATED:
                assert (status, body) == (200, half)
            case Fault.TOO_SHORT:
                assert (status, body) == (200, BODY[:half])
            case Fault.TOO_LONG:
                assert (status, body) == (200, len(BODY))
            case Fault.STALL | Fault.TRICKLE:
                assert (status, body) == (200, BODY)
            case Fault.FLIPPED:
                assert isinstance(body, bytes)
                pairs = zip(body, BODY, strict=True)
                assert sum((mine ^ theirs).bit_count() for mine, theirs in pairs) == 1
            case _:
                codes = {
                    Fault.SERVER_ERROR: (500, b"InternalError"),
                    Fault.SLOW_DOWN: (503, b"SlowDown"),
                    Fault.EXPIRED_TOKEN: (403, b"ExpiredToken"),
                    Fault.CLOCK_SKEW: (403, b"RequestTimeTooSkewed"),
                }
                assert isinstance(body, bytes)
                assert status == codes[fault][0]
                assert b"<Code>%b</Code>" % codes[fault][1] in body
    assert proxy.injected == {fault: 1}
    assert get(proxy) == (200, BODY), "the script is over"


def test_a_range_has_no_bit_flipped(proxy: FaultyProxy) -> None:
    proxy.inject({Fault.FLIPPED: 1})
    assert get(proxy, Range="bytes=0-99") == (206, BODY[:100])
    assert proxy.injected.total() == 0


def test_the_same_seed_gives_the_same_faults_whatever_the_order(upstream: str) -> None:
    rates = dict.fromkeys((Fault.SERVER_ERROR, Fault.SLOW_DOWN), 0.2)
    paths = [f"/bucket/{number % 20}" for number in range(60)]

    def statuses(seed: int, order: list[str]) -> dict[str, list[int]]:
        with FaultyProxy(upstream, seed=seed) as proxy:
            proxy.inject(rates)
            found: dict[str, list[int]] = {}
            for path in order:
                found.setdefault(path, []).append(get(proxy, path)[0])
            assert proxy.injected.total() == sum(
                status != 200 for many in found.values() for status in many
            )
            return found

    first = statuses(7, paths)
    assert first == statuses(7, paths[::-1])
    assert first != statuses(8, paths)
    assert {status for many in first.values() for status in many} == {200, 500, 503}


def test_the_same_request_fails_only_so_often_in_a_row(proxy: FaultyProxy) -> None:
    proxy.inject({Fault.SLOW_DOWN: 1}, most_in_a_row=2)
    assert [get(proxy)[0] for _ in range(6)] == [503, 503, 200, 503, 503, 200]


def test_listings_are_spared_unless_asked_for(proxy: FaultyProxy) -> None:
    assert is_data("/bucket/a%20b/c?x-id=GetObject")
    assert not is_data("/bucket?list-type=2&prefix=a")
    assert not is_data("/bucket/?list-type=2")
    proxy.inject({Fault.SERVER_ERROR: 1})
    assert get(proxy, "/bucket?list-type=2") == (200, BODY)
    proxy.inject({Fault.SERVER_ERROR: 1}, listings_too=True)
    assert get(proxy, "/bucket?list-type=2")[0] == 500
    proxy.calm()
    assert get(proxy) == (200, BODY)


def test_a_proxy_that_is_down_refuses_and_comes_back_at_the_same_port(proxy: FaultyProxy) -> None:
    host, port = proxy.endpoint.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as held:
            proxy.down()
            with pytest.raises(ConnectionRefusedError):
                get(proxy)
            with suppress(ConnectionResetError):
                assert held.recv(1) == b""
        proxy.up()
        assert get(proxy) == (200, BODY)


def test_calming_ends_a_stall_at_once(proxy: FaultyProxy) -> None:
    proxy.script([Fault.STALL], wait_s=3600)
    found: list[tuple[int, bytes | int]] = []
    reader = threading.Thread(target=lambda: found.append(get(proxy)))
    reader.start()
    while not proxy.injected[Fault.STALL]:
        time.sleep(0.01)
    proxy.calm()
    reader.join()
    assert found == [(200, BODY)]


def test_the_server_is_asked_nothing_while_its_files_change(proxy: FaultyProxy) -> None:
    found: list[tuple[int, bytes | int]] = []
    reader = threading.Thread(target=lambda: found.append(get(proxy)))
    with proxy.unchanging():
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join()
    assert found == [(200, BODY)]


def test_every_passing_fault_is_a_fault() -> None:
    assert set(Fault) - set(PASSING) == {Fault.EXPIRED_TOKEN, Fault.CLOCK_SKEW}
