"""What the kernel's page cache holds of files: the truth, by cachestat, in both modes.

In page-cache mode that are the pages of the mount's own files, which only a process that looks
through the mount can see. In passthrough mode the kernel reads the files of the cache, and keeps
the pages of those; they are here to be looked at.

Threading: one thread.
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
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")  # what an interpreter may need to start


class PageCacheProbe:
    """One looks, or counts: the first question decides what its process is for."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, names: Sequence[bytes]) -> bytes:
        """One of residency.MISSING, HELD, RESIDENT for each; HELD for all if it cannot be told. The
        kernel holds them from now on."""
        if not names:
            return b""
        try:
            return self._ask(names, len(names))
        except OSError as error:
            log.warning("files cannot be looked at through the mount: %s", error)
            self.close()
            return residency.HELD * len(names)

    def resident_bytes(self, names: Sequence[bytes]) -> list[int]:
        """How much of each the page cache holds; below 0 if that cannot be told. The kernel holds
        them from now on."""
        if not names:
            return []
        size = residency.NUMBER_BYTES
        try:
            answer = self._ask(names, len(names) * size, "bytes")
        except OSError as error:
            log.warning("files cannot be looked at through the mount: %s", error)
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
                raise OSError("the process that looks has ended")
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
            # Keys are in ours, and its own can be looked at (see environment).
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )

    def close(self) -> None:
        """From any thread; whoever waits for an answer is told that there is none."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.poll()  # it may wait for the mount, and dies when that answers


class SelectedFile(NamedTuple):
    """A file of a selection, and what the cache calls it."""

    node: Node
    obj: CachedObject


class Pages(Protocol):
    def resident_bytes(self, files: Sequence[SelectedFile]) -> list[int]:
        """How much of each is in the page cache; below 0 if the kernel does not say."""
        ...

    def close(self) -> None: ...


class MountPages:
    def __init__(
        self, files: FileSystem, probe: PageCacheProbe, is_held: Callable[[int], bool]
    ) -> None:
        """`is_held`: does the kernel hold this inode? Of one that it does not, it has no page, and
        looking would make it hold a million."""
        self._files = files
        self._probe = probe
        self._is_held = is_held

    def resident_bytes(self, files: Sequence[SelectedFile]) -> list[int]:
        sizes = [0] * len(files)
        held = [place for place, file in enumerate(files) if self._is_held(file.node.ino)]
        for first in range(0, len(held), FILES_PER_PROBE):
            places = held[first : first + FILES_PER_PROBE]
            names = [self._files.path_of(files[place].node) for place in places]
            for place, size in zip(places, self._probe.resident_bytes(names), strict=True):
                sizes[place] = min(size, files[place].obj.size_bytes)
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
        return residency.resident_bytes(descriptor)
    finally:
        os.close(descriptor)


# How much of the machine's memory may hold pages that nobody has read yet.
#
# The page cache is the kernel's, who drops what it likes. But what is pushed into it ahead of
# readers pushes other things out; so there is a budget, of which most holds files that stay for
# the next epoch, and the rest is for those that pass through.

_SHARE = 0.5  # of what is available: the job, and the kernel's own reading, need memory too
_KEPT_SHARE = 0.75
_INODES_TOGETHER = 1024


class PageBudget:
    """Files that several plans keep (the ranks of one job) are counted once. Any thread."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.passing_bytes = budget_bytes - int(budget_bytes * _KEPT_SHARE)
        self.kept_bytes = budget_bytes - self.passing_bytes
        self._free_bytes = self.kept_bytes
        self._kept: dict[int, _Kept] = {}
        self._lock = threading.Lock()

    def keep(self, ino: int, size_bytes: int) -> bool:
        """May this file stay in memory? Then until as many `release`."""
        with self._lock:
            kept, place = self._at(ino)
            if not kept.keepers[place]:
                if size_bytes > self._free_bytes:
                    return False
                self._free_bytes -= size_bytes
                kept.sizes[place] = size_bytes
            kept.keepers[place] += 1
            return True

    def is_kept(self, ino: int) -> bool:
        with self._lock:
            kept, place = self._at(ino)
            return bool(kept.keepers[place])

    def release(self, ino: int) -> int:
        """Of one that was kept; returns its size."""
        with self._lock:
            kept, place = self._at(ino)
            kept.keepers[place] -= 1
            if not kept.keepers[place]:
                self._free_bytes += kept.sizes[place]
            return kept.sizes[place]

    def reserve(self, size_bytes: int) -> bool:
        """The same for a load, which names each file once: until `give_back`."""
        with self._lock:
            if size_bytes > self._free_bytes:
                return False
            self._free_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._free_bytes += size_bytes

    def _at(self, ino: int) -> "tuple[_Kept, int]":
        number, place = divmod(ino, _INODES_TOGETHER)
        kept = self._kept.get(number)
        if kept is None:
            kept = self._kept[number] = _Kept()
        return kept, place


class _Kept:
    """Of neighbouring inodes: 12 bytes for each, where a dictionary of them takes 150."""

    __slots__ = ("keepers", "sizes")

    def __init__(self) -> None:
        self.keepers = array("I", bytes(4 * _INODES_TOGETHER))
        self.sizes = array("Q", bytes(8 * _INODES_TOGETHER))


def spare_bytes() -> int:
    """A fair share of the memory that is available to this process's control group."""
    return int(min(procfs.memory().get("MemAvailable", 0), _cgroup_bytes()) * _SHARE)


def _cgroup_bytes() -> float:
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
