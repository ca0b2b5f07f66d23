"""What the workers of a mount are fetching for readers, where all of them can see it.

A worker that fetches a small object for a reader claims it here, so that no other fetches the
same object for another reader, or ahead of readers. A claim lasts until its object can be found
in a tier by all. Each worker writes its own part of the memory, and nobody waits: a claim that
is seen too late costs one more request, and those of a worker that was killed run out.

Threading: any thread of a worker.
"""

import mmap
import struct
import time

_CLAIM = struct.Struct("<16sd")  # the object, and until when
# Places of one worker. An object has one place, found by its digest, so that looking for a claim
# reads one place of each worker. Two objects that meet in a place cost one more request at worst.
_CLAIMS = 4096
# A stored block is in the index, for all to find, so soon after it was stored.
_STORED_S = 0.5


def claims_bytes(workers: int) -> int:
    return workers * _CLAIMS * _CLAIM.size


class Claims:
    def __init__(self, memory: mmap.mmap, offset: int, mine: int, workers: int) -> None:
        """They begin at `offset` of the memory; `mine` is the number of this worker."""
        self._memory = memory
        self._start = offset
        self._workers = workers
        self._mine = mine

    def claim(self, digest: bytes, for_s: float) -> None:
        self._write(digest, time.monotonic() + for_s)

    def stored(self, digest: bytes) -> None:
        """It is in a tier, or nowhere."""
        found, _ = _CLAIM.unpack_from(self._memory, self._place(self._mine, digest))
        if found == digest:  # or the place is another's by now
            self._write(digest, time.monotonic() + _STORED_S)

    def holder_of(self, digest: bytes) -> int | None:
        """The worker that is fetching it, or has just stored it."""
        for worker in range(self._workers):
            found, until_s = _CLAIM.unpack_from(self._memory, self._place(worker, digest))
            if found == digest and until_s > time.monotonic():
                return worker
        return None

    def _write(self, digest: bytes, until_s: float) -> None:
        _CLAIM.pack_into(self._memory, self._place(self._mine, digest), digest, until_s)

    def _place(self, worker: int, digest: bytes) -> int:
        number = worker * _CLAIMS + int.from_bytes(digest[:4], "little") % _CLAIMS
        return self._start + number * _CLAIM.size
