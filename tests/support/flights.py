"""Fetches of blocks in flight (penstock.cache.flights), with a clock that the test moves."""

from collections.abc import Callable

from typing_extensions import Buffer

from penstock.cache.flights import Flight, Flights
from penstock.cache.identity import Block, identify

LENGTH = 100
DATA = bytes(LENGTH)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def block(number: int, length: int = LENGTH) -> Block:
    return Block(b"digest", number, number * length, length, False)


def build(
    clock: Callable[[], float], *, blocks: int = 4, keep: bool = False,
    then: Callable[[Callable[[], None]], None] = lambda finish: finish(),
) -> Flights:  # fmt: skip
    """Flights that are put away at once, unless `then` does it later."""

    def put_away(flight: Flight) -> None:
        then(lambda: flights.finish(flight, keep=keep))

    def get(flight: Flight) -> Buffer:
        return flight.fetch(flight.block.start, flight.block.length)

    flights = Flights(blocks * LENGTH, 60.0, get=get, put_away=put_away, now=clock)
    return flights


WHAT = identify("s3://b", "key", "v", 1000, 1000)


def start(
    flights: Flights, number: int, get: Callable[[], bytes] = lambda: DATA, *, length: int = LENGTH
) -> Flight:
    flight, mine = flights.join_or_start(
        block(number, length), WHAT, lambda _start, _length: get(), looked=True
    )
    assert mine
    return flight


def join(flights: Flights, number: int) -> tuple[Flight, bool]:
    return flights.join_or_start(block(number), WHAT, lambda _start, _length: DATA, looked=True)
