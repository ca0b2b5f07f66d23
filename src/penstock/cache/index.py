"""Which blocks a cache directory holds, with their checksums: SQLite, shared by all mounts.

Rows are written in batches by one thread, since a commit for each small file would cost more
than the file. What waits to be written is already seen by lookups of this process; if the
process dies, those blocks are merely fetched again.

An object of one block is one row (5 us); only larger ones have rows for their blocks.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.cache.identity import Block, CachedObject

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
_BATCH_INTERVAL_S = 0.1
# Each statement lets go of the interpreter's lock several times, and readers wake up for nothing.
_ROWS_A_STATEMENT = 32
_OUTDATED = ""  # the source that outdated objects are counted under

_SCHEMA = """
CREATE TABLE sources (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE objects (
    digest BLOB PRIMARY KEY,
    source INTEGER NOT NULL,
    key TEXT NOT NULL, version TEXT NOT NULL, size INTEGER NOT NULL,
    block_bytes INTEGER NOT NULL,
    cached INTEGER NOT NULL,      -- how many of its bytes are here
    used INTEGER NOT NULL,        -- seconds; 0: outdated, first to go
    sums BLOB                     -- of an object of one block
);
CREATE TABLE blocks (
    digest BLOB NOT NULL, number INTEGER NOT NULL, sums BLOB NOT NULL, PRIMARY KEY (digest, number)
) WITHOUT ROWID;
CREATE INDEX objects_outdated ON objects (used) WHERE used = 0;
"""

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


class _Filled(NamedTuple):
    what: CachedObject
    block_bytes: int
    block: Block
    sums: bytes


class Index:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._waiting: dict[Block, _Filled] = {}
        self._waiting_bytes = 0
        self._touched: set[bytes] = set()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._create()
        self._used_bytes = self._read_usage()
        self._usage_read_s = 0.0
        os.chmod(path, 0o600)  # it names every key
        self._writer = threading.Thread(target=self._write_batches, name="index", daemon=True)
        self._writer.start()

    # -- lookups ------------------------------------------------------------------------

    def sums(self, block: Block) -> bytes | None:
        """The block's checksums; None if it is not here."""
        waiting = self._waiting.get(block)
        if waiting is not None:
            return waiting.sums
        run = self._connection().execute
        if block.whole:
            row = run("SELECT sums FROM objects WHERE digest = ?", (block.digest,)).fetchone()
        else:
            row = run(
                "SELECT sums FROM blocks WHERE digest = ? AND number = ?", block[:2]
            ).fetchone()
        return row[0] if row is not None else None

    def cached_bytes(self, digest: bytes) -> int:
        """How much of the object is here."""
        self.flush()
        row = self._one("SELECT cached FROM objects WHERE digest = ?", digest)
        return row[0] if row is not None else 0

    def source_bytes(self, source: str) -> int:
        """How much of this source is here, in the versions that the bucket has now."""
        row = self._one("SELECT bytes FROM sources WHERE name = ?", source)
        with self._lock:
            waiting = sum(
                one.block.length for one in self._waiting.values() if one.what.source == source
            )
        return (row[0] if row is not None else 0) + waiting

    @property
    def used_bytes(self) -> int:
        return self._used_bytes + self._waiting_bytes

    def entry(self, digest: bytes) -> Entry | None:
        row = self._one(f"{_ENTRY} WHERE digest = ?", digest)
        return Entry._make(row) if row is not None else None

    def entries(self) -> Iterator[Entry]:
        yield from map(Entry._make, self._connection().execute(_ENTRY))

    def block_numbers(self, digest: bytes) -> list[int]:
        """The blocks of a larger object that are here."""
        rows = self._connection().execute(
            "SELECT number FROM blocks WHERE digest = ? ORDER BY number", (digest,)
        )
        return [row[0] for row in rows]

    def least_recently_used(self, limit: int) -> list[Entry]:
        rows = self._connection().execute(f"{_ENTRY} ORDER BY used LIMIT ?", (limit,))
        return [Entry._make(row) for row in rows]

    def outdated(self, limit: int) -> list[Entry]:
        rows = self._connection().execute(f"{_ENTRY} WHERE used = 0 LIMIT ?", (limit,))
        return [Entry._make(row) for row in rows]

    # -- changes ------------------------------------------------------------------------

    def add(self, what: CachedObject, block_bytes: int, block: Block, sums: bytes) -> None:
        with self._lock:
            if block not in self._waiting:
                self._waiting[block] = _Filled(what, block_bytes, block, sums)
                self._waiting_bytes += block.length
        if not self._wake.is_set():
            self._wake.set()

    def touch(self, digest: bytes) -> None:
        """Used just now; only the least-recently-used policy asks for it."""
        with self._lock:
            self._touched.add(digest)
        if not self._wake.is_set():
            self._wake.set()

    def drop_block(self, block: Block) -> bool:
        """Forgets the block; False if someone else had done so."""
        if block.whole:
            return self.drop_object(block.digest) > 0
        self.flush()
        with self._transaction() as run:
            gone = run.execute(
                "DELETE FROM blocks WHERE digest = ? AND number = ?", block[:2]
            ).rowcount
            if gone:
                (source,) = run.execute(
                    "UPDATE objects SET cached = cached - ? WHERE digest = ? "
                    "RETURNING iif(used, source, 0)",
                    (block.length, block.digest),
                ).fetchone()
                _count(run, source, -block.length)
            return gone > 0

    def drop_object(self, digest: bytes) -> int:
        """Forgets the object; returns how many bytes that were."""
        self.flush()
        with self._transaction() as run:
            run.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
            row = run.execute(
                "DELETE FROM objects WHERE digest = ? RETURNING cached, iif(used, source, 0)",
                (digest,),
            ).fetchone()
            if row is None:
                return 0
            _count(run, row[1], -row[0])
            return row[0]

    def outdate(self, digests: list[bytes]) -> None:
        """These are not in the bucket any more: they go first when room is needed."""
        self.flush()
        with self._transaction() as run:
            for digest in digests:
                row = run.execute(
                    "UPDATE objects SET used = 0 WHERE digest = ? AND used "
                    "RETURNING cached, source",
                    (digest,),
                ).fetchone()
                if row is not None:
                    _count(run, row[1], -row[0])
                    _count(run, 0, row[0])

    def flush(self) -> None:
        """Writes what waits. Called by the writer, before questions that it must be part of, and
        at the end."""
        with self._lock:
            batch = list(self._waiting.values())
            touched, self._touched = self._touched, set[bytes]()
        if not batch and not touched:
            return
        now = int(time.time())
        with self._transaction() as run:
            if batch:
                _write(run, batch, now)
            run.executemany(
                "UPDATE objects SET used = ? WHERE digest = ?", [(now, one) for one in touched]
            )
        with self._lock:
            for filled in batch:
                if self._waiting.pop(filled.block, None) is not None:
                    self._waiting_bytes -= filled.block.length

    def reread_usage(self, least_interval_s: float = 1.0) -> bool:
        """Counts what other processes stored and removed; False if that was done just now."""
        now = time.monotonic()
        if now - self._usage_read_s < least_interval_s:
            return False
        self._usage_read_s = now
        self._used_bytes = self._read_usage()
        return True

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._writer.join()
        self.flush()

    # -- inside -------------------------------------------------------------------------

    def _write_batches(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self.flush()
            except sqlite3.Error as error:
                # What cannot be noted is not cached: it is fetched again, and nothing is wrong.
                self._forget_waiting()
                log.warning("%s: %s; the last blocks are not cached", self._path, error)
            # Gathers the next batch; a row that waits is seen by lookups all the same.
            self._closing.wait(_BATCH_INTERVAL_S)

    def _forget_waiting(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _one(self, query: str, value: bytes | str) -> tuple[int, ...] | None:
        return self._connection().execute(query, (value,)).fetchone()

    def _read_usage(self) -> int:
        run = self._connection().execute
        return run("SELECT coalesce(sum(bytes), 0) FROM sources").fetchone()[0]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        self._used_bytes = self._read_usage()  # counts what other processes did, too

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, isolation_level=None, timeout=60)
            found.execute("PRAGMA journal_mode = WAL")
            # A lost last batch costs a second fetch; an fsync for each costs every cold epoch.
            found.execute("PRAGMA synchronous = NORMAL")
            found.execute("PRAGMA cache_size = -256")
            self._local.connection = found
        return found

    def _create(self) -> None:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _SCHEMA.split(";\n")[:-1]:
                connection.execute(statement)
            connection.execute("INSERT INTO sources VALUES (0, ?, 0)", (_OUTDATED,))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


def stored_bytes(path: Path) -> int:
    """How much an index says is stored, without opening it for work; 0 if there is none."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT coalesce(sum(bytes), 0) FROM sources").fetchone()[0]
    except sqlite3.Error:
        return 0
    finally:
        connection.close()


def _write(run: sqlite3.Connection, batch: list[_Filled], now: int) -> None:
    sources = {name: _source(run, name) for name in {filled.what.source for filled in batch}}
    whole = [filled for filled in batch if filled.block.whole]
    rows = [_row(one, sources[one.what.source], now, one.sums) for one in whole]
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
            _count(run, source, sum(one.block.length for one in whole if one.what.source == name))
    else:
        _recount(run)  # another process has filled some of them too
    for one in batch:
        if not one.block.whole:
            _write_block(run, one, sources[one.what.source], now)


def _write_block(run: sqlite3.Connection, filled: _Filled, source: int, now: int) -> None:
    added = run.execute(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
        (*filled.block[:2], filled.sums),
    ).rowcount
    if added:
        run.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cached = cached + excluded.cached, used = excluded.used",
            _row(filled, source, now, None),
        )
        _count(run, source, filled.block.length)


def _row(
    filled: _Filled, source: int, now: int, sums: bytes | None
) -> tuple[bytes, int, str, str, int, int, int, int, bytes | None]:
    what = filled.what
    # Surrogates cannot be stored as SQLite text; the digest, not this, is the identity.
    key = what.key.encode("utf-8", "backslashreplace").decode()
    return (
        what.digest, source, key, what.version, what.size_bytes, filled.block_bytes,
        filled.block.length, now, sums,
    )  # fmt: skip


def _source(run: sqlite3.Connection, name: str) -> int:
    run.execute("INSERT OR IGNORE INTO sources (name, bytes) VALUES (?, 0)", (name,))
    return run.execute("SELECT id FROM sources WHERE name = ?", (name,)).fetchone()[0]


def _count(run: sqlite3.Connection, source: int, length: int) -> None:
    run.execute("UPDATE sources SET bytes = bytes + ? WHERE id = ?", (length, source))


def _recount(run: sqlite3.Connection) -> None:
    run.execute(
        "UPDATE sources SET bytes = (SELECT coalesce(sum(cached), 0) FROM objects "
        "WHERE iif(used, source, 0) = sources.id)"
    )
