"""Notices who reads a large file from front to back, and says which blocks come next.

What is known of a reader is kept with the block that he is in, and goes ahead with what is fetched
for him: a block that was fetched ahead knows how far its reader is to be followed from there. So
the processes that serve a mount need not tell each other where a reader is.

The kernel sends a sequential reader's requests slightly out of order and several at a time, so
"sequential" means: close to where the last one ended. Any thread.
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
# A random reader asks for less at once: the kernel's own readahead is for sequential ones.
_LEAST_READ_BYTES = 128 * KIB
_BLOCKS_REMEMBERED = 4096
# Who begins at the beginning most likely wants it all; from here the window doubles.
_FIRST_WINDOW = 2


class Ahead(NamedTuple):
    """Blocks to fetch now, and how far their reader is to be followed from each of them."""

    numbers: range
    window: int


_NOTHING = Ahead(range(0), 0)


@dataclass(slots=True)
class _Reader:
    start: int  # where the first read in this block began
    end: int  # where the last one ended
    window: int  # how many blocks to stay ahead; 0: not known to be sequential
    is_followed: bool = False  # from this block on


class Readahead:
    def __init__(self, block_bytes: int, most_blocks: int) -> None:
        self._block_bytes = block_bytes
        self._most_blocks = most_blocks
        self._lock = threading.Lock()
        self._readers: OrderedDict[tuple[bytes, int], _Reader] = OrderedDict()

    def expect(self, obj: CachedObject, number: int, window: int) -> None:
        """A block is fetched ahead of a reader, who is to be followed from there so far."""
        with self._lock:
            key = obj.digest, number
            if key not in self._readers:
                self._remember(key, _Reader(-1, number * self._block_bytes, window))

    def observe(self, obj: CachedObject, offset: int, length: int, *, is_stored: bool) -> Ahead:
        """A large file is being read. What is in a tier says nothing of a reader that is not known
        to be sequential: the blocks that follow are mostly there, too."""
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
    ahead: int  # up to which number it was announced


# announce(parent, after, up_to): children of `parent` numbered in (after, up_to] come next
Announce = Callable[[int, int, int], None]


class SmallFileReadahead:
    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, _Run] = OrderedDict()  # by the last file that was read

    def observe(self, parent: int, ino: int, *, is_stored: bool = False) -> None:
        """A small file is being read from its beginning. Whether it is stored does not matter: what
        was fetched ahead of a run is, and the run goes on there."""
        del is_stored
        with self._lock:
            run = self._following(ino)
            self._runs[ino] = run
            if len(self._runs) > _RUNS_REMEMBERED:
                self._runs.popitem(last=False)
            if run.length < _FROM:
                return
            # As far ahead as it has come already.
            window = min(_MOST_AHEAD, run.length)
            if run.ahead - ino > window // 2:
                return  # far enough for now
            after, run.ahead = max(run.ahead, ino), ino + window
        self._announce(parent, after, ino + window)

    def _following(self, ino: int) -> _Run:
        run = self._runs.pop(ino - 1, None)
        if run is None:
            return self._runs.pop(ino, None) or _Run(1, 0)
        run.length += 1
        return run
