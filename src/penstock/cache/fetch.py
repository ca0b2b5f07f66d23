"""One block on its way from the store, and those who wait for it. `fetches` moves it on."""

import mmap
import struct
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.cache.identity import Block, CachedObject
from penstock.store import Pending, Progress

# get(start, length, progress) -> bytes of one object from its store
Get = Callable[[int, int, Progress | None], Buffer]

# Called once, with the part of a block that was wanted or with why it does not come.
Then = Callable[[memoryview | Exception], None]

# Puts the bytes of a block where readers find them without asking; False if it could not.
Place = Callable[[memoryview], bool]

# Asks for all of one object without waiting for it; None if it cannot be asked for so.
Begin = Callable[[], Pending | None]


class State(Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    LANDED = "landed"
    KEPT = "kept"
    GONE = "gone"
    FAILED = "failed"


class FetchOutcome(Enum):
    """What became of a block that was to be there before it is asked for."""

    FETCHED = "fetched"
    CACHED = "cached"  # it was in a tier, or in memory
    JOINED = "joined"  # someone else is fetching it
    NO_ROOM = "no room"  # the memory for fetches is used up: later
    FAILED = "failed"


class Arrival(NamedTuple):
    how: FetchOutcome
    length: int
    took_s: float | None = None  # to fetch it from the store
    error: Exception | None = None  # why it failed


class Waiter(NamedTuple):
    """Who wants a part of a block, and is told when it has arrived."""

    start: int
    stop: int
    then: Then


class Fetch:
    """One block on its way. It refers to nothing that refers to it: its bytes go when the last
    who needs them is done, and not when Python next looks for cycles."""

    __slots__ = (
        "arrived",
        "asked_s",
        "began_ahead",
        "block",
        "data",
        "error",
        "failed_s",
        "from_store",
        "get",
        "hedged",
        "in_tier",
        "is_ahead",
        "landed_s",
        "looked",
        "place",
        "reserved",
        "started_s",
        "state",
        "waiters",
        "what",
    )

    def __init__(
        self, block: Block, what: CachedObject, get: Get, asked_s: float, *, looked: bool
    ) -> None:
        self.block = block
        self.what = what
        self.get = get
        self.state = State.WAITING
        self.arrived = memoryview(b"")  # from its beginning, so far
        self.data: memoryview | None = None  # all of it
        self.error: Exception | None = None
        self.waiters: list[Waiter] = []
        self.looked = looked  # who asked has just looked for it in the tiers
        self.reserved = False  # its memory was reserved when it was started
        self.began_ahead = False  # it was started before anyone asked
        self.is_ahead = False  # and nobody has asked since
        self.place: Place | None = None  # None once it has been called
        self.from_store = True
        self.in_tier = False  # it looks there first
        self.hedged = False
        self.asked_s = asked_s
        self.started_s = self.landed_s = self.failed_s = 0.0

    @property
    def is_done(self) -> bool:
        return self.data is not None or self.error is not None

    @property
    def may_be_hedged(self) -> bool:
        """Once; and not what a plan brings, which has its own measure of how much is sent."""
        return (
            self.state is State.FETCHING
            and bool(self.waiters)
            and not self.hedged
            and self.place is None
        )


# What the workers of a mount are fetching for readers, where all of them can see it.
#
# A worker that fetches a small object for a reader claims it here, so that no other fetches the
# same object for another reader, or ahead of readers. A claim lasts until its object can be found
# in a tier by all. Each worker writes its own part of the memory, and nobody waits: a claim that
# is seen too late costs one more request, and those of a worker that was killed run out.
#
# Threading: any thread of a worker.

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
