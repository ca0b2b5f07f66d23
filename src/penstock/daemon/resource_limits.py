"""How much memory and how many descriptors a server may have, and whether it keeps to it.

Buffers are bounded where they are filled. This is for all the rest: what libraries hold, what the
allocator does not give back, what leaks. A server that is over a limit lets go of what it can; if
that is not enough it ends, and its successor takes over: readers see a pause, and never the
machine running out of memory.
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

# One look over the limit may be a burst that is over already.
_LOOKS = 5
_SPARE_DESCRIPTORS = 128
# A thread has the catalog and each cache directory open (database and journal), and a connection.
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
        self._looks = 0

    def why_to_end(self, let_go: Callable[[], None], workers: Sequence[int] = ()) -> str | None:
        """To be asked about once a second; None while all is well. `workers`: their pids."""
        memory, descriptors = resident_bytes(workers), open_descriptors()
        if memory <= self.memory_bytes and descriptors <= self.descriptors:
            self._looks = 0
            return None
        let_go()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._looks += 1
        if self._looks < _LOOKS:
            return None
        if memory > self.memory_bytes:
            return f"it held {format_size(memory)}, more than --memory allows"
        return f"it held {descriptors} descriptors, more than {self.descriptors}"


def resident_bytes(workers: Sequence[int] = ()) -> int:
    """Of this process, and what its workers hold beside what they share with it."""
    pages, _ = procfs.memory_pages(os.getpid())
    for pid in workers:
        resident, shared = procfs.memory_pages(pid)
        pages += resident - shared
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _allow_descriptors(wanted: int) -> int:
    """Raises the soft limit (1,024 on most machines) as far as needed and allowed. Twice, so that
    a burst is no error for a reader before we have looked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * wanted:
        soft = min(2 * wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft)
