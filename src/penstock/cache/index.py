"""The index of a cache directory: which blocks it holds, with their checksums. SQLite, shared by
all mounts.

One thread writes rows in batches, since a commit for each small file would cost more than the file.
Lookups of this process already see pending rows; if the process dies, those blocks are merely
fetched again.

An object of one block is one row (5 us); only larger objects have rows for their blocks.

An `Index` belongs to one file. When that file is damaged, or another file takes its name, every
call raises, and the owner opens a new index. Threading: any thread; each thread has its own
connection, closed when the index is garbage-collected.
"""

import errno
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cache.identity import Block, CachedObject
from penstock.cache.indexfile import (
    IndexDamaged,
    IndexIdentity,
    IndexReplaced,
    connect,
    identity_of,
    is_damage,
    is_full,
    open_index,
    stored_sums,
    transaction,
)

log = logging.getLogger(__name__)

_BATCH_INTERVAL_S = 0.1
# Like SQLite's wait for another process: a disk that hangs must not block a reader.
_FLUSH_TAKES_AT_MOST_S = 5.0
# Rows in one statement: each statement releases the interpreter's lock several times, and wakes
# readers for nothing.
_ROWS_A_STATEMENT = 32
_DIGESTS_A_QUESTION = 512

_ENTRY = (
    "SELECT digest, name, key, version, size, block_bytes, cached, used "
    "FROM objects JOIN sources ON sources.id = objects.source "
)


class Entry(NamedTuple):
    digest: bytes
    source: str
    key: str
    version: str
    size_bytes: int
    block_bytes: int
    cached_bytes: int
    used_s: int


class _PendingBlock(NamedTuple):
    obj: CachedObject
    block_bytes: int
    block: Block
    sums: bytes


class Index:
    def __init__(self, path: Path, damaged: IndexIdentity | None = None) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._pending: dict[Block, _PendingBlock] = {}
        self._pending_bytes = 0
        self._touched: set[bytes] = set()
        self._wake = threading.Event()
        self.closing = threading.Event()
        self._broken: Exception | None = None  # found by the writer thread, raised by the next call
        self._full = False
        # Open as long as the index: SQLite removes the log with the last connection, and a later
        # connection would see another log.
        self._held, self.identity = open_index(path, damaged)
        # Held from the query until its result is recorded: of two threads that count, the one that
        # queried first could be the last to record, and overwrite the newer number.
        self._usage_lock = threading.Lock()
        self._used_bytes = _usage(self._held)
        self._usage_read_s = 0.0
        self._writer = threading.Thread(target=self._write_batches, name="index", daemon=True)
        self._writer.start()

    # -- lookups ------------------------------------------------------------------------

    def sums(self, block: Block) -> bytes | None:
        """Return the block's checksums; None if it is not here."""
        waiting = self._pending.get(block)
        if waiting is not None:
            return waiting.sums
        return stored_sums(self._connection(), block)

    def cached_bytes(self, digest: bytes) -> int:
        """Return how many bytes of the object are here."""
        self.flush()
        row = self._one("SELECT cached FROM objects WHERE digest = ?", digest)
        return _as_int(row[0]) if row is not None else 0

    def cached_sizes(self, digests: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """Return (cached bytes, size) of each object that has any."""
        self.flush()
        found: dict[bytes, tuple[int, int]] = {}
        for first in range(0, len(digests), _DIGESTS_A_QUESTION):
            some = digests[first : first + _DIGESTS_A_QUESTION]
            places = ", ".join("?" * len(some))
            for digest, cached, size in self._connection().execute(
                f"SELECT digest, cached, size FROM objects WHERE digest IN ({places})", some
            ):
                found[digest] = _as_int(cached), _as_int(size)
        return found

    def outdated_bytes(self) -> int:
        row = self._connection().execute("SELECT bytes FROM sources WHERE id = 0").fetchone()
        return _as_int(row[0]) if row is not None else 0

    def source_bytes(self, source: str) -> int:
        """Return how many bytes of this source are here, in the versions that the bucket has
        now."""
        self.flush()  # adding pending rows would count twice
        return self.indexed_bytes(source)

    def indexed_bytes(self, source: str) -> int:
        """Like `source_bytes`, without pending rows."""
        row = self._one("SELECT bytes FROM sources WHERE name = ?", source)
        return _as_int(row[0]) if row is not None else 0

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._used_bytes + self._pending_bytes

    def entry(self, digest: bytes) -> Entry | None:
        row = self._one(f"{_ENTRY} WHERE digest = ?", digest)
        return _entry(row) if row is not None else None

    def has_object(self, digest: bytes) -> bool:
        """Whether any block of the object has a row, written or pending."""
        with self._lock:
            if any(block.digest == digest for block in self._pending):
                return True
        return self.entry(digest) is not None

    def entries(self) -> Iterator[Entry]:
        yield from map(_entry, self._connection().execute(_ENTRY))

    def digests(self, first: int) -> set[bytes]:
        """Return the digests that begin with this byte."""
        rows = self._connection().execute(
            "SELECT digest FROM objects WHERE digest BETWEEN ? AND ?",
            (bytes([first]), bytes([first]) + b"\xff" * 16),
        )
        return {row[0] for row in rows}

    def block_numbers(self, digest: bytes) -> list[int]:
        """Return the blocks of a large object that are here."""
        rows = self._connection().execute(
            "SELECT number FROM blocks WHERE digest = ? ORDER BY number", (digest,)
        )
        return [_as_int(row[0]) for row in rows]

    def least_recently_used(self, limit: int) -> list[Entry]:
        rows = self._connection().execute(f"{_ENTRY} ORDER BY used LIMIT ?", (limit,))
        return [_entry(row) for row in rows]

    def outdated(self, limit: int) -> list[Entry]:
        rows = self._connection().execute(f"{_ENTRY} WHERE used = 0 LIMIT ?", (limit,))
        return [_entry(row) for row in rows]

    # -- changes ------------------------------------------------------------------------

    def add(self, obj: CachedObject, block_bytes: int, block: Block, sums: bytes) -> None:
        self._raise_if_broken()
        with self._lock:
            if block not in self._pending:
                self._pending[block] = _PendingBlock(obj, block_bytes, block, sums)
                self._pending_bytes += block.length
        if not self._wake.is_set():
            self._wake.set()

    def touch(self, digest: bytes) -> None:
        """Mark the object as used now; only the LRU policy needs it."""
        with self._lock:
            self._touched.add(digest)
        if not self._wake.is_set():
            self._wake.set()

    def drop_block(self, block: Block) -> bool:
        """Delete the block's row; False if it was deleted before."""
        if block.whole:
            return self.drop_object(block.digest) > 0
        self.flush()
        with self._transaction() as run:
            gone = run.execute(
                "DELETE FROM blocks WHERE digest = ? AND number = ?", block[:2]
            ).rowcount
            if gone:
                row = run.execute(
                    "UPDATE objects SET cached = cached - ? WHERE digest = ? "
                    "RETURNING iif(used, source, 0)",
                    (block.length, block.digest),
                ).fetchone()
                if row is None:
                    raise IndexDamaged("a block without its object")
                _add_bytes(run, row[0], -block.length)
            return gone > 0

    def drop_object(self, digest: bytes) -> int:
        """Delete the object's rows; return how many bytes they recorded."""
        return self.drop_objects([digest])

    def drop_objects(self, digests: list[bytes]) -> int:
        self.flush()
        with self._transaction() as run:
            return sum(_drop(run, digest) for digest in digests)

    def drop_lost(self, digest: bytes, path: str) -> bool:
        """Delete the rows of an object whose file is gone; False if it is not. A row is written
        after its file, so the row of a file that is stored again meanwhile comes after this
        transaction."""
        self.flush()
        with self._transaction() as run:
            return not os.path.lexists(path) and _drop(run, digest) > 0

    def mark_outdated(self, digests: list[bytes]) -> None:
        """Mark objects that are no longer in the bucket: they are evicted first."""
        self.flush()
        with self._transaction() as run:
            for digest in digests:
                row = run.execute(
                    "UPDATE objects SET used = 0 WHERE digest = ? AND used "
                    "RETURNING cached, source",
                    (digest,),
                ).fetchone()
                if row is not None:
                    _add_bytes(run, row[1], -row[0])
                    _add_bytes(run, 0, row[0])

    def flush(self) -> None:
        """Write pending rows. Called by the writer thread, before queries that must include them,
        and at the end."""
        with self._flush_alone():
            self._flush()

    @contextmanager
    def _flush_alone(self) -> Iterator[None]:
        """Allow one flush at a time: a batch that another thread has already written, and whose
        objects were dropped since, must not be written again."""
        if not self._flushing.acquire(timeout=_FLUSH_TAKES_AT_MOST_S):
            raise TimeoutError(errno.ETIMEDOUT, "another thread is writing", str(self._path))
        try:
            yield
        finally:
            self._flushing.release()

    def _flush(self) -> None:
        with self._lock:
            batch = list(self._pending.values())
            touched, self._touched = self._touched, set[bytes]()
        if not batch and not touched:
            return
        self.check_in_place()  # two stat calls per batch
        now = int(time.time())
        # No other thread may count between the two: a row that is both written and pending would
        # count twice.
        with self._usage_lock:
            with transaction(self._connection()) as run:
                if batch:
                    _write(run, batch, now)
                run.executemany(
                    "UPDATE objects SET used = ? WHERE digest = ?", [(now, one) for one in touched]
                )
            used_bytes = _usage(run)
            with self._lock:
                self._used_bytes = used_bytes
                for filled in batch:
                    if self._pending.pop(filled.block, None) is not None:
                        self._pending_bytes -= filled.block.length

    def reread_usage(self, least_interval_s: float = 1.0) -> bool:
        """Count what other processes stored and removed; False if that was done just now."""
        now = time.monotonic()
        if now - self._usage_read_s < least_interval_s:
            return False
        self._usage_read_s = now
        self._count_usage(self._connection())
        return True

    def check_in_place(self) -> None:
        """Raises if the file was removed: SQLite goes on with a file without a name."""
        if identity_of(self._path) != self.identity:
            raise IndexReplaced(f"{self._path} was removed")

    def check(self) -> None:
        """Check every page: it takes a second for 100 MB, while others read on."""
        run = self._connection().execute
        found = run("PRAGMA quick_check(1)").fetchone()
        if found is None or found[0] != "ok":
            raise IndexDamaged(f"quick_check: {found and found[0]}")
        # Wrong numbers in good pages: a cache that believes it is full would never be filled again.
        found = run(
            "SELECT (SELECT coalesce(sum(cached), 0) FROM objects), "
            "(SELECT coalesce(sum(bytes), 0) FROM sources), "
            "(SELECT count(*) FROM objects WHERE NOT cached BETWEEN 0 AND size)"
        ).fetchone()
        if found[0] != found[1] or found[2]:
            raise IndexDamaged("its byte counts do not add up")

    def close(self) -> None:
        self._stop()
        self._writer.join()
        if self._broken is None:
            self.flush()

    def abandon(self) -> None:
        """Release an index that failed: write nothing more, wait for nobody."""
        self._broken = self._broken or IndexReplaced(f"{self._path} was given up")
        self._stop()
        self._drop_pending()

    # -- inside -------------------------------------------------------------------------

    def _stop(self) -> None:
        self.closing.set()
        self._wake.set()

    def _write_batches(self) -> None:
        self._local.connection = self._held
        while not self.closing.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._broken is None:
                self._write_batch()
            # Collect the next batch; lookups see its pending rows meanwhile.
            self.closing.wait(_BATCH_INTERVAL_S)

    def _write_batch(self) -> None:
        """Write a batch. Rows that cannot be written are dropped: their files are swept, or fetched
        again."""
        try:
            self.flush()
            self._full = False
        except (sqlite3.Error, OSError) as error:
            self._drop_pending()
            if not is_full(error):
                self._broken = error
            elif not self._full:
                self._full = True
                log.warning("%s: %s; new blocks are not cached", self._path, error)

    def _drop_pending(self) -> None:
        with self._lock:
            self._pending.clear()
            self._pending_bytes = 0

    def _one(self, query: str, value: bytes | str) -> tuple[Any, ...] | None:
        return self._connection().execute(query, (value,)).fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with transaction(self._connection()) as run:
            yield run
        self._count_usage(run)

    def _count_usage(self, run: sqlite3.Connection) -> None:
        """Count usage again, other processes' changes included."""
        with self._usage_lock:
            self._used_bytes = _usage(run)

    def _connection(self) -> sqlite3.Connection:
        self._raise_if_broken()
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found, identity = connect(self._path)
            if identity != self.identity:
                found.close()
                self._broken = IndexReplaced(f"{self._path} was replaced")
                self._raise_if_broken()
            self._local.connection = found
        return found

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            kind = IndexDamaged if is_damage(self._broken) else IndexReplaced
            raise kind(str(self._broken))


def _entry(row: tuple[Any, ...]) -> Entry:
    entry = Entry._make(row)
    if not isinstance(entry.digest, bytes) or not all(isinstance(one, int) for one in entry[4:]):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise IndexDamaged("a row that Penstock did not write")
    return entry


def _usage(run: sqlite3.Connection) -> int:
    return _as_int(run.execute("SELECT coalesce(sum(bytes), 0) FROM sources").fetchone()[0])


def _as_int(value: object) -> int:
    """Check a number from the database: SQLite keeps any type in any column, and a flipped bit
    changes the type."""
    if not isinstance(value, int):
        raise IndexDamaged(f"{value!r:.20} instead of a number")
    return value


def _write(run: sqlite3.Connection, batch: list[_PendingBlock], now: int) -> None:
    sources = {name: _source(run, name) for name in {filled.obj.source for filled in batch}}
    whole = [filled for filled in batch if filled.block.whole]
    rows = [_row(one, sources[one.obj.source], now, one.sums) for one in whole]
    added = 0
    for first in range(0, len(rows), _ROWS_A_STATEMENT):
        some = rows[first : first + _ROWS_A_STATEMENT]
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(some))
        added += run.execute(
            f"INSERT OR IGNORE INTO objects VALUES {places}",
            [value for row in some for value in row],
        ).rowcount
    if added == len(rows):
        for name, source in sources.items():
            _add_bytes(
                run, source, sum(one.block.length for one in whole if one.obj.source == name)
            )
    else:
        _recount(run)  # another process has added some of them too
    for one in batch:
        if not one.block.whole:
            _write_block(run, one, sources[one.obj.source], now)


def _write_block(run: sqlite3.Connection, filled: _PendingBlock, source: int, now: int) -> None:
    added = run.execute(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
        (*filled.block[:2], filled.sums),
    ).rowcount
    if added:
        # An outdated object stays outdated, and is counted there.
        (counted,) = run.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cached = cached + excluded.cached, "
            "used = iif(used, excluded.used, 0) RETURNING iif(used, source, 0)",
            _row(filled, source, now, None),
        ).fetchone()
        _add_bytes(run, counted, filled.block.length)


def _row(
    filled: _PendingBlock, source: int, now: int, sums: bytes | None
) -> tuple[bytes, int, str, str, int, int, int, int, bytes | None]:
    obj = filled.obj
    # SQLite text cannot hold surrogates; the digest is the identity, not the key.
    key = obj.key.encode("utf-8", "backslashreplace").decode()
    return (
        obj.digest,
        source,
        key,
        obj.version,
        obj.size_bytes,
        filled.block_bytes,
        filled.block.length,
        now,
        sums,
    )


def _source(run: sqlite3.Connection, name: str) -> int:
    run.execute("INSERT OR IGNORE INTO sources (name, bytes) VALUES (?, 0)", (name,))
    row = run.execute("SELECT id FROM sources WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise IndexDamaged("a source that was added and is missing")
    return row[0]


def _drop(run: sqlite3.Connection, digest: bytes) -> int:
    """Return how many bytes were recorded."""
    run.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
    row = run.execute(
        "DELETE FROM objects WHERE digest = ? RETURNING cached, iif(used, source, 0)", (digest,)
    ).fetchone()
    if row is None:
        return 0
    cached = _as_int(row[0])
    _add_bytes(run, row[1], -cached)
    return cached


def _add_bytes(run: sqlite3.Connection, source: int, length: int) -> None:
    run.execute("UPDATE sources SET bytes = bytes + ? WHERE id = ?", (length, source))


def _recount(run: sqlite3.Connection) -> None:
    run.execute(
        "UPDATE sources SET bytes = (SELECT coalesce(sum(cached), 0) FROM objects "
        "WHERE iif(used, source, 0) = sources.id)"
    )
