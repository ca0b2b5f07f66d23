"""What a migration has done so far, on disk: killed, it goes on from here.

    there   what the target held when this run looked
    seen    what this run has met in the source
    begun   what was being written, in parts, and is not done as far as is known
    done    what was copied ever: of which version of the source came which version of the target

A run that did not come to its end is the same run when it is begun again.

Threading: one thread.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.store import ObjectInfo

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (number INTEGER NOT NULL, open INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS there (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL, version TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS begun (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS done (
    path TEXT PRIMARY KEY, run INTEGER NOT NULL, size INTEGER NOT NULL,
    from_version TEXT NOT NULL, to_version TEXT NOT NULL
) WITHOUT ROWID;
"""


class There(NamedTuple):
    size_bytes: int
    mtime_ns: int
    version: str


class Journal:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._connection.execute("PRAGMA journal_mode = WAL")
        # What was not written when the power went is copied again, or found to be there.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)
        self._run = self._begin()

    def close(self) -> None:
        self._connection.close()

    def look_anew(self) -> None:
        self._connection.executescript("BEGIN; DELETE FROM there; DELETE FROM seen; COMMIT;")

    def add_there(self, found: Iterable[tuple[str, ObjectInfo]]) -> None:
        self._many(
            "INSERT OR REPLACE INTO there VALUES (?, ?, ?, ?)",
            [(_told(path), info.size_bytes, info.mtime_ns, info.version) for path, info in found],
        )

    def find_there(self, path: str) -> There | None:
        row = self._connection.execute(
            "SELECT size, mtime, version FROM there WHERE path = ?", (_told(path),)
        ).fetchone()
        return None if row is None else There._make(row)

    def add_seen(self, paths: Iterable[str]) -> None:
        self._many("INSERT OR IGNORE INTO seen VALUES (?)", [(_told(path),) for path in paths])

    def has_seen_any(self) -> bool:
        return self._connection.execute("SELECT 1 FROM seen LIMIT 1").fetchone() is not None

    def unseen(self) -> Iterator[str]:
        """What the target held and the source did not."""
        rows = self._connection.execute(
            "SELECT path FROM there WHERE path NOT IN (SELECT path FROM seen)"
        )
        return (_read(path) for (path,) in rows.fetchall())

    def add_begun(self, path: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO begun VALUES (?)", (_told(path),))

    def begun(self) -> list[str]:
        return [_read(path) for (path,) in self._connection.execute("SELECT path FROM begun")]

    def forget_begun(self, path: str) -> None:
        self._connection.execute("DELETE FROM begun WHERE path = ?", (_told(path),))

    def add_done(self, path: str, size_bytes: int, from_version: str, to_version: str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?)",
            (_told(path), self._run, size_bytes, from_version, to_version),
        )
        self.forget_begun(path)

    def copied_from(self, path: str, to_version: str) -> str | None:
        """Return the source's version that this version of the target is a copy of, if we made
        it."""
        row = self._connection.execute(
            "SELECT from_version FROM done WHERE path = ? AND to_version = ?",
            (_told(path), to_version),
        ).fetchone()
        return None if row is None else row[0]

    def was_copied(self, path: str, from_version: str) -> bool:
        """In this run?"""
        row = self._connection.execute(
            "SELECT 1 FROM done WHERE path = ? AND from_version = ? AND run = ?",
            (_told(path), from_version, self._run),
        ).fetchone()
        return row is not None

    def copied(self) -> tuple[int, int]:
        """(objects, bytes) of this run, also of its beginnings that were cut short."""
        return self._connection.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM done WHERE run = ?", (self._run,)
        ).fetchone()

    def end(self) -> None:
        self._connection.execute("UPDATE run SET open = 0")

    def _begin(self) -> int:
        row = self._connection.execute("SELECT number, open FROM run").fetchone()
        if row is not None and row[1]:
            return row[0]
        number: int = 1 if row is None else row[0] + 1
        self._connection.executescript(
            f"BEGIN; DELETE FROM run; INSERT INTO run VALUES ({number}, 1); COMMIT;"
        )
        return number

    def _many(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")


# A name that is not UTF-8 is no text for SQLite.
def _told(path: str) -> str | bytes:
    try:
        path.encode()
        return path
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")


def _read(path: str | bytes) -> str:
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
