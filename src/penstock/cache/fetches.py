"""Blocks on their way from the store: one fetch for many readers, in bounded memory and time.

    WAITING ──▶ FETCHING ──▶ LANDED ──▶ KEPT ──▶ GONE
    for memory   the store    readers    stored;    its bytes
       │         was asked    are        held for   are let
       │            │         answered   the next   go of
       └────────────┴──▶ FAILED          read

A fetch belongs to this module from its first step to its last. The second reader joins the first
one's fetch; the second megabyte of a block comes from memory. Nobody blocks to wait for a fetch:
whoever receives it calls back all who joined, each as soon as his part has arrived, and whoever
fails it calls back the rest. The first to land or fail it wins; what comes later is dropped.

Memory: each fetch asks to be admitted before it starts, and blocks its own thread until there is
room, in the order of asking. Why that cannot deadlock: who has been admitted never asks again; it
fetches (bounded by the store's deadline), calls back (which waits for nobody), stores (bounded by
`HUNG_S`) or is kept. What is kept is let go of as soon as another needs the room. So held bytes
always come free without anyone else being admitted, and once nothing is held the first in the
queue is admitted, whatever its size. One thing does wait: a push to the kernel waits for pages
that a reader has locked, who may himself wait to be admitted for another block. So what is being
pushed does not keep the first in the queue out.

Time: one thread looks at the clock. It fails what is overdue, so that a reader gets EIO at the
deadline though the request still hangs; it hedges what is slow; and it gives up on storing what a
disk does not take. It sleeps while there is nothing to look at.

Threading: any thread. Callbacks run with no lock held.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from typing_extensions import Buffer

from penstock.cache.claims import Claims
from penstock.cache.fetch import (
    BeginGet,
    Fetch,
    FetchOutcome,
    FetchResult,
    GetRange,
    PushBlock,
    State,
    Waiter,
)
from penstock.cache.guarded import HUNG_S
from penstock.cache.identity import Block, CachedObject
from penstock.cache.pool import Pool
from penstock.cache.tier import Tiers
from penstock.cache.watchdog import MOST_AT_ONCE, Hedging
from penstock.errors import PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import Pending
from penstock.store.buffers import BUFFERS
from penstock.units import format_duration

log = logging.getLogger(__name__)

# A plan has 128 files looked at and 256 in flight, while others read.
_LATELY = 1024
# The kernel asks again, page by page, for what its readahead did not get. Who has waited a
# deadline for a block is not made to wait another one by that.
_FAILED_S = 1.0
_FAILED = 4096
# While something is fetched. 50 looks a second cost 0.2% of a core.
_TICK_S = 0.02
# After the last one has landed: the next mostly starts at once, and starting need not wake us.
_LINGER_S = 1.0

# Larger objects are left to threads that may block: receiving and storing one takes so long that
# other requests would have to wait.
_MOST_BEGUN_BYTES = 1024 * 1024
# Storing a block that took longer is done by a thread of its own for a while: the one that answers
# the kernel must not wait for a busy disk.
_SLOW_DISK_S = 0.01
_SLOW_DISK_FOR_S = 1.0


class FetchJob:
    """A fetch of a small object, for the caller to bring about: it fetches, answers and stores.

    Call it in a thread that may block. One that has other things to do begins it, and then
    advances what it has begun whenever that can be read from.
    """

    __slots__ = ("_begin", "_fetch", "_fetches", "on_end", "on_start")

    def __init__(self, fetches: "Fetches", fetch: Fetch, begin: BeginGet | None) -> None:
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
        """None if it cannot be done without waiting."""
        pending = None if self._begin is None else self._fetches.begin(self._fetch, self._begin)
        if pending is None:
            return None
        self.on_start()
        return StartedFetch(self._fetches, self._fetch, pending, self.on_end)


class StartedFetch:
    """A fetch whose request was sent. One thread at a time."""

    __slots__ = ("_fetch", "_fetches", "_is_landed", "_on_end", "_pending")

    def __init__(
        self, fetches: "Fetches", fetch: Fetch, pending: Pending, on_end: Callable[[], None]
    ) -> None:
        self._fetches = fetches
        self._fetch = fetch
        self._pending = pending
        self._on_end = on_end
        self._is_landed = False

    def fileno(self) -> int:
        return self._pending.fileno()

    def advance(self) -> bool:
        """Receive what has arrived. True once all who wait for it are answered, or another thread
        sees to that; then `store` is to be called, when there is time."""
        if not self._pending.advance():
            return False
        self._is_landed = self._fetches.receive_started(self._fetch, self._pending, self._on_end)
        return True

    def abandon(self, error: Exception) -> None:
        """In the place of `advance`: who waits for it is told of the error."""
        self._fetches.abandon(self._fetch, error, self._on_end)

    def write_to_cache(self) -> None:
        """Store it, if that is for us to do."""
        if self._is_landed:
            self._fetches.store_started(self._fetch, self._on_end)


def _nothing() -> None:
    return


class Fetches:
    def __init__(
        self,
        tiers: Tiers,
        counters: Counters,
        *,
        budget_bytes: int,
        deadline_s: float,
        threads: int,
        large_threads: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads` fetch small objects, `large_threads` blocks of large ones."""
        self._tiers = tiers
        self._counters = counters
        self._budget_bytes = budget_bytes
        self._deadline_s = deadline_s
        self._now = now
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._finished = threading.Condition(self._lock)
        self._settling = 0  # how many wait for that
        self._queue: deque[Fetch] = deque()  # who waits to be admitted
        self._active: dict[Block, Fetch] = {}  # WAITING, FETCHING, LANDED
        self._kept: dict[Block, Fetch] = {}  # in the order in which they were stored
        self._failed: dict[Block, Fetch] = {}  # lately, after a whole deadline
        # Who looked before a fetch landed, and asks after it was let go of, must look again.
        self._ended: dict[Block, float] = {}  # lately, and when
        self._held_bytes = 0
        self._pushing_bytes = 0  # of these
        self._declined_blocks = 0  # that no tier had room for
        self._slow_disk_until_s = 0.0
        self.claims: Claims | None = None  # what other workers fetch, if there are any
        self._small = Pool(threads, "get")
        self._large = Pool(large_threads, "get-large")
        self._hedges = Pool(MOST_AT_ONCE, "hedge")
        self._hedging = Hedging()
        self._hedges_sent = threading.Semaphore(MOST_AT_ONCE)
        self._watched = True
        self._some = threading.Event()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    # -- readers --------------------------------------------------------------------------

    def find(self, block: Block) -> Fetch | None:
        return self._active.get(block) or self._kept.get(block)

    def request(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        waiter: Waiter,
        *,
        tiers_checked: bool,
        return_job: bool = False,
        begin: BeginGet | None = None,
    ) -> FetchJob | None:
        """Call the waiter back with its part of this block; start a fetch if none is in flight.

        `tiers_checked`: the caller has just looked for the block in the tiers. `return_job`: return
        a fetch that was started as a job for the caller to run, or to pass to `put`; with `begin`
        the job can be begun without blocking."""
        fetch = self._join_or_start(
            block, obj, get, waiter, tiers_checked=tiers_checked, asked_s=None
        )
        if fetch is None:
            return None
        if return_job:
            return FetchJob(self, fetch, begin)
        self._pool_of(fetch).put(partial(self.run, fetch))
        return None

    def put(self, job: FetchJob) -> None:
        """Has a job of a small object done by one of our threads."""
        self._small.put(job)

    def _join_or_start(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        waiter: Waiter,
        *,
        tiers_checked: bool,
        asked_s: float | None,
    ) -> Fetch | None:
        """Returns what was started. `asked_s`: when it was first asked for, if this is the second
        time."""
        now_s = self._now()
        mine = False
        with self._lock:
            fetch = self._active.get(block) or self._kept.get(block)
            if fetch is None and self._failed:
                fetch = self._failed_lately(block, now_s)
            if fetch is None:
                mine = True
                fetch = Fetch(block, obj, get, asked_s or now_s, tiers_checked=tiers_checked)
                self._start(fetch)
            elif fetch.began_ahead and asked_s is None:
                # What was begun ahead of its reader also gives up before the reader would: he
                # asks anew, and has all of his own time.
                waiter = self._asking_again(block, obj, get, waiter, now_s)
            fetch.is_ahead = False
            waits = not fetch.is_done and waiter.stop > len(fetch.arrived)
            if waits:
                fetch.waiters.append(waiter)
        if not waits:
            self._call_back(fetch, waiter)
        return fetch if mine else None

    def _asking_again(
        self, block: Block, obj: CachedObject, get: GetRange, waiter: Waiter, asked_s: float
    ) -> Waiter:
        """One that asks a second time if storage fails the first time."""

        def then(part: memoryview | Exception) -> None:
            if not isinstance(part, StoreError):
                waiter.then(part)
                return
            fetch = self._join_or_start(
                block, obj, get, waiter, tiers_checked=False, asked_s=asked_s
            )
            if fetch is not None:
                self._pool_of(fetch).put(partial(self.run, fetch))

        return waiter._replace(then=then)

    def _call_back(self, fetch: Fetch, waiter: Waiter) -> None:
        part = self.part_of(fetch, waiter.start, waiter.stop)
        if part is None:
            waiter.then(fetch.error or _too_short(fetch))
        else:
            waiter.then(part)

    def part_of(self, fetch: Fetch, start: int, stop: int) -> memoryview | None:
        """A part of a block, if it has arrived. A block that is read to its end is not kept."""
        arrived = fetch.arrived
        if stop > len(arrived):
            return None
        if stop == fetch.block.length:
            fetch.is_ahead = False
            self.release(fetch.block)
        return arrived[start:stop]

    def release(self, block: Block) -> None:
        """What is asked of it again comes from a tier."""
        with self._lock:
            if block in self._kept:
                self._let_go_of(block)

    def release_objects(self, digests: Sequence[bytes]) -> None:
        """The same of all blocks of these objects."""
        gone = set(digests)
        with self._lock:
            for block in [block for block in self._kept if block.digest in gone]:
                self._let_go_of(block)

    # -- ahead of readers -----------------------------------------------------------------

    def prefetch(self, block: Block, obj: CachedObject, get: GetRange) -> bool:
        """Starts fetching a block nobody waits for yet; False if there is no room for it."""
        if self.find(block) is not None or self._tiers.has(block):
            return True
        fetch = self._start_if_room(block, obj, get, None)
        if fetch is None:
            return False
        self._large.put(partial(self.run, fetch))
        return True

    def fetch_ahead(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        place: PushBlock | None,
        missing_since_s: float,
    ) -> FetchResult:
        """Fetches a block before it is asked for, in the caller's thread. `place` gets its bytes,
        from a tier too, and puts them where readers find them sooner; while it does that, who
        asks for the block gets it from here. A block that found no place at all is held in memory
        for its reader, until others need the room. What a reader has fetched since
        `missing_since_s` is not fetched again."""
        fetch = self.find(block)
        flying = fetch is not None and fetch.state is not State.KEPT
        claimed = (
            block.whole
            and self.claims is not None
            and self.claims.holder_of(block.digest) is not None
        )
        if flying or claimed or self._ended_lately(block, missing_since_s):
            return FetchResult(FetchOutcome.JOINED, block.length)
        if fetch is not None and fetch.data is not None:
            if place is not None:
                place(fetch.data)
            if not self._tiers.has(block):  # not yet, or not any more: it is at hand
                self._tiers.write(obj, block, fetch.data)
            return FetchResult(FetchOutcome.CACHED, block.length)
        if place is None:
            if self._tiers.has(block):
                return FetchResult(FetchOutcome.CACHED, block.length)
        elif (stored := self._tiers.read(block, 0, block.length)) is not None:
            place(stored)
            return FetchResult(FetchOutcome.CACHED, block.length)
        fetch = self._start_if_room(block, obj, get, place)
        if fetch is None:
            found = self.find(block) is not None
            return FetchResult(FetchOutcome.JOINED if found else FetchOutcome.NO_ROOM, block.length)
        took_s = self.run(fetch)
        how = FetchOutcome.FETCHED if fetch.error is None else FetchOutcome.FAILED
        return FetchResult(how, block.length, took_s, fetch.error)

    def _start_if_room(
        self, block: Block, obj: CachedObject, get: GetRange, place: PushBlock | None
    ) -> Fetch | None:
        """None if it is being fetched already, or there is no room for it."""
        with self._lock:
            if block in self._active or block in self._kept or self._queue:
                return None
            if not self._make_room(block.length):
                return None
            self._held_bytes += block.length
            fetch = Fetch(block, obj, get, self._now(), tiers_checked=True)
            fetch.reserved = fetch.began_ahead = fetch.is_ahead = True
            fetch.place = place
            self._start(fetch)
        self._counters.add("prefetched_blocks")
        return fetch

    # -- all of them ----------------------------------------------------------------------

    def drop_idle(self) -> None:
        """Lets go of all blocks in memory that nobody waits for."""
        with self._lock:
            while self._kept:
                self._let_go_of(next(iter(self._kept)))
            self._room.notify_all()
        BUFFERS.trim()

    def wait_until_stored(self, digest: bytes | None = None, within_s: float | None = None) -> None:
        """Returns when all that has landed is stored or found no room, of one object or of all:
        its readers may have had their bytes before that. Not what is being pushed to the kernel,
        which may wait for an answer of the one who asks here."""
        with self._lock:
            landed = [
                fetch
                for fetch in self._active.values()
                if fetch.state is State.RECEIVED
                and fetch.place is None
                and digest in (None, fetch.block.digest)
            ]
            self._settling += 1
            self._finished.wait_for(
                lambda: all(fetch.state is not State.RECEIVED for fetch in landed), within_s
            )
            self._settling -= 1

    @property
    def in_flight(self) -> int:
        """How many blocks are being fetched or stored."""
        return len(self._active)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def declined_blocks(self) -> int:
        """How many blocks no tier had room for."""
        return self._declined_blocks

    def close(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        self.wait_until_stored(within_s=within_s)  # other threads than ours store, too
        self._stopping.set()
        self._some.set()
        self._watcher.join()
        for pool in (self._hedges, self._large, self._small):
            pool.close(max(0.0, until_s - time.monotonic()))

    # -- one fetch, from its start to its end ---------------------------------------------

    def _start(self, fetch: Fetch) -> None:
        self._active[fetch.block] = fetch
        if not self._watched:
            self._watched = True
            self._some.set()

    def _pool_of(self, fetch: Fetch) -> Pool:
        return self._small if fetch.block.whole else self._large

    def run(self, fetch: Fetch) -> float | None:
        """Fetches, answers and stores, all in the caller's thread. Returns how many seconds the
        store took; None if it gave nothing."""
        if not self._admit(fetch):
            return None  # too late already
        fetch.started_s = self._now()
        fetch.state = State.FETCHING
        try:
            data = self._get(fetch)
        except Exception as error:  # noqa: BLE001 - whoever waits for it is told, and logs it
            self._fail(fetch, error)
            self._free(fetch.block.length)
            return None
        took_s = self._now() - fetch.started_s
        self._land(fetch, data)
        if not fetch.from_store:
            return None
        self._hedging.note(fetch.block.length, took_s)
        return took_s

    def _get(self, fetch: Fetch) -> Buffer:
        block = fetch.block
        # An earlier fetch may have landed, and been stored, since the caller looked.
        if not fetch.tiers_checked or self._ended_lately(block):
            fetch.in_tier = True
            stored = self._tiers.read(block, 0, block.length)
            fetch.in_tier = False
            if stored is not None:
                fetch.from_store = False
                return stored
        # A whole object may still be compared with its checksum.
        progress = None if block.whole else partial(self._arrive, fetch)
        return fetch.get(block.start, block.length, progress)

    def _arrive(self, fetch: Fetch, arrived: memoryview) -> None:
        """Answers those whose part is there already."""
        with self._lock:
            # A second attempt begins anew: what came of the first stays until it has more.
            if fetch.is_done or len(arrived) <= len(fetch.arrived):
                return
            fetch.arrived = arrived
            waiters = [waiter for waiter in fetch.waiters if waiter.stop <= len(arrived)]
            if waiters:
                left = [waiter for waiter in fetch.waiters if waiter.stop > len(arrived)]
                fetch.waiters = left
        for waiter in waiters:
            self._call_back(fetch, waiter)

    def begin(self, fetch: Fetch, begin: BeginGet) -> Pending | None:
        """The first half of `run`, for a thread that must not wait; None if it would have to."""
        block = fetch.block
        if block.length > _MOST_BEGUN_BYTES or self._ended_lately(block):
            return None
        with self._lock:
            if fetch.is_done or self._queue or not self._may_enter(block.length):
                return None
            self._held_bytes += block.length
        pending = None
        try:
            pending = begin()
        except PenstockError as error:
            log.debug("%s was not asked for: %s", fetch.obj.key, error)  # `run` will tell
        finally:
            if pending is None:
                self._free(block.length)
        if pending is None:
            return None
        fetch.started_s = self._now()
        fetch.state = State.FETCHING
        return pending

    def receive_started(self, fetch: Fetch, pending: Pending, on_end: Callable[[], None]) -> bool:
        """The second half, without the storing: True if that is left to do. After a failure
        another thread tries again, and does all the rest."""
        try:
            data = pending.result()
        except PenstockError as error:
            self._small.put(partial(self._retry, fetch, pending, error, on_end))
            return False
        took_s = self._now() - fetch.started_s
        if not self._answer(fetch, data):
            on_end()
            return False
        self._hedging.note(fetch.block.length, took_s)
        return True

    def store_started(self, fetch: Fetch, on_end: Callable[[], None]) -> None:
        """In the caller's thread, as long as the disk takes no time."""
        started_s = self._now()
        if started_s < self._slow_disk_until_s or not self._tiers.has_room(fetch.block):
            self._small.put(partial(self._put_away, fetch, on_end))
            return
        self._put_away(fetch, on_end)
        ended_s = self._now()
        if ended_s - started_s > _SLOW_DISK_S:
            self._slow_disk_until_s = ended_s + _SLOW_DISK_FOR_S

    def _retry(
        self, fetch: Fetch, pending: Pending, error: Exception, on_end: Callable[[], None]
    ) -> None:
        try:
            data = pending.retry(error)
        except Exception as failure:  # noqa: BLE001 - as above
            self.abandon(fetch, failure, on_end)
            return
        try:
            self._land(fetch, data)
        finally:
            on_end()

    def abandon(self, fetch: Fetch, error: Exception, on_end: Callable[[], None]) -> None:
        """What was begun will not come."""
        self._fail(fetch, error)
        self._free(fetch.block.length)
        on_end()

    def _land(self, fetch: Fetch, data: Buffer) -> bool:
        """False if it has landed or failed before."""
        is_first = self._answer(fetch, data)
        if is_first:
            self._put_away(fetch)
        return is_first

    def _answer(self, fetch: Fetch, data: Buffer) -> bool:
        with self._lock:
            if fetch.is_done:
                self._held_bytes -= fetch.block.length
                self._room.notify_all()
                return False
            fetch.data = fetch.arrived = memoryview(data)
            fetch.state = State.RECEIVED
            fetch.landed_s = self._now()
            waiters, fetch.waiters = fetch.waiters, []
        for waiter in waiters:
            self._call_back(fetch, waiter)
        return True

    def _put_away(self, fetch: Fetch, on_end: Callable[[], None] = _nothing) -> None:
        is_placed = False
        try:
            # After the answers to those who wait for it: the kernel holds their pages.
            if fetch.place is not None:
                is_placed = self._push(fetch, fetch.place)
        finally:
            self._store(fetch, is_placed=is_placed)
            on_end()

    def _push(self, fetch: Fetch, place: PushBlock) -> bool:
        assert fetch.data is not None
        with self._lock:
            self._pushing_bytes += fetch.block.length
            if self._queue:
                self._room.notify_all()
        try:
            return place(fetch.data)
        finally:
            with self._lock:
                fetch.landed_s = self._now()
                fetch.place = None
                self._pushing_bytes -= fetch.block.length

    def _store(self, fetch: Fetch, *, is_placed: bool) -> None:
        try:
            if fetch.from_store and fetch.data is not None:
                stored = self._tiers.write(fetch.obj, fetch.block, fetch.data)
                self._declined_blocks += not stored  # by many threads: one may be missed
                is_placed = is_placed or stored
        finally:
            # The rest of a block is asked for in a moment; a small object that nobody has read
            # yet, and that is nowhere else, is too.
            unread = fetch.is_ahead and not is_placed
            self._finish(fetch, keep=not fetch.block.whole or unread)

    def _finish(self, fetch: Fetch, *, keep: bool) -> None:
        """It is stored. Only now is it let go of: at no moment is a block neither here nor in a
        tier."""
        block = fetch.block
        with self._lock:
            if (
                fetch.state is not State.RECEIVED
            ):  # it was given up, and the disk has answered after all
                self._pool_of(fetch).retire_replacement()
                return
            self._forget(fetch)
            if keep and block not in self._kept:
                fetch.state = State.KEPT
                self._kept[block] = fetch
                self._make_room(0)
            else:
                fetch.state = State.RELEASED
                self._held_bytes -= block.length
            if self._queue:
                self._room.notify_all()
            if self._settling:
                self._finished.notify_all()

    def _fail(self, fetch: Fetch, error: Exception) -> None:
        """Who asks from now on starts anew. The bytes of its request stay counted until that
        ends."""
        if isinstance(error, PenstockError):
            # Its text says it all; the frames of its traceback would hold a body that did not
            # match for as long as the failure is remembered.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        with self._lock:
            if fetch.is_done:
                return
            self._forget(fetch)
            fetch.error = error
            fetch.state = State.FAILED
            fetch.failed_s = self._now()
            waited_s = fetch.failed_s - fetch.asked_s
            # Of what was begun ahead nobody has waited all that time.
            if waited_s >= self._deadline_s / 2 and not fetch.began_ahead:
                self._failed[fetch.block] = fetch
                if len(self._failed) > _FAILED:
                    del self._failed[next(iter(self._failed))]
            fetch.arrived = memoryview(b"")
            waiters, fetch.waiters = fetch.waiters, []
            self._room.notify_all()  # it may have waited to be admitted
        for waiter in waiters:
            self._call_back(fetch, waiter)

    def _failed_lately(self, block: Block, now_s: float) -> Fetch | None:
        fetch = self._failed.get(block)
        if fetch is None or now_s < fetch.failed_s + _FAILED_S:
            return fetch
        del self._failed[block]
        return None

    def _ended_lately(self, block: Block, since_s: float = 0.0) -> bool:
        return self._ended.get(block, -1.0) >= since_s

    def _forget(self, fetch: Fetch) -> None:
        if self._active.get(fetch.block) is fetch:
            del self._active[fetch.block]
        self._ended.pop(fetch.block, None)  # the newest last
        self._ended[fetch.block] = self._now()
        if len(self._ended) > _LATELY:
            del self._ended[next(iter(self._ended))]

    # -- memory ---------------------------------------------------------------------------

    def _admit(self, fetch: Fetch) -> bool:
        length = fetch.block.length
        with self._lock:
            if fetch.reserved:
                if fetch.is_done:
                    self._held_bytes -= length
                    self._room.notify_all()
                return not fetch.is_done
            if self._queue or not self._may_enter(length):
                self._queue.append(fetch)
                while not fetch.is_done and not (
                    self._queue[0] is fetch and self._may_enter(length)
                ):
                    self._room.wait()
                self._queue.remove(fetch)
                self._room.notify_all()
            if fetch.is_done:
                return False
            self._held_bytes += length
            return True

    def _may_enter(self, length: int) -> bool:
        return self._make_room(length) or self._held_bytes <= self._pushing_bytes

    def _make_room(self, length: int) -> bool:
        """What has been kept for longest makes way."""
        while self._held_bytes + length > self._budget_bytes and self._kept:
            self._let_go_of(next(iter(self._kept)))
        return self._held_bytes + length <= self._budget_bytes

    def _let_go_of(self, block: Block) -> None:
        fetch = self._kept.pop(block)
        fetch.state = State.RELEASED
        self._held_bytes -= block.length
        if self._queue:
            self._room.notify_all()

    def _free(self, length: int) -> None:
        with self._lock:
            self._held_bytes -= length
            if self._queue:
                self._room.notify_all()

    # -- the clock ------------------------------------------------------------------------

    def _watch(self) -> None:
        seen_s = self._now()
        while not self._stopping.is_set():
            if self.check_timeouts():
                seen_s = self._now()
            elif self._now() - seen_s > _LINGER_S:
                self._wait_for_some()
                seen_s = self._now()
            self._stopping.wait(min(_TICK_S, self._deadline_s / 20))

    def _wait_for_some(self) -> None:
        with self._lock:
            if self._active or self._stopping.is_set():
                return
            self._some.clear()
            self._watched = False
        BUFFERS.trim()
        if not self._stopping.is_set():
            self._some.wait()

    def check_timeouts(self) -> int:
        """One look at all that is on its way; returns how many that are."""
        with self._lock:
            active = list(self._active.values())
        now_s = self._now()
        for fetch in active:
            if fetch.state is State.RECEIVED:
                if fetch.place is None and now_s - fetch.landed_s > HUNG_S:
                    self._give_up_storing(fetch)
            elif now_s - fetch.asked_s >= self._deadline_s:
                self._fail(fetch, self._overdue(fetch))
            elif fetch.in_tier and not fetch.hedged and now_s - fetch.started_s > HUNG_S:
                # A thread hangs in a disk: another asks the store instead.
                if self._hedge(fetch):
                    self._pool_of(fetch).replace_hung_thread()
            elif fetch.may_be_hedged:
                slow_s = self._hedging.slow_after_s(fetch.block.length)
                if slow_s is not None and now_s - fetch.started_s > slow_s:
                    self._hedge(fetch)
        return len(active)

    def _give_up_storing(self, fetch: Fetch) -> None:
        """Its disk hangs, and a thread of ours with it. Readers need the memory, and a thread."""
        log.warning("%s: a cache disk did not take it in time", fetch.obj.key)
        self._pool_of(fetch).replace_hung_thread()
        self._finish(fetch, keep=False)

    def _overdue(self, fetch: Fetch) -> StoreError:
        after = format_duration(self._deadline_s) if self._deadline_s >= 1 else "less than 1s"
        return StoreError(
            f"{fetch.obj.source}/{fetch.obj.key}: storage did not answer within {after}",
            hint="--deadline says how long a read may wait",
            kind="timeout",
        )

    def _hedge(self, fetch: Fetch) -> bool:
        """False if a second request may not be sent now."""
        if not self._hedges_sent.acquire(blocking=False):
            return False
        with self._lock:
            may_be_sent = not self._queue and self._make_room(fetch.block.length)
            if may_be_sent and (may_be_sent := self._hedging.spend()):
                self._held_bytes += fetch.block.length
        if not may_be_sent:
            self._hedges_sent.release()
            return False
        fetch.hedged = True
        self._counters.add("hedges")
        self._hedges.put(partial(self._run_hedge, fetch))
        return True

    def _run_hedge(self, fetch: Fetch) -> None:
        """A second request for the same block. One that fails changes nothing: the first may still
        come."""
        data: Buffer | None = None
        try:
            data = fetch.get(fetch.block.start, fetch.block.length, None)
        except PenstockError as error:
            log.debug("a second fetch failed: %s", error)
        finally:
            self._hedges_sent.release()
            if data is None:
                self._free(fetch.block.length)
            elif self._land(fetch, data):
                self._counters.add("hedges_won")


def _too_short(fetch: Fetch) -> StoreError:
    key, length = fetch.obj.key, fetch.block.length
    return StoreError(f"{key}: {len(fetch.arrived)} bytes came of {length}", kind="wrong_length")
