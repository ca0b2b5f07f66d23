"""Notices who reads a large file from front to back, and stays ahead of them.

The kernel sends a sequential reader's requests slightly out of order and several at a time, so
"sequential" means: close to where the last one ended.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from penstock.blocks import block_count
from penstock.cache.identity import CachedObject
from penstock.cache.tiered import Cache, Fetch
from penstock.units import MIB

_JITTER_BYTES = 4 * MIB
_READERS_REMEMBERED = 1024
# Who begins at the beginning most likely wants it all; from here the window doubles.
_FIRST_WINDOW = 2


@dataclass(slots=True)
class _Reader:
    end: int = 0  # where the last sequential read ended
    window: int = 0  # how many blocks to stay ahead
    ahead: int = 0  # the last block that was asked for


class Readahead:
    def __init__(self, cache: Cache, most_blocks: int) -> None:
        self._cache = cache
        self._most_blocks = most_blocks
        self._lock = threading.Lock()
        self._readers: OrderedDict[bytes, _Reader] = OrderedDict()

    def observe(self, what: CachedObject, fetch: Fetch, offset: int, length: int) -> None:
        block_bytes = self._cache.block_bytes
        if what.size_bytes <= block_bytes or not self._most_blocks:
            return
        for number in self._wanted(what, offset, length):
            if not self._cache.prefetch(what, fetch, number):
                break

    def _wanted(self, what: CachedObject, offset: int, length: int) -> range:
        block_bytes = self._cache.block_bytes
        with self._lock:
            reader = self._readers.get(what.digest)
            if reader is None:
                reader = self._readers[what.digest] = _Reader()
                if len(self._readers) > _READERS_REMEMBERED:
                    self._readers.popitem(last=False)
            if abs(offset - reader.end) > _JITTER_BYTES:
                # Somewhere else: a random reader, or one who starts again.
                reader.end, reader.window, reader.ahead = offset + length, 0, 0
                return range(0)
            before = reader.end // block_bytes
            reader.end = max(reader.end, offset + length)
            current = reader.end // block_bytes
            if reader.window == 0 or current > before:
                reader.window = min(self._most_blocks, max(_FIRST_WINDOW, reader.window * 2))
            last = min(current + reader.window, block_count(what.size_bytes, block_bytes) - 1)
            first = max(current, reader.ahead + 1)
            reader.ahead = max(reader.ahead, last)
            return range(first, last + 1)
