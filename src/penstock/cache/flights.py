"""One fetch for many waiters, and a little memory of what just landed.

A block that is being fetched, or has just been fetched and not been read to its end, is held
here, within a budget. The second reader waits for the first one's fetch; the second megabyte
of a block comes from memory.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from typing_extensions import Buffer


class BlockKey(NamedTuple):
    digest: bytes
    number: int


class Flight:
    __slots__ = ("_done", "_error", "data", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.data: memoryview | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    @property
    def landed(self) -> bool:
        return self.data is not None

    def land(self, data: Buffer) -> None:
        self.data = memoryview(data)
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> memoryview:
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self.data is not None
        return self.data


class Flights:
    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._flights: dict[BlockKey, Flight] = {}
        self._landed: dict[BlockKey, Flight] = {}  # in the order in which they landed
        self._held_bytes = 0

    def join_or_start(self, key: BlockKey, length: int) -> tuple[Flight, bool]:
        """The flight for this block, and whether it is the caller's to carry out."""
        with self._lock:
            flight = self._flights.get(key) or self._landed.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = Flight(length)
            self._held_bytes += length
            return flight, True

    def find(self, key: BlockKey) -> Flight | None:
        return self._flights.get(key) or self._landed.get(key)

    def has_room(self, length: int) -> bool:
        """May something nobody waits for yet be fetched? What landed longest ago makes way."""
        with self._lock:
            while self._held_bytes + length > self._budget_bytes and self._landed:
                self._drop(next(iter(self._landed)))
            return self._held_bytes + length <= self._budget_bytes

    def carry_out(
        self, key: BlockKey, flight: Flight, fetch: Callable[[], Buffer],
        store: Callable[[memoryview], None], *, keep: bool,
    ) -> None:  # fmt: skip
        """Fetches, lets the waiters go on, stores, and only then lets go of the block: at no
        moment is it neither here nor in a tier."""
        try:
            flight.land(fetch())
        except BaseException as error:
            self._finish(key, keep=False)
            flight.fail(error)
            raise
        try:
            assert flight.data is not None
            store(flight.data)
        finally:
            self._finish(key, keep=keep)

    def _finish(self, key: BlockKey, *, keep: bool) -> None:
        with self._lock:
            flight = self._flights.pop(key)
            if keep:
                self._landed[key] = flight
                while self._held_bytes > self._budget_bytes and self._landed:
                    self._drop(next(iter(self._landed)))
            else:
                self._held_bytes -= flight.length

    def release(self, key: BlockKey) -> None:
        """The block was read to its end; what is asked of it again comes from a tier."""
        with self._lock:
            if key in self._landed:
                self._drop(key)

    def _drop(self, key: BlockKey) -> None:
        self._held_bytes -= self._landed.pop(key).length

    @property
    def held_bytes(self) -> int:
        return self._held_bytes
