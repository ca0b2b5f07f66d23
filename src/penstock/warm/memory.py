"""How much of the machine's memory may hold pages that nobody has read yet.

The page cache is the kernel's, who drops what it likes. But what is pushed into it ahead of readers
pushes other things out; so there is a budget, of which most holds files that stay for the next
epoch, and the rest is for those that pass through.
"""

import threading
from pathlib import Path

_SHARE = 0.5  # of what is available: the job, and the kernel's own reading, need memory too
_KEPT_SHARE = 0.75


class PageBudget:
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.passing_bytes = budget_bytes - int(budget_bytes * _KEPT_SHARE)
        self.kept_bytes = budget_bytes - self.passing_bytes
        self._free_bytes = self.kept_bytes
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int) -> bool:
        """May a file of this size stay in memory?"""
        with self._lock:
            if size_bytes > self._free_bytes:
                return False
            self._free_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._free_bytes += size_bytes


def spare_bytes() -> int:
    """A fair share of the memory that is available to this process's control group."""
    return int(min(_available_bytes(), _group_bytes()) * _SHARE)


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def _group_bytes() -> float:
    """What the control group (version 2) allows at most; without end if it says nothing."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        folder = Path("/sys/fs/cgroup") / group.lstrip("/")
        limits = [
            (above / "memory.max").read_text().strip()
            for above in (folder, *folder.parents)
            if above.is_relative_to("/sys/fs/cgroup") and (above / "memory.max").exists()
        ]
    except OSError:
        return float("inf")
    return min((float(limit) for limit in limits if limit != "max"), default=float("inf"))
