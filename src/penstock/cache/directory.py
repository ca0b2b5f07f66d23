"""One directory of a local tier: plain files, and an index that says what is in them."""

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.blocks import UNIT_BYTES, block_count, unit_bounds
from penstock.cache.identity import Block, CachedObject, block_of, object_path
from penstock.cache.index import Entry, Index
from penstock.cache.integrity import checksums, matches
from penstock.cache.policy import Policy
from penstock.errors import CacheDirError
from penstock.metrics import Counters

log = logging.getLogger(__name__)

_EVICT_BATCH = 256
SMALL_BYTES = 1024 * 1024


class _Written(NamedTuple):
    inode: int
    is_new: bool  # it was not there before; inode numbers alone are used again


class CacheDirectory:
    def __init__(
        self, path: Path, *, name: str, quota_bytes: int, high: float, low: float,
        policy: Policy, counters: Counters,
    ) -> None:  # fmt: skip
        self.path = path
        self.name = name
        self.quota_bytes = quota_bytes
        self.high_bytes = int(quota_bytes * high)
        self.low_bytes = int(quota_bytes * low)
        self._root = str(path)
        self._policy = policy
        self._counters = counters
        for number in range(256):
            (path / "objects" / f"{number:02x}").mkdir(parents=True, exist_ok=True, mode=0o700)
        self.index = Index(path / "index.sqlite")
        self._room_lock = threading.Lock()
        self._reserved_bytes = 0  # on their way to the disk
        self._outdated = True  # there may be some; looked up once when room is needed
        # Objects of many blocks whose every byte was checked, or written, in this process's
        # life. Smaller ones are not noted: checking one again costs less than remembering all.
        # By the file's inode: one that was removed and made again is another file.
        self._verified: dict[bytes, int] = {}
        self._written: dict[bytes, tuple[int, set[int]]] = {}

    # -- reading ------------------------------------------------------------------------

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        # The file first: on a miss, which is all that a cold epoch has, opening it fails in 2 us,
        # while a query lets go of the interpreter's lock four times.
        try:
            descriptor = os.open(self.file(block.digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            sums = self.index.sums(block)
            if sums is None:
                return None
            low, high = unit_bounds(start, stop, block.length)
            data = memoryview(os.pread(descriptor, high - low, block.start + low))
        finally:
            os.close(descriptor)
        if len(data) != high - low or not matches(data, sums, low // UNIT_BYTES):
            self._drop_corrupt(block, "its checksum does not match")
            return None
        if self._policy.tracks_use:
            self.index.touch(block.digest)
        return data[start - low : stop - low]

    def _drop_corrupt(self, block: Block, why: str) -> None:
        self._distrust(block.digest)
        if not self.index.drop_block(block):
            return  # another thread has found it too
        log.warning("%s block %d: %s; dropped", self.file(block.digest), block.number, why)
        self._counters.add("corrupt_blocks")
        if block.whole:
            Path(self.file(block.digest)).unlink(missing_ok=True)

    def complete_file(self, what: CachedObject) -> Path | None:
        digest = what.digest
        if self.index.cached_bytes(digest) != what.size_bytes:
            return None
        path = Path(self.file(digest))
        try:
            inode = path.stat().st_ino
        except FileNotFoundError:
            return None
        if self._verified.get(digest) != inode:
            if self.verify(digest):
                return None
            if what.size_bytes > SMALL_BYTES:
                self._verified[digest] = inode
        return path

    def verify(self, digest: bytes) -> list[int]:
        """Reads every stored block back; drops those that do not match and returns them."""
        self.index.flush()
        entry = self.index.entry(digest)
        if entry is None:
            return []
        if not os.path.exists(self.file(digest)) or not entry.cached_bytes:
            self.remove(entry)
            return [0] if entry.cached_bytes else []
        what = CachedObject(entry.source, entry.key, entry.version, entry.size_bytes, digest)
        numbers = self.index.block_numbers(digest) or [0]
        blocks = [block_of(what, number, entry.block_bytes) for number in numbers]
        return [block.number for block in blocks if self.read(block, 0, block.length) is None]

    def has(self, block: Block) -> bool:
        return self.index.sums(block) is not None

    def cached_bytes(self, digest: bytes) -> int:
        return self.index.cached_bytes(digest)

    # -- writing ------------------------------------------------------------------------

    def write(self, what: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        view = memoryview(data)
        with self._room_lock:
            room = self._policy.make_room(self, len(view))
            if not room and self.index.reread_usage():  # others may have cleared it
                room = self._policy.make_room(self, len(view))
            if not room:
                return False
            self._reserved_bytes += len(view)
        try:
            file = self._write_file(what, block.start, view)
            if file is None:
                return False
            self.index.add(what, block_bytes, block, checksums(view))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False  # full before its quota: others use the disk too
        finally:
            with self._room_lock:
                self._reserved_bytes -= len(view)
        if what.size_bytes > SMALL_BYTES:
            self._note_written(block, file, block_count(what.size_bytes, block_bytes))
        return True

    def _note_written(self, block: Block, file: _Written, blocks: int) -> None:
        with self._room_lock:
            before, numbers = self._written.pop(block.digest, (file.inode, set[int]()))
            if file.is_new or before != file.inode:
                numbers = set[int]()  # what was written before went with another file
            numbers.add(block.number)
            if len(numbers) == blocks:
                self._verified[block.digest] = file.inode
            else:
                self._written[block.digest] = (file.inode, numbers)

    def _distrust(self, digest: bytes) -> None:
        with self._room_lock:
            self._verified.pop(digest, None)
            self._written.pop(digest, None)

    def _write_file(self, what: CachedObject, offset: int, view: memoryview) -> _Written | None:
        """None if the file was removed while we wrote."""
        path = self.file(what.digest)
        whole = len(view) == what.size_bytes
        descriptor, is_new = _open_to_write(path, whole=whole)
        try:
            if not whole:
                # The whole length from the start: a complete file is then exactly the object.
                os.truncate(descriptor, what.size_bytes)
            while view:
                written = os.pwrite(descriptor, view, offset)
                offset += written
                view = view[written:]
            status = os.fstat(descriptor)
            return _Written(status.st_ino, is_new) if status.st_nlink else None
        finally:
            os.close(descriptor)

    # -- room ---------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self.index.used_bytes + self._reserved_bytes

    def evict_outdated(self, down_to_bytes: int) -> None:
        if self._outdated:
            self._outdated = self._evict(self.index.outdated, down_to_bytes)

    def evict_least_recently_used(self, down_to_bytes: int) -> None:
        self._evict(self.index.least_recently_used, down_to_bytes)

    def _evict(self, choose: Callable[[int], list[Entry]], down_to_bytes: int) -> bool:
        """Removes what `choose` offers until enough is free; False if it ran out."""
        self.index.flush()
        while self.used_bytes > down_to_bytes:
            offered = choose(_EVICT_BATCH)
            if not offered:
                return False
            for entry in offered:
                if self.used_bytes <= down_to_bytes:
                    return True
                self.remove(entry)
        return True

    def outdate(self, digests: list[bytes]) -> None:
        self.index.outdate(digests)
        self._outdated = True

    def remove(self, entry: Entry) -> None:
        """The row goes first: whoever still reads the file holds it open, or misses."""
        self._verified.pop(entry.digest, None)
        self._written.pop(entry.digest, None)
        self.index.drop_object(entry.digest)
        Path(self.file(entry.digest)).unlink(missing_ok=True)

    def sweep(self, younger_than_s: float = 60.0) -> int:
        """Removes files that the index does not know: what a process that died had written and
        not noted. Returns how many."""
        self.index.flush()
        swept, now = 0, time.time()
        for file in (self.path / "objects").glob("??/*"):
            # What is young may belong to a mount that notes it in a moment.
            old = now - file.stat().st_mtime > younger_than_s
            if old and self.index.entry(bytes.fromhex(file.name)) is None:
                file.unlink(missing_ok=True)
                swept += 1
        return swept

    def file(self, digest: bytes) -> str:
        return f"{self._root}/{object_path(digest)}"

    def close(self) -> None:
        self.index.close()


def _open_to_write(path: str, *, whole: bool) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_CLOEXEC
    if whole:
        return os.open(path, flags | os.O_CREAT, 0o600), True
    while True:
        try:
            return os.open(path, flags), False
        except FileNotFoundError:
            pass
        try:
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            continue  # another thread was faster


def open_directory(
    path: Path, *, name: str, quota_bytes: int, high: float, low: float, policy: Policy,
    counters: Counters,
) -> CacheDirectory:  # fmt: skip
    try:
        return CacheDirectory(
            path, name=name, quota_bytes=quota_bytes, high=high, low=low, policy=policy,
            counters=counters,
        )  # fmt: skip
    except OSError as error:
        raise CacheDirError(
            f"cache directory {path}: {error.strerror}", hint="give another --cache-dir"
        ) from error
    except sqlite3.Error as error:
        raise CacheDirError(
            f"cache directory {path}: its index cannot be used ({error})",
            hint=f"remove {path / 'index.sqlite'}*; what it held is fetched again",
        ) from error


class StripedTier:
    """Several directories as one tier: an object's digest picks its directory."""

    def __init__(self, name: str, directories: list[CacheDirectory]) -> None:
        self.name = name
        self.directories = directories

    def _of(self, digest: bytes) -> CacheDirectory:
        return self.directories[digest[0] % len(self.directories)]

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        return self._of(block.digest).read(block, start, stop)

    def write(self, what: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        return self._of(what.digest).write(what, block_bytes, block, data)

    def has(self, block: Block) -> bool:
        return self._of(block.digest).has(block)

    def cached_bytes(self, digest: bytes) -> int:
        return self._of(digest).cached_bytes(digest)

    def complete_file(self, what: CachedObject) -> Path | None:
        return self._of(what.digest).complete_file(what)

    def outdate(self, digests: list[bytes]) -> None:
        for directory in self.directories:
            directory.outdate([one for one in digests if self._of(one) is directory])

    def source_bytes(self, source: str) -> int:
        return sum(directory.index.source_bytes(source) for directory in self.directories)

    def flush(self) -> None:
        for directory in self.directories:
            directory.index.flush()

    def close(self) -> None:
        for directory in self.directories:
            directory.close()
