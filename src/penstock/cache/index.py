"""Which blocks a cache directory holds, with their checksums: SQLite, shared by all mounts.

Rows are written in batches by one thread, since a commit for each small file would cost more
than the file. What waits to be written is already seen by lookups of this process; if the
process dies, those blocks are merely fetched again.

An object of one block is one row (5 us); only larger ones have rows for their blocks.

An `Index` belongs to one file. When that file is damaged, or not the one that has its name any
more, every call raises, and whoever owns the index opens another. May be used from any thread;
each has a connection of its own, closed when the index is let go of.
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
# As long as SQLite waits for another process: a disk that hangs must not hold on to a reader.
_FLUSH_TAKES_AT_MOST_S = 5.0
# Each statement lets go of the interpreter's lock several times, and readers wake up for nothing.
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


class _Filled(NamedTuple):
    obj: CachedObject
    block_bytes: int
    block: Block
    sums: bytes


class Index:
    def __init__(self, path: Path, distrust: IndexIdentity | None = None) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: dict[Block, _Filled] = {}
        self._waiting_bytes = 0
        self._touched: set[bytes] = set()
        self._wake = threading.Event()
        self.closing = threading.Event()
        self._broken: Exception | None = None  # found by the writer, which has nobody to tell
        self._full = False
        # Held as long as the index is: with the last connection SQLite removes the log, and who
        # comes next would see another one.
        self._held, self.identity = open_index(path, distrust)
        # Held from the question to the answer's being noted: of two threads that count, the one
        # that asked first could be the last to note, and its number be that of before.
        self._usage_lock = threading.Lock()
        self._used_bytes = _usage(self._held)
        self._usage_read_s = 0.0
        self._writer = threading.Thread(target=self._write_batches, name="index", daemon=True)
        self._writer.start()

    # -- lookups ------------------------------------------------------------------------

    def sums(self, block: Block) -> bytes | None:
        """The block's checksums; None if it is not here."""
        waiting = self._waiting.get(block)
        if waiting is not None:
            return waiting.sums
        return stored_sums(self._connection(), block)

    def cached_bytes(self, digest: bytes) -> int:
        """How much of the object is here."""
        self.flush()
        row = self._one("SELECT cached FROM objects WHERE digest = ?", digest)
        return _number(row[0]) if row is not None else 0

    def cached_sizes(self, digests: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """(how much of it is here, its size) of those of which something is."""
        self.flush()
        found: dict[bytes, tuple[int, int]] = {}
        for first in range(0, len(digests), _DIGESTS_A_QUESTION):
            some = digests[first : first + _DIGESTS_A_QUESTION]
            places = ", ".join("?" * len(some))
            for digest, cached, size in self._connection().execute(
                f"SELECT digest, cached, size FROM objects WHERE digest IN ({places})", some
            ):
                found[digest] = _number(cached), _number(size)
        return found

    def outdated_bytes(self) -> int:
        row = self._connection().execute("SELECT bytes FROM sources WHERE id = 0").fetchone()
        return _number(row[0]) if row is not None else 0

    def source_bytes(self, source: str) -> int:
        """How much of this source is here, in the versions that the bucket has now."""
        self.flush()  # adding what waits would count twice what was stored before
        return self.indexed_bytes(source)

    def indexed_bytes(self, source: str) -> int:
        """The same, but for what waits to be written."""
        row = self._one("SELECT bytes FROM sources WHERE name = ?", source)
        return _number(row[0]) if row is not None else 0

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._used_bytes + self._waiting_bytes

    def entry(self, digest: bytes) -> Entry | None:
        row = self._one(f"{_ENTRY} WHERE digest = ?", digest)
        return _entry(row) if row is not None else None

    def knows(self, digest: bytes) -> bool:
        """Is anything of the object here, in the database or on the way to it?"""
        with self._lock:
            if any(block.digest == digest for block in self._waiting):
                return True
        return self.entry(digest) is not None

    def entries(self) -> Iterator[Entry]:
        yield from map(_entry, self._connection().execute(_ENTRY))

    def digests(self, first: int) -> set[bytes]:
        """Of all objects whose digest begins with this byte."""
        rows = self._connection().execute(
            "SELECT digest FROM objects WHERE digest BETWEEN ? AND ?",
            (bytes([first]), bytes([first]) + b"\xff" * 16),
        )
        return {row[0] for row in rows}

    def block_numbers(self, digest: bytes) -> list[int]:
        """The blocks of a larger object that are here."""
        rows = self._connection().execute(
            "SELECT number FROM blocks WHERE digest = ? ORDER BY number", (digest,)
        )
        return [_number(row[0]) for row in rows]

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
            if block not in self._waiting:
                self._waiting[block] = _Filled(obj, block_bytes, block, sums)
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
                row = run.execute(
                    "UPDATE objects SET cached = cached - ? WHERE digest = ? "
                    "RETURNING iif(used, source, 0)",
                    (block.length, block.digest),
                ).fetchone()
                if row is None:
                    raise IndexDamaged("a block without its object")
                _count(run, row[0], -block.length)
            return gone > 0

    def drop_object(self, digest: bytes) -> int:
        """Forgets the object; returns how many bytes that were."""
        return self.drop_objects([digest])

    def drop_objects(self, digests: list[bytes]) -> int:
        self.flush()
        with self._transaction() as run:
            return sum(_drop(run, digest) for digest in digests)

    def drop_lost(self, digest: bytes, path: str) -> bool:
        """Forgets an object whose file is gone; False if it is not. A row is written after its
        file, so the row of a file that is stored anew meanwhile comes after this transaction."""
        self.flush()
        with self._transaction() as run:
            return not os.path.lexists(path) and _drop(run, digest) > 0

    def mark_outdated(self, digests: list[bytes]) -> None:
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
        with self._one_flush():
            self._flush()

    @contextmanager
    def _one_flush(self) -> Iterator[None]:
        """One at a time: a batch that another thread wrote long ago, and whose objects have been
        dropped since, must not be written once more."""
        if not self._flushing.acquire(timeout=_FLUSH_TAKES_AT_MOST_S):
            raise TimeoutError(errno.ETIMEDOUT, "another thread writes", str(self._path))
        try:
            yield
        finally:
            self._flushing.release()

    def _flush(self) -> None:
        with self._lock:
            batch = list(self._waiting.values())
            touched, self._touched = self._touched, set[bytes]()
        if not batch and not touched:
            return
        self.check_in_place()  # two stat calls a batch
        now = int(time.time())
        # Nobody counts between the two: what is noted and waits still would count twice.
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
                    if self._waiting.pop(filled.block, None) is not None:
                        self._waiting_bytes -= filled.block.length

    def reread_usage(self, least_interval_s: float = 1.0) -> bool:
        """Counts what other processes stored and removed; False if that was done just now."""
        now = time.monotonic()
        if now - self._usage_read_s < least_interval_s:
            return False
        self._usage_read_s = now
        self._count_usage(self._connection())
        return True

    def check_in_place(self) -> None:
        """Raises if the file was removed: SQLite happily goes on with one that has no name."""
        if identity_of(self._path) != self.identity:
            raise IndexReplaced(f"{self._path} was removed")

    def check(self) -> None:
        """Looks at every page: a second for 100 MB, and others read on meanwhile."""
        run = self._connection().execute
        found = run("PRAGMA quick_check(1)").fetchone()
        if found is None or found[0] != "ok":
            raise IndexDamaged(f"quick_check: {found and found[0]}")
        # Wrong numbers in good pages: a cache that thinks it is full would never be filled again.
        found = run(
            "SELECT (SELECT coalesce(sum(cached), 0) FROM objects), "
            "(SELECT coalesce(sum(bytes), 0) FROM sources), "
            "(SELECT count(*) FROM objects WHERE NOT cached BETWEEN 0 AND size)"
        ).fetchone()
        if found[0] != found[1] or found[2]:
            raise IndexDamaged("its counts do not add up")

    def close(self) -> None:
        self._stop()
        self._writer.join()
        if self._broken is None:
            self.flush()

    def abandon(self) -> None:
        """Lets go of an index that failed: nothing more is written, nobody is waited for."""
        self._broken = self._broken or IndexReplaced(f"{self._path} was given up")
        self._stop()
        self._forget_waiting()

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
            # Gathers the next batch; a row that waits is seen by lookups all the same.
            self.closing.wait(_BATCH_INTERVAL_S)

    def _write_batch(self) -> None:
        """What cannot be noted is not counted: it is swept, or fetched again, and nothing is
        wrong."""
        try:
            self.flush()
            self._full = False
        except (sqlite3.Error, OSError) as error:
            self._forget_waiting()
            if not is_full(error):
                self._broken = error
            elif not self._full:
                self._full = True
                log.warning("%s: %s; what comes now is not cached", self._path, error)

    def _forget_waiting(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _one(self, query: str, value: bytes | str) -> tuple[Any, ...] | None:
        return self._connection().execute(query, (value,)).fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with transaction(self._connection()) as run:
            yield run
        self._count_usage(run)

    def _count_usage(self, run: sqlite3.Connection) -> None:
        """What other processes did is counted, too."""
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
        raise IndexDamaged("a row that we never wrote")
    return entry


def _usage(run: sqlite3.Connection) -> int:
    return _number(run.execute("SELECT coalesce(sum(bytes), 0) FROM sources").fetchone()[0])


def _number(value: object) -> int:
    """SQLite keeps any type in any column, and a flipped bit changes the type."""
    if not isinstance(value, int):
        raise IndexDamaged(f"{value!r:.20} where a number should be")
    return value


def _write(run: sqlite3.Connection, batch: list[_Filled], now: int) -> None:
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
            _count(run, source, sum(one.block.length for one in whole if one.obj.source == name))
    else:
        _recount(run)  # another process has filled some of them too
    for one in batch:
        if not one.block.whole:
            _write_block(run, one, sources[one.obj.source], now)


def _write_block(run: sqlite3.Connection, filled: _Filled, source: int, now: int) -> None:
    added = run.execute(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
        (*filled.block[:2], filled.sums),
    ).rowcount
    if added:
        # What is outdated stays so, and is counted there.
        (counted,) = run.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET cached = cached + excluded.cached, "
            "used = iif(used, excluded.used, 0) RETURNING iif(used, source, 0)",
            _row(filled, source, now, None),
        ).fetchone()
        _count(run, counted, filled.block.length)


def _row(
    filled: _Filled, source: int, now: int, sums: bytes | None
) -> tuple[bytes, int, str, str, int, int, int, int, bytes | None]:
    obj = filled.obj
    # Surrogates cannot be stored as SQLite text; the digest, not this, is the identity.
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
        raise IndexDamaged("a source that cannot be found again")
    return row[0]


def _drop(run: sqlite3.Connection, digest: bytes) -> int:
    """Returns how many bytes were known of it."""
    run.execute("DELETE FROM blocks WHERE digest = ?", (digest,))
    row = run.execute(
        "DELETE FROM objects WHERE digest = ? RETURNING cached, iif(used, source, 0)", (digest,)
    ).fetchone()
    if row is None:
        return 0
    cached = _number(row[0])
    _count(run, row[1], -cached)
    return cached


def _count(run: sqlite3.Connection, source: int, length: int) -> None:
    run.execute("UPDATE sources SET bytes = bytes + ? WHERE id = ?", (length, source))


def _recount(run: sqlite3.Connection) -> None:
    run.execute(
        "UPDATE sources SET bytes = (SELECT coalesce(sum(cached), 0) FROM objects "
        "WHERE iif(used, source, 0) = sources.id)"
    )
