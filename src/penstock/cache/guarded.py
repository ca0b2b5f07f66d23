"""A cache directory that may fail and recovers by itself. It never raises to its callers.

                  fails (OSError, sqlite3.Error; not: full)
          ┌────┐ ────────────────────────────────────────▶ ┌─────┐ ──┐ a probe fails:
          │ ok │                                            │ out │   │ double the delay
          └────┘ ◀──────────────────────────────────────── └─────┘ ◀─┘ until the next
                  a probe, 1 s to 60 s later, succeeds

While a directory is out of service, reads miss and writes are declined. One line is logged when it
goes out and one when it is back; none for each read. A probe recreates the directory if it is gone,
writes a file and reads it back, and opens the index, which is rebuilt if it was found damaged. If
the whole file system is gone, the directory is not recreated: it would be on another disk.

A disk that does not answer also puts its directory out (`check_for_hang`). Calls that read whole
objects or directories are not timed: they may take long, and no reader waits for them.

Any call after the delay starts a probe in a thread of its own: a failing disk can take minutes to
answer, and no reader waits for it. Threading: any thread.
"""

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from typing_extensions import Buffer

from penstock.cache.directory import CacheDirectory
from penstock.cache.identity import Block, CachedObject
from penstock.cache.index import Index
from penstock.cache.indexfile import IndexIdentity, is_damage, is_full
from penstock.cache.sweep import PAUSE_S as SWEEP_PAUSE_S
from penstock.errors import CacheDirError
from penstock.metrics import Counters

log = logging.getLogger(__name__)

FIRST_PROBE_S = 1.0
LAST_PROBE_S = 60.0
# How long a disk may take for one block. A busy disk needs a second or two.
HUNG_S = 5.0
_FAILURES = (OSError, sqlite3.Error)

T = TypeVar("T")
# Opens the directory; rejects the index of this identity, which was found damaged.
Open = Callable[[IndexIdentity | None], CacheDirectory]


class Status(NamedTuple):
    path: Path
    state: str  # ok, or out
    error: str | None
    out_s: float | None  # for how long it has been out
    quota_bytes: int
    used_bytes: int


class GuardedDirectory:
    def __init__(
        self,
        path: Path,
        name: str,
        open_directory: Open,
        counters: Counters,
        *,
        must_open: bool = True,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
        sweep_pause_s: float = SWEEP_PAUSE_S,
    ) -> None:
        """Open the directory. If that fails, raise with `must_open` (for a mount that begins);
        without it, start out of service (for a server that takes over from one that died)."""
        self.path = path
        self.name = name
        self._open = open_directory
        self._counters = counters
        self._clock = clock
        self._start = start or _start_thread
        self._sweep_pause_s = sweep_pause_s
        # Called when the directory goes out or comes back; workers use it too.
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._directory: CacheDirectory | None = None
        self._error: str | None = None
        self._outages = 0
        self._changed_s = clock()  # when it went out, or came back
        self._delay_s = FIRST_PROBE_S
        self._next_probe_s = 0.0
        self._probing = False
        self._closed = False
        # A damaged index. It is kept open until the next index exists: while it is open, no other
        # file gets its inode number.
        self._damaged: Index | None = None
        self._device: int | None = None
        self._busy: dict[int, float] = {}  # thread -> since when it waits for the disk
        try:
            self._put_in_service(self._open(None))
        except (*_FAILURES, CacheDirError) as error:
            if must_open:
                raise
            self._mark_out(error)

    # -- a tier's verbs -----------------------------------------------------------------

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        # `_try` inlined: every read of a cached block passes here.
        directory = self._directory
        if directory is None:
            return self._try(lambda directory: directory.read(block, start, stop), None)
        thread = threading.get_ident()
        self._busy[thread] = self._clock()
        try:
            return directory.read(block, start, stop)
        except _FAILURES as error:
            self._fail(directory, error)
            return None
        finally:
            self._busy.pop(thread, None)

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        view = memoryview(data)
        directory = self._directory
        if directory is None:
            self._probe_if_due()
            return False
        # Making room is not timed, since it may evict many files. Writing one block is.
        if not self._try(lambda _now: directory.reserve(len(view)), False, timed=False):
            return False
        return self._try(
            lambda _now: directory.write_into_reserved(obj, block_bytes, block, view), False
        )

    def has(self, block: Block) -> bool:
        return self._try(lambda directory: directory.has(block), False)

    def has_room(self, length: int) -> bool:
        directory = self._directory  # while it is out, writes are declined at once
        return directory is None or directory.used_bytes + length <= directory.high_bytes

    def cached_bytes(self, digest: bytes) -> int:
        return self._try(lambda directory: directory.cached_bytes(digest), 0)

    def cached_sizes(self, digests: list[bytes]) -> dict[bytes, int]:
        return self._try(lambda directory: directory.cached_sizes(digests), {})

    def mark_used(self, digests: list[bytes]) -> None:
        self._try(lambda directory: directory.mark_used(digests), None)

    def free_beside(self, wanted_bytes: int) -> int:
        return self._try(lambda directory: directory.free_beside(wanted_bytes), 0)

    def verify(self, digest: bytes) -> list[int]:
        return self._try(lambda directory: directory.verify(digest), [], timed=False)

    def remove(self, digests: list[bytes]) -> int:
        return self._try(lambda directory: directory.remove_objects(digests), 0)

    def complete_file(self, obj: CachedObject) -> Path | None:
        return self._try(lambda directory: directory.complete_file(obj), None, timed=False)

    def source_bytes(self, source: str) -> int:
        return self._try(lambda directory: directory.index.source_bytes(source), 0)

    def indexed_bytes(self, source: str) -> int:
        return self._try(lambda directory: directory.index.indexed_bytes(source), 0)

    @property
    def quota_bytes(self) -> int:
        """0 while it is out of service."""
        directory = self._directory
        return directory.quota_bytes if directory is not None else 0

    def mark_outdated(self, digests: list[bytes]) -> None:
        self._try(lambda directory: directory.mark_outdated(digests), None)

    def flush(self) -> None:
        self._try(lambda directory: directory.index.flush(), None)

    def status(self) -> Status:
        used = self._try(_usage, 0)
        directory, now = self._directory, self._clock()
        if directory is None:
            return Status(self.path, "out", self._error, round(now - self._changed_s, 3), 0, 0)
        return Status(self.path, "ok", None, None, directory.quota_bytes, used)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            directory = self._directory
        if directory is not None:
            try:
                directory.close()
            except _FAILURES as error:
                log.warning(
                    "cache directory %s: %s; its last blocks are not cached", self.path, error
                )

    # -- what workers do ----------------------------------------------------------------

    def call(self, work: Callable[[CacheDirectory], T], otherwise: T) -> T:
        """Do what a worker reports or requests; return `otherwise` if the directory is out."""
        return self._try(work, otherwise)

    def report_failure(self, error: Exception) -> None:
        """Take the directory out: a worker's access to the disk failed."""
        directory = self._directory
        if directory is not None:
            self._fail(directory, error)

    @property
    def is_available(self) -> bool:
        return self._directory is not None

    # -- before a load ------------------------------------------------------------------

    def check_now(self) -> None:
        """Find out whether the directory was removed. If it is out, probe it now, before the delay
        has passed."""
        self._try(CacheDirectory.check_in_place, None)
        if self._directory is None:
            self._start_probe()

    @property
    def is_probing(self) -> bool:
        """Whether a probe is running."""
        return self._probing

    @property
    def outages(self) -> int:
        """How often the directory has gone out."""
        return self._outages

    # -- inside -------------------------------------------------------------------------

    def _try(self, work: Callable[[CacheDirectory], T], otherwise: T, *, timed: bool = True) -> T:
        """`timed`: the work takes no longer than that for a few blocks."""
        directory = self._directory
        if directory is None:
            self._probe_if_due()
            return otherwise
        thread = threading.get_ident()
        if timed:
            self._busy[thread] = self._clock()
        try:
            return work(directory)
        except _FAILURES as error:
            self._fail(directory, error)
            return otherwise
        finally:
            self._busy.pop(thread, None)

    def check_for_hang(self, longer_than_s: float = HUNG_S) -> None:
        """Take the directory out if its disk does not answer, so that only the threads that already
        hang in it are blocked. Called now and then, by a thread that never touches the disk. Where
        workers serve the readers, this is also the only call that starts the probes."""
        directory, now_s = self._directory, self._clock()
        if directory is None:
            self._probe_if_due()
            return
        waits_s = max((now_s - since_s for since_s in list(self._busy.values())), default=0.0)
        if waits_s > longer_than_s:
            why = f"the disk has not answered for {waits_s:.1f} s"
            self._fail(directory, TimeoutError(errno.ETIMEDOUT, why, str(self.path)))

    def _fail(self, directory: CacheDirectory, error: Exception) -> None:
        if is_full(error):
            self._counters.add("cache_warnings")
            log.debug("cache directory %s is full: %s", self.path, error)
            return
        with self._lock:
            if self._directory is not directory:
                return  # another thread was faster
            self._directory = None
            self._busy = {}  # threads that hang in it are no longer counted
            if is_damage(error):
                self._damaged = directory.index
            now = self._clock()
            # The probe passed, and use failed again: keep doubling the delay instead of logging
            # each second.
            again = now - self._changed_s < LAST_PROBE_S and self._error is not None
            self._delay_s = min(2 * self._delay_s, LAST_PROBE_S) if again else FIRST_PROBE_S
            self._changed_s = now
            self._mark_out(error)
        self.on_change()
        directory.abandon()

    def _mark_out(self, error: Exception) -> None:
        self._error = str(error)
        self._outages += 1
        self._next_probe_s = self._clock() + self._delay_s
        self._counters.add("cache_warnings")
        log.warning("cache directory %s is out: %s; reading without it", self.path, error)

    def _probe_if_due(self) -> None:
        if self._clock() >= self._next_probe_s:
            self._start_probe()

    def _start_probe(self) -> None:
        with self._lock:
            if self._probing or self._closed or self._directory is not None:
                return
            self._probing = True
        self._start(self._probe)

    def _probe(self) -> None:
        try:
            self._check_disk()
            damaged = self._damaged
            directory = self._open(damaged.identity if damaged is not None else None)
        except (*_FAILURES, CacheDirError) as error:
            log.debug("cache directory %s is still out: %s", self.path, error)
            with self._lock:
                self._error = str(error)
                self._delay_s = min(2 * self._delay_s, LAST_PROBE_S)
                self._next_probe_s = self._clock() + self._delay_s
        else:
            log.warning("cache directory %s is back", self.path)
            self._put_in_service(directory)
        finally:
            self._probing = False

    def _check_disk(self) -> None:
        """Raises if the directory would be recreated on another disk than before."""
        if self._device is not None and not self.path.exists():
            here = next(one for one in self.path.parents if one.exists())
            if _device(here) not in (self._device, None):
                raise OSError(errno.ENODEV, "its file system is not mounted", str(self.path))

    def _put_in_service(self, directory: CacheDirectory) -> None:
        device = _device(self.path)
        with self._lock:
            if not self._closed:
                self._directory = directory
                self._changed_s = self._clock()
                self._damaged = None
                self._device = device
        if self._closed:
            directory.abandon()
        else:
            self.on_change()
            self._start(lambda: self._tidy(directory))

    def _tidy(self, directory: CacheDirectory) -> None:
        """Check the index and sweep files: too slow for the caller to wait for."""
        try:
            directory.index.check()
            directory.sweep(pause_s=self._sweep_pause_s)
        except _FAILURES as error:
            self._fail(directory, error)


def _device(path: Path) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _usage(directory: CacheDirectory) -> int:
    """Without reserved bytes: workers reserve room that they may never fill."""
    directory.index.reread_usage(least_interval_s=0)
    return directory.index.used_bytes


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="cache-care", daemon=True).start()
