"""What a memcached reports about itself: parsed, and asked of real ones and of worse."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.workspace import free_port
from penstock.cache.member_stats import (
    MemberStats,
    NotMemcached,
    ask_member,
    ask_members,
    from_json,
    member_stats,
    parse_stats,
)
from tests.support.memcached import memcached

STATS = (
    b"STAT version 1.6.18\r\nSTAT uptime 7\r\nSTAT bytes 500\r\nSTAT extstore_bytes_used 300\r\n"
)


def test_the_numbers_that_matter_are_found_by_our_names() -> None:
    stats = member_stats(
        {"version": "1.6.18", "bytes": "500", "limit_maxbytes": "1000",
         "extstore_bytes_used": "300", "extstore_limit_maxbytes": "2000"},
        {"item_size_max": "1048576"},
    )  # fmt: skip
    assert (stats.version, stats.item_limit_bytes) == ("1.6.18", 1 << 20)
    assert (stats.memory_bytes, stats.capacity_bytes) == (200, 3000)


def test_refused_connections_are_counted_whichever_way_they_are_refused() -> None:
    stats = {"rejected_connections": "3", "listen_disabled_num": "2"}
    assert member_stats(stats, {}).connections_refused == 5


def test_a_number_that_is_none_counts_as_nothing() -> None:
    assert member_stats({"bytes": "-1", "uptime": "9" * 30, "curr_items": "٣"}, {}) == MemberStats()


def test_what_is_written_down_is_read_back_also_by_another_release() -> None:
    stats = MemberStats(version="1.6.18", items=3)
    assert from_json({**asdict(stats), "of_a_later_release": 1}) == stats


@pytest.mark.parametrize(
    "answer",
    [b"", b"END", b"ERROR\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", STATS,
     b"STAT a 1\r\nBAD\r\nEND\r\n"],
)  # fmt: skip
def test_another_answer_is_not_one_of_memcached(answer: bytes) -> None:
    with pytest.raises(NotMemcached):
        parse_stats(answer)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(answer: bytes) -> None:
    for text in (answer, b"STAT " + answer + b"\r\nEND\r\n"):
        try:
            member_stats(parse_stats(text), {})
        except NotMemcached:
            continue


def test_a_real_memcached_answers() -> None:
    with memcached("-m", "64", "-I", "2m", "-c", "100") as server:
        stats = ask_member("127.0.0.1", server.port)
    assert stats.limit_bytes == 64 << 20
    assert (stats.item_limit_bytes, stats.connection_limit) == (2 << 20, 100)
    assert stats.version.startswith("1.")


def test_members_are_asked_together_and_what_fails_is_a_fact() -> None:
    with memcached() as server, _answering(b"SSH-2.0-OpenSSH\r\n") as other:
        closed = free_port()
        found = ask_members(
            [("127.0.0.1", server.port), ("127.0.0.1", closed), ("127.0.0.1", other)]
        )
    assert [one["member"] for one in found] == [
        server.address, f"127.0.0.1:{closed}", f"127.0.0.1:{other}"]  # fmt: skip
    assert [one["reachable"] for one in found] == [True, False, False]
    assert found[0]["stats"]["limit_bytes"] == 64 << 20
    assert "refused" in found[1]["error"]
    assert "SSH-2.0" in found[2]["error"]


def test_a_stopped_member_costs_one_deadline() -> None:
    with memcached() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            ask_member("127.0.0.1", server.port, deadline_s=0.1)
        (found,) = ask_members([("127.0.0.1", server.port)])
        server.go_on()
    assert (found["reachable"], found["error"]) == (False, "timed out")


@pytest.mark.parametrize("answer", [b"STAT a 1\r\n" * 20_000, b"STAT a 1\r\n"])
def test_an_answer_without_end_is_refused(answer: bytes) -> None:
    with _answering(answer) as port, pytest.raises(NotMemcached):
        ask_member("127.0.0.1", port)


@contextmanager
def _answering(data: bytes) -> Iterator[int]:
    """A server that answers each first request with `data`, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    connection.recv(100)
                    try:
                        connection.sendall(data)
                    except OSError:
                        continue  # the client has seen enough

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
