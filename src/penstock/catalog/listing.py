"""Lists a store in parallel, by prefix, in bounded memory.

A prefix with more than a page of keys below it is split into its sub-prefixes, each listed
by another thread. Directories that are merely flat, and trees of very many small
directories, are streamed: there one request for each prefix would cost more than it saves.

Threading: daemon threads, one queue of prefixes to them, one bounded queue of pages from them.
A call into the store cannot be broken off; one that never returns is left behind, counted, and
ends with the process.
"""

import queue
import threading
import time
import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from penstock.catalog.names import KEY_MAX_BYTES, cut
from penstock.errors import PenstockError, SourceError, StoreError
from penstock.store import ObjectInfo, Store

_THREADS = 16
_FULL_PAGE = 1000
_MOST_PREFIXES = 2000
# Pages waiting for the one writer. Bounds memory to a few MB, whatever the bucket.
_WAITING_PAGES = 16
# Prefixes waiting for a thread. A tree of 2000 by 2000 directories would queue 4 million.
_WAITING_PREFIXES = 20_000
# Nothing came for so long: a server can answer with empty pages for ever, and then the call into
# the store never returns. Long, because one listing by level of 10 million keys is silent too.
SILENCE_S = 600.0
_THREADS_END_WITHIN_S = 5.0
_MOST_LEFT_BEHIND = 4 * _THREADS

# What a library raises when an answer is well-formed and yet not what it must be: a missing
# field, a date of the year 20000, a gzip that ends early. No list of exceptions is promised.
_NOT_A_LISTING = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RecursionError,
    zlib.error,
)

_left_behind: list[threading.Thread] = []


class _Split(NamedTuple):
    """These prefixes are to be listed by themselves."""

    prefixes: list[str]


class _Done(NamedTuple):
    """One prefix has been listed."""


_Message = list[ObjectInfo] | _Split | _Done | BaseException


def list_in_parallel(
    store: Store, *, silence_s: float = SILENCE_S
) -> Generator[list[ObjectInfo], None, None]:
    """Every object of the store, in no order. An entry may come twice. Raises StoreError when
    nothing has come for `silence_s`, SourceError for what is no listing. Close it if left early."""
    _check_left_behind(store)
    listing = _Listing(store)
    running = 1  # prefixes; counted by this thread alone
    listing.prefixes.put("")
    try:
        while running:
            try:
                message = listing.pages.get(timeout=silence_s)
            except queue.Empty:
                raise StoreError(
                    f"{store.identity}: its listing has brought nothing for {silence_s:g} s",
                    hint="check --endpoint: it may answer with empty pages for ever",
                ) from None
            if isinstance(message, _Done):
                running -= 1
            elif isinstance(message, BaseException):
                raise message
            elif isinstance(message, _Split):
                running += len(message.prefixes)
                for prefix in message.prefixes:
                    listing.prefixes.put(prefix)
            else:
                yield message
    finally:
        listing.end()


class _Listing:
    """The threads of one listing, and the two queues between them and the caller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopped = threading.Event()
        self.prefixes: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.pages: queue.Queue[_Message] = queue.Queue(_WAITING_PAGES)
        self._threads = [
            threading.Thread(target=self._work, name=f"list-{number}", daemon=True)
            for number in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stopped.set()
        for _ in self._threads:
            self.prefixes.put(None)
        while not self.pages.empty():
            self.pages.get()  # whoever waits for room wakes up, and sees that it is over
        deadline = time.monotonic() + _THREADS_END_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        _left_behind.extend(thread for thread in self._threads if thread.is_alive())

    def _work(self) -> None:
        while (prefix := self.prefixes.get()) is not None and not self._stopped.is_set():
            try:
                for message in self._list_or_split(prefix):
                    self._put(message)
                    if self._stopped.is_set():
                        return
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                self._put(error)
            self._put(_Done())

    def _put(self, message: _Message) -> None:
        while not self._stopped.is_set():
            try:
                self.pages.put(message, timeout=1)
            except queue.Full:
                continue
            return

    def _list_or_split(self, prefix: str) -> Iterator[list[ObjectInfo] | _Split]:
        try:
            pages = self._store.list_all(prefix)
            first = next(pages, list[ObjectInfo]())
            if len(first) >= _FULL_PAGE and _goes_deeper(first, prefix) and self._may_split():
                level = self._store.list_level(prefix)
                if level is not None and 1 < len(level.prefixes) <= _MOST_PREFIXES:
                    yield from _bounded(level.objects)
                    # A directory marker at this level is told by its prefix.
                    markers = [ObjectInfo(f"{name}/", 0, 0, "") for name in level.prefixes]
                    yield from _bounded(markers)
                    yield _Split(level.prefixes)
                    return
            yield from _bounded(first)
            for page in pages:
                yield from _bounded(page)
        except PenstockError:
            raise
        except _NOT_A_LISTING as error:
            raise SourceError(
                f"{self._store.identity}: a listing that cannot be understood "
                f"({type(error).__name__}: {str(error)[:200]})",
                hint="check --endpoint: it must be the address of the storage itself",
            ) from error

    def _may_split(self) -> bool:
        return self.prefixes.qsize() < _WAITING_PREFIXES


def _bounded(page: list[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Pages of any size as pages of ours, in which no key and no version is much larger than what
    tells that it is too large."""
    for start in range(0, len(page), _FULL_PAGE):
        yield [
            info
            if len(info.key) <= KEY_MAX_BYTES and len(info.version) <= KEY_MAX_BYTES
            else info._replace(key=cut(info.key), version=info.version[:KEY_MAX_BYTES])
            for info in page[start : start + _FULL_PAGE]
        ]


def _goes_deeper(page: list[ObjectInfo], prefix: str) -> bool:
    skip = len(prefix) + 1 if prefix else 0
    return any("/" in info.key[skip:] for info in page)


def _check_left_behind(store: Store) -> None:
    _left_behind[:] = [thread for thread in _left_behind if thread.is_alive()]
    if len(_left_behind) >= _MOST_LEFT_BEHIND:
        raise StoreError(
            f"{store.identity}: {len(_left_behind)} requests of earlier listings still wait",
            hint="check --endpoint: it takes requests and does not end its answers",
        )
