"""One directory of a local tier: plain files, and an index that records what is in them.

Raises OSError or sqlite3.Error when the disk or the index fails; `GuardedDirectory` handles that. A
damaged file is not a failure: it is dropped, and the read is a miss. Threading: any thread.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from typing_extensions import Buffer

from penstock.blocks import UNIT_BYTES, block_count, unit_bounds
from penstock.cache import files
from penstock.cache.files import FileStamp
from penstock.cache.identity import (
    Block,
    CachedObject,
    block_of,
    checksums,
    identify,
    matches,
    object_path,
)
from penstock.cache.index import Entry, Index
from penstock.cache.indexfile import IndexIdentity, has_our_tables, identity_of, is_full
from penstock.cache.locks import join
from penstock.cache.policy import Policy
from penstock.cache.sweep import YOUNG_S, SweepResult, sweep
from penstock.errors import CacheDirError
from penstock.metrics import Counters

log = logging.getLogger(__name__)

_EVICT_BATCH = 256
SMALL_BYTES = 1024 * 1024
# How long no writes are tried after the disk was full below the quota.
_FULL_PAUSE_S = 1.0


class ChecksumMismatch(Exception):
    """Bytes of a file do not match their checksums."""


def load_units(
    path: str, sums_of: Callable[[Block, int], bytes | None], block: Block, low: int, high: int
) -> memoryview | None:
    """Read whole units of a block from an object's file; None if they are not there. Raises
    ChecksumMismatch if they do not match their checksums."""
    # The file first: on a miss, and a cold epoch has nothing else, opening it fails in 2 us, while
    # a query releases the interpreter's lock four times.
    try:
        descriptor = os.open(path, files.TO_READ)
    except FileNotFoundError:
        return None
    try:
        sums = sums_of(block, descriptor)
        if sums is None:
            return None
        data = memoryview(os.pread(descriptor, high - low, block.start + low))
    finally:
        os.close(descriptor)
    if len(data) != high - low or not matches(data, sums, low // UNIT_BYTES):
        raise ChecksumMismatch
    return data


class CacheDirectory:
    def __init__(
        self,
        path: Path,
        *,
        name: str,
        quota_bytes: int,
        high: float,
        low: float,
        policy: Policy,
        counters: Counters,
        damaged: IndexIdentity | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.quota_bytes = quota_bytes
        self.high_bytes = int(quota_bytes * high)
        self.low_bytes = int(quota_bytes * low)
        self._root = str(path)
        self._policy = policy
        self._counters = counters
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_foreign_index(path)
        self._membership = join(path / "users.lock")
        try:
            # Before `make_folders`: another process may be making both at this moment.
            before = identity_of(path / "index.sqlite")
            if files.make_folders(path):  # an older index records files that are gone
                damaged = before
            self.index = Index(path / "index.sqlite", damaged)
        except BaseException:
            os.close(self._membership.descriptor)
            raise
        self._drop_lock = threading.Lock()
        self._room_lock = threading.Lock()
        self._leave_lock = threading.Lock()
        self._reserved_bytes = 0  # reserved for blocks on their way to the disk
        self._full_until_s = 0.0
        self._outdated = True  # unknown until room is needed for the first time
        # Objects whose every byte this process has checked or written, by the file's stamp: a file
        # that was changed since is checked again. Only for large objects: checking a small one
        # again costs less than remembering them all.
        self._verified: dict[bytes, FileStamp] = {}
        self._written: dict[bytes, tuple[int, set[int]]] = {}

    # -- reading ------------------------------------------------------------------------

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        low, high = unit_bounds(start, stop, block.length)
        data = self._load(block, low, high)
        if data is None:
            return None
        if self._policy.tracks_use:
            self.index.touch(block.digest)
        return data[start - low : stop - low]

    def _load(self, block: Block, low: int, high: int) -> memoryview | None:
        """Return whole units of the block if they match their checksums."""
        try:
            return self._load_verified(block, low, high)
        except ChecksumMismatch:
            pass
        # Another thread may have found the damage too, and have filled the block again since. A
        # block's row is written after its bytes, so wrong bytes that have a row are damaged, not
        # half written. Eviction and other processes do not take the lock: at worst a good block is
        # fetched again.
        with self._drop_lock:
            try:
                return self._load_verified(block, low, high)
            except ChecksumMismatch:
                self._drop_corrupt(block, "its checksum does not match")
                return None

    def _load_verified(self, block: Block, low: int, high: int) -> memoryview | None:
        """Raises ChecksumMismatch if the bytes are there and do not match."""
        try:
            return load_units(self.file(block.digest), self._sums, block, low, high)
        except OSError as error:
            return self._handle_read_error(block, error)

    def _sums(self, block: Block, descriptor: int) -> bytes | None:
        """A small file carries its checksums, which saves the slower SQLite query."""
        if block.whole and (sums := files.sums_of(descriptor)):
            return sums
        return self.index.sums(block)

    def _handle_read_error(self, block: Block, error: OSError) -> None:
        if files.is_not_regular(error):
            self._drop_corrupt(block, f"not a regular file ({error.strerror})")
            return
        if error.errno == errno.EIO:
            # Most of the disk may be fine: without this file it can be used again.
            with suppress(OSError):
                self._drop_corrupt(block, str(error.strerror))
        raise error

    def _drop_corrupt(self, block: Block, why: str) -> None:
        self._forget_verified(block.digest)
        if not self.index.drop_block(block):
            return  # another thread has dropped it
        log.warning("%s block %d: %s; dropped", self.file(block.digest), block.number, why)
        self._counters.add("corrupt_blocks")
        if block.whole or files.stamp_of(self.file(block.digest)) is None:
            files.remove(self.file(block.digest))

    def complete_file(self, obj: CachedObject) -> Path | None:
        digest = obj.digest
        if self.index.cached_bytes(digest) != obj.size_bytes:
            return None
        path = self.file(digest)
        stamp = files.stamp_of(path)
        if stamp is not None and self._verified.get(digest) == stamp:
            return Path(path)
        if not self._is_consistent(obj) or self.verify(digest):
            return None
        stamp_now = files.stamp_of(path)
        if stamp is None or stamp != stamp_now:
            return None  # changed while we verified it
        if obj.size_bytes > SMALL_BYTES:
            self._verified[digest] = stamp
        return Path(path)

    def _is_consistent(self, obj: CachedObject) -> bool:
        """Whether the row describes exactly the caller's object and all its blocks. The row may be
        damaged; an inconsistent object is dropped."""
        entry = self.index.entry(obj.digest)
        if entry is None:
            return False
        again = identify(obj.source, obj.key, obj.version, obj.size_bytes, entry.block_bytes)
        blocks = block_count(obj.size_bytes, max(1, entry.block_bytes))
        numbers = list(range(blocks)) if blocks > 1 else []
        stamp = files.stamp_of(self.file(obj.digest))
        if (
            entry.size_bytes == obj.size_bytes
            and entry.block_bytes > 0
            and again.digest == obj.digest
            and self.index.block_numbers(obj.digest) == numbers
            # A shorter file is left to `verify`, which keeps its good blocks.
            and (stamp is None or stamp.size_bytes <= obj.size_bytes)
        ):
            return True
        log.warning("%s: its row in the index is wrong; dropped", self.file(obj.digest))
        self._counters.add("corrupt_blocks")
        self.remove(entry)
        return False

    def verify(self, digest: bytes) -> list[int]:
        """Read every stored block back; drop those that do not match, and return their numbers."""
        self.index.flush()
        entry = self.index.entry(digest)
        if entry is None:
            return []
        if not entry.cached_bytes:
            self.remove(entry)
            return []
        if files.stamp_of(self.file(digest)) is None or entry.block_bytes <= 0:
            self.remove(entry)
            return [0]
        obj = CachedObject(entry.source, entry.key, entry.version, entry.size_bytes, digest)
        numbers = self.index.block_numbers(digest) or [0]
        blocks = [block_of(obj, number, entry.block_bytes) for number in numbers]
        return [block.number for block in blocks if self.read(block, 0, block.length) is None]

    def has(self, block: Block) -> bool:
        return self.index.sums(block) is not None

    def cached_bytes(self, digest: bytes) -> int:
        return self.index.cached_bytes(digest)

    def cached_sizes(self, digests: list[bytes]) -> dict[bytes, int]:
        """Return how many bytes of each object are cached, leaving out objects with none. A row
        whose file was deleted or truncated is dropped."""
        found: dict[bytes, int] = {}
        for digest, (cached, size) in self.index.cached_sizes(digests).items():
            stamp = files.stamp_of(self.file(digest))
            if stamp is not None and stamp.size_bytes == size:
                found[digest] = cached
            elif (entry := self.index.entry(digest)) is not None:
                log.warning("%s: its size differs from its row; dropped", self.file(digest))
                self.remove(entry)
        return found

    def mark_used(self, digests: list[bytes]) -> None:
        """Mark the objects as used now, for the eviction policy."""
        if self._policy.tracks_use:
            for digest in digests:
                self.index.touch(digest)

    # -- writing ------------------------------------------------------------------------

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        view = memoryview(data)
        return self.reserve(len(view)) and self.write_into_reserved(obj, block_bytes, block, view)

    def write_into_reserved(
        self, obj: CachedObject, block_bytes: int, block: Block, view: memoryview
    ) -> bool:
        """Write a block into room that was reserved for it."""
        stamp, is_new, sums = None, False, b""
        try:
            path = self.file(obj.digest)
            if not block.whole:
                self._forget_lost_blocks(obj.digest)
            sums = checksums(view)
            stamp, is_new = files.write_file(
                path, obj.size_bytes, block.start, view, sums if block.whole else None
            )
        except OSError as error:
            if not is_full(error):
                raise
            self.note_full()
        finally:
            if stamp is None:
                self.give_back(len(view))
        if stamp is None:
            return False
        self.commit(obj, block_bytes, block, sums)
        if obj.size_bytes > SMALL_BYTES:
            self._note_written(block, stamp, is_new, block_count(obj.size_bytes, block_bytes))
        return True

    def _forget_lost_blocks(self, digest: bytes) -> None:
        """Drop the rows of an object whose file was deleted: in a new file its other blocks would
        be holes."""
        path = self.file(digest)
        if os.path.lexists(path):  # for all blocks but the first, this check is the only cost
            return
        with self._drop_lock:
            # Check the row first: it is written after the file, and another thread may be writing
            # both.
            if self.index.has_object(digest) and files.stamp_of(path) is None:
                self.forget_lost(digest)

    def forget_lost(self, digest: bytes) -> None:
        """Drop the rows of an object whose file was replaced or deleted."""
        log.warning("%s is gone; its blocks are fetched again", self.file(digest))
        self._forget_verified(digest)
        self.index.drop_object(digest)

    def reserve(self, length: int) -> bool:
        """Reserve room for bytes that are about to be written, until `commit` or `give_back`; False
        if there is none."""
        if time.monotonic() < self._full_until_s:
            return False
        with self._room_lock:
            room = self._policy.make_room(self, length)
            if not room and self.index.reread_usage():  # other processes may have freed some
                room = self._policy.make_room(self, length)
            if room:
                self._reserved_bytes += length
            return room

    def commit(self, obj: CachedObject, block_bytes: int, block: Block, sums: bytes) -> None:
        """Record a block that was written into reserved room. In one step: otherwise a thread that
        looks for room would count it twice, and evict for nothing."""
        with self._room_lock:
            try:
                self.index.add(obj, block_bytes, block, sums)
            finally:
                self._reserved_bytes -= block.length

    def give_back(self, length: int) -> None:
        with self._room_lock:
            self._reserved_bytes -= length

    def note_full(self) -> None:
        """The disk is full before the quota is reached: others use it too."""
        self._full_until_s = time.monotonic() + _FULL_PAUSE_S

    def commit_written(
        self,
        obj: CachedObject,
        block_bytes: int,
        block: Block,
        sums: bytes,
        stamp: FileStamp | None,
        is_new: bool,
    ) -> None:
        """Record a block that a worker has written; `stamp` is its file's state then."""
        self.commit(obj, block_bytes, block, sums)
        if stamp is not None:
            self._note_written(block, stamp, is_new, block_count(obj.size_bytes, block_bytes))

    def recheck(self, block: Block) -> None:
        """Verify a block that a worker has found damaged, and drop it if it is."""
        self._load(block, 0, block.length)

    def touch(self, digests: list[bytes]) -> None:
        """Mark objects that workers have read as used."""
        for digest in digests:
            self.index.touch(digest)

    def _note_written(self, block: Block, stamp: FileStamp, is_new: bool, blocks: int) -> None:
        with self._room_lock:
            before, numbers = self._written.pop(block.digest, (stamp.inode, set[int]()))
            if is_new or before != stamp.inode:
                numbers = set[int]()  # what was written before was in another file
            numbers.add(block.number)
            if len(numbers) < blocks:
                self._written[block.digest] = (stamp.inode, numbers)
                return
        # Threads that wrote other blocks may have changed the file since.
        now = files.stamp_of(self.file(block.digest))
        if now is not None and now[:2] == stamp[:2]:
            self._verified[block.digest] = now

    def _forget_verified(self, digest: bytes) -> None:
        with self._room_lock:
            self._verified.pop(digest, None)
            self._written.pop(digest, None)

    # -- room ---------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self.index.used_bytes + self._reserved_bytes

    @property
    def outdated_bytes(self) -> int:
        return self.index.outdated_bytes() if self._outdated else 0

    def free_beside(self, wanted_bytes: int) -> int:
        """See Policy."""
        self.index.reread_usage(least_interval_s=0)
        status = os.statvfs(self.path)
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < self.high_bytes - self.used_bytes:
            return free_bytes  # others use the disk too; nothing is evicted for them
        return self._policy.free_beside(self, wanted_bytes)

    def evict_outdated(self, down_to_bytes: int) -> None:
        if self._outdated:
            self._outdated = self._evict(self.index.outdated, down_to_bytes)

    def evict_least_recently_used(self, down_to_bytes: int) -> None:
        self._evict(self.index.least_recently_used, down_to_bytes)

    def _evict(self, choose: Callable[[int], list[Entry]], down_to_bytes: int) -> bool:
        """Remove the objects that `choose` offers until enough is free; False if it ran out."""
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

    def mark_outdated(self, digests: list[bytes]) -> None:
        self.index.mark_outdated(digests)
        self._outdated = True

    def remove(self, entry: Entry) -> None:
        self.remove_objects([entry.digest])

    def remove_objects(self, digests: list[bytes]) -> int:
        """Remove the objects; return how many bytes they had. Rows are deleted first: a reader that
        already has a file open can go on reading it, others miss."""
        for digest in digests:
            self._verified.pop(digest, None)
            self._written.pop(digest, None)
        dropped = self.index.drop_objects(digests)
        for digest in digests:
            files.remove(self.file(digest))
        return dropped

    def sweep(self, young_s: float = YOUNG_S, *, pause_s: float = 0) -> SweepResult:
        """Remove files without a row, and rows without a file."""
        # A young file may belong to a mount that is about to record it. But if no other process
        # used the directory when we opened it, the writers of all older files are dead.
        before_s = time.time() - young_s
        if self._membership.was_alone:
            before_s = max(before_s, self._membership.since_s)
        return sweep(self, before_s, pause_s=pause_s)

    def check_in_place(self) -> None:
        """Raises if the directory was removed."""
        os.stat(self.path / "objects")
        self.index.check_in_place()

    def file(self, digest: bytes) -> str:
        return f"{self._root}/{object_path(digest)}"

    def close(self) -> None:
        try:
            self.index.close()
        finally:
            self._leave()

    def abandon(self) -> None:
        """Release a directory that failed, without waiting for its disk."""
        self.index.abandon()
        self._leave()

    def _leave(self) -> None:
        # Not under `_room_lock`, which a thread that hangs in the disk may hold.
        with self._leave_lock:
            descriptor, self._membership = (
                self._membership.descriptor,
                self._membership._replace(descriptor=-1),
            )
        if descriptor >= 0:
            os.close(descriptor)


def _refuse_foreign_index(path: Path) -> None:
    """Raise CacheDirError for an index.sqlite that is not ours: a damaged index is rebuilt, but
    someone else's database must not be. Our cache leaves other files beside its index, unless it
    was deleted while a server made the index: then the index is empty, or has our tables."""
    index = path / "index.sqlite"
    if not index.exists() or not index.stat().st_size or has_our_tables(index):
        return
    if not any(os.path.lexists(path / name) for name in ("objects", "users.lock", "index.lock")):
        raise CacheDirError(
            f"cache directory {path}: it has an index.sqlite that is not a cache's",
            hint="give another --cache-dir",
        )
