"""Brings what the feeds want, as many at once as helps, while readers go on.

A feed (an epoch plan, a load) says which blocks come next; the cache fetches them; `push` puts them
into the kernel's page cache. Several feeds share the requests in flight, turn by turn.

Who fetches is a `Bringer`: threads of this process (`warm.bringer`), or its workers.

Threading: one thread asks the feeds, and has fetched what they want. Feeds are asked by that
thread only, and told of ends by the bringer's.
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

# How often cursors are looked at while nothing else happens.
_LOOK_S = 0.02
MOST_IN_FLIGHT = 256
# What storage calls it when it is asked too much: see store.translate.
_THROTTLED = "slow_down"


class Wanted(NamedTuple):
    """A block that a feed wants next."""

    ino: int
    number: int
    push: bool
    missing_since_s: float  # when it was seen to be missing
    ended: Callable[[FetchResult], None]
    is_wanted: Callable[[], bool] = lambda: True  # is it still wanted?


class Feed(Protocol):
    def take(self, most: int) -> list[Wanted]:
        """What comes next, at most so many. Empty: nothing at the moment."""
        ...


Ended = Callable[[list[tuple[Wanted, FetchResult]]], None]


class Fetcher(Protocol):
    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        """Has them fetched, and calls `ended` once for each, some at a time. Returns at once."""
        ...


class Prefetcher:
    def __init__(self, fetcher: Fetcher, counters: Counters) -> None:
        self._fetcher = fetcher
        self._counters = counters
        self.pace = Pace(MOST_IN_FLIGHT)
        self._changed = threading.Condition()
        self._feeds: list[Feed] = []
        self._again: deque[Wanted] = deque()
        self._in_flight = 0
        self._crowded = False  # there was no room for the last one: others must end first
        self._throttles = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def add(self, feed: Feed) -> None:
        with self._changed:
            self._feeds.append(feed)
            self._changed.notify()

    def wake(self) -> None:
        """A feed that had nothing has something: it is asked at once."""
        with self._changed:
            self._changed.notify()

    def remove(self, feed: Feed) -> None:
        """What it has started is still fetched."""
        with self._changed:
            if feed in self._feeds:
                self._feeds.remove(feed)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def close(self) -> None:
        """Nothing more is started."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # -- the thread that asks ------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                if not self._feeds and not self._again:
                    self._changed.wait()
                    continue
                room = self._room()
                if not room or self._crowded:
                    # Not at once again: who waits for memory would take the interpreter's lock
                    # from those who give it back.
                    self._changed.wait(_LOOK_S)
                    self._crowded = False
                    continue
                feeds = self._feeds.copy()
            if not self._start_some(feeds, room):
                with self._changed:
                    self._changed.wait(_LOOK_S)

    def _room(self) -> int:
        """Filled a quarter at a time: a wake-up for each would cost more than it brings."""
        target = self.pace.target
        return target - self._in_flight if self._in_flight <= target * 3 // 4 else 0

    def _start_some(self, feeds: list[Feed], room: int) -> bool:
        self._look_for_throttling()
        again = [self._again.popleft() for _ in range(min(room, len(self._again)))]
        self._start(again)
        started = bool(again)
        room -= len(again)
        if self._again:
            return started  # no room for those: none for more
        share = max(1, room // max(1, len(feeds)))
        for feed in feeds:
            if room <= 0:
                break
            try:
                wanted = feed.take(min(share, room))
            except CatalogDamaged as error:  # it is asked again, of another catalog
                log.debug("%s", error)
                continue
            except Exception:  # one feed's fault must not starve the others
                log.exception("an epoch plan or a load failed, and is given up")
                self.remove(feed)
                continue
            self._start(wanted)
            room -= len(wanted)
            started = started or bool(wanted)
        with self._changed:
            if feeds and self._feeds and self._feeds[0] is feeds[0]:
                self._feeds.append(self._feeds.pop(0))  # who was asked first is last next time
        return started

    def _look_for_throttling(self) -> None:
        throttles = self._counters.by_label("store_retries").get(_THROTTLED, 0)
        if throttles > self._throttles:
            self._throttles = throttles
            with self._changed:
                self.pace.throttled(time.monotonic())

    def _start(self, wanted: list[Wanted]) -> None:
        with self._changed:
            self._in_flight += len(wanted)
        if wanted:
            self._fetcher.fetch_ahead(wanted, self._note_ends)

    def _note_ends(self, ends: list[tuple[Wanted, FetchResult]]) -> None:
        """All at once: a lock that is taken for each wakes up those who wait for it."""
        with self._changed:
            full, now_s, wake = not self._room(), time.monotonic(), False
            self._in_flight -= len(ends)
            for wanted, arrival in ends:
                if arrival.took_s is not None:
                    self.pace.note(arrival.took_s, arrival.length, now_s, full=full)
                if arrival.outcome is FetchOutcome.NO_ROOM:
                    self._again.append(wanted)
                    self._crowded = True
                else:
                    wake = True
            if wake and self._room():
                self._changed.notify()
        for wanted, arrival in ends:
            if arrival.outcome is not FetchOutcome.NO_ROOM:
                wanted.ended(arrival)


log = logging.getLogger(__name__)

# push(ino, offset, data) -> does the kernel have it now?
PushPages = Callable[[int, int, memoryview], bool]


class LocalFetcher:
    def __init__(self, files: FileSystem, push: PushPages | None, counters: Counters) -> None:
        self._files = files
        self._push = push
        self._counters = counters
        self._pool = Pool(MOST_IN_FLIGHT, "ahead")

    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        for one in wanted:
            self._pool.submit(partial(self._fetch_ahead, one, ended))

    def close(self) -> None:
        """What has not begun is dropped, and nobody waits for the rest."""
        self._pool.close(0)

    def _fetch_ahead(self, wanted: Wanted, ended: Ended) -> None:
        arrival = FetchResult(FetchOutcome.FAILED, 0)
        try:
            if not wanted.is_wanted():
                return
            place = None
            if wanted.push and self._push is not None:
                offset = wanted.number * self._files.cache.block_bytes
                place = partial(self._place, self._push, wanted.ino, offset)
            file = self._files.file(wanted.ino)
            arrival = self._files.cache.fetch_ahead(
                file.obj, file.get, wanted.number, place, wanted.missing_since_s
            )
        except (PenstockError, OSError) as error:
            log.debug("inode %d was not brought: %s", wanted.ino, error)
            arrival = FetchResult(FetchOutcome.FAILED, 0, error=error)
        finally:
            ended([(wanted, arrival)])

    def _place(self, push: PushPages, ino: int, offset: int, data: memoryview) -> bool:
        try:
            placed = push(ino, offset, data)
        except OSError as error:
            log.warning("inode %d was not pushed: %s", ino, error)
            return False
        if placed:
            self._counters.add("pushed_bytes", len(data))
        return placed


_MOST_WAITING = 64  # announcements; who reads faster than we fetch needs no help


class SmallFileFeed:
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
    """Who reads it will see."""
