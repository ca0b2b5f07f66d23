"""Which blocks a cache directory holds, with their checksums: SQLite, shared by all mounts.

Rows are written in batches by one thread, since a commit for each small file would cost more
than the file. What waits to be written is already seen by lookups of this process; if the
process dies, those blocks are merely fetched again.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.cache.identity import CachedObject

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
_BATCH_INTERVAL_S = 0.1

_SCHEMA = """
CREATE TABLE objects (
    digest BLOB PRIMARY KEY, source TEXT, key TEXT, version TEXT, size INTEGER,
    block_bytes INTEGER, cached INTEGER, used INTEGER
) WITHOUT ROWID;
CREATE TABLE blocks (
    digest BLOB, number INTEGER, sums BLOB, PRIMARY KEY (digest, number)
) WITHOUT ROWID;
CREATE INDEX objects_by_use ON objects (used);   -- 0: outdated, first to go
CREATE TABLE usage (source TEXT PRIMARY KEY, bytes INTEGER) WITHOUT ROWID;  -- '': outdated
"""


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
    number: int
    sums: bytes
    length: int


class Index:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._waiting: dict[tuple[bytes, int], _Filled] = {}
        self._waiting_bytes = 0
        self._touched: set[bytes] = set()
        self._wake = threading.Event()
        self._closing = False
        self._create()
        self._used_bytes: int = self._read_usage()
        self._writer = threading.Thread(target=self._write_batches, name="index", daemon=True)
        self._writer.start()

    # -- lookups ------------------------------------------------------------------------

    def sums(self, digest: bytes, number: int) -> bytes | None:
        """The block's checksums; None if it is not here."""
        waiting = self._waiting.get((digest, number))
        if waiting is not None:
            return waiting.sums
        row = (
            self._connection()
            .execute("SELECT sums FROM blocks WHERE digest = ? AND number = ?", (digest, number))
            .fetchone()
        )
        return row[0] if row is not None else None

    def cached_bytes(self, digest: bytes) -> int:
        """How much of the object is here."""
        with self._lock:
            waiting = [(key[1], w.length) for key, w in self._waiting.items() if key[0] == digest]
        row = (
            self._connection()
            .execute("SELECT cached FROM objects WHERE digest = ?", (digest,))
            .fetchone()
        )
        # What waits may be in the table too, if two processes filled the same block.
        fresh = sum(length for number, length in waiting if not self._is_written(digest, number))
        return (row[0] if row is not None else 0) + fresh

    def _is_written(self, digest: bytes, number: int) -> bool:
        return (
            self._connection()
            .execute("SELECT 1 FROM blocks WHERE digest = ? AND number = ?", (digest, number))
            .fetchone()
            is not None
        )

    def source_bytes(self, source: str) -> int:
        """How much of this source is here, in the versions that the bucket has now."""
        row = (
            self._connection()
            .execute("SELECT bytes FROM usage WHERE source = ?", (source,))
            .fetchone()
        )
        with self._lock:
            waiting = sum(w.length for w in self._waiting.values() if w.what.source == source)
        return (row[0] if row is not None else 0) + waiting

    @property
    def used_bytes(self) -> int:
        return self._used_bytes + self._waiting_bytes

    def entries(self) -> Iterator[Entry]:
        yield from map(Entry._make, self._connection().execute("SELECT * FROM objects"))

    def entries_of(self, digest: bytes) -> list[Entry]:
        rows = self._connection().execute("SELECT * FROM objects WHERE digest = ?", (digest,))
        return [Entry._make(row) for row in rows]

    def block_sums(self, digest: bytes) -> list[tuple[int, bytes]]:
        return (
            self._connection()
            .execute("SELECT number, sums FROM blocks WHERE digest = ? ORDER BY number", (digest,))
            .fetchall()
        )

    # -- changes ------------------------------------------------------------------------

    def add(
        self, what: CachedObject, block_bytes: int, number: int, sums: bytes, length: int
    ) -> None:
        with self._lock:
            if (what.digest, number) not in self._waiting:
                filled = _Filled(what, block_bytes, number, sums, length)
                self._waiting[what.digest, number] = filled
                self._waiting_bytes += length
        self._wake.set()

    def touch(self, digest: bytes) -> None:
        """Used just now; only the least-recently-used policy asks for it."""
        self._touched.add(digest)
        self._wake.set()

    def drop_block(self, digest: bytes, number: int, length: int) -> None:
        self.flush()
        with self._transaction() as run:
            gone = run.execute(
                "DELETE FROM blocks WHERE digest = ? AND number = ?", (digest, number)
            ).rowcount
            if gone:
                source = run.execute(
                    "UPDATE objects SET cached = cached - ? WHERE digest = ? "
                    "RETURNING iif(used, source, '')",
                    (length, digest),
                ).fetchone()[0]
                _count(run, source, -length)

    def drop_object(self, digest: bytes) -> int:
        """Forgets the object; returns how many bytes that were."""
        self.flush()
        with self._transaction() as run:
            run.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
            row = run.execute(
                "DELETE FROM objects WHERE digest = ? RETURNING cached, iif(used, source, '')",
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
                    _count(run, "", row[0])

    def outdated(self, limit: int) -> list[Entry]:
        rows = self._connection().execute("SELECT * FROM objects WHERE used = 0 LIMIT ?", (limit,))
        return [Entry._make(row) for row in rows]

    def least_recently_used(self, limit: int) -> list[Entry]:
        rows = self._connection().execute("SELECT * FROM objects ORDER BY used LIMIT ?", (limit,))
        return [Entry._make(row) for row in rows]

    def flush(self) -> None:
        """Writes what waits. Called by the writer, before deletions, and at the end."""
        with self._lock:
            batch = list(self._waiting.values())
            touched, self._touched = self._touched, set[bytes]()
        now = int(time.time())
        with self._transaction() as run:
            for filled in batch:
                self._write(run, filled, now)
            run.executemany(
                "UPDATE objects SET used = ? WHERE digest = ?", [(now, one) for one in touched]
            )
        with self._lock:
            for filled in batch:
                if self._waiting.pop((filled.what.digest, filled.number), None) is not None:
                    self._waiting_bytes -= filled.length

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._writer.join()
        self.flush()

    # -- inside -------------------------------------------------------------------------

    def _write(self, run: sqlite3.Connection, filled: _Filled, now: int) -> None:
        added = run.execute(
            "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
            (filled.what.digest, filled.number, filled.sums),
        ).rowcount
        if not added:
            return  # another process filled it too
        run.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cached = cached + excluded.cached, used = excluded.used",
            (filled.what.digest, *_storable(filled.what), filled.block_bytes, filled.length, now),
        )
        _count(run, filled.what.source, filled.length)

    def _write_batches(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            try:
                self.flush()
            except sqlite3.Error as error:
                # What cannot be noted is not cached: it is fetched again, and nothing is wrong.
                self._forget_waiting()
                log.warning("%s: %s; the last blocks are not cached", self._path, error)
            # Gathers the next batch; a row that waits is seen by lookups all the same.
            threading.Event().wait(0 if self._closing else _BATCH_INTERVAL_S)

    def _forget_waiting(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _read_usage(self) -> int:
        return self._connection().execute("SELECT coalesce(sum(bytes), 0) FROM usage").fetchone()[0]

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection(), self._refresh_usage)

    def _refresh_usage(self) -> None:
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
            for statement in _SCHEMA.strip().split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


class _Transaction:
    def __init__(self, connection: sqlite3.Connection, after: Callable[[], None]) -> None:
        self._connection = connection
        self._after = after

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.execute("COMMIT" if error is None else "ROLLBACK")
        self._after()


def _count(run: sqlite3.Connection, source: str, length: int) -> None:
    run.execute(
        "INSERT INTO usage VALUES (?, ?) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes",
        (source, length),
    )


def _storable(what: CachedObject) -> tuple[str, str, str, int]:
    """Surrogates cannot be stored as SQLite text; the digest, not this, is the identity."""
    key = what.key.encode("utf-8", "backslashreplace").decode()
    return what.source, key, what.version, what.size_bytes


def stored_bytes(path: Path) -> int:
    """How much an index says is stored, without opening it for work; 0 if there is none."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT coalesce(sum(bytes), 0) FROM usage").fetchone()[0]
    except sqlite3.Error:
        return 0
    finally:
        connection.close()
