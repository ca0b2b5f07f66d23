"""Reads through the tiers, fastest first, then the store; fills the first tier with room.

A tier that fails costs a warning and a miss, never the read.
"""

import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from typing_extensions import Buffer

from penstock.blocks import Span, block_length, spans
from penstock.cache.flights import BlockKey, Flight, Flights
from penstock.cache.identity import CachedObject
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
        self._fetchers = ThreadPoolExecutor(fetchers, thread_name_prefix="fetch")

    def read_now(self, what: CachedObject, offset: int, length: int) -> list[memoryview] | None:
        """What the tiers and landed flights hold; None if anything has to be fetched."""
        parts: list[memoryview] = []
        for span in spans(offset, length, what.size_bytes, self.block_bytes):
            key = BlockKey(what.digest, span.number)
            flight = self._flights.find(key)
            if flight is None:
                data = self._from_tiers(key, what, span.start, span.stop)
            else:
                data = self._from_flight(key, flight, span) if flight.landed else None
            if data is None:
                return None
            parts.append(data)
        return parts

    def read(self, what: CachedObject, fetch: Fetch, offset: int, length: int) -> list[memoryview]:
        """All of the range, fetched where it must be: for after `read_now` has said None."""
        parts: list[memoryview] = []
        for span in spans(offset, length, what.size_bytes, self.block_bytes):
            key = BlockKey(what.digest, span.number)
            flight = self._start(key, what, fetch, wait=True)
            parts.append(self._from_flight(key, flight, span))
        return parts

    def prefetch(self, what: CachedObject, fetch: Fetch, number: int) -> bool:
        """Starts fetching a block nobody waits for yet; False if there is no room for it."""
        length = block_length(what.size_bytes, self.block_bytes, number)
        key = BlockKey(what.digest, number)
        if self._flights.find(key) is not None or self._is_stored(key):
            return True
        if not self._flights.has_room(length):
            return False
        self._start(key, what, fetch, wait=False)
        self._counters.add("prefetched_blocks")
        return True

    def cached_bytes(self, what: CachedObject) -> int:
        cached = sum(tier.cached_bytes(what.digest) for tier in self.tiers)
        return min(what.size_bytes, cached)

    def complete_file(self, what: CachedObject) -> Path | None:
        for tier in self.tiers:
            try:
                if (path := tier.complete_file(what)) is not None:
                    return path
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)
        return None

    def source_bytes(self, source: str) -> int:
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

    def close(self) -> None:
        self._fetchers.shutdown(wait=True, cancel_futures=True)
        for tier in self.tiers:
            try:
                tier.close()
            except sqlite3.Error as error:
                self._warn(tier, error)

    def _from_flight(self, key: BlockKey, flight: Flight, span: Span) -> memoryview:
        data = flight.wait()[span.start : span.stop]
        if span.stop == flight.length:
            self._flights.release(key)
        return data

    # -- inside -------------------------------------------------------------------------

    def _start(self, key: BlockKey, what: CachedObject, fetch: Fetch, *, wait: bool) -> Flight:
        start = key.number * self.block_bytes
        length = block_length(what.size_bytes, self.block_bytes, key.number)
        flight, mine = self._flights.join_or_start(key, length)
        if not mine:
            return flight
        whole = length == what.size_bytes

        def run() -> None:
            # An earlier flight may have landed, and been stored, since the caller looked.
            stored = self._from_tiers(key, what, 0, length)
            if stored is not None:
                self._flights.carry_out(key, flight, lambda: stored, lambda _: None, keep=not whole)
                return
            self._flights.carry_out(
                key, flight, lambda: fetch(start, length),
                lambda data: self._to_tiers(key, what, data), keep=not whole,
            )  # fmt: skip

        if whole and wait:
            run()  # a small object: the thread that asks is as good as any other
        else:
            self._fetchers.submit(self._run_quietly, run)
        return flight

    def _run_quietly(self, run: Callable[[], None]) -> None:
        try:
            run()
        except PenstockError as error:
            log.debug("fetch failed: %s", error)  # whoever waits for it gets it raised

    def _from_tiers(
        self, key: BlockKey, what: CachedObject, start: int, stop: int
    ) -> memoryview | None:
        block_start = key.number * self.block_bytes
        length = block_length(what.size_bytes, self.block_bytes, key.number)
        for tier in self.tiers:
            try:
                data = tier.read(key.digest, key.number, block_start, length, start, stop)
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)
                continue
            if data is not None:
                self._counters.add("hit_bytes", len(data), tier.name)
                return data
        return None

    def _is_stored(self, key: BlockKey) -> bool:
        try:
            return any(tier.has(key.digest, key.number) for tier in self.tiers)
        except (OSError, sqlite3.Error):
            return False  # the read that follows will say so

    def _to_tiers(self, key: BlockKey, what: CachedObject, data: memoryview) -> None:
        for tier in self.tiers:
            try:
                if tier.write(what, self.block_bytes, key.number, data):
                    return
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)

    def _warn(self, tier: Tier, error: Exception) -> None:
        self._counters.add("cache_warnings")
        log.warning("cache tier %s: %s; reading on without it", tier.name, error)
