"""Lists a store in parallel, by prefix, in bounded memory.

A prefix with more than a page of keys below it is split into its sub-prefixes, each listed
by another thread. Directories that are merely flat, and trees of very many small
directories, are streamed: there one request for each prefix would cost more than it saves.
"""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.store import ObjectInfo, Store

_THREADS = 16
_FULL_PAGE = 1000
_MOST_PREFIXES = 2000
# Pages waiting for the one writer. Bounds memory to a few tens of MB while listing a million keys.
_WAITING_PAGES = 64


class _Split(NamedTuple):
    """These prefixes are to be listed by themselves."""

    prefixes: list[str]


class _Done(NamedTuple):
    """One prefix has been listed."""


_Message = list[ObjectInfo] | _Split | _Done | BaseException


def list_in_parallel(store: Store) -> Iterator[list[ObjectInfo]]:
    """Every object of the store, in no order. An entry may come twice."""
    messages: queue.Queue[_Message] = queue.Queue(_WAITING_PAGES)
    stopped = threading.Event()

    def put(message: _Message) -> None:
        while not stopped.is_set():
            try:
                messages.put(message, timeout=1)
            except queue.Full:
                continue
            return

    def list_prefix(prefix: str) -> None:
        try:
            for message in _list_or_split(store, prefix):
                if stopped.is_set():
                    return
                put(message)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            put(error)
        put(_Done())

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="list") as threads:
        threads.submit(list_prefix, "")
        running = 1  # counted by this thread alone
        try:
            while running:
                message = messages.get()
                if isinstance(message, _Done):
                    running -= 1
                elif isinstance(message, BaseException):
                    raise message
                elif isinstance(message, _Split):
                    running += len(message.prefixes)
                    for prefix in message.prefixes:
                        threads.submit(list_prefix, prefix)
                else:
                    yield message
        finally:
            stopped.set()
            threads.shutdown(wait=True, cancel_futures=True)


def _list_or_split(store: Store, prefix: str) -> Iterator[list[ObjectInfo] | _Split]:
    pages = store.list_all(prefix)
    first = next(pages, list[ObjectInfo]())
    if len(first) >= _FULL_PAGE and _goes_deeper(first, prefix):
        level = store.list_level(prefix)
        if level is not None and 1 < len(level.prefixes) <= _MOST_PREFIXES:
            yield level.objects
            # A directory marker at this level is told by its prefix.
            yield [ObjectInfo(f"{name}/", 0, 0, "") for name in level.prefixes]
            yield _Split(level.prefixes)
            return
    yield first
    yield from pages


def _goes_deeper(page: list[ObjectInfo], prefix: str) -> bool:
    skip = len(prefix) + 1 if prefix else 0
    return any("/" in info.key[skip:] for info in page)
