"""The progress of a migration on disk, from which it continues after a kill. SQLite.

    there   objects that the target had when this run listed it
    seen    objects that this run listed in the source
    begun   objects whose multipart upload has started and is not known to be complete
    done    all copies ever made: the version in the source, and the one in the target

A run that was killed is the same run when it starts again.

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
        # What a power failure loses is copied again, or found in the target.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)
        self._run = self._begin()

    def close(self) -> None:
        self._connection.close()

    def start_round(self) -> None:
        self._connection.executescript("BEGIN; DELETE FROM there; DELETE FROM seen; COMMIT;")

    def add_there(self, found: Iterable[tuple[str, ObjectInfo]]) -> None:
        self._many(
            "INSERT OR REPLACE INTO there VALUES (?, ?, ?, ?)",
            [
                (_encoded(path), info.size_bytes, info.mtime_ns, info.version)
                for path, info in found
            ],
        )

    def find_there(self, path: str) -> There | None:
        row = self._connection.execute(
            "SELECT size, mtime, version FROM there WHERE path = ?", (_encoded(path),)
        ).fetchone()
        return None if row is None else There._make(row)

    def add_seen(self, paths: Iterable[str]) -> None:
        self._many("INSERT OR IGNORE INTO seen VALUES (?)", [(_encoded(path),) for path in paths])

    def has_seen_any(self) -> bool:
        return self._connection.execute("SELECT 1 FROM seen LIMIT 1").fetchone() is not None

    def unseen(self) -> Iterator[str]:
        """Yield what the target has and the source does not."""
        rows = self._connection.execute(
            "SELECT path FROM there WHERE path NOT IN (SELECT path FROM seen)"
        )
        return (_decoded(path) for (path,) in rows.fetchall())

    def add_begun(self, path: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO begun VALUES (?)", (_encoded(path),))

    def begun(self) -> list[str]:
        return [_decoded(path) for (path,) in self._connection.execute("SELECT path FROM begun")]

    def forget_begun(self, path: str) -> None:
        self._connection.execute("DELETE FROM begun WHERE path = ?", (_encoded(path),))

    def add_done(self, path: str, size_bytes: int, from_version: str, to_version: str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?)",
            (_encoded(path), self._run, size_bytes, from_version, to_version),
        )
        self.forget_begun(path)

    def copied_from(self, path: str, to_version: str) -> str | None:
        """Return the version of the source that a version of the target is a copy of.

        None if no migration of this operation made it.
        """
        row = self._connection.execute(
            "SELECT from_version FROM done WHERE path = ? AND to_version = ?",
            (_encoded(path), to_version),
        ).fetchone()
        return None if row is None else row[0]

    def was_copied(self, path: str, from_version: str) -> bool:
        """Whether this run copied this version."""
        row = self._connection.execute(
            "SELECT 1 FROM done WHERE path = ? AND from_version = ? AND run = ?",
            (_encoded(path), from_version, self._run),
        ).fetchone()
        return row is not None

    def copied(self) -> tuple[int, int]:
        """Return the objects and bytes that this run copied, before a kill and after it."""
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


# SQLite takes only UTF-8 as text.
def _encoded(path: str) -> str | bytes:
    try:
        path.encode()
        return path
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")


def _decoded(path: str | bytes) -> str:
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")
