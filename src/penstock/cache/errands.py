"""Small objects that another process fetches into a tier: what is decided and noted of each here.

An errand is a flight like any other: who asks for the block meanwhile joins it, and its bytes count
against the memory for fetches. But what comes back is no bytes: they lie in a tier's file by then,
where room was reserved for them, and only the checksums are told.

    begin ──▶ on its way ──▶ stored         its row is noted, and whoever waits is answered
                   │
                   └──▶ given back          its room is; its flight goes on as any other does

Threading: any thread; whoever holds an errand ends it, once.
"""

import os
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from penstock.cache.directory import SMALL_BYTES
from penstock.cache.flights import Fetch, Flight, Flights
from penstock.cache.identity import Block, CachedObject, block_of
from penstock.cache.tier import Reservation, Tier


class Errand(NamedTuple):
    flight: Flight
    tier: Tier
    room: Reservation


class Errands:
    def __init__(
        self, tiers: list[Tier], flights: Flights, block_bytes: int,
        warn: Callable[[Tier, Exception], None],
    ) -> None:  # fmt: skip
        self._tiers = tiers
        self._flights = flights
        self._block_bytes = block_bytes
        self._warn = warn

    def begin(self, what: CachedObject, fetch: Fetch, number: int) -> Errand | None:
        """None: not small and whole, or at hand, or on its way, or no room for it. Whatever it is,
        `Cache.bring` knows what to do."""
        block = block_of(what, number, self._block_bytes)
        if not block.whole or block.length > SMALL_BYTES:
            return None
        if self._flights.find(block) is not None or self._flights.ended_lately(block):
            return None
        if any(_may_hold(tier, block) for tier in self._tiers):
            return None
        found = self._reserve(block)
        if found is None:
            return None
        tier, room = found
        flight = self._flights.start_if_room(block, what, fetch)
        if flight is None:
            room.give_back()
            return None
        return Errand(flight, tier, room)

    def stored(self, errand: Errand, sums: bytes) -> bool:
        """It lies where its room was. False if it cannot be noted or found there: it has no room
        any more, and its flight goes on."""
        flight, tier, room = errand
        if not room.commit(flight.what, self._block_bytes, flight.block, sums):
            return False
        return self._flights.finish_stored(flight, lambda: self._load(tier, flight.block))

    def _reserve(self, block: Block) -> tuple[Tier, Reservation] | None:
        for tier in self._tiers:
            try:
                if (room := tier.reserve(block.digest, block.length)) is not None:
                    return tier, room
            except (OSError, sqlite3.Error) as error:
                self._warn(tier, error)
        return None

    def _load(self, tier: Tier, block: Block) -> memoryview | None:
        """Not counted as a hit: it has only just come from the store."""
        try:
            return tier.read(block, 0, block.length)
        except (OSError, sqlite3.Error) as error:
            self._warn(tier, error)
            return None


def _may_hold(tier: Tier, block: Block) -> bool:
    """One system call, which is all that a cold epoch can afford: a query lets go of the
    interpreter's lock four times. What lies there need not be right; it is looked at then."""
    path = tier.file_of(block.digest)
    return path is not None and os.access(path, os.F_OK)
