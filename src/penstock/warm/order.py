"""An epoch plan in shared memory: which files will be read, in which order, and how far readers
are.

The training process writes it, the server reads it. After it was handed over (a memfd over the
control socket) no messages are needed: the cursor is a number in memory that one side stores and
the other reads, which costs the sampler nothing, and a server that takes over finds the whole plan.

    header      64-bit words, see below
    ends        where each file's name ends, one word for each file
    names       the files' paths below the mount point, one after the other
    ring        32-bit numbers of files, in the order of reading: position p is at p % capacity

Positions count from the first file of the plan's first epoch and never go back. Positions before
`done` may be overwritten. A reader that reads in the middle of a write sees a wrong file number at
worst, and prefetches a file for nothing.

Threading: one writer, one reader, in different processes. The server does not trust what it reads
here: it checks the plan when it maps it, and bounds numbers when it uses them.
"""

import fcntl
import mmap
import os
from array import array
from collections.abc import Sequence
from itertools import accumulate

from penstock.errors import PlanError

# The file number of a position whose file is not on this mount.
NOT_ON_MOUNT = 0xFFFF_FFFF
MOST_FILES = 1 << 30
_LONGEST_NAME = 4096  # PATH_MAX

_MAGIC = int.from_bytes(b"penstk01", "little")
_HEADER_WORDS = 512  # a page
_MAGIC_AT, _FILES, _NAME_BYTES, _CAPACITY = range(4)
# Each group is written by one side only, and has its own cache line.
_HANDED_OUT, _DONE, _END, _GENERATION = range(8, 12)
_MISSING, _FIRST_MISSING = range(16, 18)
_WORD, _LARGEST_WORD = 8, (1 << 64) - 1
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Layout:
    def __init__(self, memory: mmap.mmap, files: int, name_bytes: int, capacity: int) -> None:
        self.memory = memory
        self.words = memoryview(memory)[: _HEADER_WORDS * _WORD].cast("Q")
        self.files, self.capacity = files, capacity
        ends_at = _HEADER_WORDS * _WORD
        names_at = ends_at + files * _WORD
        ring_at = _aligned(names_at + name_bytes)
        self.ends = memoryview(memory)[ends_at:names_at].cast("Q")
        self.names = memoryview(memory)[names_at : names_at + name_bytes]
        self.ring = memoryview(memory)[ring_at : ring_at + 4 * capacity].cast("I")

    def name(self, number: int) -> bytes:
        start = self.ends[number - 1] if number else 0
        return bytes(self.names[start : min(self.ends[number], start + _LONGEST_NAME)])


def _aligned(offset: int) -> int:
    return -(-offset // _WORD) * _WORD


def _total_bytes(files: int, name_bytes: int, capacity: int) -> int:
    return _aligned(_HEADER_WORDS * _WORD + files * _WORD + name_bytes) + 4 * capacity


class OrderWriter:
    """The training process's side."""

    def __init__(self, names: Sequence[bytes], capacity: int) -> None:
        """`names`: paths below the mount point; a position refers to a file by its index here."""
        joined = b"".join(names)
        size = _total_bytes(len(names), len(joined), capacity)
        self.descriptor = os.memfd_create("penstock-plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self._layout = layout = _Layout(
            mmap.mmap(self.descriptor, size), len(names), len(joined), capacity
        )
        layout.names[:] = joined
        layout.ends[:] = memoryview(array("Q", accumulate(map(len, names))))
        words = layout.words
        words[_FILES], words[_NAME_BYTES], words[_CAPACITY] = len(names), len(joined), capacity
        words[_MAGIC_AT] = _MAGIC

    @property
    def room(self) -> int:
        """Return how many positions may be added now."""
        words = self._layout.words
        # Readers may be ahead of what was published.
        return self._layout.capacity - max(0, words[_END] - words[_DONE])

    def add(self, files: "array[int]") -> None:
        """Append to the order; at most `room`."""
        ring, capacity = self._layout.ring, self._layout.capacity
        end = self._layout.words[_END]
        at = end % capacity
        first = min(len(files), capacity - at)
        with memoryview(files) as numbers:
            ring[at : at + first] = numbers[:first]
            ring[: len(files) - first] = numbers[first:]
        self._layout.words[_END] = end + len(files)

    def move(self, handed_out: int, done: int) -> None:
        """Set the cursor: readers have been given all positions before `handed_out`, and have used
        all before `done`."""
        self._layout.words[_HANDED_OUT] = handed_out
        self._layout.words[_DONE] = done

    def cut(self) -> None:
        """Remove all positions that are not handed out; `add` continues from there."""
        words = self._layout.words
        words[_END] = words[_HANDED_OUT]
        words[_GENERATION] += 1

    @property
    def missing(self) -> tuple[int, bytes]:
        """Return how many of the plan's files the server has not found so far, and the name of the
        first."""
        words = self._layout.words
        if not words[_MISSING] or words[_FIRST_MISSING] >= self._layout.files:
            return 0, b""
        return words[_MISSING], self._layout.name(words[_FIRST_MISSING])

    def close(self) -> None:
        """Close the descriptor; the memory is freed with its last reference."""
        os.close(self.descriptor)


class OrderReader:
    """The server's side."""

    def __init__(self, descriptor: int) -> None:
        """Raises PlanError if this is not a plan."""
        size = _sealed_bytes(descriptor)
        try:
            memory = mmap.mmap(descriptor, size)
        except (
            OSError,
            ValueError,
            OverflowError,
        ) as error:  # not writable, or too large
            raise PlanError(f"the memory of an epoch plan cannot be mapped: {error}") from error
        words = memoryview(memory)[: _HEADER_WORDS * _WORD].cast("Q")
        files, name_bytes, capacity = words[_FILES], words[_NAME_BYTES], words[_CAPACITY]
        if (
            words[_MAGIC_AT] != _MAGIC
            or not 0 < files <= MOST_FILES
            or not 0 < capacity <= 4 * MOST_FILES
            or _total_bytes(files, name_bytes, capacity) != size
        ):
            raise PlanError(
                "this is not an epoch plan that this release understands",
                hint="are the training process and the mount of the same Penstock release?",
            )
        self._layout = _Layout(memory, files, name_bytes, capacity)
        self.files = files

    @property
    def handed_out(self) -> int:
        return self._layout.words[_HANDED_OUT]

    @property
    def done(self) -> int:
        return self._layout.words[_DONE]

    @property
    def end(self) -> int:
        return self._layout.words[_END]

    @property
    def generation(self) -> int:
        return self._layout.words[_GENERATION]

    def files_at(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the files at these positions; NOT_ON_MOUNT for files that are not
        on this mount."""
        ring, capacity = self._layout.ring, self._layout.capacity
        stop = max(start, min(stop, start + capacity))  # it may have been cut meanwhile
        low, high = start % capacity, start % capacity + stop - start
        if high <= capacity:
            return ring[low:high].tolist()
        return ring[low:].tolist() + ring[: high - capacity].tolist()

    def name(self, number: int) -> bytes:
        """Return the file's name, or an empty one if it is not below the mount point. Call it once:
        the next read may find another name."""
        name = self._layout.name(number)
        return b"" if b"\0" in name or (b".." in name and b".." in name.split(b"/")) else name

    def note_missing(self, number: int) -> None:
        words = self._layout.words
        if not words[_MISSING]:
            words[_FIRST_MISSING] = number
        # The other side may have written anything here.
        words[_MISSING] = words[_MISSING] + 1 & _LARGEST_WORD


def _sealed_bytes(descriptor: int) -> int:
    """Return the size of the sealed memory, which cannot change: a mapping that shrinks would kill
    the server."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    size = os.fstat(descriptor).st_size
    if not seals & fcntl.F_SEAL_SHRINK or size < _HEADER_WORDS * _WORD:
        raise PlanError("an epoch plan has to be sealed memory (memfd)")
    return size
