"""What the kernel's page cache holds of files: the truth, by cachestat, in both modes.

In page-cache mode that are the pages of the mount's own files, which only a process that looks
through the mount can see. In passthrough mode the kernel reads the files of the cache, and keeps
the pages of those; they are here to be looked at.

Threading: one thread.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.cache.identity import CachedObject
from penstock.cache.striped import StripedTier
from penstock.catalog.tree import Node
from penstock.units import MIB
from penstock.vfs.filesystem import FileSystem
from penstock.warm import look
from penstock.warm.looker import MOST_AT_ONCE, Looker


class Found(NamedTuple):
    """A file of a selection, and what the cache calls it."""

    node: Node
    what: CachedObject


class Pages(Protocol):
    def resident_bytes(self, files: Sequence[Found]) -> list[int]:
        """How much of each is in the page cache; below 0 if the kernel does not say."""
        ...

    def close(self) -> None: ...


class MountPages:
    def __init__(self, files: FileSystem, looker: Looker, is_held: Callable[[int], bool]) -> None:
        """`is_held`: does the kernel hold this inode? Of one that it does not, it has no page, and
        looking would make it hold a million."""
        self._files = files
        self._looker = looker
        self._is_held = is_held

    def resident_bytes(self, files: Sequence[Found]) -> list[int]:
        sizes = [0] * len(files)
        held = [place for place, file in enumerate(files) if self._is_held(file.node.ino)]
        for first in range(0, len(held), MOST_AT_ONCE):
            places = held[first : first + MOST_AT_ONCE]
            names = [self._files.path_of(files[place].node) for place in places]
            for place, size in zip(places, self._looker.resident_bytes(names), strict=True):
                sizes[place] = min(size, files[place].what.size_bytes)
        return sizes

    def close(self) -> None:
        self._looker.close()


class FilePages:
    def __init__(self, tiers: Sequence[StripedTier]) -> None:
        self._tiers = tiers

    def resident_bytes(self, files: Sequence[Found]) -> list[int]:
        return [self._of(file.what) for file in files]

    def close(self) -> None:
        pass

    def _of(self, what: CachedObject) -> int:
        most = 0
        for tier in self._tiers:
            size = _resident_bytes_of(tier.file_of(what.digest))
            if size < 0:
                return size
            most = max(most, size)
        return min(most, what.size_bytes)


def read_through(path: str) -> None:
    """Makes the kernel keep the pages of a file. By reading it: POSIX_FADV_WILLNEED takes one
    window of readahead for each call, and returns before anything is there."""
    buffer = bytearray(MIB)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return  # evicted a moment ago
    try:
        while os.readv(descriptor, (buffer,)):
            pass
    finally:
        os.close(descriptor)


def _resident_bytes_of(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        return look.resident_bytes(descriptor)
    finally:
        os.close(descriptor)
