"""Checksums of a catalog's pages, in `CATALOG.sums` beside it. They make damage known.

SQLite notices a page that makes no sense to it. A page that makes sense and is wrong it believes,
and then a listing lacks names without an error. So each page has a sum:

    sealed ── a transaction ──▶ written ── seal ──▶ open ── the log is empty ──▶ sealed
                                  │                   │
      the file is as its sums say,│                   │no sums while the log's pages are moved into
      new pages lie in the log    │                   │the file. Whoever dies here leaves it so, and
                                                       the next to open it checks all of it.

The file changes only between `open` and `sealed`. So a reader compares no sums: while the file's
times and size are those of the seal (`Stamp`) nobody else has written to it, and looking at them
takes a microsecond. Sums are compared when those differ, when a catalog is opened and at each
refresh, which also finds what a disk has changed by itself. Only the log is believed as SQLite
believes it, for the milliseconds between a transaction and its sealing, or for as long as a reader
needs the pages that it would replace: until then the catalog stays written, with its old sums.

Locks are flocks of the file of the sums, each with a descriptor of its own, so that threads exclude
each other too. Shared: opening a connection, a transaction. Alone: sealing, replacing the catalog.
A process that was killed and cannot end keeps no one waiting.
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
# How often someone who waits for a lock tries again, and after how long he looks who has it.
_LOOK_S = 0.005
_DEAD_AFTER_S = 1.0
# Of SQLite's write-ahead log: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
_LOG_HEADER = struct.Struct(">4s4xI4x8s8x")
_FRAME = struct.Struct(">II8s8x")
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


class Stamp(NamedTuple):
    """What changes whenever someone writes to a file."""

    ino: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


NO_STAMP = Stamp(0, 0, 0, 0)


class Sealed(NamedTuple):
    stamp: Stamp
    page_bytes: int
    sums: "array[int]"  # of each page; the first page has number 1


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def new_stamp(path: Path) -> Stamp:
    """A stamp that no write after it leaves as it is. Writes within one tick of the clock (10 ms)
    get the same time; none gets one that is past."""
    before_ns = os.stat(path).st_mtime_ns - 1_000_000_000
    os.utime(path, ns=(before_ns, before_ns))
    return stamp_of(path)


def is_held_by_the_dead(descriptor: int) -> bool:
    """Are all who have a lock on this file processes that were killed, and not one of others?"""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    holders: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        _, *fields = line.split()
        if fields[0] == "FLOCK" and fields[4] == device:  # who waits has an arrow before that
            holders.add(int(fields[3]))
    return bool(holders) and all(_is_dying(pid) for pid in holders)


def _is_dying(pid: int) -> bool:
    """False for one of another namespace, whose number we do not know."""
    if pid <= 0:
        return False
    fields = procfs.status(pid)
    killed = 1 << (signal.SIGKILL - 1)
    return not fields or fields["State"][0] in "ZX" or bool(int(fields["SigPnd"], 16) & killed)


class Seal:
    def __init__(self, catalog: Path) -> None:
        self.path = catalog.with_name(f"{catalog.name}.sums")

    # -- locks ----------------------------------------------------------------------------

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def shared_at_once(self) -> Iterator[bool]:
        """False if someone seals or replaces the catalog at this moment."""
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
            except FileNotFoundError:  # a new catalog, or someone removed the folder under it
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                continue
            try:
                self._wait_for(descriptor, how)
                held, named = os.fstat(descriptor), os.stat(self.path)
                if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                    return descriptor
            except FileNotFoundError:
                pass  # someone removed it meanwhile: another file has the name next
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _wait_for(self, descriptor: int, how: int) -> None:
        """A process that was killed keeps its locks for as long as one of its threads hangs in the
        kernel. Such a thread may wait for a reader who waits for whoever wants the lock: it tells
        the kernel of a change below a folder that the reader is listing. So the file gets another
        inode then, and the lock is left to the dead."""
        looks_at_s = time.monotonic() + _DEAD_AFTER_S
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if how & fcntl.LOCK_NB:
                    raise
            else:
                return
            if time.monotonic() >= looks_at_s:
                if is_held_by_the_dead(descriptor):
                    self._put_copy_in_place()
                    return  # of a file without a name: see `_lock`
                looks_at_s += _DEAD_AFTER_S
            time.sleep(_LOOK_S)

    def _put_copy_in_place(self) -> None:
        copy = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            shutil.copyfile(self.path, copy)
            copy.chmod(0o600)
            copy.replace(self.path)
        except FileNotFoundError:
            pass  # someone else has done it
        finally:
            copy.unlink(missing_ok=True)

    # -- what is sealed -------------------------------------------------------------------

    def stamp(self) -> Stamp | None:
        """Of the file when it was sealed; None while it is open."""
        header = self._header(self._read(_HEADER_BYTES))
        return None if header is None else Stamp(*header[3:7])

    def read(self) -> Sealed | None:
        """None while the catalog is open, or if the sums are damaged themselves."""
        data = self._read(None)
        header = self._header(data)
        if header is None:
            return None
        _, page_bytes, pages, *stamp, sum_of_sums = header
        packed = data[_HEADER_BYTES:]
        if len(packed) != pages * _SUM.size or xxhash.xxh3_64_intdigest(packed) != sum_of_sums:
            return None
        return Sealed(Stamp(*stamp), page_bytes, array("Q", packed))

    def open(self) -> None:
        """From here on, and until `write`, nothing is promised of the file."""
        os.truncate(self.path, 0)

    def write(self, sealed: Sealed) -> None:
        packed = sealed.sums.tobytes()
        header = _HEADER.pack(
            _MAGIC,
            sealed.page_bytes,
            len(sealed.sums),
            *sealed.stamp,
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


def page_sums(descriptor: int, page_bytes: int) -> "array[int]":
    """Of all pages. The last one may be cut short; one that the disk does not give has 0."""
    sums = array("Q")
    size = os.fstat(descriptor).st_size
    for offset in range(0, size, _READ_BYTES):
        try:
            data = memoryview(os.pread(descriptor, _READ_BYTES, offset))
        except OSError:
            some = range(offset, min(offset + _READ_BYTES, size), page_bytes)
            sums.extend(_sum_of_page(descriptor, start, page_bytes) for start in some)
        else:
            sum_of, some = xxhash.xxh3_64_intdigest, range(0, len(data), page_bytes)
            sums.extend([sum_of(data[start : start + page_bytes]) for start in some])
    return sums


def _sum_of_page(descriptor: int, offset: int, page_bytes: int) -> int:
    try:
        return xxhash.xxh3_64_intdigest(os.pread(descriptor, page_bytes, offset))
    except OSError:
        return 0


def damaged_pages(descriptor: int, sealed: Sealed) -> set[int]:
    """The numbers of the pages that are not what they were when the catalog was sealed."""
    now, then = page_sums(descriptor, sealed.page_bytes), sealed.sums
    if now == then:
        return set()
    wrong = {at + 1 for at, (one, other) in enumerate(zip(now, then, strict=False)) if one != other}
    return wrong | set(range(min(len(now), len(then)) + 1, max(len(now), len(then)) + 1))


class Logged(NamedTuple):
    """The pages in a write-ahead log that was committed."""

    sums: dict[int, int]  # by their numbers
    pages: int  # of the file, once they are in it

    def after(self, sums: "array[int]") -> "array[int]":
        """The sums of the file, if these were its sums before."""
        result = sums[: self.pages]
        result.extend([0] * (self.pages - len(result)))
        for number, own_sum in self.sums.items():
            if number <= self.pages:
                result[number - 1] = own_sum
        return result


def read_log(log: Path) -> Logged | None:
    """None if nothing is in it. What was not committed, or is from before the log began anew, does
    not count."""
    if not log.exists():
        return None
    committed, waiting, pages = dict[int, int](), dict[int, int](), 0
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
            waiting[number] = xxhash.xxh3_64_intdigest(memoryview(frame)[_FRAME.size :])
            if pages_then:  # the last one of a transaction
                committed |= waiting
                pages = pages_then
                waiting.clear()
    return Logged(committed, pages) if pages else None
