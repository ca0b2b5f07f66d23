"""The cache as a mount uses it: ranges of objects, from memory, the tiers or the store.

    read_now   what memory and the tiers hold
    deliver    a whole range, with what is missing fetched from the store (`fetches`)

Threading: any thread. `read_now` and `deliver` never wait for the store.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from penstock.blocks import Span, spans
from penstock.cache.fetch import BeginGet, FetchJob, FetchResult, GetRange, PushBlock, Waiter
from penstock.cache.fetches import Fetches
from penstock.cache.identity import Block, CachedObject, block_of
from penstock.cache.shared_tier import SharedTier
from penstock.cache.striped import StripedTier
from penstock.cache.tier import Tier, Tiers
from penstock.metrics import BUFFERS, Counters

# Called once, from any thread, with all of a range or with the error that prevents it.
OnData = Callable[[list[memoryview] | Exception], None]

# After an unmount no reader waits for fetches in flight; what arrives soon is still stored.
_CLOSE_WITHIN_S = 2.0


class BufferedBlocks(Protocol):
    """Blocks in memory, or on their way into the tiers: of this process, or of its workers."""

    def wait_until_stored(self, digest: bytes | None = None) -> None: ...

    def release_objects(self, digests: Sequence[bytes]) -> None: ...

    def drop_idle(self) -> None: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def held_bytes(self) -> int: ...

    @property
    def declined_blocks(self) -> int: ...


class Cache:
    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        block_bytes: int,
        buffer_bytes: int,
        large_threads: int,
        counters: Counters,
        threads: int = 32,
        deadline_s: float = 60.0,
        shared: SharedTier | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shared`: the tier of all machines, looked in before the store."""
        # Tiers on this machine's disks: their contents can be listed, checked and removed.
        self.tiers = [tier for tier in tiers if isinstance(tier, StripedTier)]
        self.block_bytes = block_bytes
        self.buffer_bytes = buffer_bytes
        self.shared = shared
        self._counters = counters
        self._tiers = Tiers(tiers, block_bytes, counters)
        self.fetches = Fetches(
            self._tiers,
            counters,
            budget_bytes=buffer_bytes,
            deadline_s=deadline_s,
            threads=threads,
            large_threads=large_threads,
            shared=shared,
            now=now,
        )
        self.buffers: BufferedBlocks = self.fetches

    # -- reading ------------------------------------------------------------------------

    def read_now(self, obj: CachedObject, offset: int, length: int) -> list[memoryview] | None:
        """Return what memory and the tiers hold; None if anything has to be fetched."""
        parts: list[memoryview] = []
        for span in spans(offset, length, obj.size_bytes, self.block_bytes):
            block = block_of(obj, span.number, self.block_bytes)
            data = self.read_block(block, span.start, span.stop)
            if data is None:
                return None
            parts.append(data)
        return parts

    def read_block(self, block: Block, start: int, stop: int) -> memoryview | None:
        """Return a part of one block from memory or a tier."""
        fetch = self.fetches.find(block)
        if fetch is None:
            return self._tiers.read(block, start, stop)
        part = self.fetches.part_of(fetch, start, stop)
        if part is not None:
            self._counters.add_hit(BUFFERS, len(part))
        return part

    def deliver(
        self,
        obj: CachedObject,
        get: GetRange,
        offset: int,
        length: int,
        done: OnData,
        *,
        return_job: bool = False,
        begin: BeginGet | None = None,
    ) -> FetchJob | None:
        """Deliver the whole range, fetching what is missing. Call it after `read_now` returned
        None.

        It returns at once; the thread that receives the last block, or fails one, calls `done`.
        `return_job`: return the fetch of a small object as a job for the caller to run, or to pass
        to `submit`.
        """
        self._counters.add("misses")
        wanted = spans(offset, length, obj.size_bytes, self.block_bytes)
        if len(wanted) != 1:
            self._deliver_many(obj, get, wanted, done)
            return None
        (span,) = wanted

        def on_part(part: memoryview | Exception) -> None:
            done(part if isinstance(part, Exception) else [part])

        block = block_of(obj, span.number, self.block_bytes)
        waiter = Waiter(span.start, span.stop, on_part)
        return self.fetches.request(
            block,
            obj,
            get,
            waiter,
            tiers_checked=True,
            return_job=return_job and block.whole,
            begin=begin,
        )

    def submit(self, job: FetchJob) -> None:
        """Run a job of `deliver` in one of our threads."""
        self.fetches.submit(job)

    def _deliver_many(
        self, obj: CachedObject, get: GetRange, wanted: list[Span], done: OnData
    ) -> None:
        if not wanted:
            done([])
            return
        parts: list[memoryview | None] = [None] * len(wanted)
        lock = threading.Lock()
        missing = len(wanted)  # 0 once `done` has been called

        def on_part(place: int, part: memoryview | Exception) -> None:
            nonlocal missing
            with lock:
                if not missing:
                    return
                missing = 0 if isinstance(part, Exception) else missing - 1
                if not isinstance(part, Exception):
                    # Copy the part while others are missing: it must not keep a whole block alive
                    # that no longer counts as held memory.
                    parts[place] = memoryview(bytes(part)) if missing else part
                if missing:
                    return
            done(part if isinstance(part, Exception) else [part for part in parts if part])

        for place, span in enumerate(wanted):
            block = block_of(obj, span.number, self.block_bytes)
            # `read_now` may have found some of these blocks, so the tiers are checked again.
            waiter = Waiter(span.start, span.stop, partial(on_part, place))
            self.fetches.request(block, obj, get, waiter, tiers_checked=False)

    def read(self, obj: CachedObject, get: GetRange, offset: int, length: int) -> list[memoryview]:
        """Deliver the range to a caller that waits for it."""
        answers: list[list[memoryview] | Exception] = []
        answered = threading.Event()

        def done(answer: list[memoryview] | Exception) -> None:
            answers.append(answer)
            answered.set()

        self.deliver(obj, get, offset, length, done)
        answered.wait()
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    # -- ahead of readers -----------------------------------------------------------------

    def prefetch(self, obj: CachedObject, get: GetRange, number: int) -> bool:
        """See Fetches."""
        return self.fetches.prefetch(block_of(obj, number, self.block_bytes), obj, get)

    def fetch_ahead(
        self,
        obj: CachedObject,
        get: GetRange,
        number: int,
        push: PushBlock | None,
        missing_since_s: float,
    ) -> FetchResult:
        """See Fetches."""
        block = block_of(obj, number, self.block_bytes)
        return self.fetches.fetch_ahead(block, obj, get, push, missing_since_s)

    # -- what is held -----------------------------------------------------------------------

    def is_stored(self, block: Block) -> bool:
        """Whether the block is in a tier."""
        return self._tiers.has(block)

    def cached_bytes(self, obj: CachedObject) -> int:
        self.wait_until_stored(obj.digest)
        cached = sum(tier.cached_bytes(obj.digest) for tier in self.tiers)
        return min(obj.size_bytes, cached)

    def complete_file(self, obj: CachedObject) -> Path | None:
        """Return the plain file that holds the whole object, if a tier has one."""
        if (path := self._complete_file(obj)) is None:
            self.wait_until_stored(obj.digest)
            path = self._complete_file(obj)
        return path

    def _complete_file(self, obj: CachedObject) -> Path | None:
        for tier in self.tiers:
            try:
                if (path := tier.complete_file(obj)) is not None:
                    return path
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)
        return None

    def wait_until_stored(self, digest: bytes | None = None) -> None:
        """Wait until all blocks received so far are in the tiers, or found no room."""
        self.buffers.wait_until_stored(digest)

    def release(self, objects: Sequence[CachedObject]) -> None:
        """Release the memory that holds blocks of these objects."""
        self.buffers.release_objects([obj.digest for obj in objects])

    @property
    def declined_blocks(self) -> int:
        """The number of fetched blocks that no tier had room for."""
        return self.buffers.declined_blocks

    def source_bytes(self, source: str) -> int:
        self.wait_until_stored()
        return sum(tier.source_bytes(source) for tier in self.tiers)

    def indexed_bytes(self, source: str) -> int:
        """Like `source_bytes`, without waiting for blocks on their way into the tiers."""
        return sum(tier.indexed_bytes(source) for tier in self.tiers)

    def mark_outdated(self, objects: list[CachedObject]) -> None:
        for tier in self.tiers:
            try:
                tier.mark_outdated([obj.digest for obj in objects])
            except (OSError, sqlite3.Error) as error:
                self.warn(tier, error)

    @property
    def fetching(self) -> int:
        return self.buffers.in_flight

    @property
    def buffered_bytes(self) -> int:
        return self.buffers.held_bytes

    def drop_idle(self) -> None:
        """Release the blocks in memory that no reader waits for."""
        self.buffers.drop_idle()

    def flush(self) -> None:
        """Write all pending index rows, so that other processes see what is stored."""
        self.wait_until_stored()
        for tier in self.tiers:
            try:
                tier.flush()
            except sqlite3.Error as error:
                self.warn(tier, error)

    def check_for_hangs(self) -> None:
        """Take directories out of service whose disk does not answer. Called now and then by a
        thread that never touches them."""
        for tier in self.tiers:
            tier.check_for_hangs()

    def close(self) -> None:
        self.fetches.close(_CLOSE_WITHIN_S)
        for tier in self.tiers:
            try:
                tier.close()
            except sqlite3.Error as error:
                self.warn(tier, error)

    def warn(self, tier: Tier, error: Exception) -> None:
        self._tiers.warn(tier, error)
