"""Reads through the tiers, fastest first, then the store; fills the first tier with room.

A tier that fails costs a warning and a miss, never the read.

Threading: any thread. `read_now` and `deliver` never wait for the store: small objects are fetched
by one of `threads`, which also answers; blocks of large ones by one of `fetchers`.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.blocks import Span, block_count, spans
from penstock.cache.errands import Errand, Errands
from penstock.cache.filler import Filler
from penstock.cache.flights import Fetch, Flight, Flights, Stored
from penstock.cache.hedging import Hedging
from penstock.cache.identity import Block, CachedObject, block_of
from penstock.cache.pool import Pool
from penstock.cache.tier import Tier
from penstock.cache.watcher import Watcher
from penstock.errors import StoreError
from penstock.metrics import Counters

log = logging.getLogger(__name__)

# Called once, with all of a range or with why not, from whichever thread knows.
Done = Callable[[list[memoryview] | Exception], None]

# Puts the bytes of a block where readers find them without asking; False if it could not.
Place = Callable[[memoryview], bool]


class Brought(Enum):
    """What became of a block that was to be there before it is asked for."""

    FETCHED = "fetched"
    CACHED = "cached"  # it was in a tier, or in memory
    JOINED = "joined"  # someone else is fetching it
    NO_ROOM = "no room"  # the memory for fetches is used up: later
    FAILED = "failed"


class Arrival(NamedTuple):
    how: Brought
    length: int
    took_s: float | None = None  # to fetch it from the store
    error: Exception | None = None  # why it failed


# After an unmount nobody waits for what is on its way; what comes soon is still stored.
_CLOSE_WITHIN_S = 2.0


class Cache:
    def __init__(
        self, tiers: list[Tier], *, block_bytes: int, buffer_bytes: int, fetchers: int,
        counters: Counters, threads: int = 32, deadline_s: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.tiers = tiers
        self._now = now
        self.block_bytes = block_bytes
        self.buffer_bytes = buffer_bytes
        self._counters = counters
        self._flights = Flights(
            buffer_bytes, deadline_s, get=self._get, put_away=self._put_away, now=now
        )
        # For what other processes fetch.
        self.errands = Errands(tiers, self._flights, block_bytes, self.warn)
        self._filler = Filler()
        self._small = Pool(threads, "wait")
        self._large = Pool(fetchers, "fetch")
        self._hedging = Hedging()
        self._watcher = Watcher(self._flights, self._hedging, counters, deadline_s, now)
        self._declined_blocks = 0

    def read_now(self, what: CachedObject, offset: int, length: int) -> list[memoryview] | None:
        """What the tiers and landed flights hold; None if anything has to be fetched."""
        parts: list[memoryview] = []
        for span in spans(offset, length, what.size_bytes, self.block_bytes):
            block = block_of(what, span.number, self.block_bytes)
            flight = self._flights.find(block)
            if flight is None:
                data = self._from_tiers(block, span.start, span.stop)
            else:
                data = self._cut(flight, span) if flight.landed else None
            if data is None:
                return None
            parts.append(data)
        return parts

    def deliver(
        self, what: CachedObject, fetch: Fetch, offset: int, length: int, done: Done
    ) -> None:
        """All of the range, fetched where it must be: for after `read_now` has said None. Returns
        at once; `done` is called by whoever lands the last block of it, or fails one."""
        wanted = spans(offset, length, what.size_bytes, self.block_bytes)
        if len(wanted) != 1:
            self._deliver_many(what, fetch, wanted, done)
            return
        (span,) = wanted

        def arrived(flight: Flight) -> None:
            done([self._cut(flight, span)] if flight.error is None else flight.error)

        self._join(what, fetch, span, arrived, looked=True)

    def read(self, what: CachedObject, fetch: Fetch, offset: int, length: int) -> list[memoryview]:
        """The same for those who wait here."""
        answers: list[list[memoryview] | Exception] = []
        answered = threading.Event()

        def done(answer: list[memoryview] | Exception) -> None:
            answers.append(answer)
            answered.set()

        self.deliver(what, fetch, offset, length, done)
        answered.wait()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def prefetch(self, what: CachedObject, fetch: Fetch, number: int) -> bool:
        """Starts fetching a block nobody waits for yet; False if there is no room for it."""
        block = block_of(what, number, self.block_bytes)
        if self._flights.find(block) is not None or self.is_stored(block):
            return True
        flight = self._flights.start_if_room(block, what, fetch)
        if flight is None:
            return False
        self._large.put(partial(self._carry_out, flight))
        self._counters.add("prefetched_blocks")
        return True

    def bring(
        self, what: CachedObject, fetch: Fetch, number: int, place: Place | None, looked_s: float
    ) -> Arrival:
        """Fetches a block before it is asked for, in the caller's thread. `place` gets its bytes,
        from a tier too, and puts them where readers find them sooner; while it does that, who
        asks for the block gets it from here. A block that found no place at all is held in memory
        for its reader, until others need the room. What a reader has fetched since `looked_s` is
        not brought again."""
        block = block_of(what, number, self.block_bytes)
        flight = self._flights.find(block)
        flying = flight is not None and not self._flights.is_kept(block)
        if flying or self._flights.ended_lately(block, looked_s):
            return Arrival(Brought.JOINED, block.length)
        if flight is not None and flight.data is not None:
            if place is not None:
                place(flight.data)
            if not self.is_stored(block):  # not yet, or not any more: it is at hand
                self._to_tiers(block, what, flight.data)
            return Arrival(Brought.CACHED, block.length)
        if place is None:
            if self.is_stored(block):
                return Arrival(Brought.CACHED, block.length)
        elif (stored := self._from_tiers(block, 0, block.length)) is not None:
            place(stored)
            return Arrival(Brought.CACHED, block.length)
        flight = self._flights.start_if_room(block, what, fetch)
        if flight is None:
            found = self._flights.find(block) is not None
            return Arrival(Brought.JOINED if found else Brought.NO_ROOM, block.length)
        self._counters.add("prefetched_blocks")
        return self.carry_on(flight, place)

    def carry_on(self, flight: Flight, place: Place | None) -> Arrival:
        """The end of `bring`, for a flight that has begun; also for one that another process was
        to carry out, and has not."""
        flight.place = place
        if not flight.awaited:  # what another process took of its time was not the store's doing
            flight.asked_s = self._now()
        took_s = self._carry_out(flight)
        how = Brought.FETCHED if flight.error is None else Brought.FAILED
        return Arrival(how, flight.block.length, took_s, flight.error)

    def note_stored(self, errand: Errand, sums: bytes, took_s: float) -> bool:
        """See Errands."""
        if not self.errands.stored(errand, sums):
            return False
        self._hedging.note(errand.flight.block.length, took_s)
        return True

    def cached_bytes(self, what: CachedObject) -> int:
        self._flights.settle(what.digest)
        cached = sum(tier.cached_bytes(what.digest) for tier in self.tiers)
        return min(what.size_bytes, cached)

    def complete_file(self, what: CachedObject) -> Path | None:
        self._flights.settle(what.digest)
        for tier in self.tiers:
            try:
                if (path := tier.complete_file(what)) is not None:
                    return path
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
        return None

    def settle(self) -> None:
        """Returns when all that has been fetched so far is in the tiers, or found no room."""
        self._flights.settle()

    def release(self, what: CachedObject) -> None:
        """Lets go of what is held of it in memory."""
        for number in range(block_count(what.size_bytes, self.block_bytes)):
            self._flights.release(block_of(what, number, self.block_bytes))

    @property
    def declined_blocks(self) -> int:
        """How many blocks that were fetched no tier had room for."""
        return self._declined_blocks

    def source_bytes(self, source: str) -> int:
        self.settle()
        return sum(tier.source_bytes(source) for tier in self.tiers)

    def noted_bytes(self, source: str) -> int:
        """The same without waiting for what is on its way into the tiers."""
        return sum(tier.noted_bytes(source) for tier in self.tiers)

    def outdate(self, objects: list[CachedObject]) -> None:
        for tier in self.tiers:
            try:
                tier.outdate([what.digest for what in objects])
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)

    @property
    def fetching(self) -> int:
        return self._flights.in_the_air

    @property
    def buffered_bytes(self) -> int:
        return self._flights.held_bytes

    def let_go(self) -> None:
        """Of the blocks in memory that nobody waits for."""
        self._flights.let_go()

    def flush(self) -> None:
        """Notes all that is stored, so that another process knows of it."""
        self.settle()
        for tier in self.tiers:
            try:
                tier.flush()
            except sqlite3.Error as error:
                self.warn(tier, error)

    def close(self) -> None:
        until_s = time.monotonic() + _CLOSE_WITHIN_S
        for part in (self._watcher, self._large, self._small):
            part.close(max(0.0, until_s - time.monotonic()))
        self._filler.close()
        for tier in self.tiers:
            try:
                tier.close()
            except sqlite3.Error as error:
                self.warn(tier, error)

    # -- inside -------------------------------------------------------------------------

    def _deliver_many(
        self, what: CachedObject, fetch: Fetch, wanted: list[Span], done: Done
    ) -> None:
        if not wanted:
            done([])
            return
        parts: list[memoryview | None] = [None] * len(wanted)
        lock = threading.Lock()
        missing = len(wanted)  # 0 once `done` was called

        def arrived(place: int, flight: Flight) -> None:
            nonlocal missing
            with lock:
                if not missing:
                    return
                missing = 0 if flight.error is not None else missing - 1
                if flight.error is None:
                    part = self._cut(flight, wanted[place])
                    # A copy, where others are waited for: it must not hold on to a whole block
                    # that nobody counts any more.
                    parts[place] = memoryview(bytes(part)) if missing else part
                if missing:
                    return
            done([part for part in parts if part] if flight.error is None else flight.error)

        for place, span in enumerate(wanted):
            # `read_now` may have found some of them.
            self._join(what, fetch, span, partial(arrived, place), looked=False)

    def _join(
        self, what: CachedObject, fetch: Fetch, span: Span, arrived: Callable[[Flight], None],
        *, looked: bool, asked_s: float | None = None,
    ) -> None:  # fmt: skip
        """`asked_s`: when it was first asked for, if this is the second time."""
        block = block_of(what, span.number, self.block_bytes)
        flight, mine = self._flights.join_or_start(block, what, fetch, looked=looked)
        if flight.begun_ahead:
            again = partial(self._join, what, fetch, span, arrived, looked=False)
            arrived = partial(
                _unless_it_failed, again, arrived, asked_s or self._now(), asked_s is None
            )
        elif asked_s is not None and mine:
            flight.asked_s = asked_s
        flight.then(arrived)
        if mine:
            (self._small if block.whole else self._large).put(partial(self._carry_out, flight))

    def _cut(self, flight: Flight, span: Span) -> memoryview:
        assert flight.data is not None
        if span.stop == flight.block.length:
            flight.ahead = False
            self._flights.release(flight.block)
        return flight.data[span.start : span.stop]

    def _carry_out(self, flight: Flight) -> float | None:
        took_s = self._flights.carry_out(flight)
        if took_s is not None:
            self._hedging.note(flight.block.length, took_s)
        return took_s

    def _get(self, flight: Flight) -> Buffer:
        block = flight.block
        # An earlier flight may have landed, and been stored, since the caller looked.
        if not flight.looked or self._flights.ended_lately(block):
            stored = self._from_tiers(block, 0, block.length)
            if stored is not None:
                flight.from_store = False
                return stored
        return flight.fetch(block.start, block.length)

    def _put_away(self, flight: Flight) -> None:
        try:
            if flight.place is not None and flight.data is not None:
                # After the answers to those who wait for it: the kernel holds their pages.
                with self._flights.placing(flight):
                    flight.placed = flight.place(flight.data)
        finally:
            if flight.block.whole:
                self._filler.put(partial(self._store, flight))
            else:
                self._store(flight)

    def _store(self, flight: Flight) -> None:
        try:
            if flight.from_store and flight.data is not None:
                stored = self._to_tiers(flight.block, flight.what, flight.data)
                self._declined_blocks += not stored  # by many threads: one may be missed
                flight.placed = flight.placed or stored
        finally:
            # The rest of a block is asked for in a moment; a small object that nobody has read
            # yet, and that is nowhere else, is too.
            unread = flight.ahead and not flight.placed
            self._flights.finish(flight, keep=not flight.block.whole or unread)

    def _from_tiers(self, block: Block, start: int, stop: int) -> memoryview | None:
        for tier in self.tiers:
            try:
                data = tier.read(block, start, stop)
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
                continue
            if data is not None:
                self._counters.add("hit_bytes", len(data), tier.name)
                return data
        return None

    def is_stored(self, block: Block) -> bool:
        """Is it in a tier?"""
        try:
            return any(tier.has(block) for tier in self.tiers)
        except (OSError, sqlite3.Error):
            return False  # the read that follows will say so

    def _to_tiers(self, block: Block, what: CachedObject, data: memoryview) -> bool:
        for tier in self.tiers:
            try:
                if tier.write(what, self.block_bytes, block, data):
                    return True
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
        return False

    def warn(self, tier: Tier, error: Exception) -> None:
        self._counters.add("cache_warnings")
        log.warning("cache tier %s: %s; reading on without it", tier.name, error)


def _unless_it_failed(
    again: Callable[..., None], arrived: Callable[[Flight], None], asked_s: float, first: bool,
    flight: Flight,
) -> None:  # fmt: skip
    """What was begun ahead of its reader also gives up before the reader would: he asks anew, and
    has all of his own time. And what another process has stored in this moment is in a tier."""
    if isinstance(flight.error, Stored) or (first and isinstance(flight.error, StoreError)):
        again(asked_s=asked_s)
    else:
        arrived(flight)
