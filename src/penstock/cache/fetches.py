"""Blocks in flight: one fetch for many readers, in bounded memory and time.

    WAITING ──▶ FETCHING ──▶ RECEIVED ──▶ KEPT ──▶ RELEASED
    for memory   request      readers      stored;   its memory
       │         sent         answered     held for  is free
       │            │                      the next
       └────────────┴──▶ FAILED            read

This module owns a fetch from its first state to its last. A second reader joins the first reader's
fetch; the second megabyte of a block is read from memory. No reader's thread blocks for a fetch:
the thread that receives the block calls back all readers that joined, each as soon as its part has
arrived, and the thread that fails it calls back the rest. The first thread to receive or fail a
fetch wins; later results are dropped.

Memory: each fetch must be admitted before it starts. It blocks its own thread until there is room,
in the order of arrival. Why this cannot deadlock: an admitted fetch never asks for admission again.
It fetches (bounded by the store's deadline), calls back (which waits for nobody), and is stored
(bounded by `HUNG_S`) or kept. A kept block is released as soon as another fetch needs the room. So
held bytes always become free without any other fetch being admitted, and once nothing is held, the
first fetch in the queue is admitted, whatever its size. One step does wait: a push to the kernel
waits for pages that a reader has locked, and that reader may itself wait for the admission of
another block. So bytes that are being pushed do not keep the first fetch in the queue out.

Time: see `watchdog`, which fails overdue fetches, hedges slow ones, and gives up on hung disks.

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
    FetchJob,
    FetchOutcome,
    FetchResult,
    GetRange,
    Origin,
    PushBlock,
    State,
    Waiter,
)
from penstock.cache.identity import Block, CachedObject
from penstock.cache.pool import Pool
from penstock.cache.recent import RecentFetches
from penstock.cache.shared_tier import FetchedElsewhere, SharedTier, begin_shared
from penstock.cache.tier import Tiers
from penstock.cache.watchdog import Hedging, Watchdog
from penstock.errors import PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import Pending
from penstock.store.buffers import BUFFERS

log = logging.getLogger(__name__)

# Larger objects go to threads that may block: receiving and storing one takes so long that other
# requests would have to wait.
_MOST_BEGUN_BYTES = 1024 * 1024
# After a block took longer than this to store, a pool thread stores the next ones for a while: the
# thread that answers the kernel must not wait for a busy disk.
_SLOW_DISK_S = 0.01
_SLOW_DISK_FOR_S = 1.0


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
        shared: SharedTier | None = None,
        now: Callable[[], float] = time.monotonic,
        watchdog: type[Watchdog] = Watchdog,
    ) -> None:
        """`threads` fetch small objects, `large_threads` blocks of large ones."""
        self._tiers = tiers
        self.shared = shared
        self._counters = counters
        self._budget_bytes = budget_bytes
        self._deadline_s = deadline_s
        self._now = now
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._finished = threading.Condition(self._lock)
        self._settling = 0  # threads that wait for `_finished`
        self._queue: deque[Fetch] = deque()  # fetches that wait for admission
        self._active: dict[Block, Fetch] = {}  # WAITING, FETCHING, RECEIVED
        self._kept: dict[Block, Fetch] = {}  # oldest first
        self.recent = RecentFetches()
        self._held_bytes = 0
        self._pushing_bytes = 0  # part of the held bytes
        self._declined_blocks = 0  # blocks that no tier had room for
        self._slow_disk_until_s = 0.0
        self.claims: Claims | None = None  # of the other workers, if there are any
        self._small = Pool(threads, "get")
        self._large = Pool(large_threads, "get-large")
        self._hedging = Hedging()
        self.watchdog = watchdog(
            self, self._lock, self._hedging, counters, deadline_s=deadline_s, now=now
        )
        self.watchdog.start()

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
        a fetch that was started as a job for the caller to run, or to pass to `submit`; with
        `begin` the job can be begun without blocking.
        """
        fetch = self._join_or_start(
            block, obj, get, waiter, tiers_checked=tiers_checked, requested_s=None
        )
        if fetch is None:
            return None
        if return_job:
            return FetchJob(self, fetch, begin)
        self._pool_of(fetch).submit(partial(self.run, fetch))
        return None

    def submit(self, job: FetchJob) -> None:
        """Run the job of a small object in one of our threads."""
        self._small.submit(job)

    def _join_or_start(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        waiter: Waiter,
        *,
        tiers_checked: bool,
        requested_s: float | None,
    ) -> Fetch | None:
        """Return the fetch if it was started here. `requested_s`: the time of the reader's first
        request, if this is its second."""
        now_s = self._now()
        mine = False
        with self._lock:
            fetch = self._active.get(block) or self._kept.get(block)
            if fetch is None and self.recent.failed:
                fetch = self.recent.failure_of(block, now_s)
            if fetch is None:
                mine = True
                fetch = Fetch(block, obj, get, requested_s or now_s, tiers_checked=tiers_checked)
                self._start(fetch)
            elif fetch.is_prefetch:
                # A prefetch reaches its deadline before its reader does: the reader then retries
                # once, with its own full deadline. And it retries whenever another machine is
                # fetching the block, for which the prefetch does not wait.
                errors = StoreError if requested_s is None else FetchedElsewhere
                again = partial(self._ask_again, block, obj, get, waiter, requested_s or now_s)
                waiter = waiter.retrying(errors, again)
            fetch.is_unread = False
            waits = not fetch.is_done and waiter.stop > len(fetch.arrived)
            if waits:
                fetch.waiters.append(waiter)
        if not waits:
            self._call_back(fetch, waiter)
        return fetch if mine else None

    def _ask_again(
        self, block: Block, obj: CachedObject, get: GetRange, waiter: Waiter, requested_s: float
    ) -> None:
        fetch = self._join_or_start(
            block, obj, get, waiter, tiers_checked=False, requested_s=requested_s
        )
        if fetch is not None:
            self._pool_of(fetch).submit(partial(self.run, fetch))

    def _call_back(self, fetch: Fetch, waiter: Waiter) -> None:
        part = self.part_of(fetch, waiter.start, waiter.stop)
        if part is None:
            waiter.on_part(fetch.error or fetch.too_short())
        else:
            waiter.on_part(part)

    def part_of(self, fetch: Fetch, start: int, stop: int) -> memoryview | None:
        """Return a part of a block if it has arrived. Release a kept block that is read to its
        end."""
        arrived = fetch.arrived
        if stop > len(arrived):
            return None
        if stop == fetch.block.length:
            fetch.is_unread = False
            self.release(fetch.block)
        return arrived[start:stop]

    def release(self, block: Block) -> None:
        """Free the memory of a kept block: later reads find it in a tier."""
        with self._lock:
            if block in self._kept:
                self._release(block)

    def release_objects(self, digests: Sequence[bytes]) -> None:
        """Release all kept blocks of these objects."""
        gone = set(digests)
        with self._lock:
            for block in [block for block in self._kept if block.digest in gone]:
                self._release(block)

    # -- ahead of readers -----------------------------------------------------------------

    def prefetch(self, block: Block, obj: CachedObject, get: GetRange) -> bool:
        """Start fetching a block that no reader waits for yet; False if there is no room."""
        if self.find(block) is not None or self._tiers.has(block):
            return True
        fetch = self._start_if_room(block, obj, get, None)
        if fetch is None:
            return False
        self._counters.add("prefetched_blocks")
        self._large.submit(partial(self.run, fetch))
        return True

    def fetch_ahead(
        self,
        block: Block,
        obj: CachedObject,
        get: GetRange,
        push: PushBlock | None,
        missing_since_s: float,
    ) -> FetchResult:
        """Fetch a block ahead of its readers, in the caller's thread.

        `push` receives the bytes, also if they come from a tier, and puts them into the page cache;
        meanwhile readers of the block are answered from here. A block that could be neither pushed
        nor stored is held in memory for its reader, until other fetches need the room. A block that
        a reader has fetched since `missing_since_s` is not fetched again.
        """
        fetch = self.find(block)
        in_flight = fetch is not None and fetch.state is not State.KEPT
        claimed = (
            block.whole
            and self.claims is not None
            and self.claims.holder_of(block.digest) is not None
        )
        if in_flight or claimed or self.recent.ended_since(block, missing_since_s):
            return FetchResult(FetchOutcome.JOINED, block.length)
        if fetch is not None and fetch.data is not None:
            if push is not None:
                push(fetch.data)
            if not self._tiers.has(block):  # not yet, or evicted: the bytes are at hand
                self._tiers.write(obj, block, fetch.data)
            return FetchResult(FetchOutcome.CACHED, block.length)
        if push is None:
            if self._tiers.has(block) or self._is_only_for_shared(block):
                return FetchResult(FetchOutcome.CACHED, block.length)
        elif (stored := self._tiers.read(block, 0, block.length)) is not None:
            push(stored)
            return FetchResult(FetchOutcome.CACHED, block.length)
        fetch = self._start_if_room(block, obj, get, push)
        if fetch is None:
            found = self.find(block) is not None
            return FetchResult(FetchOutcome.JOINED if found else FetchOutcome.NO_ROOM, block.length)
        took_s = self.run(fetch)
        if isinstance(fetch.error, FetchedElsewhere):
            return FetchResult(FetchOutcome.ELSEWHERE, block.length)
        self._counters.add("prefetched_blocks")
        if fetch.error is not None:
            return FetchResult(FetchOutcome.FAILED, block.length, took_s, fetch.error)
        from_store = fetch.origin is Origin.STORE
        outcome = FetchOutcome.FETCHED if from_store else FetchOutcome.CACHED
        return FetchResult(outcome, block.length, took_s)

    def _is_only_for_shared(self, block: Block) -> bool:
        """Whether the shared tier has a block for which the local tiers have no room: reading it
        would be of no use."""
        shared = self.shared
        has_place = bool(self._tiers.all) and self._tiers.has_room(block)
        return shared is not None and not has_place and shared.has(block)

    def _start_if_room(
        self, block: Block, obj: CachedObject, get: GetRange, push: PushBlock | None
    ) -> Fetch | None:
        """None if the block is already being fetched, or there is no room for it."""
        with self._lock:
            if block in self._active or block in self._kept or self._queue:
                return None
            if not self._make_room(block.length):
                return None
            self._held_bytes += block.length
            fetch = Fetch(block, obj, get, self._now(), tiers_checked=True)
            fetch.reserved = fetch.is_prefetch = fetch.is_unread = True
            fetch.push = push
            self._start(fetch)
        return fetch

    # -- all of them ----------------------------------------------------------------------

    def drop_idle(self) -> None:
        """Release all kept blocks."""
        with self._lock:
            while self._kept:
                self._release(next(iter(self._kept)))
            self._room.notify_all()
        BUFFERS.trim()

    def wait_until_stored(self, digest: bytes | None = None, within_s: float | None = None) -> None:
        """Wait until all received blocks, of one object or of all, are stored or found no room:
        their readers may have been answered before that. Does not wait for blocks that are being
        pushed to the kernel, which may itself wait for an answer of the caller."""
        with self._lock:
            received = [
                fetch
                for fetch in self._active.values()
                if fetch.state is State.RECEIVED
                and fetch.push is None
                and digest in (None, fetch.block.digest)
            ]
            self._settling += 1
            self._finished.wait_for(
                lambda: all(fetch.state is not State.RECEIVED for fetch in received), within_s
            )
            self._settling -= 1

    @property
    def in_flight(self) -> int:
        """The number of blocks that are being fetched or stored."""
        return len(self._active)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def declined_blocks(self) -> int:
        """The number of blocks that no tier had room for."""
        return self._declined_blocks

    def close(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        self.wait_until_stored(within_s=within_s)  # threads outside our pools store, too
        self.watchdog.stop()
        for part in (self.watchdog, self._large, self._small):
            part.close(max(0.0, until_s - time.monotonic()))
        if self.shared is not None:
            self.shared.close(max(0.0, until_s - time.monotonic()))

    # -- one fetch, from its start to its end ---------------------------------------------

    def _start(self, fetch: Fetch) -> None:
        self._active[fetch.block] = fetch
        if not self.watchdog.is_awake:
            self.watchdog.wake()

    def _pool_of(self, fetch: Fetch) -> Pool:
        return self._small if fetch.block.whole else self._large

    def run(self, fetch: Fetch) -> float | None:
        """Fetch, answer and store in the caller's thread. Return how many seconds the store took;
        None if the store returned nothing."""
        if not self._admit(fetch):
            return None  # too late already
        fetch.started_s = self._now()
        fetch.state = State.FETCHING
        try:
            data = self._get(fetch)
        except Exception as error:  # noqa: BLE001 - passed to the waiting readers, which log it
            self._drop(fetch, error)
            return None
        took_s = self._now() - fetch.started_s
        self.receive(fetch, data)
        if fetch.origin is not Origin.STORE:
            return None
        self._hedging.note(fetch.block.length, took_s)
        return took_s

    def _get(self, fetch: Fetch) -> Buffer:
        block = fetch.block
        # An earlier fetch may have been received and stored since the caller looked.
        if not fetch.tiers_checked or self.recent.ended_since(block):
            fetch.reads_tier = True
            stored = self._tiers.read(block, 0, block.length)
            fetch.reads_tier = False
            if stored is not None:
                fetch.origin = Origin.TIER
                return stored
        # No partial answers for a whole object: it may still be compared with its checksum.
        progress = None if block.whole else partial(self._answer_arrived, fetch)
        if self.shared is not None:
            fetch.reads_shared = True
            found = self.shared.find(block, may_wait=not fetch.is_prefetch, progress=progress)
            if found is not None:
                fetch.origin = Origin.SHARED
                return found
            fetch.note_store_asked(self._now())
        return fetch.get(block.start, block.length, progress)

    def _answer_arrived(self, fetch: Fetch, arrived: memoryview) -> None:
        """Answer the readers whose part has arrived."""
        with self._lock:
            # A second attempt starts from zero: keep the first one's bytes until it has more.
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
        """Do the first half of `run` for a thread that must not block; None if it would block."""
        block = fetch.block
        if block.length > _MOST_BEGUN_BYTES or self.recent.ended_since(block):
            return None
        with self._lock:
            if fetch.is_done or self._queue or not self._may_enter(block.length):
                return None
            self._held_bytes += block.length
        pending = None
        fetch.started_s = self._now()
        try:
            shared = self.shared
            pending = begin() if shared is None else begin_shared(shared, fetch, begin, self._now)
        except PenstockError as error:
            log.debug("%s was not requested: %s", fetch.obj.key, error)  # `run` will report it
        finally:
            if pending is None:
                self.free(block.length)
        if pending is None:
            return None
        fetch.state = State.FETCHING
        return pending

    def receive_started(self, fetch: Fetch, pending: Pending, on_end: Callable[[], None]) -> bool:
        """Do the second half of `run`, without storing: True if storing is left to do. After a
        failure a pool thread retries, and does all the rest."""
        try:
            data = pending.result()
        except PenstockError as error:
            self._small.submit(partial(self._retry, fetch, pending, error, on_end))
            return False
        took_s = self._now() - fetch.started_s
        if not self._answer(fetch, data):
            on_end()
            return False
        if fetch.origin is Origin.STORE:
            self._hedging.note(fetch.block.length, took_s)
        return True

    def store_started(self, fetch: Fetch, on_end: Callable[[], None]) -> None:
        """Store the block in the caller's thread while the disk is fast, else in a pool thread."""
        started_s = self._now()
        may_wait = not self._tiers.has_room(fetch.block) or (
            self.shared is not None and not self.shared.has_room(fetch.block)
        )
        if started_s < self._slow_disk_until_s or may_wait:
            self._small.submit(partial(self._push_and_store, fetch, on_end))
            return
        self._push_and_store(fetch, on_end, may_wait=False)
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
            self.receive(fetch, data)
        finally:
            on_end()

    def abandon(self, fetch: Fetch, error: Exception, on_end: Callable[[], None]) -> None:
        """Fail a started fetch whose response will not come."""
        self._drop(fetch, error)
        on_end()

    def _drop(self, fetch: Fetch, error: Exception) -> None:
        """End a request without a result."""
        self.fail(fetch, error)
        self.free(fetch.block.length)
        if self.shared is not None:
            self.shared.release(fetch.block)

    def receive(self, fetch: Fetch, data: Buffer) -> bool:
        """Answer the readers and store the block; False if it was received or failed before."""
        is_first = self._answer(fetch, data)
        if is_first:
            self._push_and_store(fetch)
        return is_first

    def _answer(self, fetch: Fetch, data: Buffer) -> bool:
        with self._lock:
            if fetch.is_done:
                self._held_bytes -= fetch.block.length
                self._room.notify_all()
                return False
            fetch.data = fetch.arrived = memoryview(data)
            fetch.state = State.RECEIVED
            fetch.received_s = self._now()
            waiters, fetch.waiters = fetch.waiters, []
        for waiter in waiters:
            self._call_back(fetch, waiter)
        if fetch.origin is not Origin.TIER and not fetch.is_prefetch:
            self._counters.observe("fetch_seconds", fetch.received_s - fetch.requested_s)
        return True

    def _push_and_store(
        self,
        fetch: Fetch,
        on_end: Callable[[], None] | None = None,
        *,
        may_wait: bool = True,
    ) -> None:
        is_placed = False
        try:
            # After the waiting readers are answered: the kernel holds their pages.
            if fetch.push is not None:
                is_placed = self._push(fetch, fetch.push)
        finally:
            self._store(fetch, is_placed=is_placed, may_wait=may_wait)
            if on_end is not None:
                on_end()

    def _push(self, fetch: Fetch, push: PushBlock) -> bool:
        assert fetch.data is not None
        with self._lock:
            self._pushing_bytes += fetch.block.length
            if self._queue:
                self._room.notify_all()
        try:
            return push(fetch.data)
        finally:
            with self._lock:
                fetch.received_s = self._now()
                fetch.push = None
                self._pushing_bytes -= fetch.block.length

    def _store(self, fetch: Fetch, *, is_placed: bool, may_wait: bool) -> None:
        """`is_placed`: the page cache holds the block. `may_wait`: for room in a queue."""
        try:
            if fetch.origin is Origin.STORE and fetch.data is not None and self.shared is not None:
                # First: other machines may be waiting for it, and our disk may hang.
                if may_wait:
                    self.shared.wait_for_room(fetch.block)
                filled = self.shared.write(
                    fetch.obj, self._tiers.block_bytes, fetch.block, fetch.data
                )
                is_placed = is_placed or filled
            if fetch.origin is not Origin.TIER and fetch.data is not None:
                stored = self._tiers.write(fetch.obj, fetch.block, fetch.data)
                self._declined_blocks += not stored  # by many threads: one may be missed
                is_placed = is_placed or stored or fetch.origin is Origin.SHARED
        finally:
            # The reader will ask for the rest of a large block in a moment. It will also ask for a
            # small object that nobody has read yet, and that is nowhere else.
            unread = fetch.is_unread and not is_placed
            self._finish(fetch, keep=not fetch.block.whole or unread)

    def _finish(self, fetch: Fetch, *, keep: bool) -> None:
        """End a fetch that is stored. It leaves `_active` only now, so that at each moment a block
        is found here or in a tier."""
        block = fetch.block
        with self._lock:
            if fetch.state is not State.RECEIVED:
                # Storing was given up, and the disk has answered after all.
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

    def fail(self, fetch: Fetch, error: Exception) -> None:
        """Fail the waiting readers; later readers start a new fetch. The memory of the request
        stays counted until the request ends."""
        if isinstance(error, PenstockError):
            # Its text is complete without a traceback, whose frames would hold a body that did not
            # match for as long as the failure is remembered.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        with self._lock:
            if fetch.is_done:
                return
            self._forget(fetch)
            fetch.error = error
            fetch.state = State.FAILED
            fetch.failed_s = self._now()
            waited_s = fetch.failed_s - fetch.requested_s
            # No reader has waited that long for a prefetch.
            if waited_s >= self._deadline_s / 2 and not fetch.is_prefetch:
                self.recent.note_failure(fetch)
            fetch.arrived = memoryview(b"")
            waiters, fetch.waiters = fetch.waiters, []
            self._room.notify_all()  # it may have waited for admission
        for waiter in waiters:
            self._call_back(fetch, waiter)

    def _forget(self, fetch: Fetch) -> None:
        if self._active.get(fetch.block) is fetch:
            del self._active[fetch.block]
        self.recent.note_end(fetch.block, self._now())

    # -- memory ---------------------------------------------------------------------------

    def _admit(self, fetch: Fetch) -> bool:
        """Wait until there is room for the fetch; False if it has failed meanwhile."""
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
        """Release kept blocks, the oldest first, until `length` more bytes fit."""
        while self._held_bytes + length > self._budget_bytes and self._kept:
            self._release(next(iter(self._kept)))
        return self._held_bytes + length <= self._budget_bytes

    def _release(self, block: Block) -> None:
        fetch = self._kept.pop(block)
        fetch.state = State.RELEASED
        self._held_bytes -= block.length
        if self._queue:
            self._room.notify_all()

    def free(self, length: int) -> None:
        with self._lock:
            self._held_bytes -= length
            if self._queue:
                self._room.notify_all()

    # -- for the watchdog -----------------------------------------------------------------

    def active(self) -> list[Fetch]:
        with self._lock:
            return list(self._active.values())

    def give_up_storing(self, fetch: Fetch) -> None:
        """A disk hangs, and one of our threads with it: readers need its memory, and a thread."""
        self._pool_of(fetch).replace_hung_thread()
        self._finish(fetch, keep=False)

    def replace_thread_of(self, fetch: Fetch) -> None:
        self._pool_of(fetch).replace_hung_thread()

    def try_reserve(self, length: int) -> bool:
        """Reserve memory if it is available at once."""
        with self._lock:
            if self._queue or not self._make_room(length):
                return False
            self._held_bytes += length
            return True
