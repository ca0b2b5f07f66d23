"""Readahead for sequential readers: blocks of large files, and runs of small files.

Large files: the state of a reader is kept with the block that it reads, and moves on with the
prefetched blocks: each one knows how far its reader is to be followed from there. So the processes
that serve a mount need not exchange the positions of readers. The kernel sends a sequential
reader's requests slightly out of order and several at a time, so "sequential" means: close to where
the last one ended.

Small files: `SmallFileReadahead` detects readers that read them in the order of the listing.

Threading: any thread. Nothing here waits or fetches.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.blocks import block_count
from penstock.cache.identity import CachedObject
from penstock.units import KIB, MIB

_JITTER_BYTES = 4 * MIB
# A random reader requests less at once: the kernel's own readahead is for sequential readers.
_LEAST_READ_BYTES = 128 * KIB
_BLOCKS_REMEMBERED = 4096
# A reader that begins at offset 0 most likely reads the whole file; from here the window doubles.
_FIRST_WINDOW = 2


class Ahead(NamedTuple):
    """Blocks to fetch now, and how far to follow their reader from each of them."""

    numbers: range
    window: int


_NOTHING = Ahead(range(0), 0)


@dataclass(slots=True)
class _Reader:
    start: int  # where the first read in this block began
    end: int  # where the last one ended
    window: int  # how many blocks to stay ahead; 0: not known to be sequential
    is_followed: bool = False  # readahead from this block has been issued


class Readahead:
    def __init__(self, block_bytes: int, most_blocks: int) -> None:
        self._block_bytes = block_bytes
        self._most_blocks = most_blocks
        self._lock = threading.Lock()
        self._readers: OrderedDict[tuple[bytes, int], _Reader] = OrderedDict()

    def expect(self, obj: CachedObject, number: int, window: int) -> None:
        """A block is being prefetched for a reader that is to be followed from there."""
        with self._lock:
            key = obj.digest, number
            if key not in self._readers:
                self._remember(key, _Reader(-1, number * self._block_bytes, window))

    def observe(self, obj: CachedObject, offset: int, length: int, *, is_stored: bool) -> Ahead:
        """Record a read of a large file; return the blocks to prefetch. A read from a tier does not
        start a new sequence: the blocks that follow are mostly there too."""
        if not self._most_blocks:
            return _NOTHING
        number = offset // self._block_bytes
        with self._lock:
            reader = self._readers.get((obj.digest, number))
            if reader is None:
                if is_stored:
                    return _NOTHING
                window = min(_FIRST_WINDOW, self._most_blocks) if offset == 0 else 0
                reader = _Reader(offset, offset + length, window)
                self._remember((obj.digest, number), reader)
            else:
                if reader.start < 0:
                    reader.start = offset
                elif offset <= reader.start:  # the block is read again
                    reader.is_followed = False
                if not reader.window and self._continues(reader, offset, length):
                    reader.window = min(_FIRST_WINDOW, self._most_blocks)
            reader.end = offset + length
            if reader.is_followed or not reader.window:
                return _NOTHING
            reader.is_followed = True
            last = min(number + reader.window, block_count(obj.size_bytes, self._block_bytes) - 1)
            return Ahead(range(number + 1, last + 1), min(self._most_blocks, 2 * reader.window))

    def _continues(self, reader: _Reader, offset: int, length: int) -> bool:
        if offset == reader.end:
            return True
        return length >= _LEAST_READ_BYTES and abs(offset - reader.end) <= _JITTER_BYTES

    def _remember(self, key: tuple[bytes, int], reader: _Reader) -> None:
        self._readers[key] = reader
        if len(self._readers) > _BLOCKS_REMEMBERED:
            self._readers.popitem(last=False)


_RUNS_REMEMBERED = 16
_FROM = 4  # files in a row
_MOST_AHEAD = 64


@dataclass(slots=True)
class _Run:
    length: int
    ahead: int  # the last number that was announced


# announce(parent, after, up_to): children of `parent` numbered in (after, up_to] come next
Announce = Callable[[int, int, int], None]


class SmallFileReadahead:
    """Detects readers that read small files in listing order, and announces the files that follow.

    Nodes are numbered in the order of the listing, so the next file has the next number, and no
    lookup is needed. Several readers make a run each: eight workers with a batch each are eight
    runs in one folder. A shuffled reader makes hardly any runs: of a hundred files one read in 250
    continues one by chance, which costs four files; of a thousand files it is one in 250,000.
    """

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, _Run] = OrderedDict()  # by the last file that was read

    def observe(self, parent: int, ino: int, *, is_stored: bool = False) -> None:
        """Record that a small file is read from its beginning. `is_stored` does not matter:
        prefetched files are stored, and a run continues through them."""
        del is_stored
        with self._lock:
            run = self._continue_run(ino)
            self._runs[ino] = run
            if len(self._runs) > _RUNS_REMEMBERED:
                self._runs.popitem(last=False)
            if run.length < _FROM:
                return
            # As far ahead as the run is long.
            window = min(_MOST_AHEAD, run.length)
            if run.ahead - ino > window // 2:
                return  # far enough for now
            after, run.ahead = max(run.ahead, ino), ino + window
        self._announce(parent, after, ino + window)

    def _continue_run(self, ino: int) -> _Run:
        run = self._runs.pop(ino - 1, None)
        if run is None:
            return self._runs.pop(ino, None) or _Run(1, 0)
        run.length += 1
        return run
