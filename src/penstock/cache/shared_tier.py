"""The shared tier: one cache for all machines that read the same data, on memcached.

It stands behind the local tiers and before the store. A block that no local tier has is looked for
here. On a miss one client in the whole cluster gets a lease: it fetches the block from the store
and fills the tier. The others wait for it, for a bounded time, and then fetch by themselves.

    hit ─────────────▶ the block; a local tier keeps it as well
    claimed ─────────▶ fetch it from the store, answer the readers, `write` it to the tier; if
                       there is nothing to write, `release` the lease
    taken ───────────▶ ask again in a moment (a reader), or later (a load, a plan)
    failed, damaged ─▶ fetch it from the store, as if there were no tier

Filling never delays a reader: blocks wait in queues of bounded size (`fills`). A member that fails
costs its requests in flight at most `ANSWER_S`, once (`memcached`). Losing all of them leaves a
mount without a shared tier.

Threading: any thread. One of its own watches members and reads their list, while there is something
to do.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from typing_extensions import Buffer

from penstock.cache.fetch import BeginGet, Fetch, Origin
from penstock.cache.fills import Fills
from penstock.cache.identity import Block, CachedObject
from penstock.cache.members import Address, MemberList, MemberSource, member_of
from penstock.cache.memcached import (
    FAILURES,
    LEASE_S,
    MOST_CONNECTIONS,
    AllBusy,
    Answer,
    BlockRequest,
    Member,
    NotYet,
)
from penstock.cache.seal import Packing
from penstock.errors import PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import Pending, Progress

log = logging.getLogger(__name__)

_T = TypeVar("_T")

NAME = "SHARED"
# Blocks that wait to be sent to members. Beyond that a fill waits a moment in its own thread, which
# no reader waits for, and is then dropped.
_QUEUE_BYTES = 64 * 1024 * 1024
_QUEUE_WAIT_S = 1.0
# How often a reader asks again for a block that another client is fetching.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02
# How long it asks at most: a lease, and a little for the next client that gets it.
_WAIT_S = LEASE_S + 1.0
# Leases of our own that were neither filled nor released yet, and those of others that loads met.
_REMEMBERED = 4096
_WATCH_S = 1.0
# How long a mount waits for its first list of members. A resolver may hang for far longer, and then
# reading goes on without the tier.
_FIRST_READ_S = 1.0
_REREAD_S = 2.0


class FetchedElsewhere(StoreError):
    """Another client of the shared tier is fetching the block."""

    def __init__(self, block: Block) -> None:
        super().__init__(
            f"block {block.digest.hex()}:{block.number} is being fetched elsewhere",
            kind="elsewhere",
        )


class SharedTier:
    """The tier protocol, and beside it the two ways in which a fetch uses it: `find`, which may
    block, and `begin`, which does not."""

    name = NAME

    def __init__(
        self,
        source: MemberSource,
        packing: Packing,
        counters: Counters,
        *,
        queue_bytes: int = _QUEUE_BYTES,
        connections: int = MOST_CONNECTIONS,
        deadline_s: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`connections`: to each member. `deadline_s`: of readers, who must have time left for the
        store when they have waited for another machine."""
        self._packing = packing
        self._connections = connections
        self._deadline_s = deadline_s
        self._wait_s = min(_WAIT_S, deadline_s / 2)
        self._counters = counters
        self._now = now
        self._list = MemberList(source)
        self._may_change = source.may_change
        # Members, and their names for the hash. One attribute: it is replaced as a whole.
        self._ring: tuple[tuple[Member, ...], tuple[bytes, ...]] = ((), ())
        self._use(self._list.addresses)
        self._fills = Fills(packing, counters, self.note_failure, queue_bytes)
        self._leases: dict[Block, float] = {}  # ours, and when we got each
        # Leases of others: when we met each first, and last.
        self._taken: dict[Block, tuple[float, float]] = {}
        self._closing = threading.Event()
        self._trouble = threading.Event()  # a member is out of service
        self._was_read = threading.Event()
        if self._may_change:
            self._trouble.set()
        threading.Thread(target=self._watch, name="shared", daemon=True).start()
        if self._may_change:
            self._was_read.wait(_FIRST_READ_S)

    # -- the protocol of a tier ---------------------------------------------------------------

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        """Return bytes [start, stop) of the block; None if it is not here, or being fetched."""
        try:
            data = self.find(block, may_wait=False)
        except FetchedElsewhere:
            return None
        return None if data is None else memoryview(data)[start:stop]

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        """Queue a whole block for the tier; False if it was dropped. Never waits."""
        member = self._member_of(block)
        if member is None or member.why_out is not None:
            self._leases.pop(block, None)
            return False
        if not self._fills.put(member, block, memoryview(data)):
            self._counters.add("shared_fills_dropped")
            self.release(block)
            return False
        self._leases.pop(block, None)
        return True

    def wait_for_room(self, block: Block) -> None:
        """Wait a moment until the queue has room. For threads that no reader waits for."""
        self._fills.wait_for_room(block.length, _QUEUE_WAIT_S)

    def release(self, block: Block) -> None:
        """End the lease of a block that could not be fetched: nobody else need wait for it. Does
        nothing without a lease."""
        claimed_s = self._leases.pop(block, None)
        # An old one may be another machine's by now. Members count whole seconds.
        if claimed_s is not None and self._now() - claimed_s < LEASE_S - 1:
            member = self._member_of(block)
            if member is not None:
                self._fills.end_lease(member, block)

    def has(self, block: Block) -> bool:
        return self.has_all([block])[0]

    def has_room(self, block: Block) -> bool:
        return self._fills.has_room(block.length)

    def wait_until_filled(self, within_s: float) -> bool:
        """Wait until all that was written is with its members; False if it is not by then."""
        return self._fills.wait_until_empty(within_s)

    # -- fetches ------------------------------------------------------------------------------

    def find(
        self, block: Block, *, may_wait: bool, progress: Progress | None = None
    ) -> Buffer | None:
        """Return the block; None if the caller has to fetch it from the store, and then to `write`
        or `release` it.

        `may_wait`: wait while another client is fetching it; else raise FetchedElsewhere.
        """
        until_s, pause_s = self._now() + self._wait_s, _FIRST_PAUSE_S
        while (member := self._member_of(block)) is not None and member.why_out is None:
            answer, data = self._ask(member, block, progress)
            if answer is not Answer.TAKEN:
                return data
            if not may_wait:
                if self._is_held_up(block):
                    break
                raise FetchedElsewhere(block)
            if self._now() >= until_s or self._closing.wait(pause_s):
                self._counters.add("shared_waited_in_vain")
                return None
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        return None

    def _is_held_up(self, block: Block) -> bool:
        """Whether a load has met the lease of another client for longer than a lease lasts. One
        that somebody made who can reach the member may never end."""
        now_s = self._now()
        first_s, last_s = self._taken.pop(block, (now_s, now_s))
        if now_s - last_s > self._wait_s:
            first_s = now_s  # another lease
        if now_s - first_s >= self._wait_s:
            self._counters.add("shared_waited_in_vain")
            return True
        _remember(self._taken, block, (first_s, now_s))
        return False

    def begin(
        self,
        block: Block,
        begin: Callable[[], Pending | None],
        get: Callable[[], Buffer],
        on_hit: Callable[[], None],
    ) -> Pending | None:
        """Look for a block without waiting for the answer; None if that is impossible.

        On a miss the same Pending goes on with `begin`. `get` fetches from the store and blocks.
        `on_hit` is called once the block has come from here.
        """
        member = self._member_of(block)
        if member is None or member.why_out is not None:
            return begin()
        request = BlockRequest(member, self._packing, block)
        connection = member.take_idle()
        if connection is None:
            return None
        try:
            request.send(connection, socket.MSG_DONTWAIT)
        except OSError:
            return None  # `find` will report it
        return SharedPending(self, member, request, block, begin, get, on_hit)

    def has_all(self, blocks: Sequence[Block]) -> list[bool]:
        """Return which of the blocks are here. A member that fails has none."""
        found = [False] * len(blocks)
        members, names = self._ring
        by_member: dict[int, list[int]] = {}
        for place, block in enumerate(blocks):
            if members:
                by_member.setdefault(member_of(names, block.digest + _number(block)), []).append(
                    place
                )
        for number, places in by_member.items():
            member = members[number]
            if member.why_out is not None:
                continue
            try:
                answers = member.has(self._packing, [blocks[place] for place in places])
            except FAILURES as error:
                self.note_failure(member, error)
            except AllBusy:
                continue
            else:
                for place, answer in zip(places, answers, strict=True):
                    found[place] = answer
        return found

    def _ask(
        self, member: Member, block: Block, progress: Progress | None
    ) -> tuple[Answer, Buffer | None]:
        started_s = time.perf_counter()
        try:
            answer, data = member.read(self._packing, block, progress)
        except FAILURES as error:
            self.note_failure(member, error)
            return Answer.MISS, None
        except AllBusy:
            return Answer.MISS, None
        self.note_answer(member, answer, block, time.perf_counter() - started_s)
        return answer, data

    def note_answer(self, member: Member, answer: Answer, block: Block, took_s: float) -> None:
        label, add = str(member.address), self._counters.add
        if answer is Answer.CLAIMED:
            _remember(self._leases, block, self._now())
        if answer is Answer.HIT:
            self._counters.add_hit(NAME, block.length)
            add("shared_hits", 1, label)
            self._counters.observe("shared_hit_seconds", took_s, label)
        elif answer is Answer.TAKEN:
            add("shared_waits", 1, label)
        else:
            add("shared_misses", 1, label)
            if answer is Answer.DAMAGED:
                add("shared_damaged", 1, label)

    def note_failure(self, member: Member, error: Exception) -> None:
        self._counters.add("shared_failures", 1, str(member.address))
        member.trip(error)
        self._trouble.set()

    def _member_of(self, block: Block) -> Member | None:
        members, names = self._ring
        return members[member_of(names, block.digest + _number(block))] if members else None

    # -- members ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Probe members that failed, and read the list of members again."""
        if self._may_change:
            self._read_members()
            self._was_read.set()
        read_s = self._now()
        while not self._closing.is_set():
            self._trouble.wait()
            if self._closing.wait(_WATCH_S):
                return
            for member in self._members:
                if member.wants_probe:
                    member.probe()
            if self._may_change and self._now() - read_s >= _REREAD_S:
                self._read_members()
                read_s = self._now()
            out = any(member.why_out is not None for member in self._members)
            if not out and not self._may_change:
                self._trouble.clear()
                if any(member.why_out is not None for member in self._members):
                    self._trouble.set()

    def _read_members(self) -> None:
        if self._list.read():
            self._use(self._list.addresses)

    def _use(self, addresses: Sequence[Address]) -> None:
        known = {member.address: member for member in self._members}
        members = tuple(known.pop(one, None) or self._new_member(one) for one in addresses)
        self._ring = members, tuple(member.name for member in members)
        for member in known.values():
            member.retire()

    def _new_member(self, address: Address) -> Member:
        return Member(address, self._now, self._connections, self._deadline_s)

    @property
    def _members(self) -> tuple[Member, ...]:
        return self._ring[0]

    @property
    def addresses(self) -> list[Address]:
        return [member.address for member in self._members]

    def out_of_service(self) -> dict[str, str]:
        """Return the members that are out of service, and why."""
        states = ((str(one.address), one.why_out) for one in self._members)
        return {member: why for member, why in states if why is not None}

    # -- for people ---------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the state of the members as this process sees them."""
        return {
            "members": [
                {"member": str(member.address), "out": member.why_out} for member in self._members
            ],
            "problem": self._list.problem,
            "queued_bytes": self._fills.queued_bytes,
        }

    def close(self, within_s: float) -> None:
        """Send what is queued, if that takes no longer, and close all connections."""
        self.wait_until_filled(within_s)
        self._closing.set()
        self._trouble.set()
        self._fills.close()
        for member in self._members:
            member.retire()


def begin_shared(
    tier: SharedTier, fetch: Fetch, begin: BeginGet, now: Callable[[], float]
) -> Pending | None:
    """Begin a fetch that looks in the tier first, and notes where its bytes come from."""

    def begin_get() -> Pending | None:
        fetch.note_store_asked(now())
        return begin()

    def get() -> Buffer:
        fetch.note_store_asked(now())
        return fetch.get(fetch.block.start, fetch.block.length, None)

    def note_hit() -> None:
        fetch.origin = Origin.SHARED

    fetch.reads_shared = True
    return tier.begin(fetch.block, begin_get, get, note_hit)


class SharedPending:
    """A block in flight from the shared tier, or from the store if the tier does not have it. Its
    descriptor changes with that. See penstock.store.Pending."""

    def __init__(
        self,
        tier: SharedTier,
        member: Member,
        request: BlockRequest,
        block: Block,
        begin: Callable[[], Pending | None],
        get: Callable[[], Buffer],
        on_hit: Callable[[], None],
    ) -> None:
        self._tier = tier
        self._member = member
        self._request = request
        self._block = block
        self._begin = begin
        self._get = get
        self._on_hit = on_hit
        self._started_s = time.perf_counter()
        self._data: Buffer | None = None
        self._error: PenstockError | None = None
        self._store: Pending | None = None

    def fileno(self) -> int:
        return (self._store or self._request).fileno()

    def advance(self) -> bool:
        if self._store is not None:
            return self._store.advance()
        try:
            answer, self._data = self._request.advance()
        except NotYet:
            if not self._request.is_overdue:
                return False
            self._request.abandon()
            self._tier.note_failure(self._member, TimeoutError("it did not answer in time"))
            answer = Answer.MISS
        except FAILURES as error:
            # A connection that the member closed while it was idle is no failure of the member.
            if not isinstance(error, ConnectionError) or self._request.has_received:
                self._tier.note_failure(self._member, error)
            answer = Answer.MISS
        else:
            took_s = time.perf_counter() - self._started_s
            self._tier.note_answer(self._member, answer, self._block, took_s)
        if answer is Answer.HIT:
            self._on_hit()
            return True
        if answer is Answer.TAKEN:
            self._error = FetchedElsewhere(self._block)
            return True
        try:
            self._store = self._begin()
        except PenstockError as error:
            self._error = error
        else:
            if self._store is None:
                self._error = StoreError("no connection to the store is idle", kind="busy")
        return self._store is None

    def result(self) -> Buffer:
        if self._store is not None:
            return self._store.result()
        if self._error is not None:
            raise self._error
        assert self._data is not None, "still in flight"
        return self._data

    def retry(self, error: Exception, /) -> Buffer:
        if self._store is not None:
            return self._store.retry(error)
        if isinstance(error, FetchedElsewhere):
            data = self._tier.find(self._block, may_wait=True)
            if data is not None:
                self._on_hit()
                return data
        return self._get()


def _number(block: Block) -> bytes:
    """A part of the key that decides the member: blocks of one object go to several."""
    return block.number.to_bytes(4, "little")


def _remember(known: dict[Block, _T], block: Block, value: _T) -> None:
    """Add an entry, and forget the oldest if there are too many. Any thread."""
    known[block] = value
    if len(known) > _REMEMBERED:
        with suppress(StopIteration, RuntimeError):  # another thread has just changed it
            known.pop(next(iter(known)), None)
