"""Brings blocks before they are asked for, in threads of this process.

Each is fetched as the cache does for readers (one fetch for all who want it), and put into the
kernel's page cache if that is wanted, before it is let go of.

Threading: `bring` by any thread.
"""

import logging
from collections.abc import Callable
from functools import partial

from penstock.cache.fetch import Arrival, FetchOutcome
from penstock.cache.pool import Pool
from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem
from penstock.warm.prefetcher import MOST_IN_FLIGHT, Ended, Wanted

log = logging.getLogger(__name__)

# push(ino, offset, data) -> does the kernel have it now?
Push = Callable[[int, int, memoryview], bool]


class LocalFetcher:
    def __init__(self, files: FileSystem, push: Push | None, counters: Counters) -> None:
        self._files = files
        self._push = push
        self._counters = counters
        self._pool = Pool(MOST_IN_FLIGHT, "ahead")

    def fetch_ahead(self, wanted: list[Wanted], ended: Ended) -> None:
        for one in wanted:
            self._pool.put(partial(self._fetch_ahead, one, ended))

    def close(self) -> None:
        """What has not begun is dropped, and nobody waits for the rest."""
        self._pool.close(0)

    def _fetch_ahead(self, wanted: Wanted, ended: Ended) -> None:
        arrival = Arrival(FetchOutcome.FAILED, 0)
        try:
            if not wanted.still():
                return
            place = None
            if wanted.push and self._push is not None:
                offset = wanted.number * self._files.cache.block_bytes
                place = partial(self._place, self._push, wanted.ino, offset)
            file = self._files.file(wanted.ino)
            arrival = self._files.cache.fetch_ahead(
                file.what, file.get, wanted.number, place, wanted.looked_s
            )
        except (PenstockError, OSError) as error:
            log.debug("inode %d was not brought: %s", wanted.ino, error)
            arrival = Arrival(FetchOutcome.FAILED, 0, error=error)
        finally:
            ended([(wanted, arrival)])

    def _place(self, push: Push, ino: int, offset: int, data: memoryview) -> bool:
        try:
            placed = push(ino, offset, data)
        except OSError as error:
            log.warning("inode %d was not pushed: %s", ino, error)
            return False
        if placed:
            self._counters.add("pushed_bytes", len(data))
        return placed
