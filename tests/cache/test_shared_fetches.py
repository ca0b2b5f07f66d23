"""Fetches with a shared tier: who waits for another machine, and what becomes of a lease that is
not filled."""

import socket
import threading
import weakref
from collections.abc import Iterator

import pytest

from penstock.cache import memcached as protocol
from penstock.cache import shared_tier
from penstock.cache.fetch import FetchOutcome, Waiter
from penstock.cache.identity import Block
from penstock.cache.members import parse_members
from penstock.cache.memcached import LEASE_S
from penstock.cache.seal import Packing
from penstock.cache.shared_tier import FetchedElsewhere, SharedPending, SharedTier
from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store import Pending
from tests.support.fetches import DATA, LENGTH, WHAT, Clock, Rig, Shelf, small
from tests.support.memcached import Memcached, address_of, memcached
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def member() -> Iterator[Memcached]:
    with memcached() as member:
        yield member


@pytest.fixture(autouse=True)
def _leases_last(member: Memcached, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test passes because a lease has run out."""
    member.ask(b"flush_all\r\n")
    monkeypatch.setattr(protocol, "LEASE_S", 3600)


@pytest.fixture
def tiers(member: Memcached) -> Iterator[list[SharedTier]]:
    """Those of two machines."""
    source = parse_members(address_of(member))
    tiers = [SharedTier(source, Packing(), Counters()) for _ in range(2)]
    yield tiers
    for tier in tiers:
        tier.close(1.0)


@pytest.fixture
def rig(tiers: list[SharedTier]) -> Iterator[Rig]:
    """The fetches of the first machine."""
    with Rig(Shelf(), shared=tiers[0]) as rig:
        yield rig


def may_fetch(tier: SharedTier, block: Block) -> bool:
    try:
        return tier.find(block, may_wait=False) is None
    except FetchedElsewhere:
        return False


def is_free(tier: SharedTier, block: Block) -> bool:
    """Whether there is no lease, so that this tier has it now."""
    in_vain = tier._counters.total("shared_waited_in_vain")
    return may_fetch(tier, block) and tier._counters.total("shared_waited_in_vain") == in_vain


# -- leases that are not filled ------------------------------------------------------------


def test_the_lease_of_a_fetch_that_failed_is_free_at_once(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    rig.store.error = StoreError("gone")
    assert isinstance(rig.read(small(1)), StoreError)
    wait_until(lambda: is_free(tiers[1], small(1)))


def test_a_reader_whose_first_attempt_failed_does_not_wait_for_its_own_lease(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    rig.store.error = StoreError("gone")
    assert isinstance(rig.read(small(1)), StoreError)
    rig.store.error = None
    assert rig.read(small(1)) == DATA[:LENGTH]
    assert tiers[0]._counters.total("shared_waited_in_vain") == 0
    assert tiers[0].wait_until_filled(PATIENCE_S)
    assert tiers[1].find(small(1), may_wait=False) is not None


def test_the_lease_of_a_started_fetch_that_failed_is_free_at_once(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    assert not tiers[0].has(small(0)), "a connection is idle now"
    answers: list[memoryview | Exception] = []

    def fails() -> Pending:
        raise StoreError("no credentials")

    job = rig.fetches.request(
        small(1),
        WHAT,
        rig.store.get,
        Waiter(0, LENGTH, answers.append),
        tiers_checked=True,
        return_job=True,
        begin=fails,
    )
    assert job is not None
    started = job.begin()
    assert started is not None
    rig.store.error = StoreError("gone")
    wait_until(started.advance)
    wait_until(lambda: answers)
    assert str(answers[0]) == "gone", "the store was asked again by a thread that may wait"
    wait_until(lambda: is_free(tiers[1], small(1)))


def test_the_lease_of_a_fill_that_is_dropped_is_free_at_once(
    member: Memcached, tiers: list[SharedTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "_QUEUE_WAIT_S", 0.0)
    assert may_fetch(tiers[0], small(1))
    monkeypatch.setattr(tiers[0]._fills, "has_room", lambda _length: False)
    assert not tiers[0].write(WHAT, LENGTH, small(1), DATA[:LENGTH])
    wait_until(lambda: is_free(tiers[1], small(1)))


def test_an_old_lease_is_not_given_up_since_another_machine_may_have_it_now(
    member: Memcached,
) -> None:
    clock = Clock()
    tier = SharedTier(parse_members(address_of(member)), Packing(), Counters(), now=clock)
    assert may_fetch(tier, small(1))
    clock.now_s += LEASE_S
    tier.release(small(1))
    tier.close(1.0)
    assert member.ask(b"mg %s s\r\n" % Packing().name(small(1), 0)) == b"HD s0 Z\r\n"


def test_the_number_of_leases_that_are_remembered_is_bounded(
    tiers: list[SharedTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tier, "_REMEMBERED", 3)
    for number in range(9):
        assert may_fetch(tiers[0], small(number))
        assert not may_fetch(tiers[1], small(number))
    assert len(tiers[0]._leases) == len(tiers[1]._taken) == 3


def test_a_lease_that_nobody_ends_holds_up_a_load_for_a_bounded_time(member: Memcached) -> None:
    """One that somebody else made, who can reach the member, may last for a day."""
    clock = Clock()
    member.ask(b"mg %s N86400 v\r\n" % Packing().name(small(1), 0))
    tier = SharedTier(parse_members(address_of(member)), Packing(), Counters(), now=clock)
    for _ in range(6):
        assert not may_fetch(tier, small(1))
        clock.now_s += 1.0
    assert may_fetch(tier, small(1))
    clock.now_s += 3600.0
    assert not may_fetch(tier, small(1)), "another lease, an hour later"
    tier.close(1.0)


# -- readers -------------------------------------------------------------------------------


def test_a_reader_that_joins_prefetches_again_and_again_gets_its_data(
    rig: Rig, tiers: list[SharedTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefetch fails, since another machine is fetching the block. Before its reader has
    started a fetch of its own, the next prefetch has begun."""
    block = small(1)
    assert may_fetch(tiers[1], block)
    gate, find = rig.gate(), SharedTier.find

    def find_later(tier: SharedTier, *args: object, **options: object) -> object:
        assert gate.wait(PATIENCE_S)
        return find(tier, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SharedTier, "find", find_later)
    ahead = (block, None, rig.clock.now_s + 1.0)  # whatever has ended before
    threads = [threading.Thread(target=rig.fetch_ahead, args=ahead) for _ in range(2)]
    join, joined = rig.fetches._join_or_start, 0

    def join_later(*args: object, **options: object) -> object:
        nonlocal joined
        joined += 1
        if joined == 2:
            gate.clear()
            threads[1].start()
            wait_until(lambda: rig.fetches.find(block) is not None)
            threading.Timer(0.05, gate.set).start()
        return join(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.fetches, "_join_or_start", join_later)
    threads[0].start()
    wait_until(lambda: rig.fetches.find(block) is not None)
    answers = rig.request(block)
    gate.set()
    wait_until(lambda: joined >= 3 or answers)
    assert answers == []
    assert tiers[1].write(WHAT, LENGTH, block, DATA[:LENGTH])
    wait_until(lambda: answers)
    assert answers[0] == DATA[:LENGTH]
    assert rig.store.asked == []
    for thread in threads:
        thread.join()


def test_a_wait_for_another_machine_does_not_count_as_a_slow_store(
    member: Memcached, tiers: list[SharedTier]
) -> None:
    clock = Clock()
    tier = SharedTier(parse_members(address_of(member)), Packing(), Counters(), now=clock)
    assert may_fetch(tiers[1], small(1))
    assert not tier.has(small(0)), "a connection is idle now"
    with Rig(shared=tier, clock=clock) as rig:
        for _ in range(1000):  # the store takes a tenth of a second
            rig.fetches._hedging.note(LENGTH, 0.1)
        gate = rig.gate()
        answers: list[memoryview | Exception] = []
        asked = threading.Event()

        def get(*_: object) -> bytes:
            asked.set()
            assert gate.wait(PATIENCE_S)
            return DATA[:LENGTH]

        job = rig.fetches.request(
            small(1),
            WHAT,
            get,
            Waiter(0, LENGTH, answers.append),
            tiers_checked=True,
            return_job=True,
            begin=lambda: None,
        )
        assert job is not None
        started = job.begin()
        assert started is not None
        wait_until(started.advance)
        wait_until(lambda: tier._counters.total("shared_waits") > 1)  # the thread that may wait
        clock.now_s += 10.0
        assert asked.wait(PATIENCE_S)
        rig.fetches.watchdog.check_timeouts()
        assert rig.count("hedges") == 0
        gate.set()
        wait_until(lambda: answers)


def test_an_ask_ahead_that_finds_another_machine_fetching_is_no_prefetched_block(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    assert may_fetch(tiers[1], small(1))
    for _ in range(3):
        rig.clock.now_s += 1.0
        found = rig.fetch_ahead(small(1), missing_since_s=rig.clock.now_s - 0.5)
        assert found.outcome is FetchOutcome.ELSEWHERE
    assert rig.count("prefetched_blocks") == 0
    assert rig.fetches.held_bytes == 0


# -- fills -----------------------------------------------------------------------------------


def test_a_disk_that_hangs_does_not_hold_up_the_machines_that_wait_for_a_fill(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    rig.shelf.gate.clear()
    answers = rig.request(small(1))
    wait_until(lambda: tiers[1].read(small(1), 0, LENGTH) == DATA[:LENGTH])
    assert answers
    assert rig.fetches.in_flight == 1


def test_a_full_queue_never_holds_up_the_thread_that_answers_the_kernel(
    rig: Rig, tiers: list[SharedTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take the room that was there a moment before."""
    monkeypatch.setattr(shared_tier, "_QUEUE_WAIT_S", 3600.0)
    monkeypatch.setattr(tiers[0]._fills, "has_room", lambda _length: False)
    monkeypatch.setattr(tiers[0], "has_room", lambda _block: True)
    assert not tiers[0].has(small(0)), "a connection is idle now"
    job = rig.fetches.request(
        small(1),
        WHAT,
        rig.store.get,
        Waiter(0, LENGTH, lambda _part: None),
        tiers_checked=True,
        return_job=True,
        begin=lambda: Come(),
    )
    assert job is not None
    started = job.begin()
    assert started is not None
    wait_until(started.advance)
    started.write_to_cache()
    assert rig.fetches.in_flight == 0
    assert tiers[0]._counters.total("shared_fills_dropped") == 1


class Come:
    """A GET that was answered at once."""

    def fileno(self) -> int:
        return 7

    def advance(self) -> bool:
        return True

    def result(self) -> bytes:
        return DATA[:LENGTH]

    def retry(self, error: Exception, /) -> bytes:
        raise error


class Bytes(bytearray):
    """Can be watched."""


def test_a_thread_that_has_filled_the_tier_holds_no_bytes(tiers: list[SharedTier]) -> None:
    data = Bytes(DATA[:LENGTH])
    watched = weakref.ref(data)
    assert tiers[0].write(WHAT, LENGTH, small(1), data)
    del data
    assert tiers[0].wait_until_filled(PATIENCE_S)
    wait_until(lambda: watched() is None)


# -- connections -----------------------------------------------------------------------------


def test_a_started_fetch_that_is_abandoned_closes_its_connection_and_frees_its_slot(
    rig: Rig, tiers: list[SharedTier]
) -> None:
    assert not tiers[0].has(small(0)), "a connection is idle now"
    (at,) = tiers[0]._members
    free = at._slots._value
    job = rig.fetches.request(
        small(1),
        WHAT,
        rig.store.get,
        Waiter(0, LENGTH, lambda _part: None),
        tiers_checked=True,
        return_job=True,
        begin=lambda: None,
    )
    assert job is not None
    started = job.begin()
    assert started is not None
    assert at._slots._value == free - 1
    descriptor = started.fileno()
    started.abandon(StoreError("a bug"))
    del started
    assert at._slots._value == free
    with pytest.raises(OSError, match="descriptor"):
        socket.socket(fileno=descriptor)


def test_a_pending_whose_store_cannot_be_asked_fails_with_its_error(
    tiers: list[SharedTier],
) -> None:
    assert not tiers[0].has(small(0)), "a connection is idle now"

    def fails() -> Pending:
        raise StoreError("no credentials")

    pending = tiers[0].begin(small(1), fails, lambda: DATA[:LENGTH], lambda: None)
    assert isinstance(pending, SharedPending)
    wait_until(pending.advance)
    with pytest.raises(StoreError, match="no credentials") as caught:
        pending.result()
    assert pending.retry(caught.value) == DATA[:LENGTH]
