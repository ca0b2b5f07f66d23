"""Limits of memory and descriptors for a server.

Buffers are bounded where they are filled. This covers the rest: what libraries hold, what the
allocator does not return, what leaks. A server over a limit frees what it can. If that is not
enough, it ends and the next one takes over: readers see a pause, and the machine does not run out
of memory.
"""

import ctypes
import gc
import os
import resource
from collections.abc import Callable, Sequence

from penstock import procfs
from penstock.settings import MountSettings
from penstock.units import format_size
from penstock.warm.prefetcher import MOST_IN_FLIGHT

# One check over the limit may be a burst that is over already.
_MOST_CHECKS_OVER = 5
_SPARE_DESCRIPTORS = 128
# Each thread has the catalog and each cache directory open (database and journal), and a
# connection.
_FILES_A_DATABASE, _OTHER_FILES_A_THREAD = 2, 3
_OTHER_THREADS = 48


class Limits:
    def __init__(self, settings: MountSettings) -> None:
        databases = 1 + sum(len(tier.paths) for tier in settings.tiers)
        a_thread = databases * _FILES_A_DATABASE + _OTHER_FILES_A_THREAD
        threads = settings.threads + MOST_IN_FLIGHT + _OTHER_THREADS
        wanted = _SPARE_DESCRIPTORS + threads * a_thread
        self.memory_bytes = settings.memory_bytes
        self.descriptors = _allow_descriptors(wanted)
        self._checks_over = 0

    def why_to_end(
        self, free_memory: Callable[[], None], workers: Sequence[int] = ()
    ) -> str | None:
        """Return why the server must end, or None. Called each second; `workers` are pids."""
        memory, descriptors = resident_bytes(workers), open_descriptors()
        if memory <= self.memory_bytes and descriptors <= self.descriptors:
            self._checks_over = 0
            return None
        free_memory()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._checks_over += 1
        if self._checks_over < _MOST_CHECKS_OVER:
            return None
        if memory > self.memory_bytes:
            return f"it held {format_size(memory)}, more than --memory allows"
        return f"it held {descriptors} descriptors, more than {self.descriptors}"


def resident_bytes(workers: Sequence[int] = ()) -> int:
    """Return what this process holds, and its workers beside what they share with it."""
    pages, _ = procfs.memory_pages(os.getpid())
    for pid in workers:
        resident, shared = procfs.memory_pages(pid)
        pages += resident - shared
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _allow_descriptors(wanted: int) -> int:
    """Raise the soft limit (1,024 on most machines) as far as needed and allowed; return the limit.
    The soft limit is twice that, so that a burst between two checks fails no reader."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * wanted:
        soft = min(2 * wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft)
