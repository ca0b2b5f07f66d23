"""A store wrapper that retries requests, and counts how each ended. No other code retries.

Transient errors (refused, reset, 5xx, slow down, timeouts, short or wrong bodies) are retried with
exponential backoff and full jitter, until a deadline. Other errors (not found, rewritten, a wrong
source) are raised at once. Credentials that worked before and are refused now are read again.

Threading: any thread; the calling thread waits. No lock is held while waiting.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import Buffer

from penstock.errors import AccessDenied, ObjectChanged, ObjectNotFound, PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress, Store, WrappedPending
from penstock.store.connect import StoreOptions, open_store
from penstock.store.source import OBJECT_SCHEMES, Source

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# Not every read of a store that denies access reads the credentials again.
_REOPEN_INTERVAL_S = 30.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock and the random numbers of the pauses; tests replace them."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random  # in [0, 1)


@dataclass(slots=True)
class _Link:
    """The store that is open now; shared by all RetryingStores of it."""

    store: Store
    reopen: Callable[[], Store] | None
    worked: bool = False
    reopened_s: float | None = None
    denied_hint: str | None = None  # replaces the hint of AccessDenied
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
        """Return this store with a shorter deadline until the store has answered once."""
        limited = RetryingStore(
            self._link.store, self._counters, deadline_s=self._deadline_s, time=self._time
        )
        limited._link = self._link
        limited._first_contact_s = min(first_contact_s, self._deadline_s)
        return limited

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
        return self._ask(
            "get", lambda store: store.get(key, version, start, length, size_bytes, progress)
        )

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        if not self._link.worked:
            return None  # the first contact has a time limit of its own
        store = self._link.store
        began_s = self._time.now()
        pending = store.begin(key, version, size_bytes)
        if pending is None:
            return None

        def retry(error: Exception, /) -> Buffer:
            return self._ask(
                "get",
                lambda store: store.get(key, version, 0, size_bytes, size_bytes),
                (store, error),
            )

        return WrappedPending(
            pending, check=lambda _data: self._note_answer("get", began_s), retry=retry
        )

    def list_level(self, prefix: str) -> Level | None:
        return self._ask("list", lambda store: store.list_level(prefix))

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        backoff: _Backoff | None = None
        progress = _ListingProgress()
        while True:
            store = self._link.store
            progress.begin()
            began_s = self._time.now()
            try:
                for page in store.list_all(prefix, after):
                    self._note_answer("list", began_s)
                    self._link.worked = True
                    if progress.has_advanced(page):
                        backoff = None  # each new page has the whole deadline
                    after = page[-1].key if page else after
                    yield page
                    began_s = self._time.now()
                return
            except PenstockError as error:
                backoff = backoff or _Backoff(self._time, self._time_limit_s)
                self._recover("list", store, error, backoff)

    def why_unreadable(self, key: str) -> str | None:
        return self._link.store.why_unreadable(key)

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        """See Store. The deadline starts again with all progress: a large object takes longer."""
        backoff: _Backoff | None = None
        progress = _UploadProgress(chunks)
        while True:
            store = self._link.store
            began_s = self._time.now()
            try:
                version = store.put_file(key, progress.begin, size_bytes)
            except PenstockError as error:
                if progress.has_advanced() or backoff is None:
                    backoff = _Backoff(self._time, self._time_limit_s)
                self._recover("put", store, error, backoff)
            else:
                self._note_answer("put", began_s)
                self._link.worked = True
                return version

    def delete(self, key: str) -> None:
        self._ask("delete", lambda store: store.delete(key))

    def clear_partial(self, key: str) -> None:
        self._ask("delete", lambda store: store.clear_partial(key))

    # -- retries ------------------------------------------------------------------------

    def _ask(
        self,
        verb: str,
        question: Callable[[Store], _Answer],
        failed: tuple[Store, Exception] | None = None,
    ) -> _Answer:
        """Run a request with retries. `failed`: the store and the error of a first attempt."""
        backoff = _Backoff(self._time, self._time_limit_s)
        while True:
            store = self._link.store
            began_s = self._time.now()
            try:
                if failed is not None:
                    (store, error), failed = failed, None
                    raise error
                answer = question(store)
            except PenstockError as error:
                self._recover(verb, store, error, backoff)
            else:
                self._note_answer(verb, began_s)
                self._link.worked = True
                return answer

    def _note_answer(self, verb: str, began_s: float) -> None:
        """The stores count what was answered themselves: one call may send several requests."""
        self._counters.observe("store_request_seconds", self._time.now() - began_s, verb)

    def _recover(self, verb: str, store: Store, error: PenstockError, backoff: "_Backoff") -> None:
        """Return when the request may be sent again; raise the error if it is not to be."""
        self._counters.add("store_requests", label=verb, outcome=_outcome(error))
        if isinstance(error, StoreError):
            self._wait(backoff, error)
        elif isinstance(error, AccessDenied):
            self._open_again(store, error)
        else:
            raise error

    @property
    def _time_limit_s(self) -> float:
        return self._deadline_s if self._link.worked else self._first_contact_s

    def _wait(self, backoff: "_Backoff", error: StoreError) -> None:
        """Sleep before a retry; raise the error if there is to be none."""
        if not error.transient:
            self._link.worked = True  # the store answered
            raise error
        if not backoff.pause():
            raise error
        log.info("retrying: %s", error)
        self._counters.add("store_retries", label=error.kind)

    def _open_again(self, refused: Store, error: AccessDenied) -> None:
        """Open the store with fresh credentials; raise the error if there are none."""
        if not self._opened_again(refused):
            error.hint = self._link.denied_hint or error.hint
            raise error

    def _opened_again(self, refused: Store) -> bool:
        """Return whether the credentials were read again since `refused` was opened.

        Only credentials that worked are read again: others are a mistake, not a rotation.
        """
        link = self._link
        if link.reopen is None or not link.worked:
            return False
        with link.lock:
            if link.store is not refused:
                return True  # another thread did it
            now = self._time.now()
            if link.reopened_s is not None and now - link.reopened_s < _REOPEN_INTERVAL_S:
                return False
            link.reopened_s = now
            link.store = link.reopen()
        log.warning("%s: access was denied; the credentials were read again", self.identity)
        self._counters.add("store_reopens")
        return True


def _outcome(error: PenstockError) -> str:
    """Name a failure: a metric's label, so one of few words."""
    for kind, word in _OUTCOMES:
        if isinstance(error, kind):
            return word
    return error.kind if isinstance(error, StoreError) else "invalid"


_OUTCOMES = ((AccessDenied, "denied"), (ObjectNotFound, "not_found"), (ObjectChanged, "changed"))


class _UploadProgress:
    """How far the attempts to write one object have come. One thread."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._furthest_bytes = 0
        self._sent_bytes = 0

    def begin(self) -> Iterator[Buffer]:
        self._sent_bytes = 0
        for chunk in self._chunks():
            yield chunk
            self._sent_bytes += memoryview(chunk).nbytes

    def has_advanced(self) -> bool:
        """Return whether the last attempt came further than all before it."""
        before, self._furthest_bytes = (
            self._furthest_bytes,
            max(self._furthest_bytes, self._sent_bytes),
        )
        return self._furthest_bytes > before


class _ListingProgress:
    """How far the attempts at one listing have come, by the first key of each attempt.

    Not every store continues where it failed, and repeated keys are no progress. One thread.
    """

    def __init__(self) -> None:
        self._furthest: dict[str, int] = {}  # by first key: the largest number of keys
        self._first: str | None = None
        self._count = 0

    def begin(self) -> None:
        self._first, self._count = None, 0

    def has_advanced(self, page: list[ObjectInfo]) -> bool:
        """Return whether this attempt is now further than all others with the same first key."""
        if not page:
            return False
        self._first = page[0].key if self._first is None else self._first
        self._count += len(page)
        if self._count <= self._furthest.get(self._first, 0):
            return False
        self._furthest[self._first] = self._count
        return True


class _Backoff:
    """The pauses between the attempts at one request."""

    __slots__ = ("_longest_s", "_time", "_until_s")

    def __init__(self, time: Timing, time_limit_s: float) -> None:
        self._time = time
        self._until_s = time.now() + time_limit_s
        self._longest_s = _FIRST_PAUSE_S

    def pause(self) -> bool:
        """Sleep; return False at the deadline.

        Full jitter, since requests that failed together would otherwise be retried together.
        """
        pause_s = self._longest_s * self._time.draw()
        self._longest_s = min(_LONGEST_PAUSE_S, self._longest_s * 2)
        left_s = self._until_s - self._time.now()
        if left_s <= _FIRST_PAUSE_S:
            return False
        # Never beyond the deadline, and never so long that no attempt is left: else a store that
        # recovers is missed by up to a whole pause, 2 s of a deadline of 6.
        self._time.sleep(min(pause_s, left_s / 2))
        return True


# How long a mount waits for a store that has never answered: a wrong --endpoint fails in seconds.
FIRST_CONTACT_S = 3.0
# Instead of the names of variables that are not used.
_GIVEN_KEYS_HINT = "check the keys that this source was given, and that they may list and read here"


def open_reliable_store(source: Source, options: StoreOptions, counters: Counters) -> RetryingStore:
    """Open a store as a mount uses it: bodies verified, requests retried, credentials renewed."""

    def open_again() -> Store:
        return open_store(source, options, counters)

    # Given keys cannot be read again.
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
