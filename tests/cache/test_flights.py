"""One fetch for many: who is called back, what is dropped, and how much is held."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.cache.flights import Flight, Flights
from penstock.errors import StoreError
from tests.support.flights import DATA, LENGTH, WHAT, Clock, block, build, join, start
from tests.support.waiting import wait_until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flights(clock: Clock) -> Flights:
    return build(clock)


def lone() -> Flight:
    return Flight(block(0), WHAT, lambda _start, _length: DATA, 0.0, looked=True)


# -- the flight itself --------------------------------------------------------------------


def test_the_first_to_land_or_fail_it_wins_and_each_waiter_is_called_once() -> None:
    calls: list[object] = []
    flight = lone()
    flight.then(lambda flight: calls.append(flight.data))
    assert flight.land(b"first")
    assert not flight.land(b"second")
    assert not flight.fail(StoreError("late"))
    flight.then(lambda flight: calls.append(flight.error))
    assert calls == [b"first", None]
    error, other = StoreError("overdue"), lone()
    assert other.fail(error)
    assert not other.land(DATA)
    assert (other.data, other.error, other.landed, other.done) == (None, error, False, True)


# -- joining --------------------------------------------------------------------------------


def test_who_asks_after_a_failure_starts_anew(flights: Flights) -> None:
    def fail() -> bytes:
        raise StoreError("down")

    flight = start(flights, 0, fail)
    assert flights.carry_out(flight) is None
    assert isinstance(flight.error, StoreError)
    assert flights.held_bytes == 0
    assert join(flights, 0)[1]


def test_who_waited_a_whole_deadline_is_not_made_to_wait_another(
    flights: Flights, clock: Clock
) -> None:
    """The kernel asks again, page by page, for what its readahead did not get."""
    flight = start(flights, 0)
    clock.now_s += 60
    flights.fail(flight, StoreError("overdue"))
    clock.now_s += 0.5
    assert join(flights, 0) == (flight, False)
    assert join(flights, 1)[1], "another block is asked for"
    clock.now_s += 0.6
    again, mine = join(flights, 0)
    assert mine
    clock.now_s += 31
    flights.fail(again, StoreError("the next attempt would come too late"))
    clock.now_s += 1.1
    assert join(flights, 0)[1], "a failure before the deadline is not remembered until it"


def test_a_failure_that_is_remembered_holds_no_bytes(flights: Flights, clock: Clock) -> None:
    alive: list[weakref.ref[Bytes]] = []

    def get() -> bytes:
        body = Bytes(LENGTH)
        alive.append(weakref.ref(body))
        clock.now_s += 60
        raise StoreError(f"{len(body)} bytes that do not match")

    flights.carry_out(start(flights, 0, get))
    assert not join(flights, 0)[1]
    assert alive[0]() is None


# -- memory ---------------------------------------------------------------------------------


def test_what_is_demanded_waits_for_room_and_never_exceeds_the_budget(flights: Flights) -> None:
    gate = threading.Event()
    most = 0
    lock = threading.Lock()

    def get() -> bytes:
        nonlocal most
        with lock:
            most = max(most, flights.held_bytes)
        gate.wait(30)
        return DATA

    many = [start(flights, number, get) for number in range(40)]
    with ThreadPoolExecutor(16) as threads:
        fetching = [threads.submit(flights.carry_out, flight) for flight in many]
        wait_until(lambda: most == 4 * LENGTH)
        assert sum(flight.fetching_s is not None for flight in many) <= 4
        gate.set()
        assert all(future.result(30) is not None for future in fetching)
    assert most == 4 * LENGTH
    assert flights.held_bytes == 0
    assert all(flight.landed for flight in many)


def test_what_has_landed_makes_way(clock: Clock) -> None:
    flights = build(clock, keep=True)
    for number in range(10):
        flights.carry_out(start(flights, number))
        assert flights.held_bytes <= 4 * LENGTH
    assert flights.find(block(9)) is not None
    assert flights.find(block(0)) is None


class Bytes(bytearray):
    """Bytes that can be watched."""


def test_bytes_go_with_the_last_who_needs_them_and_not_with_the_next_collection(
    clock: Clock,
) -> None:
    flights, seen = build(clock), list[object]()
    gc.collect()
    gc.disable()
    try:
        data = Bytes(LENGTH)
        alive = weakref.ref(data)
        arriving = [data]
        del data
        flight = start(flights, 0, arriving.pop)  # type: ignore[arg-type]
        flight.then(lambda flight: seen.append(flight.error))
        flights.carry_out(flight)
        del flight
        assert seen == [None]
        assert alive() is None
    finally:
        gc.enable()


def test_a_large_one_is_not_starved_by_small_ones(flights: Flights) -> None:
    gate, order = threading.Event(), list[int]()

    def get(number: int) -> bytes:
        order.append(number)
        gate.wait(30)
        return DATA

    first = start(flights, 0, lambda: get(0))
    large = start(flights, 1, lambda: get(1), length=4 * LENGTH)
    small = start(flights, 2, lambda: get(2))
    with ThreadPoolExecutor(3) as threads:
        threads.submit(flights.carry_out, first)
        wait_until(lambda: order == [0])
        threads.submit(flights.carry_out, large)
        wait_until(lambda: bool(flights._queue))
        threads.submit(flights.carry_out, small)
        wait_until(lambda: len(flights._queue) == 2)
        assert order == [0], "there is room for the small one, but not its turn"
        gate.set()
    assert order == [0, 1, 2]


def test_who_waits_for_room_longer_than_its_deadline_leaves_the_queue(flights: Flights) -> None:
    gate = threading.Event()
    many = [start(flights, number, lambda: bytes(gate.wait(30)) + DATA) for number in range(4)]
    late = start(flights, 9)
    with ThreadPoolExecutor(5) as threads:
        for flight in many:
            threads.submit(flights.carry_out, flight)
        wait_until(lambda: flights.held_bytes == 4 * LENGTH)
        waiting = threads.submit(flights.carry_out, late)
        wait_until(lambda: bool(flights._queue))
        flights.fail(late, StoreError("overdue"))
        assert waiting.result(30) is None
        gate.set()
    assert flights.held_bytes == 0


def test_what_nobody_waits_for_starts_only_where_there_is_room(flights: Flights) -> None:
    started = [
        flights.start_if_room(block(number), WHAT, lambda _start, _length: DATA)
        for number in range(6)
    ]
    assert [flight is not None for flight in started] == [True] * 4 + [False] * 2
    assert flights.held_bytes == 4 * LENGTH
    for flight in started:
        if flight is not None:
            flights.carry_out(flight)
    assert flights.held_bytes == 0
    # One fetch is always admitted, however large it is.
    assert flights.carry_out(start(flights, 9, length=50 * LENGTH)) is not None
    assert flights.held_bytes == 0


def test_what_is_remembered_of_ended_fetches_is_bounded(
    flights: Flights, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cache.flights._LATELY", 3)
    monkeypatch.setattr("penstock.cache.flights._FAILED", 2)
    for number in range(10):
        flight = start(flights, number)
        clock.now_s += 60
        flights.fail(flight, StoreError("overdue"))
    assert [one.number for one in flights._lately] == [7, 8, 9], "the newest"
    assert [one.number for one in flights._failed] == [8, 9]
