"""A second fetch for a slow one: when, how many, and who wins. And the end of a hanging one."""

import threading
from collections.abc import Iterator

import pytest

from penstock.cache.flights import Flight
from penstock.cache.hedging import MOST_AT_ONCE, Hedging
from penstock.cache.watcher import Watcher
from penstock.errors import StoreError
from penstock.metrics import Counters
from tests.support.flights import DATA, LENGTH, WHAT, Clock, block, build, start
from tests.support.waiting import wait_until


def seasoned(seconds: float = 0.1, count: int = 1000) -> Hedging:
    hedging = Hedging()
    for _ in range(count):
        hedging.note(LENGTH, seconds)
    return hedging


def test_slow_is_slower_than_ninety_nine_of_a_hundred_of_that_size() -> None:
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


def test_at_most_one_in_twenty_is_hedged_and_little_is_saved_up() -> None:
    hedging = seasoned(count=100_000)
    assert sum(hedging.spend() for _ in range(100)) == 8
    for _ in range(40):
        hedging.note(LENGTH, 0.1)
    assert [hedging.spend() for _ in range(3)] == [True, True, False]


class Watched:
    """Flights with a watcher that looks when the test says so."""

    def __init__(self, blocks: int = 100) -> None:
        self.clock = Clock()
        self.counters = Counters()
        self.flights = build(self.clock, blocks=blocks)
        self.hedging = seasoned()
        self.watcher = Watcher(self.flights, self.hedging, self.counters, 60.0, self.clock)
        self.gates: list[threading.Event] = []
        self.threads: list[threading.Thread] = []

    def slow(self, number: int, first: bytes = DATA, second: bytes = DATA) -> Flight:
        """Starts a fetch whose first attempt waits for its gate; the second comes at once."""
        gate, begun = threading.Event(), threading.Event()
        self.gates.append(gate)

        def wait() -> bytes:
            begun.set()
            gate.wait(30)
            return first

        attempts = iter((wait, lambda: second))
        flight = start(self.flights, number, lambda: next(attempts)())
        flight.then(lambda _: None)
        thread = threading.Thread(target=self.flights.carry_out, args=(flight,))
        thread.start()
        self.threads.append(thread)
        assert begun.wait(20)
        return flight

    def count(self, name: str) -> int:
        return self.counters.total(name)

    def close(self) -> None:
        for gate in self.gates:
            gate.set()
        for thread in self.threads:
            thread.join()
        wait_until(lambda: self.flights.held_bytes == 0)
        self.watcher.close(10)  # drops second fetches that have not begun, with what they hold


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.close()


def test_a_slow_fetch_gets_one_second_one_which_wins(watched: Watched) -> None:
    flight = watched.slow(0, b"first", b"second")
    watched.watcher.look()
    assert watched.count("hedges") == 0
    watched.clock.now_s += 0.2
    wait_until(lambda: flight.done)
    assert flight.data == b"second"
    wait_until(lambda: watched.count("hedges_won") == 1)
    watched.gates[0].set()
    wait_until(lambda: watched.flights.held_bytes == 0)
    assert (watched.count("hedges"), flight.data) == (1, b"second")


def test_what_nobody_waits_for_is_not_hedged(watched: Watched) -> None:
    flight = watched.flights.start_if_room(block(0), WHAT, lambda _start, _length: DATA)
    assert flight is not None
    flight.fetching_s = watched.clock.now_s
    watched.clock.now_s += 50
    watched.watcher.look()
    assert watched.count("hedges") == 0
    watched.flights.carry_out(flight)


def test_no_more_than_a_few_are_hedged_at_once(watched: Watched) -> None:
    blocked = threading.Event()
    watched.gates.append(blocked)
    for number in range(20):
        watched.slow(number)
    for flight in watched.flights.flying():
        flight.fetch = lambda _start, _length: bytes(0 * blocked.wait(30)) + DATA
    watched.clock.now_s += 0.2
    wait_until(lambda: watched.count("hedges") == MOST_AT_ONCE)  # it looks by itself, too
    for _ in range(3):
        watched.watcher.look()
    assert watched.count("hedges") == MOST_AT_ONCE


def test_a_share_of_requests_bounds_second_fetches(watched: Watched) -> None:
    while watched.hedging.spend():
        pass
    watched.slow(0)
    watched.clock.now_s += 0.2
    for _ in range(MOST_AT_ONCE + 1):
        watched.watcher.look()
    assert watched.count("hedges") == 0
    for _ in range(100):
        watched.hedging.note(LENGTH, 0.1)
    wait_until(lambda: watched.watcher.look() == 0, "the second fetch is not sent after all")
    assert watched.count("hedges") == 1


def test_memory_bounds_second_fetches() -> None:
    watched = Watched(blocks=1)
    watched.slow(0)
    watched.clock.now_s += 0.2
    for _ in range(MOST_AT_ONCE + 1):
        watched.watcher.look()
    assert watched.count("hedges") == 0
    watched.close()


def test_a_second_fetch_that_fails_changes_nothing(watched: Watched) -> None:
    def fail(_start: int, _length: int) -> bytes:
        raise StoreError("down")

    flight = watched.slow(0, b"first")
    flight.fetch = fail
    watched.clock.now_s += 0.2
    wait_until(lambda: watched.count("hedges") == 1)
    assert not flight.done
    watched.gates[0].set()
    wait_until(lambda: flight.done)
    assert flight.data == b"first"
    assert watched.count("hedges_won") == 0


def test_a_fetch_that_hangs_fails_at_its_deadline(watched: Watched) -> None:
    flight = watched.slow(0)
    flight.hedged = True
    watched.clock.now_s += 59
    watched.watcher.look()
    assert not flight.done
    watched.clock.now_s += 1
    wait_until(lambda: flight.done)
    assert isinstance(flight.error, StoreError)
    assert flight.error.kind == "timeout"
    assert "s3://b/key" in str(flight.error)
    assert "1m00s" in str(flight.error)


def test_the_watcher_sleeps_while_nothing_flies_and_wakes_when_something_does() -> None:
    clock = Clock()
    flights = build(clock)
    looks, flying = list[float](), flights.flying
    flights.flying = lambda: looks.append(clock.now_s) or flying()  # type: ignore[method-assign]
    watcher = Watcher(flights, Hedging(), Counters(), 60.0, clock)
    wait_until(lambda: len(looks) > 3)
    assert flights._watched, "it looks on for a second"
    clock.now_s += 2
    wait_until(lambda: not flights._watched)
    flight = start(flights, 0)
    clock.now_s += 60
    wait_until(lambda: flight.done)
    assert isinstance(flight.error, StoreError)
    watcher.close(10)
