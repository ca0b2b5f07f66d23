"""The kernel's page cache: what it holds of our files, and how much of it we may use.

In page-cache mode it holds pages of the mount's own files, which only a process that looks through
the mount can see (`PageCacheProbe`). In passthrough mode the kernel reads the cache's files and
keeps their pages, which this process can check itself (`FilePages`). Both ask the kernel
(cachestat) instead of remembering what was pushed.

Threading: one thread, except for `PageBudget`.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock import procfs
from penstock.cache.identity import CachedObject
from penstock.cache.striped import StripedTier
from penstock.catalog.tree import Node
from penstock.units import MIB
from penstock.vfs.filesystem import FileSystem
from penstock.warm import residency

log = logging.getLogger(__name__)

# More would fill the pipe while the other side fills ours.
FILES_PER_PROBE = 128
PROBE_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")  # what an interpreter may need to start


class PageCacheProbe:
    """A process that checks files through the mount (see `residency`).

    The first call decides whether the process answers `check` or `resident_bytes`. One thread at a
    time calls, and waits for the answer.
    """

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, names: Sequence[bytes]) -> bytes:
        """Return one of residency.MISSING, HELD, RESIDENT for each file; HELD for all if that is
        unknown. The kernel holds their inodes from now on."""
        if not names:
            return b""
        try:
            return self._ask(names, len(names))
        except OSError as error:
            log.warning("cannot check files through the mount: %s", error)
            self.close()
            return residency.HELD * len(names)

    def resident_bytes(self, names: Sequence[bytes]) -> list[int]:
        """Return how many bytes of each file the page cache holds; below 0 if that is unknown. The
        kernel holds their inodes from now on."""
        if not names:
            return []
        size = residency.NUMBER_BYTES
        try:
            answer = self._ask(names, len(names) * size, "bytes")
        except OSError as error:
            log.warning("cannot check files through the mount: %s", error)
            self.close()
            return [-1] * len(names)
        return [
            int.from_bytes(answer[at : at + size], "little", signed=True)
            for at in range(0, len(answer), size)
        ]

    def _ask(self, names: Sequence[bytes], count: int, *words: str) -> bytes:
        question = b"\0".join(names) + b"\0\0"
        process = self._process
        if process is None:
            process = self._process = self._start(*words)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question)
        answer = b""
        while len(answer) < count:
            received = process.stdout.read(count - len(answer))
            if not received:
                raise OSError("the probe process has ended")
            answer += received
        return answer

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-IS", residency.__file__, str(self._mountpoint), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
            # Our environment holds keys, and other processes can read the child's (see
            # `environment`).
            env={name: os.environ[name] for name in PROBE_ENVIRONMENT if name in os.environ},
        )

    def close(self) -> None:
        """Kill the process. From any thread; a caller that waits for an answer gets an error."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.poll()  # it may wait for the mount, and dies when the mount answers


class SelectedFile(NamedTuple):
    """A file of a selection, and its object in the cache."""

    node: Node
    obj: CachedObject


class Pages(Protocol):
    def resident_bytes(self, files: Sequence[SelectedFile]) -> list[int]:
        """Return how many bytes of each file are in the page cache; below 0 if the kernel does not
        report it."""
        ...

    def close(self) -> None: ...


class MountPages:
    def __init__(
        self, files: FileSystem, probe: PageCacheProbe, is_held: Callable[[int], bool]
    ) -> None:
        """`is_held`: whether the kernel holds this inode. An inode that it does not hold has no
        pages, and checking it would make the kernel hold a million inodes."""
        self._files = files
        self._probe = probe
        self._is_held = is_held

    def resident_bytes(self, files: Sequence[SelectedFile]) -> list[int]:
        sizes = [0] * len(files)
        held = [index for index, file in enumerate(files) if self._is_held(file.node.ino)]
        for first in range(0, len(held), FILES_PER_PROBE):
            places = held[first : first + FILES_PER_PROBE]
            names = [self._files.path_of(files[index].node) for index in places]
            for index, size in zip(places, self._probe.resident_bytes(names), strict=True):
                sizes[index] = min(size, files[index].obj.size_bytes)
        return sizes

    def close(self) -> None:
        self._probe.close()


class FilePages:
    def __init__(self, tiers: Sequence[StripedTier]) -> None:
        self._tiers = tiers

    def resident_bytes(self, files: Sequence[SelectedFile]) -> list[int]:
        return [self._of(file.obj) for file in files]

    def close(self) -> None:
        pass

    def _of(self, obj: CachedObject) -> int:
        most = 0
        for tier in self._tiers:
            size = _resident_bytes_of(tier.file_of(obj.digest))
            if size < 0:
                return size
            most = max(most, size)
        return min(most, obj.size_bytes)


def read_through(path: str) -> None:
    """Load a file into the page cache by reading it: POSIX_FADV_WILLNEED takes one window of
    readahead for each call, and returns before anything is there."""
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
        return residency.resident_bytes(descriptor)
    finally:
        os.close(descriptor)


_SHARE = 0.5  # of the available memory: the job, and the kernel's own reading, need memory too
_KEPT_SHARE = 0.75
_INODES_TOGETHER = 1024


class PageBudget:
    """How much of the machine's memory may hold pages that are not read yet.

    The kernel evicts from its page cache as it likes. But pages that are pushed ahead of readers
    evict other pages; so there is a budget. Most of it is for files that stay for the next epoch,
    the rest for files that are dropped after they are read. A file that several plans keep (the
    ranks of one job) is counted once. Threading: any thread.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.passing_bytes = budget_bytes - int(budget_bytes * _KEPT_SHARE)
        self.kept_bytes = budget_bytes - self.passing_bytes
        self._free_bytes = self.kept_bytes
        self._kept: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def keep(self, ino: int, size_bytes: int) -> bool:
        """Reserve memory for this file until it is released as often as it is kept; False if it
        does not fit."""
        with self._lock:
            kept, index = self._at(ino)
            if not kept.keepers[index]:
                if size_bytes > self._free_bytes:
                    return False
                self._free_bytes -= size_bytes
                kept.sizes[index] = size_bytes
            kept.keepers[index] += 1
            return True

    def is_kept(self, ino: int) -> bool:
        with self._lock:
            kept, index = self._at(ino)
            return bool(kept.keepers[index])

    def release(self, ino: int) -> int:
        """Release a file that was kept; return its size."""
        with self._lock:
            kept, index = self._at(ino)
            kept.keepers[index] -= 1
            if not kept.keepers[index]:
                self._free_bytes += kept.sizes[index]
            return kept.sizes[index]

    def reserve(self, size_bytes: int) -> bool:
        """Reserve memory for a load, which has each file once, until `give_back`."""
        with self._lock:
            if size_bytes > self._free_bytes:
                return False
            self._free_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._free_bytes += size_bytes

    def _at(self, ino: int) -> "tuple[_Kept, int]":
        number, index = divmod(ino, _INODES_TOGETHER)
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = _Kept()
        return kept, index


class _Kept:
    """The kept files among neighbouring inodes: 12 bytes for each, where a dictionary takes 150."""

    __slots__ = ("keepers", "sizes")

    def __init__(self) -> None:
        self.keepers = array("I", bytes(4 * _INODES_TOGETHER))
        self.sizes = array("Q", bytes(8 * _INODES_TOGETHER))


def spare_bytes() -> int:
    """A fair share of the memory that is available to this process's control group."""
    return int(min(procfs.memory().get("MemAvailable", 0), _cgroup_bytes()) * _SHARE)


def _cgroup_bytes() -> float:
    """Return the memory limit of the control group (version 2); infinity without one."""
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
