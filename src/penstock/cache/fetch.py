"""One block on its way from the store, and those who wait for it. `fetches` moves it on."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.cache.identity import Block, CachedObject
from penstock.store import Pending, Progress

# get(start, length, progress) -> bytes of one object from its store
GetRange = Callable[[int, int, Progress | None], Buffer]

# Called once, with the part of a block that was wanted or with why it does not come.
OnPart = Callable[[memoryview | Exception], None]

# Puts the bytes of a block where readers find them without asking; False if it could not.
PushBlock = Callable[[memoryview], bool]

# Asks for all of one object without waiting for it; None if it cannot be asked for so.
BeginGet = Callable[[], Pending | None]


class State(Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    RECEIVED = "landed"
    KEPT = "kept"
    RELEASED = "gone"
    FAILED = "failed"


class FetchOutcome(Enum):
    """What became of a block that was to be there before it is asked for."""

    FETCHED = "fetched"
    CACHED = "cached"  # it was in a tier, or in memory
    JOINED = "joined"  # someone else is fetching it
    NO_ROOM = "no room"  # the memory for fetches is used up: later
    FAILED = "failed"


class FetchResult(NamedTuple):
    how: FetchOutcome
    length: int
    took_s: float | None = None  # to fetch it from the store
    error: Exception | None = None  # why it failed


class Waiter(NamedTuple):
    """Who wants a part of a block, and is told when it has arrived."""

    start: int
    stop: int
    then: OnPart


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
        "obj",
        "place",
        "reserved",
        "started_s",
        "state",
        "tiers_checked",
        "waiters",
    )

    def __init__(
        self, block: Block, obj: CachedObject, get: GetRange, asked_s: float, *, tiers_checked: bool
    ) -> None:
        self.block = block
        self.obj = obj
        self.get = get
        self.state = State.WAITING
        self.arrived = memoryview(b"")  # from its beginning, so far
        self.data: memoryview | None = None  # all of it
        self.error: Exception | None = None
        self.waiters: list[Waiter] = []
        self.tiers_checked = tiers_checked  # who asked has just looked for it in the tiers
        self.reserved = False  # its memory was reserved when it was started
        self.began_ahead = False  # it was started before anyone asked
        self.is_ahead = False  # and nobody has asked since
        self.place: PushBlock | None = None  # None once it has been called
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
