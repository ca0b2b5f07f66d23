"""A tier's directories as a worker process uses them: it moves the bytes, the server decides.

The server owns the index and the space. A worker reads rows (SQLite, opened read-only), verifies
and serves files, and writes files into space that the server has granted. It reports to the server
what it stored, what it found damaged and which disk fails (`Reporter`); the server records it,
drops it, or takes the directory out of service for all. A worker holds no lock that others wait
for, so it may be killed at any moment.

The checksums of a block never change, since the version is part of its digest. So an outdated row
can only cause a miss, and missing bytes are detected by their checksums.

Threading: any thread.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from penstock.blocks import unit_bounds
from penstock.cache import files
from penstock.cache.directory import SMALL_BYTES, ChecksumMismatch, load_units
from penstock.cache.files import FileStamp
from penstock.cache.guarded import HUNG_S
from penstock.cache.identity import Block, CachedObject, checksums, object_path
from penstock.cache.indexfile import connect_to_read, is_full, stored_sums

# The server writes a block's row within a tenth of a second. Until then the worker remembers it.
_NOTED_WITHIN_S = 2.0
_PENDING = 4096
# How long a block that was found damaged is not read again.
_WRONG_S = 10.0
_ROOM_WITHIN_S = 1.0
# How long a full tier is not asked for room again.
_DENIED_S = 1.0


class Reporter(Protocol):
    """What a worker reports to its server about a directory. No method waits."""

    def stored(
        self,
        directory: int,
        obj: CachedObject,
        block: Block,
        sums: bytes,
        stamp: FileStamp | None,
        is_new: bool,
    ) -> None: ...

    def wants_room(self, directory: int, length: int) -> None: ...

    def wrong(self, directory: int, block: Block) -> None: ...

    def lost(self, directory: int, digest: bytes) -> None: ...

    def used(self, directory: int, digest: bytes) -> None: ...

    def failed(self, directory: int, error: Exception) -> None: ...


class GrantedRoom:
    """Bytes that may be written before the server is asked again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes = 0
        self._asked = False
        self._denied_until_s = 0.0

    def take(self, length: int, ask: "Ask") -> bool:
        with self._changed:
            until_s = time.monotonic() + _ROOM_WITHIN_S
            while self._bytes < length:
                now_s = time.monotonic()
                if now_s < self._denied_until_s or now_s >= until_s:
                    return False
                if not self._asked:
                    self._asked = True
                    ask(length)
                self._changed.wait(until_s - now_s)
            self._bytes -= length
            return True

    def has(self, length: int) -> bool:
        """Whether `take` returns at once."""
        return self._bytes >= length or time.monotonic() < self._denied_until_s

    def grant(self, length: int) -> None:
        """Add room that the server has granted; 0 if there is none."""
        with self._changed:
            self._asked = False
            self._bytes += length
            self._denied_until_s = 0.0 if length else time.monotonic() + _DENIED_S
            self._changed.notify_all()

    def give_back(self, length: int) -> None:
        with self._changed:
            self._bytes += length

    def close(self) -> None:
        """Forget the room: the server grants it again when the directory is back."""
        with self._changed:
            self._bytes = 0
            self._asked = False
            self._changed.notify_all()


class Ask(Protocol):
    def __call__(self, length: int) -> None: ...


class WorkerDirectory:
    def __init__(self, number: int, path: Path, reporter: Reporter, *, tracks_use: bool) -> None:
        """`number`: the server's number of the directory."""
        self._number = number
        self._root = str(path)
        self._index = path / "index.sqlite"
        self._reporter = reporter
        self._tracks_use = tracks_use
        self.room = GrantedRoom()
        self._local = threading.local()
        self._opened = 0  # how often it was enabled: older connections are useless
        self._is_out = True
        self._busy: dict[int, float] = {}  # thread -> since when it waits for the disk
        self._pending: dict[Block, tuple[bytes, float]] = {}
        self._damaged: dict[Block, float] = {}

    def enable(self) -> None:
        """The server has opened the directory, perhaps with another index."""
        self._opened += 1
        self._pending = {}
        self._is_out = False

    def disable(self) -> None:
        self._is_out = True
        self._busy = {}  # threads that hang in it are no longer counted
        self.room.close()

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        if self._is_out:
            return None
        low, high = unit_bounds(start, stop, block.length)
        opened = self._opened
        thread = threading.get_ident()
        self._busy[thread] = time.monotonic()
        try:
            data = load_units(self._file(block.digest), self._sums_in, block, low, high)
        except ChecksumMismatch:
            self._mark_damaged(block)
            return None
        except OSError as error:
            if files.is_not_regular(error):
                self._mark_damaged(block)
            else:
                self._fail(error, opened)
            return None
        except sqlite3.Error as error:
            self._fail(error, opened)
            return None
        finally:
            self._busy.pop(thread, None)
        if data is None:
            return None
        if self._tracks_use:
            self._reporter.used(self._number, block.digest)
        return data[start - low : stop - low]

    def has(self, block: Block) -> bool:
        if self._is_out:
            return False
        opened = self._opened
        try:
            # Check the file too: what we stored a moment ago may have been removed since.
            stored = self._sums(block) is not None
            return stored and os.path.lexists(self._file(block.digest))
        except (OSError, sqlite3.Error) as error:
            self._fail(error, opened)
            return False

    def has_room(self, length: int) -> bool:
        return self._is_out or self.room.has(length)

    def write(self, obj: CachedObject, block: Block, data: Buffer) -> bool:
        view = memoryview(data)
        if self._is_out or not self.room.take(len(view), self._ask_for_room):
            return False
        opened = self._opened
        thread = threading.get_ident()
        self._busy[thread] = time.monotonic()
        stamp, is_new, sums = None, False, b""
        try:
            path = self._file(obj.digest)
            if not block.whole and not os.path.lexists(path) and self._is_known(obj.digest):
                # The file was deleted: in a new file its other blocks would be holes.
                self._reporter.lost(self._number, obj.digest)
            sums = checksums(view)
            stamp, is_new = files.write_file(
                path, obj.size_bytes, block.start, view, sums if block.whole else None
            )
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                self._fail(error, opened)
        finally:
            self._busy.pop(thread, None)
            if stamp is None:
                self.room.give_back(len(view))
        if stamp is None or self._is_out:
            return False
        self._note_pending(block, sums)
        large = stamp if obj.size_bytes > SMALL_BYTES else None
        self._reporter.stored(self._number, obj, block, sums, large, is_new)
        return True

    def forget(self, digests: Sequence[bytes]) -> None:
        """Forget pending blocks of these objects: the server has removed them."""
        gone = set(digests)
        for block in [block for block in list(self._pending) if block.digest in gone]:
            self._pending.pop(block, None)

    def check_for_hang(self) -> None:
        """See GuardedDirectory."""
        now_s = time.monotonic()
        waits_s = max((now_s - since_s for since_s in list(self._busy.values())), default=0.0)
        if waits_s > HUNG_S and not self._is_out:
            error = TimeoutError(f"the disk has not answered for {waits_s:.1f} s")
            self._fail(error, self._opened)

    # -- inside -------------------------------------------------------------------------

    def _file(self, digest: bytes) -> str:
        return f"{self._root}/{object_path(digest)}"

    def _ask_for_room(self, length: int) -> None:
        self._reporter.wants_room(self._number, length)

    def _fail(self, error: Exception, opened: int) -> None:
        """`opened`: the value when the work began. A late error of an earlier index says nothing
        about this one, and would make the server discard it."""
        if not self._is_out and opened == self._opened:
            self.disable()
            self._reporter.failed(self._number, error)

    def _sums_in(self, block: Block, descriptor: int) -> bytes | None:
        """A small file carries its checksums, which saves the query, and may come before the
        row."""
        if block.whole and block not in self._damaged and (sums := files.sums_of(descriptor)):
            return sums
        return self._sums(block)

    def _sums(self, block: Block) -> bytes | None:
        pending = self._pending.get(block)
        if pending is not None and pending[1] > time.monotonic():
            return pending[0]
        if self._damaged and self._damaged.get(block, 0.0) > time.monotonic():
            return None
        return stored_sums(self._connection(), block)

    def _is_known(self, digest: bytes) -> bool:
        run = self._connection().execute
        return run("SELECT 1 FROM objects WHERE digest = ?", (digest,)).fetchone() is not None

    def _connection(self) -> sqlite3.Connection:
        found: tuple[int, sqlite3.Connection] | None = getattr(self._local, "connection", None)
        if found is None or found[0] != self._opened:
            found = self._local.connection = self._opened, connect_to_read(self._index)
        return found[1]

    def _note_pending(self, block: Block, sums: bytes) -> None:
        self._damaged.pop(block, None)
        pending = self._pending
        pending.pop(block, None)  # the newest last
        pending[block] = sums, time.monotonic() + _NOTED_WITHIN_S
        while len(pending) > _PENDING:
            pending.pop(next(iter(pending)), None)

    def _mark_damaged(self, block: Block) -> None:
        self._pending.pop(block, None)
        if len(self._damaged) >= _PENDING:
            self._damaged = {}
        self._damaged[block] = time.monotonic() + _WRONG_S
        self._reporter.wrong(self._number, block)


class WorkerTier:
    """See Tier."""

    def __init__(self, name: str, directories: Sequence[WorkerDirectory]) -> None:
        self.name = name
        self._directories = directories

    def _of(self, digest: bytes) -> WorkerDirectory:
        return self._directories[digest[0] % len(self._directories)]

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        return self._of(block.digest).read(block, start, stop)

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        return self._of(obj.digest).write(obj, block, data)

    def has(self, block: Block) -> bool:
        return self._of(block.digest).has(block)

    def has_room(self, block: Block) -> bool:
        return self._of(block.digest).has_room(block.length)
