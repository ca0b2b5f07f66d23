"""The tiers of one cache, fastest first, as those see them who read and store blocks.

A tier that fails costs a warning and a miss, never the read. Any thread.
"""

import logging
import sqlite3
from collections.abc import Sequence

from penstock.cache.identity import Block, CachedObject
from penstock.cache.tier import Tier
from penstock.metrics import Counters

log = logging.getLogger(__name__)


class Tiers:
    def __init__(self, tiers: Sequence[Tier], block_bytes: int, counters: Counters) -> None:
        self.all = tiers
        self.block_bytes = block_bytes
        self._counters = counters

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        """Bytes [start, stop) of the block, verified; None if no tier has them."""
        for tier in self.all:
            try:
                data = tier.read(block, start, stop)
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
                continue
            if data is not None:
                self._counters.add("hit_bytes", len(data), tier.name)
                return data
        return None

    def write(self, what: CachedObject, block: Block, data: memoryview) -> bool:
        """Stores a whole block in the first tier that has room; False if none has."""
        for tier in self.all:
            try:
                if tier.write(what, self.block_bytes, block, data):
                    return True
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
        return False

    def has(self, block: Block) -> bool:
        try:
            return any(tier.has(block) for tier in self.all)
        except (OSError, sqlite3.Error):
            return False  # the read that follows will say so

    def has_room(self, block: Block) -> bool:
        """Can `write` store it, in the first tier, without making room or waiting for some?"""
        return not self.all or self.all[0].has_room(block)

    def warn(self, tier: Tier, error: Exception) -> None:
        self._counters.add("cache_warnings")
        log.warning("cache tier %s: %s; reading on without it", tier.name, error)
