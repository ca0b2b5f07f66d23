"""The shared tier on real memcached servers: hits, leases, failures, fills."""

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import members, shared_tier
from penstock.cache import memcached as protocol
from penstock.cache.identity import Block, CachedObject, block_of, identify
from penstock.cache.members import Address, parse_members
from penstock.cache.seal import PIECE_BYTES, Packing, Sealing
from penstock.cache.shared_tier import FetchedElsewhere, SharedTier
from penstock.metrics import Counters
from tests.support.memcached import Memcached, address_of, memcached
from tests.support.waiting import PATIENCE_S, wait_until

MIB = 1024 * 1024
PACKINGS = [Packing(), Sealing(b"a secret of a cluster")]
# One piece; two; many, the last of them short.
SIZES = [1, 110 * 1024, PIECE_BYTES, PIECE_BYTES + 1, 8 * MIB, 3 * MIB + 17]


@pytest.fixture(scope="module")
def member() -> Iterator[Memcached]:
    with memcached("-m", "256") as member:
        yield member


@contextmanager
def sharing(address: str, packing: Packing = PACKINGS[0], **options: Any) -> Iterator[SharedTier]:
    tier = SharedTier(parse_members(address), packing, Counters(), **options)
    try:
        yield tier
    finally:
        tier.close(5.0)


@pytest.fixture
def tier(member: Memcached) -> Iterator[SharedTier]:
    with sharing(address_of(member)) as tier:
        yield tier


_numbers = iter(range(1_000_000))


def some_block(size: int = 1000) -> tuple[CachedObject, Block, bytes]:
    """A block that no other test has."""
    number = next(_numbers)
    obj = identify("s3://b", f"key {number}", "v", size, 8 * MIB)
    return obj, block_of(obj, 0, 8 * MIB), random.Random(number).randbytes(size)


def fill(tier: SharedTier, size: int = 1000) -> tuple[Block, bytes]:
    obj, block, data = some_block(size)
    assert tier.write(obj, 8 * MIB, block, data)
    assert tier.wait_until_filled(10.0)
    return block, data


def count(tier: SharedTier, name: str) -> int:
    return tier._counters.total(name)


@pytest.mark.parametrize("packing", PACKINGS, ids=["plain", "sealed"])
@pytest.mark.parametrize("size", SIZES)
def test_a_block_comes_back_as_it_was_written(
    member: Memcached, packing: Packing, size: int
) -> None:
    with sharing(address_of(member), packing) as one, sharing(address_of(member), packing) as two:
        block, data = fill(one, size)
        found = two.find(block, may_wait=False)
        assert found is not None
        assert bytes(found) == data
        assert two.has(block)


def test_progress_shows_whole_pieces_in_order(tier: SharedTier) -> None:
    block, data = fill(tier, 3 * PIECE_BYTES)
    seen: list[bytes] = []
    tier.find(block, may_wait=False, progress=lambda part: seen.append(bytes(part)))
    assert [len(part) for part in seen] == [PIECE_BYTES, 2 * PIECE_BYTES]
    assert all(data.startswith(part) for part in seen)


def test_one_of_many_gets_the_lease_and_the_others_wait_for_its_fill(member: Memcached) -> None:
    obj, block, data = some_block()
    claimed: list[SharedTier] = []

    def read(tier: SharedTier) -> bytes:
        found = tier.find(block, may_wait=True)
        if found is not None:
            return bytes(found)
        claimed.append(tier)
        wait_until(lambda: sum(count(one, "shared_waits") for one in tiers) >= 3)
        assert tier.write(obj, 8 * MIB, block, data)
        return data

    with ThreadPoolExecutor(4) as nodes:
        tiers: list[SharedTier] = []
        for _ in range(4):
            tiers.append(SharedTier(parse_members(address_of(member)), PACKINGS[0], Counters()))
        assert list(nodes.map(read, tiers)) == [data] * 4
    assert len(claimed) == 1
    for tier in tiers:
        tier.close(1.0)


def test_a_load_does_not_wait_for_what_another_machine_fetches(member: Memcached) -> None:
    _, block, _ = some_block()
    with sharing(address_of(member)) as one, sharing(address_of(member)) as two:
        assert one.find(block, may_wait=False) is None
        with pytest.raises(FetchedElsewhere):
            two.find(block, may_wait=False)
        assert two.read(block, 0, 10) is None
        assert not two.has(block)


def test_the_lease_of_a_dead_winner_runs_out(
    member: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LEASE_S", 1)
    _, block, _ = some_block()
    with sharing(address_of(member)) as dead, sharing(address_of(member)) as other:
        assert dead.find(block, may_wait=True) is None
        assert other.find(block, may_wait=True) is None  # it has the lease now
        assert count(other, "shared_waits") > 0
        assert count(other, "shared_waited_in_vain") == 0


def test_who_waits_in_vain_fetches_by_itself_well_before_its_deadline(member: Memcached) -> None:
    _, block, _ = some_block()
    at = address_of(member)
    with sharing(at) as slow, sharing(at, deadline_s=0.2) as other:
        assert slow.find(block, may_wait=True) is None
        assert other.find(block, may_wait=True) is None
        assert count(other, "shared_waited_in_vain") == 1


@pytest.mark.parametrize("size", [1000, 2 * PIECE_BYTES])
@pytest.mark.parametrize("packing", PACKINGS, ids=["plain", "sealed"])
def test_garbage_in_place_of_a_value_is_a_miss(
    member: Memcached, packing: Packing, size: int
) -> None:
    with sharing(address_of(member), packing) as tier:
        block, data = fill(tier, size)
        last = len(range(0, size, PIECE_BYTES)) - 1
        length = packing.head_bytes + min(size, PIECE_BYTES) + packing.tail_bytes
        for garbage in (b"x" * length, b"short", b"", b"y" * (length + 1)):
            name = packing.name(block, last)
            member.ask(b"ms %s %d\r\n%s\r\n" % (name, len(garbage), garbage))
            try:
                assert tier.find(block, may_wait=False) is None
            except FetchedElsewhere:
                assert not garbage  # an empty value looks like a lease
        assert tier.describe()["members"][0]["out"] is None
        # The next fetch replaces it.
        obj = identify("s3://b", "any", "v", size, 8 * MIB)
        tier.write(obj, 8 * MIB, block, data)
        tier.wait_until_filled(10.0)
        found = tier.find(block, may_wait=False)
        assert found is not None
        assert bytes(found) == data


def test_a_block_without_its_later_pieces_is_a_miss(member: Memcached, tier: SharedTier) -> None:
    block, _ = fill(tier, 2 * PIECE_BYTES)
    member.ask(b"md %s\r\n" % PACKINGS[0].name(block, 1))
    assert tier.find(block, may_wait=False) is None


def test_a_dead_member_costs_one_failure_and_is_used_again_once_it_is_back() -> None:
    with memcached() as member, sharing(address_of(member)) as tier:
        block, _ = fill(tier)
        member.kill()
        for _ in range(5):
            assert tier.find(block, may_wait=True) is None
            assert tier.read(block, 0, 10) is None
            assert not tier.has(block)
        assert count(tier, "shared_failures") == 1
        assert tier.describe()["members"][0]["out"]
        member.start()
        wait_until(lambda: tier.describe()["members"][0]["out"] is None)
        assert tier.find(block, may_wait=True) is None  # restarted empty
        fill(tier)


def test_a_member_that_was_restarted_in_between_is_no_failure() -> None:
    with memcached() as member, sharing(address_of(member)) as tier:
        block, _ = fill(tier)
        member.kill()
        member.start()
        assert tier.find(block, may_wait=True) is None
        assert count(tier, "shared_failures") == 0


def test_a_stopped_member_is_out_of_service_until_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with memcached() as member, sharing(address_of(member)) as tier:
        block, _ = fill(tier)
        member.pause()
        assert tier.find(block, may_wait=True) is None
        assert tier.describe()["members"][0]["out"]
        member.go_on()
        wait_until(lambda: tier.find(block, may_wait=True) is not None)


def test_a_member_that_goes_on_has_no_lease_of_a_request_that_was_given_up() -> None:
    with memcached() as member, sharing(address_of(member)) as one:
        kept, data = fill(one)
        _, block, _ = some_block()
        member.pause()
        assert one.find(block, may_wait=True) is None
        member.go_on()
        wait_until(lambda: not one.out_of_service())
        with sharing(address_of(member)) as two:
            assert two.find(block, may_wait=False) is None  # it has the lease now
            found = two.find(kept, may_wait=False)
            assert found is not None
            assert bytes(found) == data


def test_losing_one_of_two_members_loses_only_its_blocks() -> None:
    with memcached() as one, memcached() as two, sharing(address_of(one, two)) as tier:
        blocks = [fill(tier) for _ in range(20)]
        one.kill()
        found = [tier.find(block, may_wait=True) for block, _ in blocks]
        kept = int(two.stats()["total_items"])
        assert 0 < kept < 20
        assert sum(data is not None for data in found) >= kept - 1
        for (_, data), one_found in zip(blocks, found, strict=True):
            assert one_found is None or bytes(one_found) == data


def test_a_full_member_keeps_the_newest_and_fails_nothing() -> None:
    with memcached("-m", "16") as member, sharing(address_of(member)) as tier:
        blocks = [fill(tier, 300 * 1024) for _ in range(100)]
        assert int(member.stats()["evictions"]) > 0
        newest, data = blocks[-1]
        found = tier.find(newest, may_wait=False)
        assert found is not None
        assert bytes(found) == data
        assert count(tier, "shared_failures") == 0


def test_a_member_with_a_low_item_limit_refuses_fills_and_stays_in_service() -> None:
    limit = ("-I", "128k", "-o", "slab_chunk_max=64")
    with memcached(*limit) as member, sharing(address_of(member)) as tier:
        block, _ = fill(tier, 200 * 1024)
        assert count(tier, "shared_fills_dropped") == 1
        assert tier.describe()["members"][0]["out"] is None
        assert tier.find(block, may_wait=False) is None


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"ERROR\r\n", b"\0" * 5000, b"VA 9999999999 \r\n"],
)
def test_a_server_that_is_no_memcached_is_out_of_service(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with sharing(f"memcached://127.0.0.1:{port}") as tier:
            assert tier.find(some_block()[1], may_wait=True) is None
        thread.join()


def test_fills_beyond_the_queue_are_dropped_and_counted(
    member: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "_QUEUE_WAIT_S", 0.01)
    with memcached() as slow:
        source = parse_members(address_of(slow))
        tier = SharedTier(source, PACKINGS[0], Counters(), queue_bytes=2000)
        slow.pause()
        accepted = []
        for _ in range(4):
            obj, block, data = some_block()
            accepted.append(tier.write(obj, 8 * MIB, block, data))
            assert tier.describe()["queued_bytes"] <= 2000
        assert accepted[:2] == [True, True]
        assert accepted[3] is False
        slow.go_on()
        tier.close(5.0)


def test_members_of_a_file_are_used_once_they_are_listed(
    tmp_path: Path, member: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "_WATCH_S", 0.02)
    monkeypatch.setattr(shared_tier, "_REREAD_S", 0.0)
    file = tmp_path / "members"
    file.write_text("")
    with sharing(f"memcached://{file}") as tier:
        obj, block, data = some_block()
        assert tier.find(block, may_wait=True) is None
        assert not tier.write(obj, 8 * MIB, block, data)
        file.write_text(f"{member.address}\n")
        wait_until(lambda: tier.describe()["members"])
        fill(tier)


def test_a_name_server_that_hangs_does_not_hold_up_a_mount(
    member: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "_FIRST_READ_S", 0.0)
    answers = threading.Event()

    def resolve(_name: Address) -> set[Address]:
        assert answers.wait(PATIENCE_S)
        return {Address("127.0.0.1", member.port)}

    monkeypatch.setattr(members, "_resolve", resolve)
    with sharing("memcached+dns://workers.ns") as tier:
        obj, block, data = some_block()
        assert tier.find(block, may_wait=True) is None
        assert not tier.write(obj, 8 * MIB, block, data)
        answers.set()
        wait_until(lambda: tier.addresses)
        fill(tier)


def test_a_stopped_member_does_not_hold_up_what_is_written_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "ANSWER_S", 3600.0)
    with (
        memcached() as one,
        memcached() as two,
        sharing(address_of(one, two), deadline_s=1e6) as tier,
    ):
        one.pause()
        obj, stuck, data = next(
            found
            for found in iter(some_block, None)
            if str(tier._member_of(found[1]).address) == one.address  # pyright: ignore
        )
        assert tier.write(obj, 8 * MIB, stuck, data)
        obj, other, data = next(
            found
            for found in iter(some_block, None)
            if str(tier._member_of(found[1]).address) == two.address  # pyright: ignore
        )
        assert tier.write(obj, 8 * MIB, other, data)
        wait_until(lambda: tier.has(other))
        one.go_on()
