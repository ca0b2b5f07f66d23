"""Memory for blocks of large objects, used again and again.

A fresh buffer of 8 MiB costs 2,048 page faults, and zeros that nobody reads: a quarter of the CPU
that a cold read of a large file takes (0.25 s for each GB).

A buffer is free once nobody has a view of it any more. There is no call to give one back: whoever
holds bytes of a block just lets go of them, as of any other bytes.

Threading: any thread.
"""

import mmap
import sys
import threading
from contextlib import suppress

# What is not a multiple of this comes from the heap: the ends of objects, all of different lengths,
# of which no second one will be asked for.
UNIT_BYTES = 1024 * 1024
_MOST_BYTES = 128 * 1024 * 1024


class Buffers:
    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._buffers: list[mmap.mmap] = []
        self._unused = self._count_unused_references()

    def take(self, length: int) -> memoryview:
        """Return memory whose contents are arbitrary. It is no one else's as long as a view of it
        lives."""
        if length % UNIT_BYTES or not length:
            return memoryview(bytearray(length))
        with self._lock:
            for buffer in self._buffers:
                if len(buffer) == length and sys.getrefcount(buffer) == self._unused:
                    return memoryview(buffer)
            buffer = _allocate(length)
            if self._kept_bytes() + length > self._most_bytes:
                self._drop_unused()
            if self._kept_bytes() + length <= self._most_bytes:
                self._buffers.append(buffer)
            return memoryview(buffer)

    def trim(self) -> None:
        """Give the memory of all that is unused back to the system."""
        with self._lock:
            self._drop_unused()

    @property
    def kept_bytes(self) -> int:
        """How much memory there is, used or not."""
        with self._lock:
            return self._kept_bytes()

    def _kept_bytes(self) -> int:
        return sum(map(len, self._buffers))

    def _drop_unused(self) -> None:
        # In a loop of the same form as in `take`: it counts references the same way.
        used: list[mmap.mmap] = []
        for buffer in self._buffers:
            if sys.getrefcount(buffer) != self._unused:
                used.append(buffer)
        self._buffers = used

    def _count_unused_references(self) -> int:
        """What `sys.getrefcount` says of a buffer that only our list has. It differs between
        releases of Python."""
        for buffer in [mmap.mmap(-1, mmap.PAGESIZE)]:
            return sys.getrefcount(buffer)
        raise AssertionError("unreachable")


def _allocate(length: int) -> mmap.mmap:
    """In huge pages where the machine has them: the kernel looks up each page that it copies from,
    0.1 s of CPU for each GB."""
    buffer = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


# One for the process: memory is the process's, whichever store fills it.
BUFFERS = Buffers()
