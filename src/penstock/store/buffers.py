"""A pool of memory for blocks of large objects.

A fresh buffer of 8 MiB costs 2,048 page faults, and zeros that nothing reads: a quarter of the CPU
that a cold read of a large file takes (0.25 s for each GB).

A buffer is free once no view of it exists any more. There is no call to release one: dropping the
last reference does it, as with any other bytes.

Threading: any thread.
"""

import mmap
import sys
import threading
from contextlib import suppress

# Other lengths than multiples of this come from the heap: the ends of objects, whose lengths differ
# and are not requested again.
POOLED_MULTIPLE = 1024 * 1024
_MAX_BYTES = 128 * 1024 * 1024


class Buffers:
    def __init__(self, most_bytes: int = _MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._buffers: list[mmap.mmap] = []
        self._unused = self._count_unused_references()

    def take(self, length: int) -> memoryview:
        """Return memory with arbitrary contents; it is not reused while a view of it exists."""
        if length % POOLED_MULTIPLE or not length:
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
        """Return the memory of unused buffers to the system."""
        with self._lock:
            self._drop_unused()

    @property
    def kept_bytes(self) -> int:
        """How much memory the pool has, used or not."""
        with self._lock:
            return self._kept_bytes()

    def _kept_bytes(self) -> int:
        return sum(map(len, self._buffers))

    def _drop_unused(self) -> None:
        # The same form of loop as in `take`, so that it counts the same references.
        used: list[mmap.mmap] = []
        for buffer in self._buffers:
            if sys.getrefcount(buffer) != self._unused:
                used.append(buffer)
        self._buffers = used

    def _count_unused_references(self) -> int:
        """Return what `sys.getrefcount` says of a buffer that only the pool's list holds.

        It differs between releases of Python.
        """
        for buffer in [mmap.mmap(-1, mmap.PAGESIZE)]:
            return sys.getrefcount(buffer)
        raise AssertionError("unreachable")


def _allocate(length: int) -> mmap.mmap:
    """Allocate in huge pages where possible: the kernel looks up each page that it copies from,
    0.1 s of CPU for each GB."""
    buffer = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


# One pool for the process, shared by all stores.
BUFFERS = Buffers()
