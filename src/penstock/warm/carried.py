"""What other processes fetch for the prefetcher, from its beginning to its end.

Which process that is, and how it is told, is not known here: one takes a `Carried`, and says of it
what became of it, once: stored and then pushed, or not fetched.

Threading: any thread; each `Carried` is in the hands of one at a time.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.cache.errands import Errand
from penstock.cache.tiered import Arrival, Brought
from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem
from penstock.warm.prefetcher import Prefetcher, Wanted

# What is told of one: its store, key, version and size; the file of the cache; the inode whose
# pages it is pushed into, or 0.
Told = tuple[int, str, str, int, str, int]


class Carried:
    __slots__ = ("errand", "since_s", "told", "took_s", "wanted")

    def __init__(self, wanted: Wanted, errand: Errand, told: Told) -> None:
        self.wanted: Final = wanted
        self.errand: Final = errand
        self.told: Final = told
        self.since_s = time.monotonic()
        self.took_s: float | None = None  # to fetch it; None: not stored yet

    @property
    def is_pushed(self) -> bool:
        """Is it to be pushed once it is stored?"""
        return bool(self.told[-1])

    @property
    def length(self) -> int:
        return self.errand.flight.block.length


class Booking:
    def __init__(
        self, files: FileSystem, prefetcher: Prefetcher, counters: Counters,
        stores: Mapping[int, int], *, pushes: bool,
    ) -> None:  # fmt: skip
        """`stores`: how the other processes call the sources of the tree that they can read."""
        self._files = files
        self._prefetcher = prefetcher
        self._counters = counters
        self._stores = stores
        self._pushes = pushes

    def begin(self, wanted: Wanted) -> Carried | None:
        """None: the prefetcher has to do it itself."""
        try:
            if not wanted.still():
                return None
            file = self._files.file(wanted.ino)
        except (PenstockError, OSError, sqlite3.Error):
            return None  # who brings it himself is told the same, and tells it
        what, store = file.what, self._stores.get(file.node.source)
        if store is None:
            return None
        errand = self._files.cache.errands.begin(what, file.fetch, wanted.number)
        if errand is None:
            return None
        ino = wanted.ino if wanted.push and self._pushes else 0
        told = (store, what.key, what.version, what.size_bytes, errand.room.path, ino)
        self._counters.add("prefetched_blocks")
        return Carried(wanted, errand, told)

    def stored(
        self, news: Iterable[tuple[int, Carried, float, bytes]]
    ) -> list[tuple[int, Carried]]:
        """They lie where their room was: each with a number, the seconds that it took, and its
        checksums. Returns those of which that is true, with their numbers."""
        stored: list[tuple[int, Carried]] = []
        for number, carried, took_s, sums in news:
            if self._files.cache.note_stored(carried.errand, sums, took_s):
                carried.took_s = took_s
                stored.append((number, carried))
            else:
                self._prefetcher.bring_after_all(carried.wanted, carried.errand.flight)
        return stored

    def end(self, ended: Iterable[Carried]) -> None:
        """They are stored, and pushed as far as that could be."""
        self._prefetcher.ended([
            (one.wanted, Arrival(Brought.FETCHED, one.length, one.took_s)) for one in ended
        ])  # fmt: skip

    def give_back(self, lost: Iterable[Carried], *, full: bool = False) -> None:
        """They were not fetched. `full`: because a disk is."""
        for one in lost:
            one.errand.room.give_back(full=full)
            self._prefetcher.bring_after_all(one.wanted, one.errand.flight)
