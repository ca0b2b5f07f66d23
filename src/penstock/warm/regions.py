"""Loads regions of large files, which are read at random, into the kernel's page cache.

`vfs/random_reads` decides which; a process (`advice`) has the kernel request them, and the server
answers these requests like any others, with verified bytes.

Threading: any thread. The thread that receives requests calls `observe`, which never waits.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.cache.identity import CachedObject
from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.units import KIB, MIB
from penstock.vfs.random_reads import Extent, RandomReads
from penstock.warm import advice
from penstock.warm.page_cache import PROBE_ENVIRONMENT, spare_bytes

log = logging.getLogger(__name__)

# What one call of fadvise covers: the kernel's largest request, or its readahead where that could
# not be raised.
_STEP_BYTES, _LEAST_STEP_BYTES = MIB, 128 * KIB
_MEASURE_EVERY_S = 1.0
_MOST_BYTES = 4096  # PIPE_BUF: a longer message could be written in part
_MOST_WAITING = 64  # requests, until the process is there


class LoadBudget:
    """How much memory the page cache may use for regions."""

    def __init__(self, fixed_bytes: int | None, now: Callable[[], float] = time.monotonic) -> None:
        """`fixed_bytes`: None for a fair share of what is available at the moment."""
        self._fixed_bytes = fixed_bytes
        self._now = now
        self._bytes, self._until_s = 0, float("-inf")

    def current_bytes(self) -> int:
        if self._fixed_bytes is not None:
            return self._fixed_bytes
        now_s = self._now()
        if now_s >= self._until_s:
            self._bytes, self._until_s = spare_bytes(), now_s + _MEASURE_EVERY_S
        return self._bytes


class RegionLoader:
    """See RandomReadObserver."""

    def __init__(
        self,
        mountpoint: Path,
        block_bytes: int,
        page_cache_bytes: int | None,
        path_of: Callable[[int], bytes],
        counters: Counters,
    ) -> None:
        """`path_of`: the path of an inode below the mount point."""
        self._path_of = path_of
        self._counters = counters
        self._reads = RandomReads(block_bytes, LoadBudget(page_cache_bytes).current_bytes)
        self._process = AdviceProcess(mountpoint)
        self.readahead_is_raised = False

    def observe(self, ino: int, obj: CachedObject, offset: int, length: int) -> None:
        extent = self._reads.observe(obj, offset, length)
        if extent is None:
            return
        try:
            path = self._path_of(ino)
        except PenstockError as error:  # readers of this region go on as they did
            log.debug("inode %d: no region is loaded: %s", ino, error)
            return
        step_bytes = _STEP_BYTES if self.readahead_is_raised else _LEAST_STEP_BYTES
        if self._process.request(path, extent, step_bytes):
            self._counters.add("loaded_regions")
        else:
            self._reads.note_failure(obj, extent)

    def close(self) -> None:
        self._process.close()


class AdviceProcess:
    """The process that makes the kernel load regions; started when it is first needed."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[bytes] = []
        self._is_started = False
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def request(self, path: bytes, extent: Extent, step_bytes: int) -> bool:
        """Have the kernel load a part of a file; False if the process cannot take it now."""
        message = b"%d %d %d %s\0" % (*extent, step_bytes, path)
        if len(message) > _MOST_BYTES:
            return False
        with self._lock:
            if self._is_closed:
                return False
            if self._process is not None:
                return self._send(self._process, message)
            if len(self._waiting) >= _MOST_WAITING:
                return False
            self._waiting.append(message)
            if self._is_started:
                return True
            self._is_started = True
        threading.Thread(target=self._start, name="regions", daemon=True).start()
        return True

    def close(self) -> None:
        """Call it when the mount is over: the process may wait for its server."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _send(self, process: "subprocess.Popen[bytes]", message: bytes) -> bool:
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), message)
        except BlockingIOError:
            return False  # it has more to do than it can
        except OSError as error:
            log.warning("regions of files are not loaded any more: %s", error)
            self._close()
            return False
        return True

    def _start(self) -> None:
        try:
            process = subprocess.Popen(
                [sys.executable, "-IS", advice.__file__, str(self._mountpoint)],
                stdin=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                start_new_session=True,
                # Our environment holds keys, and other processes can read the child's.
                env={name: os.environ[name] for name in PROBE_ENVIRONMENT if name in os.environ},
            )
        except OSError as error:  # not tried again: without it, reads are slower, and right
            log.warning("regions of files are not loaded: %s", error)
            self.close()
            return
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        with self._lock:
            if self._is_closed:
                _end(process)
                return
            self._process = process
            waiting, self._waiting = self._waiting, []
            for message in waiting:
                self._send(process, message)


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.kill()
    process.stdin.close()
    process.wait()
