"""Lists a store in parallel, by prefix, in bounded memory.

A prefix with more than a page of keys below it is split into its sub-prefixes, each listed
by another thread. Directories that are merely flat, and trees of very many small
directories, are streamed: there one request for each prefix would cost more than it saves.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock.store import ObjectInfo, Store

_THREADS = 16
_FULL_PAGE = 1000
_MOST_PREFIXES = 2000
# Pages waiting for the one writer. Bounds memory to a few tens of MB while listing a million keys.
_WAITING_PAGES = 64


def list_in_parallel(store: Store) -> Iterator[list[ObjectInfo]]:
    """Every object of the store, in no order. An entry may come twice."""
    pages: queue.Queue[list[ObjectInfo] | BaseException | None] = queue.Queue(_WAITING_PAGES)
    stopped = False

    def put(item: list[ObjectInfo] | BaseException | None) -> None:
        while not stopped:
            try:
                pages.put(item, timeout=1)
            except queue.Full:
                continue
            return

    def list_prefix(prefix: str) -> None:
        found: list[str] = []
        try:
            found = _list_or_split(prefix)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            put(error)
        for name in found:
            start(name)
        put(None)

    def _list_or_split(prefix: str) -> list[str]:
        stream = store.list_all(prefix)
        first = next(stream, list[ObjectInfo]())
        if len(first) >= _FULL_PAGE and _goes_deeper(first, prefix):
            level = store.list_level(prefix)
            if level is not None and 1 < len(level.prefixes) <= _MOST_PREFIXES:
                # A directory marker at this level is told by its prefix.
                put(level.objects)
                put([ObjectInfo(f"{name}/", 0, 0, "") for name in level.prefixes])
                return level.prefixes
        put(first)
        for page in stream:
            if stopped:
                break
            put(page)
        return []

    running = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="list") as threads:

        def start(prefix: str) -> None:
            nonlocal running
            running += 1  # before the parent's None is put, so it never drops to 0 too early
            threads.submit(list_prefix, prefix)

        start("")
        try:
            while running:
                item = pages.get()
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            stopped = True
            threads.shutdown(wait=True, cancel_futures=True)


def _goes_deeper(page: list[ObjectInfo], prefix: str) -> bool:
    skip = len(prefix) + 1 if prefix else 0
    return any("/" in info.key[skip:] for info in page)
