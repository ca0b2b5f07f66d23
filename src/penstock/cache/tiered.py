"""Reads through the tiers, fastest first, then the store; fills the first tier with room.

A tier that fails costs a warning and a miss, never the read.
"""

import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from typing_extensions import Buffer

from penstock.blocks import Span, spans
from penstock.cache.filler import Filler
from penstock.cache.flights import Flight, Flights
from penstock.cache.identity import Block, CachedObject, block_of
from penstock.cache.tier import Tier
from penstock.errors import PenstockError
from penstock.metrics import Counters

log = logging.getLogger(__name__)

# fetch(start, length) -> bytes of one object from its store
Fetch = Callable[[int, int], Buffer]


class Cache:
    def __init__(
        self, tiers: list[Tier], *, block_bytes: int, buffer_bytes: int, fetchers: int,
        counters: Counters,
    ) -> None:  # fmt: skip
        self.tiers = tiers
        self.block_bytes = block_bytes
        self._counters = counters
        self._flights = Flights(buffer_bytes)
        self._filler = Filler()
        self._fetchers = ThreadPoolExecutor(fetchers, thread_name_prefix="fetch")

    def read_now(self, what: CachedObject, offset: int, length: int) -> list[memoryview] | None:
        """What the tiers and landed flights hold; None if anything has to be fetched."""
        parts: list[memoryview] = []
        for span in spans(offset, length, what.size_bytes, self.block_bytes):
            block = block_of(what, span.number, self.block_bytes)
            flight = self._flights.find(block)
            if flight is None:
                data = self._from_tiers(block, span.start, span.stop)
            else:
                data = self._from_flight(block, flight, span) if flight.landed else None
            if data is None:
                return None
            parts.append(data)
        return parts

    def read(self, what: CachedObject, fetch: Fetch, offset: int, length: int) -> list[memoryview]:
        """All of the range, fetched where it must be: for after `read_now` has said None."""
        parts: list[memoryview] = []
        wanted = spans(offset, length, what.size_bytes, self.block_bytes)
        for span in wanted:
            block = block_of(what, span.number, self.block_bytes)
            # Of several blocks, `read_now` may have found some and not all.
            flight = self._start(block, what, fetch, wait=True, looked=len(wanted) == 1)
            parts.append(self._from_flight(block, flight, span))
        return parts

    def prefetch(self, what: CachedObject, fetch: Fetch, number: int) -> bool:
        """Starts fetching a block nobody waits for yet; False if there is no room for it."""
        block = block_of(what, number, self.block_bytes)
        if self._flights.find(block) is not None or self._is_stored(block):
            return True
        if not self._flights.has_room(block.length):
            return False
        self._start(block, what, fetch, wait=False, looked=True)
        self._counters.add("prefetched_blocks")
        return True

    def cached_bytes(self, what: CachedObject) -> int:
        self._settle(what)
        cached = sum(tier.cached_bytes(what.digest) for tier in self.tiers)
        return min(what.size_bytes, cached)

    def complete_file(self, what: CachedObject) -> Path | None:
        self._settle(what)
        for tier in self.tiers:
            try:
                if (path := tier.complete_file(what)) is not None:
                    return path
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)
        return None

    def source_bytes(self, source: str) -> int:
        self._filler.settle()
        return sum(tier.source_bytes(source) for tier in self.tiers)

    def outdate(self, objects: list[CachedObject]) -> None:
        for tier in self.tiers:
            try:
                tier.outdate([what.digest for what in objects])
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)

    @property
    def buffered_bytes(self) -> int:
        return self._flights.held_bytes

    def flush(self) -> None:
        """Notes all that is stored, so that another process knows of it."""
        self._filler.settle()
        for tier in self.tiers:
            try:
                tier.flush()
            except sqlite3.Error as error:
                self._warn(tier, error)

    def close(self) -> None:
        self._fetchers.shutdown(wait=True, cancel_futures=True)
        self._filler.close()
        for tier in self.tiers:
            try:
                tier.close()
            except sqlite3.Error as error:
                self._warn(tier, error)

    # -- inside -------------------------------------------------------------------------

    def _settle(self, what: CachedObject) -> None:
        """A reader may have its bytes while they are still on their way to a tier."""
        if what.size_bytes and self._flights.find(block_of(what, 0, self.block_bytes)):
            self._filler.settle()

    def _from_flight(self, block: Block, flight: Flight, span: Span) -> memoryview:
        data = flight.wait()[span.start : span.stop]
        if span.stop == block.length:
            self._flights.release(block)
        return data

    def _start(
        self, block: Block, what: CachedObject, fetch: Fetch, *, wait: bool, looked: bool
    ) -> Flight:
        flight, mine = self._flights.join_or_start(block)
        if not mine:
            return flight
        fetched = True

        def get() -> Buffer:
            nonlocal fetched
            # An earlier flight may have landed, and been stored, since the caller looked.
            if not looked or self._flights.ended_lately(block):
                stored = self._from_tiers(block, 0, block.length)
                if stored is not None:
                    fetched = False
                    return stored
            return fetch(block.start, block.length)

        def store(data: memoryview) -> None:
            if fetched:
                self._to_tiers(block, what, data)

        then = self._filler.put if block.whole else _at_once

        def run() -> None:
            self._flights.carry_out(block, flight, get, store, keep=not block.whole, then=then)

        if block.whole and wait:
            run()  # a small object: the thread that asks is as good as any other
        else:
            self._fetchers.submit(self._run_quietly, run)
        return flight

    def _run_quietly(self, run: Callable[[], None]) -> None:
        try:
            run()
        except PenstockError as error:
            log.debug("fetch failed: %s", error)  # whoever waits for it gets it raised

    def _from_tiers(self, block: Block, start: int, stop: int) -> memoryview | None:
        for tier in self.tiers:
            try:
                data = tier.read(block, start, stop)
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)
                continue
            if data is not None:
                self._counters.add("hit_bytes", len(data), tier.name)
                return data
        return None

    def _is_stored(self, block: Block) -> bool:
        try:
            return any(tier.has(block) for tier in self.tiers)
        except (OSError, sqlite3.Error):
            return False  # the read that follows will say so

    def _to_tiers(self, block: Block, what: CachedObject, data: memoryview) -> None:
        for tier in self.tiers:
            try:
                if tier.write(what, self.block_bytes, block, data):
                    return
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)

    def _warn(self, tier: Tier, error: Exception) -> None:
        self._counters.add("cache_warnings")
        log.warning("cache tier %s: %s; reading on without it", tier.name, error)


def _at_once(job: Callable[[], None]) -> None:
    job()
