"""Checksums of a catalog's pages, in `CATALOG.sums` beside it. They reveal damage.

SQLite notices a page that makes no sense to it. A page that makes sense but is wrong goes
unnoticed, and then a listing lacks names without an error. So each page has a checksum:

    checkpointed ── transaction ─▶ written ── checkpoint ─▶ moving ── log is empty ─▶ checkpointed

    written   the file is as its sums say; new pages are in the log
    moving    there are no sums while the log's pages are moved into the file. A process that dies
              here leaves it so, and the next one to open the catalog checks all of it.

The file changes only in the state `moving`. So a reader compares no sums: while the file's times
and size are those of the last checkpoint (`Stamp`) nobody else has written to it, and comparing
them takes a microsecond. Sums are compared when those differ, when a catalog is opened and at each
refresh, which also finds what a disk has changed by itself. Only the log is trusted as far as
SQLite trusts it: for the milliseconds between a transaction and its checkpoint, or for as long as a
reader needs the pages that the checkpoint would replace. Until then the catalog stays `written`,
with its old sums.

Locks are flocks on the file of the sums, each with a descriptor of its own, so that threads exclude
each other too. Shared: opening a connection, a transaction. Exclusive: a checkpoint, replacing the
catalog. A process that was killed but cannot end blocks nobody.
"""

import fcntl
import os
import shutil
import signal
import struct
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from penstock import procfs

_MAGIC = b"PENSUMS1"
# Magic, bytes of a page, pages, the stamp, a sum of the sums; then a sum of all that.
_HEADER = struct.Struct("<8sQQ4QQ")
_SUM = struct.Struct("<Q")
_HEADER_BYTES = _HEADER.size + _SUM.size
_READ_BYTES = 1 << 20
# How often a process that waits for a lock retries, and how often it checks who holds the lock.
_LOCK_POLL_S = 0.005
_CHECK_HOLDERS_S = 1.0
# Of SQLite's write-ahead log: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
_LOG_HEADER = struct.Struct(">4s4xI4x8s8x")
_FRAME = struct.Struct(">II8s8x")
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


class Stamp(NamedTuple):
    """What changes whenever a process writes to a file."""

    ino: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


NO_STAMP = Stamp(0, 0, 0, 0)


class PageSums(NamedTuple):
    stamp: Stamp
    page_bytes: int
    sums: "array[int]"  # of each page; the first page has number 1


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def set_new_stamp(path: Path) -> Stamp:
    """Set and return a stamp that every later write changes.

    Writes within one tick of the clock (10 ms) get the same time; none gets a time in the past.
    """
    before_ns = os.stat(path).st_mtime_ns - 1_000_000_000
    os.utime(path, ns=(before_ns, before_ns))
    return stamp_of(path)


def is_held_by_the_dead(descriptor: int) -> bool:
    """Return whether all processes that hold a lock on this file were killed."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, *fields = line.split()
        if fields[0] == "FLOCK" and fields[4] == device:  # a waiting process has `->` before that
            holders.add(int(fields[3]))
    return bool(holders) and all(_is_dying(pid) for pid in holders)


def _is_dying(pid: int) -> bool:
    """Return False for a process of another namespace, whose number we do not know."""
    if pid <= 0:
        return False
    fields = procfs.status(pid)
    killed = 1 << (signal.SIGKILL - 1)
    return not fields or fields["State"][0] in "ZX" or bool(int(fields["SigPnd"], 16) & killed)


class SumsFile:
    def __init__(self, catalog: Path) -> None:
        self.path = catalog.with_name(f"{catalog.name}.sums")

    # -- locks ----------------------------------------------------------------------------

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def try_shared(self) -> Iterator[bool]:
        """Yield False if another process checkpoints or replaces the catalog at this moment."""
        try:
            descriptor = self._lock(fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        descriptor = self._lock(how)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, how: int) -> int:
        while True:
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # a new catalog, or its folder was removed meanwhile
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                continue
            try:
                self._wait_for(descriptor, how)
                held, named = os.fstat(descriptor), os.stat(self.path)
                if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                    return descriptor
            except FileNotFoundError:
                pass  # the file was removed meanwhile: the next one to have its name is locked
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _wait_for(self, descriptor: int, how: int) -> None:
        """Wait for the lock; if killed processes hold it, give the file another inode instead.

        A process that was killed keeps its locks for as long as one of its threads hangs in the
        kernel. That is a deadlock where such a thread tells the kernel of a change below a folder
        that a reader is listing, while that reader waits for the process that wants the lock.
        """
        check_at_s = time.monotonic() + _CHECK_HOLDERS_S
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if how & fcntl.LOCK_NB:
                    raise
            else:
                return
            if time.monotonic() >= check_at_s:
                if is_held_by_the_dead(descriptor):
                    self._replace_with_copy()
                    return  # holding no lock: `_lock` sees that the file has no name, and retries
                check_at_s += _CHECK_HOLDERS_S
            time.sleep(_LOCK_POLL_S)

    def _replace_with_copy(self) -> None:
        copy = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            shutil.copyfile(self.path, copy)
            copy.chmod(0o600)
            copy.replace(self.path)
        except FileNotFoundError:
            pass  # another process has done it
        finally:
            copy.unlink(missing_ok=True)

    # -- contents -------------------------------------------------------------------------

    def stamp(self) -> Stamp | None:
        """Return the stamp of the catalog at its last checkpoint; None in the state `moving`."""
        header = self._header(self._read(_HEADER_BYTES))
        return None if header is None else Stamp(*header[3:7])

    def read(self) -> PageSums | None:
        """Return None in the state `moving`, or if the sums are damaged themselves."""
        data = self._read(None)
        header = self._header(data)
        if header is None:
            return None
        _, page_bytes, pages, *stamp, sum_of_sums = header
        packed = data[_HEADER_BYTES:]
        if len(packed) != pages * _SUM.size or xxhash.xxh3_64_intdigest(packed) != sum_of_sums:
            return None
        return PageSums(Stamp(*stamp), page_bytes, array("Q", packed))

    def clear(self) -> None:
        """Enter the state `moving`: nothing is known of the catalog's file until `write`."""
        os.truncate(self.path, 0)

    def write(self, sums: PageSums) -> None:
        packed = sums.sums.tobytes()
        header = _HEADER.pack(
            _MAGIC,
            sums.page_bytes,
            len(sums.sums),
            *sums.stamp,
            xxhash.xxh3_64_intdigest(packed),
        )
        header += _SUM.pack(xxhash.xxh3_64_intdigest(header))
        with open(self.path, "r+b") as file:
            file.truncate(0)
            file.seek(len(header))
            file.write(packed)
            file.flush()
            os.pwrite(file.fileno(), header, 0)  # last: without it the rest does not count

    def _read(self, length: int | None) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read(length)
        except FileNotFoundError:
            return b""

    def _header(self, data: bytes) -> tuple[int, ...] | None:
        if len(data) < _HEADER_BYTES or not data.startswith(_MAGIC):
            return None
        (own_sum,) = _SUM.unpack_from(data, _HEADER.size)
        if xxhash.xxh3_64_intdigest(data[: _HEADER.size]) != own_sum:
            return None
        return _HEADER.unpack_from(data)


def sum_pages(descriptor: int, page_bytes: int) -> "array[int]":
    """Return the sums of all pages; 0 for a page that cannot be read.

    The last page may be cut short.
    """
    sums = array("Q")
    size = os.fstat(descriptor).st_size
    for offset in range(0, size, _READ_BYTES):
        try:
            data = memoryview(os.pread(descriptor, _READ_BYTES, offset))
        except OSError:
            some = range(offset, min(offset + _READ_BYTES, size), page_bytes)
            sums.extend(_sum_page(descriptor, start, page_bytes) for start in some)
        else:
            sum_of, some = xxhash.xxh3_64_intdigest, range(0, len(data), page_bytes)
            sums.extend([sum_of(data[start : start + page_bytes]) for start in some])
    return sums


def _sum_page(descriptor: int, offset: int, page_bytes: int) -> int:
    try:
        return xxhash.xxh3_64_intdigest(os.pread(descriptor, page_bytes, offset))
    except OSError:
        return 0


def damaged_pages(descriptor: int, expected: PageSums) -> set[int]:
    """Return the numbers of the pages that have changed since the last checkpoint."""
    now, then = sum_pages(descriptor, expected.page_bytes), expected.sums
    if now == then:
        return set()
    wrong = {at + 1 for at, (one, other) in enumerate(zip(now, then, strict=False)) if one != other}
    return wrong | set(range(min(len(now), len(then)) + 1, max(len(now), len(then)) + 1))


class LoggedPages(NamedTuple):
    """The committed pages of a write-ahead log."""

    sums: dict[int, int]  # by page number
    pages: int  # of the file, once the log's pages are in it

    def applied_to(self, sums: "array[int]") -> "array[int]":
        """Return the sums of the file after the checkpoint, from those before it."""
        result = sums[: self.pages]
        result.extend([0] * (self.pages - len(result)))
        for number, own_sum in self.sums.items():
            if number <= self.pages:
                result[number - 1] = own_sum
        return result


def read_log(log: Path) -> LoggedPages | None:
    """Return the committed pages; None if there are none.

    Pages that were not committed, or that were written before the log was reset, do not count.
    """
    if not log.exists():
        return None
    committed, uncommitted, pages = dict[int, int](), dict[int, int](), 0
    with open(log, "rb") as file:
        start = file.read(_LOG_HEADER.size)
        if len(start) < _LOG_HEADER.size:
            return None
        magic, page_bytes, salts = _LOG_HEADER.unpack(start)
        if magic not in _LOG_MAGIC:
            return None
        while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
            number, pages_then, salts_then = _FRAME.unpack_from(frame)
            if salts_then != salts:
                break
            uncommitted[number] = xxhash.xxh3_64_intdigest(memoryview(frame)[_FRAME.size :])
            if pages_then:  # the last frame of a transaction
                committed |= uncommitted
                pages = pages_then
                uncommitted.clear()
    return LoggedPages(committed, pages) if pages else None
