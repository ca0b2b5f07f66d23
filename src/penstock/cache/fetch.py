"""One block on its way from the store, and the readers that wait for it.

`fetches` moves a fetch from state to state; here are its data, and the jobs by which other threads
run or advance it.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from typing_extensions import Buffer

from penstock.cache.identity import Block, CachedObject
from penstock.errors import StoreError
from penstock.store import Pending, Progress

# get(start, length, progress) -> bytes of one object from its store
GetRange = Callable[[int, int, Progress | None], Buffer]

# Called once, with the requested part of a block or with the error that prevents it.
OnPart = Callable[[memoryview | Exception], None]

# Puts the bytes of a block into the kernel's page cache; False if that failed.
PushBlock = Callable[[memoryview], bool]

# Sends the GET for a whole object without waiting for the response; None if that is impossible.
BeginGet = Callable[[], Pending | None]


class State(Enum):
    """See the diagram in `fetches`."""

    WAITING = "waiting"
    FETCHING = "fetching"
    RECEIVED = "received"
    KEPT = "kept"
    RELEASED = "released"
    FAILED = "failed"


class Origin(Enum):
    """Where the bytes of a block have come from."""

    STORE = "store"
    SHARED = "shared"  # the shared tier
    TIER = "tier"  # a tier of this machine


class FetchOutcome(Enum):
    """How the fetch of a block ahead of its readers ended."""

    FETCHED = "fetched"
    CACHED = "cached"  # it was in a tier, or in memory
    JOINED = "joined"  # another thread or worker is fetching it
    ELSEWHERE = "elsewhere"  # another machine is fetching it for the shared tier: retry later
    NO_ROOM = "no room"  # the memory for fetches is used up: retry later
    FAILED = "failed"


class FetchResult(NamedTuple):
    outcome: FetchOutcome
    length: int
    took_s: float | None = None  # to fetch it from the store
    error: Exception | None = None  # why it failed


class Waiter(NamedTuple):
    """A reader that waits for bytes [start, stop) of a block."""

    start: int
    stop: int
    on_part: OnPart

    def retrying(self, errors: type[Exception], retry: Callable[[], None]) -> "Waiter":
        """Return a waiter that calls `retry` in place of its callback for one of these errors."""

        def on_part(part: memoryview | Exception) -> None:
            if isinstance(part, errors):
                retry()
            else:
                self.on_part(part)

        return self._replace(on_part=on_part)


class Fetch:
    """One block in flight.

    Nothing that it refers to refers back to it, so its bytes are freed with the last reference,
    and not when Python next collects cycles.
    """

    __slots__ = (
        "arrived",
        "block",
        "data",
        "error",
        "failed_s",
        "get",
        "hedged",
        "is_prefetch",
        "is_unread",
        "obj",
        "origin",
        "push",
        "reads_shared",
        "reads_tier",
        "received_s",
        "requested_s",
        "reserved",
        "started_s",
        "state",
        "tiers_checked",
        "waiters",
    )

    def __init__(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        requested_s: float,
        *,
        tiers_checked: bool,
    ) -> None:
        self.block = block
        self.obj = obj
        self.get = get
        self.state = State.WAITING
        self.arrived = memoryview(b"")  # what has arrived so far, from the block's start
        self.data: memoryview | None = None  # the whole block
        self.error: Exception | None = None
        self.waiters: list[Waiter] = []
        self.tiers_checked = tiers_checked  # the caller has just looked for it in the tiers
        self.reserved = False  # its memory was reserved when it was started
        self.is_prefetch = False  # it was started before any reader asked for the block
        self.is_unread = False  # and no reader has asked since
        self.push: PushBlock | None = None  # None once it has been called
        self.origin = Origin.STORE
        self.reads_tier = False  # it is looking in the tiers first
        self.reads_shared = False  # it is looking in the shared tier, or waits for another machine
        self.hedged = False
        self.requested_s = requested_s
        self.started_s = self.received_s = self.failed_s = 0.0

    @property
    def is_done(self) -> bool:
        return self.data is not None or self.error is not None

    def note_store_asked(self, now_s: float) -> None:
        """The shared tier does not have it: from now on the time counts as the store's."""
        self.started_s = now_s  # first: the watchdog looks at both
        self.reads_shared = False

    def too_short(self) -> StoreError:
        """Return the error of a reader whose part has not arrived though the fetch has ended."""
        return StoreError(
            f"{self.obj.key}: received {len(self.arrived)} of {self.block.length} bytes",
            kind="wrong_length",
        )

    @property
    def may_be_hedged(self) -> bool:
        """Only once, and not for a plan, which controls its number of requests by itself."""
        return (
            self.state is State.FETCHING
            and bool(self.waiters)
            and not self.hedged
            and not self.reads_shared
            and self.push is None
        )


class FetchRunner(Protocol):
    """What a job needs of `Fetches`."""

    def run(self, fetch: Fetch) -> object: ...

    def begin(self, fetch: Fetch, begin: BeginGet) -> Pending | None: ...

    def receive_started(
        self, fetch: Fetch, pending: Pending, on_end: Callable[[], None]
    ) -> bool: ...

    def store_started(self, fetch: Fetch, on_end: Callable[[], None]) -> None: ...

    def abandon(self, fetch: Fetch, error: Exception, on_end: Callable[[], None]) -> None: ...


class FetchJob:
    """A fetch of a small object that the caller runs: it fetches, answers and stores.

    Call it in a thread that may block. A thread that must not block calls `begin`, and advances
    the started fetch whenever its connection is readable.
    """

    __slots__ = ("_begin", "_fetch", "_fetches", "on_end", "on_start")

    def __init__(self, fetches: FetchRunner, fetch: Fetch, begin: BeginGet | None) -> None:
        self._fetches = fetches
        self._fetch = fetch
        self._begin = begin
        self.on_start: Callable[[], None] = _nothing
        self.on_end: Callable[[], None] = _nothing  # it is stored, or has failed

    def __call__(self) -> None:
        self.on_start()
        try:
            self._fetches.run(self._fetch)
        finally:
            self.on_end()

    def begin(self) -> "StartedFetch | None":
        """Send the request; None if that is impossible without waiting."""
        pending = None if self._begin is None else self._fetches.begin(self._fetch, self._begin)
        if pending is None:
            return None
        self.on_start()
        return StartedFetch(self._fetches, self._fetch, pending, self.on_end)


class StartedFetch:
    """A fetch whose request was sent. Used by one thread at a time."""

    __slots__ = ("_fetch", "_fetches", "_is_received", "_on_end", "_pending")

    def __init__(
        self, fetches: FetchRunner, fetch: Fetch, pending: Pending, on_end: Callable[[], None]
    ) -> None:
        self._fetches = fetches
        self._fetch = fetch
        self._pending = pending
        self._on_end = on_end
        self._is_received = False

    def fileno(self) -> int:
        return self._pending.fileno()

    def advance(self) -> bool:
        """Receive what has arrived. True once all waiting readers are answered, or another thread
        has taken over; then call `write_to_cache` when there is time."""
        if not self._pending.advance():
            return False
        self._is_received = self._fetches.receive_started(self._fetch, self._pending, self._on_end)
        return True

    def abandon(self, error: Exception) -> None:
        """Fail the waiting readers with this error. Called instead of `advance`."""
        self._fetches.abandon(self._fetch, error, self._on_end)

    def write_to_cache(self) -> None:
        """Store the object, unless another thread does."""
        if self._is_received:
            self._fetches.store_started(self._fetch, self._on_end)


def _nothing() -> None:
    return
