"""Claims in shared memory: which worker of a mount is fetching which small object.

A worker that fetches a small object for a reader claims it here, so that no other worker fetches
the same object, for another reader or ahead of readers. The claim lasts until all workers can find
the object in a tier. Each worker writes only its own part of the memory, and nobody waits: a claim
that is seen too late costs one more request, and claims of a killed worker expire.

Threading: any thread of a worker.
"""

import mmap
import struct
import time

_CLAIM = struct.Struct("<16sd")  # the object's digest, and when the claim expires
# Slots of one worker. An object has one slot, found by its digest, so a lookup reads one slot of
# each worker. Two objects that share a slot cost one more request at worst.
_SLOTS = 4096
# How long after it was stored a block can be missing from the index.
_STORED_S = 0.5


def claims_bytes(workers: int) -> int:
    return workers * _SLOTS * _CLAIM.size


class Claims:
    def __init__(self, memory: mmap.mmap, offset: int, mine: int, workers: int) -> None:
        """Use the memory from `offset`; `mine` is the number of this worker."""
        self._memory = memory
        self._start = offset
        self._workers = workers
        self._mine = mine

    def claim(self, digest: bytes, for_s: float) -> None:
        self._write(digest, time.monotonic() + for_s)

    def stored(self, digest: bytes) -> None:
        """Let the claim expire soon: the object was stored, or no tier had room for it."""
        found, _ = _CLAIM.unpack_from(self._memory, self._offset(self._mine, digest))
        if found == digest:  # another object may have taken the slot since
            self._write(digest, time.monotonic() + _STORED_S)

    def holder_of(self, digest: bytes) -> int | None:
        """Return the worker that is fetching the object, or has just stored it."""
        for worker in range(self._workers):
            found, until_s = _CLAIM.unpack_from(self._memory, self._offset(worker, digest))
            if found == digest and until_s > time.monotonic():
                return worker
        return None

    def _write(self, digest: bytes, until_s: float) -> None:
        _CLAIM.pack_into(self._memory, self._offset(self._mine, digest), digest, until_s)

    def _offset(self, worker: int, digest: bytes) -> int:
        slot = worker * _SLOTS + int.from_bytes(digest[:4], "little") % _SLOTS
        return self._start + slot * _CLAIM.size
