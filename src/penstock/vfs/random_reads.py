"""Random reads of large files: which parts the kernel should read as a whole.

A random read that misses the page cache costs a message, and the server verifies a whole unit of
128 KiB for the 4 or 16 KiB of it. A reader that comes back to a region of a file will come to most
of its pages. So once an eighth of the units of a region has been read, or 24 requests were made
there, the kernel is made to load the whole region, and later reads there send no message.

Loading a region of 8 MiB takes the time of some 25 messages (ADR 17). A reader that stops just then
has lost that much; one that stops before has lost nothing, and most have gained. A table remembers
as many regions as fit into the memory that the page cache may use: of a set of files much larger
than that, hardly any region is read so often before it is forgotten. Of a single file larger than
that, no region is loaded.

Threading: any thread. Nothing here waits or reads.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.blocks import UNIT_BYTES
from penstock.cache.identity import CachedObject
from penstock.units import KIB, MIB

# A file that is not longer is read by one or two requests anyway.
LEAST_FILE_BYTES = MIB
# Requests of this size are those of a sequential reader, or load a region.
LARGEST_REQUEST_BYTES = MIB
# The first requests of a sequential reader may be shorter than this. Those that follow are not, and
# each is near the end of the one before.
_SEQUENTIAL_BYTES, _JITTER_BYTES = 128 * KIB, MIB
_REGION_BYTES = 8 * MIB
_SHARE = 8
_REQUESTS = 24
_LEAST_UNITS = 3  # a sequential reader begins with one or two short requests
# Until then, requests for a region that is being loaded were on their way.
_ARRIVES_WITHIN_S = 1.0
_REGIONS_REMEMBERED = 8192


class Extent(NamedTuple):
    """A part of a file that the kernel should read as a whole."""

    offset: int
    length: int


@dataclass(slots=True)
class _Region:
    end: int  # where the last request ended
    requests: int = 0
    units: int = 0  # a bit for each unit that was read
    loaded_s: float | None = None  # when the kernel was asked to load it


class RandomReads:
    def __init__(
        self,
        block_bytes: int,
        budget_bytes: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block_bytes`: what the cache has as a whole, or not at all; no region is part of two.
        `budget_bytes`: how much memory the page cache may use for this."""
        self._region_bytes = block_bytes if block_bytes % _REGION_BYTES else _REGION_BYTES
        self._budget_bytes = budget_bytes
        self._now = now
        self._lock = threading.Lock()
        self._regions: OrderedDict[tuple[bytes, int], _Region] = OrderedDict()

    def observe(self, obj: CachedObject, offset: int, length: int) -> Extent | None:
        """Record a request for cached bytes, shorter than the largest; return the extent to load
        now, if any."""
        if obj.size_bytes > self._budget_bytes():
            return None
        number, within = divmod(offset, self._region_bytes)
        start = number * self._region_bytes
        extent = Extent(start, min(self._region_bytes, obj.size_bytes - start))
        with self._lock:
            region = self._region(obj.digest, number)
            before, region.end = region.end, offset + length
            if length >= _SEQUENTIAL_BYTES and abs(offset - before) <= _JITTER_BYTES:
                return None
            now_s = self._now()
            if region.loaded_s is not None:
                if now_s - region.loaded_s <= _ARRIVES_WITHIN_S:
                    return None
                # The kernel has dropped some of it, or could not load it.
                region.loaded_s, region.units, region.requests = None, 0, 0
            first, last = within // UNIT_BYTES, (within + length - 1) // UNIT_BYTES
            region.units |= (2 << last) - (1 << first)
            region.requests += 1
            least_units = max(_LEAST_UNITS, extent.length // UNIT_BYTES // _SHARE)
            if region.units.bit_count() < least_units and region.requests < _REQUESTS:
                return None
            region.loaded_s = now_s
        return extent

    def note_failure(self, obj: CachedObject, extent: Extent) -> None:
        """The kernel could not be asked to load this extent: try it at the next read there."""
        with self._lock:
            self._region(obj.digest, extent.offset // self._region_bytes).loaded_s = None

    def _region(self, digest: bytes, number: int) -> _Region:
        key = digest, number
        region = self._regions.get(key)
        if region is not None:
            self._regions.move_to_end(key)
            return region
        region = self._regions[key] = _Region(-_JITTER_BYTES - 1)
        most = min(_REGIONS_REMEMBERED, self._budget_bytes() // self._region_bytes)
        while len(self._regions) > max(1, most):
            self._regions.popitem(last=False)
        return region
