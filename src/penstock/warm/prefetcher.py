"""Fetches the blocks that feeds want, while readers go on.

A feed (an epoch plan, a load, a run of small files) decides which blocks come next; the cache
fetches them; `push` puts them into the kernel's page cache. Several feeds share the requests in
flight, in turns.

A `Fetcher` fetches: threads of this process (`LocalFetcher`), or its workers.

Threading: one thread takes blocks from the feeds and passes them to the fetcher. The fetcher's
threads report results to the feeds.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.cache.pool import Pool
from penstock.errors import CatalogDamaged, PenstockError
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem
from penstock.warm.pace import Pace

log = logging.getLogger(__name__)

# How often cursors are checked while nothing else happens.
_POLL_S = 0.02
MOST_IN_FLIGHT = 256
# The kind of error with which storage rejects too many requests: see store.translate.
_THROTTLED = "slow_down"


class Wanted(NamedTuple):
    """A block that a feed wants next."""

    ino: int
    number: int
    push: bool
    missing_since_s: float  # when it was found missing in the tiers
    ended: Callable[[FetchResult], None]
    is_wanted: Callable[[], bool] = lambda: True  # False once it is no longer wanted


class Feed(Protocol):
    def take(self, most: int) -> list[Wanted]:
        """Return the next blocks, at most `most`. Empty: none at the moment."""
        ...


Ended = Callable[[list[tuple[Wanted, FetchResult]]], None]


class Fetcher(Protocol):
    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        """Fetch these blocks, and call `ended` once for each, several at a time. Returns at
        once."""
        ...


class Prefetcher:
    def __init__(self, fetcher: Fetcher, counters: Counters) -> None:
        self._fetcher = fetcher
        self._counters = counters
        self.pace = Pace(MOST_IN_FLIGHT)
        self._changed = threading.Condition()
        self._feeds: list[Feed] = []
        self._retries: deque[Wanted] = deque()
        self._in_flight = 0
        self._crowded = False  # no room for the last one: others must end first
        self._throttles = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def add(self, feed: Feed) -> None:
        with self._changed:
            self._feeds.append(feed)
            self._changed.notify()

    def wake(self) -> None:
        """Ask the feeds at once: one that had nothing has blocks now."""
        with self._changed:
            self._changed.notify()

    def remove(self, feed: Feed) -> None:
        """Blocks that the feed has handed out are still fetched."""
        with self._changed:
            if feed in self._feeds:
                self._feeds.remove(feed)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def close(self) -> None:
        """Start nothing more."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # -- the thread that asks the feeds --------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                if not self._feeds and not self._retries:
                    self._changed.wait()
                    continue
                room = self._room()
                if not room or self._crowded:
                    # Not at once again: threads that wait for memory would take the interpreter's
                    # lock from those that free it.
                    self._changed.wait(_POLL_S)
                    self._crowded = False
                    continue
                feeds = self._feeds.copy()
            if not self._start_some(feeds, room):
                with self._changed:
                    self._changed.wait(_POLL_S)

    def _room(self) -> int:
        """Return how many more may be started. Free places are filled a quarter at a time: a
        wake-up for each would cost more than it gains."""
        target = self.pace.target
        return target - self._in_flight if self._in_flight <= target * 3 // 4 else 0

    def _start_some(self, feeds: list[Feed], room: int) -> bool:
        self._check_throttling()
        retries = [self._retries.popleft() for _ in range(min(room, len(self._retries)))]
        self._start(retries)
        started = bool(retries)
        room -= len(retries)
        if self._retries:
            return started  # no room for the retries, so none for more
        share = max(1, room // max(1, len(feeds)))
        for feed in feeds:
            if room <= 0:
                break
            try:
                wanted = feed.take(min(share, room))
            except CatalogDamaged as error:  # it is asked again when the catalog is replaced
                log.debug("%s", error)
                continue
            except Exception:  # a failing feed must not starve the others
                log.exception("an epoch plan or a load failed and is dropped")
                self.remove(feed)
                continue
            self._start(wanted)
            room -= len(wanted)
            started = started or bool(wanted)
        with self._changed:
            if feeds and self._feeds and self._feeds[0] is feeds[0]:
                self._feeds.append(self._feeds.pop(0))  # the first feed is asked last next time
        return started

    def _check_throttling(self) -> None:
        throttles = self._counters.by_label("store_retries").get(_THROTTLED, 0)
        if throttles > self._throttles:
            self._throttles = throttles
            with self._changed:
                self.pace.note_throttling(time.monotonic())

    def _start(self, wanted: list[Wanted]) -> None:
        with self._changed:
            self._in_flight += len(wanted)
        if wanted:
            self._fetcher.fetch_ahead(wanted, self._note_ends)

    def _note_ends(self, ends: list[tuple[Wanted, FetchResult]]) -> None:
        """Record many results at once: a lock that is taken for each would wake the threads that
        wait for it."""
        with self._changed:
            full, now_s, wake = not self._room(), time.monotonic(), False
            self._in_flight -= len(ends)
            for wanted, result in ends:
                if result.took_s is not None:
                    self.pace.note(result.took_s, result.length, now_s, full=full)
                if result.outcome is FetchOutcome.NO_ROOM:
                    self._retries.append(wanted)
                    self._crowded = True
                else:
                    wake = True
            if wake and self._room():
                self._changed.notify()
        for wanted, result in ends:
            if result.outcome is not FetchOutcome.NO_ROOM:
                wanted.ended(result)


log = logging.getLogger(__name__)

# push(ino, offset, data) -> True if the kernel has it now
PushPages = Callable[[int, int, memoryview], bool]


class LocalFetcher:
    """Fetches blocks ahead of readers in threads of this process.

    The cache fetches each block as it does for readers (one fetch for all that want it), and pushes
    it into the page cache if that is wanted, before its memory is released.
    """

    def __init__(self, files: FileSystem, push: PushPages | None, counters: Counters) -> None:
        self._files = files
        self._push = push
        self._counters = counters
        self._pool = Pool(MOST_IN_FLIGHT, "ahead")

    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        for one in wanted:
            self._pool.submit(partial(self._fetch_ahead, one, ended))

    def close(self) -> None:
        """Drop what has not begun, without waiting for the rest."""
        self._pool.close(0)

    def _fetch_ahead(self, wanted: Wanted, ended: Ended) -> None:
        result = FetchResult(FetchOutcome.FAILED, 0)
        try:
            if not wanted.is_wanted():
                return
            push_block = None
            if wanted.push and self._push is not None:
                offset = wanted.number * self._files.cache.block_bytes
                push_block = partial(self._push_pages, self._push, wanted.ino, offset)
            file = self._files.file(wanted.ino)
            result = self._files.cache.fetch_ahead(
                file.obj, file.get, wanted.number, push_block, wanted.missing_since_s
            )
        except (PenstockError, OSError) as error:
            log.debug("inode %d was not prefetched: %s", wanted.ino, error)
            result = FetchResult(FetchOutcome.FAILED, 0, error=error)
        finally:
            ended([(wanted, result)])

    def _push_pages(self, push: PushPages, ino: int, offset: int, data: memoryview) -> bool:
        try:
            placed = push(ino, offset, data)
        except OSError as error:
            log.warning("inode %d was not pushed: %s", ino, error)
            return False
        if placed:
            self._counters.add("pushed_bytes", len(data))
        return placed


_MOST_WAITING = 64  # announcements; a reader that is faster than the fetches needs no help


class SmallFileFeed:
    """The small files that follow those that a reader reads in listing order, as a feed.

    They go into the cache and not to the kernel: the reader still requests each of them, which
    shows that it goes on.

    Threading: `announce` from any thread, `take` from the prefetcher's.
    """

    def __init__(
        self, files: FileSystem, add: Callable[[Feed], None], remove: Callable[[Feed], None]
    ) -> None:
        self._files = files
        self._add = add
        self._remove = remove
        self._lock = threading.Lock()
        self._announced: deque[tuple[int, int, int]] = deque(maxlen=_MOST_WAITING)
        self._ready: deque[Wanted] = deque()
        self._active = False

    def announce(self, parent: int, after: int, up_to: int) -> None:
        with self._lock:
            self._announced.append((parent, after, up_to))
            if self._active:
                return
            self._active = True
        self._add(self)

    def take(self, most: int) -> list[Wanted]:
        while len(self._ready) < most:
            with self._lock:
                if not self._announced:
                    break
                parent, after, up_to = self._announced.popleft()
            self._find(parent, after, up_to)
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        with self._lock:
            if not taken and not self._announced:
                self._active = False
                self._remove(self)
        return taken

    def _find(self, parent: int, after: int, up_to: int) -> None:
        for node in self._files.tree.files_numbered(parent, after, up_to):
            if 0 < (node.size_bytes or 0) <= self._files.cache.block_bytes:
                self._ready.append(Wanted(node.ino, 0, False, 0.0, _ignore))


def _ignore(_arrival: FetchResult) -> None:
    """Ignore the result: the reader fetches what is missing."""
