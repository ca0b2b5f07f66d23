"""What the tiers hold of many objects: looked up, read back, let go of.

For those who work through a whole data set; a reader asks `Cache`. Each answer is what the tiers
say at that moment, and never more than an object's size. Any thread.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.blocks import block_count
from penstock.cache.identity import CachedObject, block_of
from penstock.cache.striped import StripedTier
from penstock.cache.tiered import Cache

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """How much of one object is where."""

    tier_bytes: tuple[int, ...]  # in each tier, in their order
    cached_bytes: int  # in any: a block in two tiers counts once


class Contents:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def look(self, objects: Sequence[CachedObject]) -> list[Held]:
        self._cache.settle()
        digests = [what.digest for what in objects]
        found = [
            self._try(tier, lambda tier: tier.cached_sizes(digests), {})
            for tier in self._cache.tiers
        ]
        return [
            self._held(what, tuple(sizes.get(what.digest, 0) for sizes in found))
            for what in objects
        ]

    def missing(self, what: CachedObject, held: Held) -> list[int]:
        """The blocks of it that are in no tier."""
        numbers = range(block_count(what.size_bytes, self._cache.block_bytes))
        if held.cached_bytes >= what.size_bytes:
            return []
        if not held.cached_bytes:
            return list(numbers)
        return [number for number in numbers if not self._is_stored(what, number)]

    def use(self, objects: Sequence[CachedObject]) -> None:
        digests = [what.digest for what in objects]
        for tier in self._cache.tiers:
            self._try(tier, lambda tier: tier.use(digests), None)

    def verify(self, what: CachedObject) -> int:
        """Reads back what is there; returns how many blocks were damaged, and are dropped."""
        wrong = sum(
            len(self._try(tier, lambda tier: tier.verify(what.digest), []))
            for tier in self._cache.tiers
        )
        if wrong:
            self._cache.release([what])
        return wrong

    def remove(self, objects: Sequence[CachedObject]) -> int:
        """Lets go of them, in memory too; returns how many bytes the tiers held."""
        self._cache.settle()
        digests = [what.digest for what in objects]
        freed = sum(
            self._try(tier, lambda tier: tier.remove(digests), 0) for tier in self._cache.tiers
        )
        self._cache.release(objects)
        return freed

    def _held(self, what: CachedObject, tier_bytes: tuple[int, ...]) -> Held:
        cached = min(sum(tier_bytes), what.size_bytes)
        shared = sum(map(bool, tier_bytes)) > 1
        if shared and what.size_bytes > self._cache.block_bytes:
            numbers = range(block_count(what.size_bytes, self._cache.block_bytes))
            blocks = (block_of(what, number, self._cache.block_bytes) for number in numbers)
            cached = sum(block.length for block in blocks if self._cache.is_stored(block))
        return Held(tier_bytes, cached)

    def _is_stored(self, what: CachedObject, number: int) -> bool:
        return self._cache.is_stored(block_of(what, number, self._cache.block_bytes))

    def _try(self, tier: StripedTier, work: Callable[[StripedTier], T], otherwise: T) -> T:
        try:
            return work(tier)
        except (OSError, sqlite3.Error) as error:
            self._cache.warn(tier, error)
            return otherwise
