"""Tries again, in one place: a wrapper with the protocol of a store, around any store.

What may pass (refused, reset, 5xx, slow down, timeouts, short or wrong bodies) is tried again
with exponential backoff and full jitter, until a deadline. What will not pass (not found,
rewritten, a wrong source) is raised at once. Keys that worked and work no more are read again.

Threading: any thread; whoever asks also waits. Nothing is held while waiting.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import Buffer

from penstock.errors import AccessDenied, StoreError
from penstock.metrics import Counters
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress, Store, WrappedPending
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import OBJECT_SCHEMES, Source

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# A store that refuses everybody is not asked for a new token by every read.
_REOPEN_INTERVAL_S = 30.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Timing:
    """What waiting needs; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random  # in [0, 1)


@dataclass(slots=True)
class _Link:
    """The store as it is open now; shared by all that are patient with it."""

    store: Store
    reopen: Callable[[], Store] | None
    worked: bool = False
    reopened_s: float | None = None
    denied_hint: str | None = None  # what to do about keys that are refused, if not the usual
    lock: threading.Lock = field(default_factory=threading.Lock)


class RetryingStore:
    def __init__(
        self,
        store: Store,
        counters: Counters,
        *,
        deadline_s: float,
        reopen: Callable[[], Store] | None = None,
        time: Timing | None = None,
        denied_hint: str | None = None,
    ) -> None:
        self.identity = store.identity
        self._link = _Link(store, reopen, denied_hint=denied_hint)
        self._counters = counters
        self._deadline_s = deadline_s
        self._first_contact_s = deadline_s
        self._time = time or Timing()

    def with_first_contact_limit(self, first_contact_s: float) -> "RetryingStore":
        """The same store for someone who must soon know whether it is there at all: as long as it
        has never answered, it is waited for so long and no longer."""
        hurried = RetryingStore(
            self._link.store, self._counters, deadline_s=self._deadline_s, time=self._time
        )
        hurried._link = self._link
        hurried._first_contact_s = min(first_contact_s, self._deadline_s)
        return hurried

    # -- the protocol -------------------------------------------------------------------

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        return self._ask(lambda store: store.get(key, version, start, length, size_bytes, progress))

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        if not self._link.worked:
            return None  # the first contact has a time limit of its own
        store = self._link.store
        pending = store.begin(key, version, size_bytes)
        if pending is None:
            return None

        def retry(error: Exception, /) -> Buffer:
            return self._ask(
                lambda store: store.get(key, version, 0, size_bytes, size_bytes), (store, error)
            )

        return WrappedPending(pending, retry=retry)

    def list_level(self, prefix: str) -> Level | None:
        return self._ask(lambda store: store.list_level(prefix))

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        tries: _Tries | None = None
        listed = _Listed()
        while True:
            store = self._link.store
            listed.begin()
            try:
                for page in store.list_all(prefix, after):
                    self._link.worked = True
                    if listed.is_new(page):
                        tries = None  # each new page has the whole deadline
                    after = page[-1].key if page else after
                    yield page
                return
            except StoreError as error:
                tries = tries or _Tries(self._time, self._patience_s)
                self._wait(tries, error)
            except AccessDenied as error:
                self._open_again(store, error)

    def why_unreadable(self, key: str) -> str | None:
        return self._link.store.why_unreadable(key)

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        """The deadline is for the store that gets no further: a large object takes longer."""
        tries: _Tries | None = None
        furthest = _Furthest(chunks)
        while True:
            store = self._link.store
            try:
                version = store.put_file(key, furthest.begin, size_bytes)
            except StoreError as error:
                if furthest.is_new() or tries is None:
                    tries = _Tries(self._time, self._patience_s)
                self._wait(tries, error)
            except AccessDenied as error:
                self._open_again(store, error)
            else:
                self._link.worked = True
                return version

    def delete(self, key: str) -> None:
        self._ask(lambda store: store.delete(key))

    def clear_partial(self, key: str) -> None:
        self._ask(lambda store: store.clear_partial(key))

    # -- inside -------------------------------------------------------------------------

    def _ask(
        self, question: Callable[[Store], _Answer], failed: tuple[Store, Exception] | None = None
    ) -> _Answer:
        """`failed`: the first attempt, which was made elsewhere: what was asked, and the answer."""
        tries = _Tries(self._time, self._patience_s)
        while True:
            store = self._link.store
            try:
                if failed is not None:
                    (store, error), failed = failed, None
                    raise error
                answer = question(store)
            except StoreError as error:
                self._wait(tries, error)
            except AccessDenied as error:
                self._open_again(store, error)
            else:
                self._link.worked = True
                return answer

    @property
    def _patience_s(self) -> float:
        return self._deadline_s if self._link.worked else self._first_contact_s

    def _wait(self, tries: "_Tries", error: StoreError) -> None:
        """Returns when it may be tried again; raises the error when it may not."""
        if not error.transient:
            self._link.worked = True  # it is there, and answers
            raise error
        if not tries.pause():
            raise error
        log.info("trying again: %s", error)
        self._counters.add("store_retries", label=error.kind)

    def _open_again(self, refused: Store, error: AccessDenied) -> None:
        """Returns when there are other credentials to try; raises the error if there are not."""
        if not self._opened_again(refused):
            error.hint = self._link.denied_hint or error.hint
            raise error

    def _opened_again(self, refused: Store) -> bool:
        """Were the credentials read again since `refused` was opened? Only keys that worked are:
        those that never did are a mistake, and not a rotation."""
        link = self._link
        if link.reopen is None or not link.worked:
            return False
        with link.lock:
            if link.store is not refused:
                return True  # by another thread
            now = self._time.now()
            if link.reopened_s is not None and now - link.reopened_s < _REOPEN_INTERVAL_S:
                return False
            link.reopened_s = now
            link.store = link.reopen()
        log.warning("%s: access was denied; the credentials were read again", self.identity)
        self._counters.add("store_reopens")
        return True


class _Furthest:
    """How far the attempts at writing one object have come. One thread."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._furthest_bytes = 0
        self._handed_bytes = 0

    def begin(self) -> Iterator[Buffer]:
        self._handed_bytes = 0
        for chunk in self._chunks():
            yield chunk
            self._handed_bytes += memoryview(chunk).nbytes

    def is_new(self) -> bool:
        """Did the last attempt come further than all before it?"""
        before, self._furthest_bytes = (
            self._furthest_bytes,
            max(self._furthest_bytes, self._handed_bytes),
        )
        return self._furthest_bytes > before


class _Listed:
    """How far the attempts at one listing have come, by the key that each began with: not every
    store goes on where it broke, and what it repeats is no progress. One thread."""

    def __init__(self) -> None:
        self._furthest: dict[str, int] = {}  # how many keys, at most, from this one on
        self._first: str | None = None
        self._count = 0

    def begin(self) -> None:
        self._first, self._count = None, 0

    def is_new(self, page: list[ObjectInfo]) -> bool:
        """Does this page come further than all attempts that began where this one did?"""
        if not page:
            return False
        self._first = page[0].key if self._first is None else self._first
        self._count += len(page)
        if self._count <= self._furthest.get(self._first, 0):
            return False
        self._furthest[self._first] = self._count
        return True


class _Tries:
    """The pauses between the attempts at one thing."""

    __slots__ = ("_longest_s", "_time", "_until_s")

    def __init__(self, time: Timing, patience_s: float) -> None:
        self._time = time
        self._until_s = time.now() + patience_s
        self._longest_s = _FIRST_PAUSE_S

    def pause(self) -> bool:
        """Sleeps; False if the deadline is here. Full jitter, since those who failed together would
        otherwise come back together."""
        pause_s = self._longest_s * self._time.draw()
        self._longest_s = min(_LONGEST_PAUSE_S, self._longest_s * 2)
        left_s = self._until_s - self._time.now()
        if left_s <= _FIRST_PAUSE_S:
            return False
        # Never beyond the deadline, and never so long that no try is left: a store that came back
        # before it was missed by up to a whole pause, 2 s of a deadline of 6.
        self._time.sleep(min(pause_s, left_s / 2))
        return True


# The store as a mount uses it: bodies checked, failures waited out, credentials renewed.

# How long a mount waits for a store that has never answered: a wrong --endpoint is told in seconds.
FIRST_CONTACT_S = 3.0
# Instead of the names of variables that nobody looked at.
_GIVEN_KEYS_HINT = "check the keys that this source was given, and that they may list and read here"


def open_reliable_store(source: Source, options: StoreOptions, counters: Counters) -> RetryingStore:
    def open_again() -> Store:
        return open_store(source, options, counters)

    # Those that were handed over cannot be read again; whoever did that hands over others.
    has_credentials = (
        source.scheme in OBJECT_SCHEMES and not options.anonymous and options.keys is None
    )
    return RetryingStore(
        open_again(),
        counters,
        deadline_s=options.deadline_s,
        reopen=open_again if has_credentials else None,
        denied_hint=None if options.keys is None else _GIVEN_KEYS_HINT,
    )
