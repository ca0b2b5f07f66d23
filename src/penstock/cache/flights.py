"""One fetch for many waiters, and a little memory of what just landed.

A block that is being fetched, or has just been fetched and not been read to its end, is held
here, within a budget. The second reader waits for the first one's fetch; the second megabyte
of a block comes from memory.
"""

import threading
from collections.abc import Callable

from typing_extensions import Buffer

from penstock.cache.identity import Block

_LATELY = 256


class Flight:
    """A lock that is held while it flies: ten times as cheap as a threading.Event."""

    __slots__ = ("_error", "_flying", "data", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.data: memoryview | None = None
        self._error: BaseException | None = None
        self._flying = threading.Lock()
        self._flying.acquire()

    @property
    def landed(self) -> bool:
        return self.data is not None

    def land(self, data: Buffer) -> None:
        self.data = memoryview(data)
        self._flying.release()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._flying.release()

    def wait(self) -> memoryview:
        if self.data is None:
            with self._flying:
                pass
        if self._error is not None:
            raise self._error
        assert self.data is not None
        return self.data


class Flights:
    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._flights: dict[Block, Flight] = {}
        self._landed: dict[Block, Flight] = {}  # in the order in which they landed
        self._held_bytes = 0
        # Who looked before a flight landed, and asks after it was let go of, must look again.
        self._lately: dict[Block, None] = {}

    def ended_lately(self, block: Block) -> bool:
        return block in self._lately

    def join_or_start(self, block: Block) -> tuple[Flight, bool]:
        """The flight for this block, and whether it is the caller's to carry out."""
        with self._lock:
            flight = self._flights.get(block) or self._landed.get(block)
            if flight is not None:
                return flight, False
            flight = self._flights[block] = Flight(block.length)
            self._held_bytes += block.length
            return flight, True

    def find(self, block: Block) -> Flight | None:
        return self._flights.get(block) or self._landed.get(block)

    def has_room(self, length: int) -> bool:
        """May something nobody waits for yet be fetched? What landed longest ago makes way."""
        with self._lock:
            while self._held_bytes + length > self._budget_bytes and self._landed:
                self._drop(next(iter(self._landed)))
            return self._held_bytes + length <= self._budget_bytes

    def carry_out(
        self, block: Block, flight: Flight, fetch: Callable[[], Buffer],
        store: Callable[[memoryview], None], *, keep: bool,
        then: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        """Fetches, lets the waiters go on, `then` stores, and only then lets go of the block: at
        no moment is it neither here nor in a tier."""
        try:
            flight.land(fetch())
        except BaseException as error:
            self._finish(block, keep=False)
            flight.fail(error)
            raise

        def put_away() -> None:
            try:
                store(flight.wait())
            finally:
                self._finish(block, keep=keep)

        then(put_away)

    def _finish(self, block: Block, *, keep: bool) -> None:
        with self._lock:
            flight = self._flights.pop(block)
            self._lately[block] = None
            if len(self._lately) > _LATELY:
                del self._lately[next(iter(self._lately))]
            if keep:
                self._landed[block] = flight
                while self._held_bytes > self._budget_bytes and self._landed:
                    self._drop(next(iter(self._landed)))
            else:
                self._held_bytes -= flight.length

    def release(self, block: Block) -> None:
        """The block was read to its end; what is asked of it again comes from a tier."""
        with self._lock:
            if block in self._landed:
                self._drop(block)

    def let_go(self) -> None:
        """Of all that has landed and is kept for the next read."""
        with self._lock:
            while self._landed:
                self._drop(next(iter(self._landed)))

    def _drop(self, block: Block) -> None:
        self._held_bytes -= self._landed.pop(block).length

    @property
    def held_bytes(self) -> int:
        return self._held_bytes
