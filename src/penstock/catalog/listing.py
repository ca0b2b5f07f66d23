"""Lists a store in parallel, by prefix, in bounded memory.

A prefix with more than a page of keys below it is split into its sub-prefixes, each listed by
another thread. Flat directories, and trees of very many small directories, are streamed: there one
request for each prefix would cost more than it saves.

Threading: daemon threads, one queue of prefixes to them, one bounded queue of pages from them. A
call into the store cannot be cancelled; a thread whose call never returns is abandoned, counted,
and ends with the process.
"""

import queue
import threading
import time
import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from penstock.catalog.names import KEY_MAX_BYTES, cut_key
from penstock.errors import PenstockError, SourceError, StoreError
from penstock.store import ObjectInfo, Store

_THREADS = 16
_FULL_PAGE = 1000
_MAX_PREFIXES = 2000
# Pages queued for the one writer. Bounds memory to a few MB, whatever the bucket.
_QUEUED_PAGES = 16
# Prefixes queued for a thread. A tree of 2000 by 2000 directories would queue 4 million.
_QUEUED_PREFIXES = 20_000
# A listing without a page for so long is given up: a server can answer with empty pages for ever,
# and then the call into the store never returns. Long, because one listing by level of 10 million
# keys yields nothing either.
SILENCE_S = 600.0
_JOIN_TIMEOUT_S = 5.0
_MAX_ABANDONED = 4 * _THREADS

# What libraries raise for an answer that is well-formed but wrong: a missing field, a date of the
# year 20000, a gzip that ends early. They do not document these exceptions.
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

_abandoned: list[threading.Thread] = []


class _Split(NamedTuple):
    """Prefixes to be listed by themselves."""

    prefixes: list[str]


class _Done(NamedTuple):
    """One prefix has been listed."""


_Message = list[ObjectInfo] | _Split | _Done | BaseException


def list_in_parallel(
    store: Store, *, silence_s: float = SILENCE_S
) -> Generator[list[ObjectInfo], None, None]:
    """Yield every object of the store, in no order; an entry may come twice.

    Raises StoreError when nothing has come for `silence_s`, SourceError for an answer that is no
    listing. The caller closes the generator if it stops early.
    """
    _check_abandoned(store)
    listing = _Listing(store)
    running = 1  # prefixes; counted by this thread alone
    listing.prefixes.put("")
    try:
        while running:
            try:
                message = listing.pages.get(timeout=silence_s)
            except queue.Empty:
                raise StoreError(
                    f"{store.identity}: its listing has made no progress for {silence_s:g} s",
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
        self.pages: queue.Queue[_Message] = queue.Queue(_QUEUED_PAGES)
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
            self.pages.get()  # wakes threads that wait for space in the queue
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        _abandoned.extend(thread for thread in self._threads if thread.is_alive())

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
                if level is not None and 1 < len(level.prefixes) <= _MAX_PREFIXES:
                    yield from _bounded(level.objects)
                    # A directory marker at this level is known by its prefix.
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
                f"{self._store.identity}: the listing cannot be parsed "
                f"({type(error).__name__}: {str(error)[:200]})",
                hint="check --endpoint: it must be the address of the storage itself",
            ) from error

    def _may_split(self) -> bool:
        return self.prefixes.qsize() < _QUEUED_PREFIXES


def _bounded(page: list[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Yield a page of any size as pages of bounded size, with long keys and versions cut.

    They stay long enough to be recognized as too long.
    """
    for start in range(0, len(page), _FULL_PAGE):
        yield [
            info
            if len(info.key) <= KEY_MAX_BYTES and len(info.version) <= KEY_MAX_BYTES
            else info._replace(key=cut_key(info.key), version=info.version[:KEY_MAX_BYTES])
            for info in page[start : start + _FULL_PAGE]
        ]


def _goes_deeper(page: list[ObjectInfo], prefix: str) -> bool:
    skip = len(prefix) + 1 if prefix else 0
    return any("/" in info.key[skip:] for info in page)


def _check_abandoned(store: Store) -> None:
    _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
    if len(_abandoned) >= _MAX_ABANDONED:
        raise StoreError(
            f"{store.identity}: {len(_abandoned)} requests of earlier listings still hang",
            hint="check --endpoint: it accepts requests but does not finish its answers",
        )
