"""A second fetch for a slow one: when, how many, and who wins. And the end of a hanging one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from penstock.cache.fetch import Fetch
from penstock.cache.watchdog import MOST_AT_ONCE, Hedging, Watchdog
from penstock.errors import StoreError
from tests.support.fetches import DATA, LENGTH, Rig, Shelf, Unwatched, block, small
from tests.support.waiting import PATIENCE_S, wait_until


def season(hedging: Hedging, seconds: float = 0.1, count: int = 1000) -> Hedging:
    for _ in range(count):
        hedging.note(LENGTH, seconds)
    return hedging


def seasoned(seconds: float = 0.1, count: int = 1000) -> Hedging:
    return season(Hedging(), seconds, count)


def test_a_fetch_is_slow_if_it_exceeds_the_99th_percentile_of_its_size() -> None:
    hedging = seasoned(count=99)
    assert hedging.slow_after_s(LENGTH) is None, "too few have been seen"
    hedging.note(LENGTH, 0.1)
    assert hedging.slow_after_s(LENGTH) == 0.1
    assert hedging.slow_after_s(64 * LENGTH) is None
    assert seasoned(0.001).slow_after_s(LENGTH) == 0.02, "nothing faster is slow"
    hedging = Hedging()
    for number in range(1000):
        hedging.note(LENGTH, 1.0 if number % 200 == 0 else 0.1)
    assert hedging.slow_after_s(LENGTH) == 0.1
    for _ in range(49):
        hedging.note(LENGTH, 1.0)
    assert hedging.slow_after_s(LENGTH) == 0.1, "not sorted again for each"
    hedging.note(LENGTH, 1.0)
    assert hedging.slow_after_s(LENGTH) == 1.0


def test_at_most_one_in_twenty_fetches_is_hedged_and_little_is_saved_up() -> None:
    hedging = seasoned(count=100_000)
    assert sum(hedging.spend() for _ in range(100)) == 8
    for _ in range(40):
        hedging.note(LENGTH, 0.1)
    assert [hedging.spend() for _ in range(3)] == [True, True, False]


FIRST, SECOND = b"first".ljust(LENGTH), b"second".ljust(LENGTH)


class Slow(Rig):
    """What is fetched takes an eighth of a second, but for what is slow."""

    def __init__(self, shelf: Shelf | None = None, *, blocks: int = 100) -> None:
        super().__init__(shelf, blocks=blocks, threads=32)
        season(self.fetches._hedging, 0.125)
        self.second_error: Exception | None = None
        self.second_gate = self.gate()
        self.second_gate.set()

    def slow(self, number: int) -> tuple[Fetch, threading.Event]:
        """Starts a fetch whose first attempt waits for its gate; the second comes at once."""
        gate, attempts, lock = self.gate(), list[bytes](), threading.Lock()

        def get() -> bytes:
            with lock:
                attempts.append(SECOND if attempts else FIRST)
                mine = attempts[-1]
            if mine is FIRST:
                gate.wait(PATIENCE_S)
                return mine
            self.second_gate.wait(PATIENCE_S)
            if self.second_error is not None:
                raise self.second_error
            return mine

        self.request(small(number), get)
        wait_until(lambda: attempts)
        fetch = self.fetches.find(small(number))
        assert fetch is not None
        return fetch, gate


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as rig:
        yield rig


def test_a_slow_fetch_gets_one_hedge_which_wins() -> None:
    with Slow(Shelf()) as slow:
        fetch, gate = slow.slow(0)
        slow.look_after(0.125)
        assert slow.count("hedges") == 0
        slow.look_after(0.001)
        wait_until(lambda: slow.count("hedges_won") == 1)
        assert fetch.data == SECOND
        assert slow.shelf.blocks == {small(0): SECOND}
        assert slow.fetches.held_bytes == LENGTH, "the first is counted until it ends"
        gate.set()
        wait_until(lambda: slow.fetches.held_bytes == 0)
        slow.look_after(1)
        assert (slow.count("hedges"), fetch.data, slow.shelf.writes) == (1, SECOND, 1)


def test_a_hedge_that_arrives_later_is_dropped_and_no_third_request_is_sent(slow: Slow) -> None:
    slow.second_gate.clear()
    fetch, gate = slow.slow(0)
    slow.look_after(0.2)
    slow.look_after(0.2)
    assert slow.count("hedges") == 1
    assert slow.fetches.held_bytes == 2 * LENGTH
    gate.set()
    wait_until(lambda: fetch.is_done)
    slow.second_gate.set()
    wait_until(lambda: slow.fetches.held_bytes == 0)
    assert (slow.count("hedges_won"), fetch.data) == (0, FIRST)


def test_only_a_fetch_in_progress_with_a_waiting_reader_is_hedged(slow: Slow) -> None:
    slow.store.gate.clear()
    assert slow.prefetch(block(0))
    wait_until(lambda: slow.store.asked)
    slow.look_after(50)
    assert slow.count("hedges") == 0, "nobody waits for it"
    slow.request(block(0))
    slow.fetches.watchdog.check_timeouts()
    assert slow.count("hedges") == 1
    plan = threading.Thread(target=slow.fetch_ahead, args=(block(1), lambda _data: True))
    plan.start()
    wait_until(lambda: len(slow.store.asked) == 3)
    slow.request(block(1))
    slow.look_after(50)
    assert slow.count("hedges") == 1, "a plan has its own measure of how much is sent"
    slow.store.gate.set()
    plan.join()
    with Slow(blocks=1) as full:
        full.slow(0)
        waits = full.request(small(1))
        wait_until(lambda: full.fetches._queue)
        full.look_after(50)
        assert (full.count("hedges"), waits) == (0, []), "it waits for memory, not for the store"


def test_the_number_of_concurrent_hedges_is_bounded(slow: Slow) -> None:
    slow.second_gate.clear()
    for number in range(20):
        slow.slow(number)
    for _ in range(3):
        slow.look_after(0.2)
    assert slow.count("hedges") == MOST_AT_ONCE
    slow.second_gate.set()
    wait_until(lambda: slow.count("hedges_won") == MOST_AT_ONCE)
    slow.second_gate.clear()
    slow.fetches.watchdog.check_timeouts()
    assert slow.count("hedges") == 2 * MOST_AT_ONCE, "those that have ended make way for others"


def test_hedges_are_bounded_by_a_share_of_requests(slow: Slow) -> None:
    hedging = slow.fetches._hedging
    while hedging.spend():
        pass
    fetch, _ = slow.slow(0)
    for _ in range(MOST_AT_ONCE + 1):
        slow.look_after(0.2)
    assert slow.count("hedges") == 0
    assert slow.fetches.held_bytes == LENGTH
    season(hedging, count=100)
    slow.fetches.watchdog.check_timeouts()
    wait_until(lambda: fetch.is_done)
    assert slow.count("hedges") == 1


def test_hedges_are_bounded_by_memory() -> None:
    with Slow(blocks=1) as slow:
        fetch, _ = slow.slow(0)
        for _ in range(100):
            slow.look_after(0.2)
        assert slow.count("hedges") == 0
        slow.fetches._budget_bytes = 2 * LENGTH
        slow.fetches.watchdog.check_timeouts()
        wait_until(lambda: fetch.is_done)
        assert slow.count("hedges") == 1, "what there was no memory for was not spent"


def test_readers_waiting_for_memory_come_before_hedges() -> None:
    with Slow(blocks=3) as slow:
        slow.slow(0)
        slow.request(block(1, 3 * LENGTH))
        wait_until(lambda: slow.fetches._queue)
        slow.look_after(0.2)
        assert slow.count("hedges") == 0


def test_a_failed_hedge_changes_nothing(slow: Slow) -> None:
    slow.second_error = StoreError("down")
    for number in range(3 * MOST_AT_ONCE):
        fetch, gate = slow.slow(number)
        season(slow.fetches._hedging, count=20)
        slow.look_after(0.2)
        wait_until(lambda: slow.fetches.held_bytes == LENGTH)
        assert slow.count("hedges") == number + 1, "the next may still be sent"
        assert not fetch.is_done
        gate.set()
        wait_until(lambda: slow.fetches.held_bytes == 0)
        assert fetch.data == FIRST
    assert slow.count("hedges_won") == 0


def test_only_fetch_times_from_the_store_are_recorded() -> None:
    with Rig(Shelf(), threads=1) as rig:
        rig.shelf.blocks[block(0)] = DATA[:LENGTH]

        def take() -> bytes:
            rig.clock.now_s += 0.5
            return DATA[:LENGTH]

        answers = [
            rig.request(block(0), tiers_checked=False),
            *(rig.request(small(n), take) for n in range(100)),
        ]
        wait_until(lambda: all(answers))
        hedging = rig.fetches._hedging
        wait_until(lambda: hedging.slow_after_s(LENGTH) is not None)
        (window,) = hedging._classes.values()
        assert window.count == 100
        assert min(window._samples) == 0.5


def test_a_hanging_fetch_fails_at_its_deadline_and_names_the_cause(slow: Slow) -> None:
    fetch, _ = slow.slow(0)
    fetch.hedged = True
    slow.look_after(59)
    assert not fetch.is_done
    slow.look_after(1)
    assert isinstance(fetch.error, StoreError)
    assert fetch.error.kind == "timeout"
    assert "s3://b/key" in str(fetch.error)
    assert "1m00s" in str(fetch.error)


class Watched(Unwatched):
    """Looks by itself, too, and counts how often."""

    looks = 0
    _run = Watchdog._run

    def check_timeouts(self) -> int:
        self.looks += 1
        return super().check_timeouts()


def test_the_watchdog_sleeps_while_idle_and_wakes_with_a_fetch() -> None:
    with Rig(watchdog=Watched) as rig:
        watchdog = cast("Watched", rig.fetches.watchdog)
        wait_until(lambda: watchdog.looks > 3)
        assert watchdog.is_awake, "it looks on for a second"
        rig.clock.now_s += 2
        wait_until(lambda: not watchdog.is_awake)
        looks = watchdog.looks
        rig.store.gate.clear()
        for number in range(2):
            answers = rig.request(block(number))
            assert not answers
            rig.clock.now_s += 60
            wait_until(lambda answers=answers: answers)
            assert isinstance(answers[0], StoreError)
            rig.clock.now_s += 2
            wait_until(lambda: not watchdog.is_awake)
        assert watchdog.looks > looks


def test_the_watchdog_does_not_fall_asleep_when_a_fetch_has_just_started() -> None:
    with Rig() as rig, ThreadPoolExecutor(1) as watcher:
        rig.store.gate.clear()
        rig.request(block(0))
        watcher.submit(rig.fetches.watchdog._sleep).result(PATIENCE_S)
