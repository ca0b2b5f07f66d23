"""What the workers of a mount are fetching for readers, where all of them can see it.

A worker that fetches a small object for a reader claims it here, so that no other fetches the same
object for another reader, or ahead of readers. A claim lasts until its object can be found in a
tier by all. Each worker writes its own part of the memory, and nobody waits: a claim that is seen
too late costs one more request, and those of a worker that was killed run out.

Threading: any thread of a worker.
"""

import mmap
import struct
import threading
import time

_CLAIM = struct.Struct("<16sd")  # the object, and until when
_CLAIMS = 512  # of one worker: more than it fetches in a second
# A stored block is in the index, for all to find, so soon after it was stored.
_STORED_S = 0.5


def claims_bytes(workers: int) -> int:
    return workers * _CLAIMS * _CLAIM.size


class Claims:
    def __init__(self, memory: mmap.mmap, offset: int, mine: int, workers: int) -> None:
        """They begin at `offset` of the memory; `mine` is the number of this worker."""
        self._memory = memory
        self._start = offset
        self._end = offset + claims_bytes(workers)
        self._mine = offset + mine * _CLAIMS * _CLAIM.size
        self._next = 0
        self._lock = threading.Lock()

    def claim(self, digest: bytes, for_s: float) -> int:
        """Returns where the claim is, for `stored`."""
        with self._lock:
            at = self._mine + self._next * _CLAIM.size
            self._next = (self._next + 1) % _CLAIMS
        _CLAIM.pack_into(self._memory, at, digest, time.monotonic() + for_s)
        return at

    def stored(self, digest: bytes, at: int) -> None:
        """It is in a tier, or nowhere."""
        found, _ = _CLAIM.unpack_from(self._memory, at)
        if found == digest:  # or the place is another's by now
            _CLAIM.pack_into(self._memory, at, digest, time.monotonic() + _STORED_S)

    def holder_of(self, digest: bytes) -> int | None:
        """The worker that is fetching it, or has just stored it."""
        at = self._memory.find(digest, self._start, self._end)
        while at >= 0:
            place, rest = divmod(at - self._start, _CLAIM.size)
            if not rest:
                _, until_s = _CLAIM.unpack_from(self._memory, at)
                if until_s > time.monotonic():
                    return place // _CLAIMS
            at = self._memory.find(digest, at + 1, self._end)
        return None
