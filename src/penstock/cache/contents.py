"""What the tiers hold of many objects: look up, verify, remove.

For callers that work through a whole data set; readers use `Cache`. Each answer is what the tiers
report at that moment, and never more than an object's size. Threading: any thread.
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
class CachedBytes:
    """How many bytes of one object are cached."""

    tier_bytes: tuple[int, ...]  # in each tier, in order
    cached_bytes: int  # in any tier: a block in two tiers counts once


class Contents:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def lookup(self, objects: Sequence[CachedObject]) -> list[CachedBytes]:
        self._cache.wait_until_stored()
        digests = [obj.digest for obj in objects]
        found = [
            self._try(tier, lambda tier: tier.cached_sizes(digests), {})
            for tier in self._cache.tiers
        ]
        return [
            self._held(obj, tuple(sizes.get(obj.digest, 0) for sizes in found)) for obj in objects
        ]

    def missing(self, obj: CachedObject, held: CachedBytes) -> list[int]:
        """Return the blocks of the object that are in no tier."""
        numbers = range(block_count(obj.size_bytes, self._cache.block_bytes))
        if held.cached_bytes >= obj.size_bytes:
            return []
        if not held.cached_bytes:
            return list(numbers)
        return [number for number in numbers if not self._is_stored(obj, number)]

    def mark_used(self, objects: Sequence[CachedObject]) -> None:
        digests = [obj.digest for obj in objects]
        for tier in self._cache.tiers:
            self._try(tier, lambda tier: tier.mark_used(digests), None)

    def verify(self, obj: CachedObject) -> int:
        """Read back what is cached; return how many blocks were damaged, and are now dropped."""
        wrong = sum(
            len(self._try(tier, lambda tier: tier.verify(obj.digest), []))
            for tier in self._cache.tiers
        )
        if wrong:
            self._cache.release([obj])
        return wrong

    def remove(self, objects: Sequence[CachedObject]) -> int:
        """Remove the objects from the tiers and from memory; return how many bytes the tiers
        held."""
        self._cache.wait_until_stored()
        digests = [obj.digest for obj in objects]
        freed = sum(
            self._try(tier, lambda tier: tier.remove(digests), 0) for tier in self._cache.tiers
        )
        self._cache.release(objects)
        return freed

    def _held(self, obj: CachedObject, tier_bytes: tuple[int, ...]) -> CachedBytes:
        cached = min(sum(tier_bytes), obj.size_bytes)
        shared = sum(map(bool, tier_bytes)) > 1
        if shared and obj.size_bytes > self._cache.block_bytes:
            numbers = range(block_count(obj.size_bytes, self._cache.block_bytes))
            blocks = (block_of(obj, number, self._cache.block_bytes) for number in numbers)
            cached = sum(block.length for block in blocks if self._cache.is_stored(block))
        return CachedBytes(tier_bytes, cached)

    def _is_stored(self, obj: CachedObject, number: int) -> bool:
        return self._cache.is_stored(block_of(obj, number, self._cache.block_bytes))

    def _try(self, tier: StripedTier, work: Callable[[StripedTier], T], otherwise: T) -> T:
        try:
            return work(tier)
        except (OSError, sqlite3.Error) as error:
            self._cache.warn(tier, error)
            return otherwise
