"""The catalog on disk: inodes, names, and what is hidden.

A node's number is its row, and the kernel's inode number: nothing is kept in memory for the
inodes the kernel holds, so a million of them cost nothing. Numbers are never used again, and
a rewritten object gets a new one, so pages of two versions cannot meet in one inode.

Threading: any thread reads, each with a connection of its own (WAL: a refresh never blocks
readers). One thread at a time writes, in `refresh`.
"""

import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.catalog.names import decode
from penstock.catalog.sources import SourceRow, all_sources, make_tables
from penstock.errors import PenstockError, StaleInode

ROOT = 1
SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE nodes (
    ino INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    name BLOB NOT NULL,
    source INTEGER NOT NULL,      -- which of the sources; -1 for none
    size INTEGER,                 -- NULL for a directory
    mtime INTEGER NOT NULL,       -- nanoseconds
    version TEXT,
    dead INTEGER NOT NULL         -- gone from the listing; the kernel may still hold it
);
CREATE UNIQUE INDEX nodes_by_name ON nodes (parent, name) WHERE dead = 0;
CREATE INDEX nodes_dead ON nodes (dead) WHERE dead = 1;
CREATE TABLE directories (ino INTEGER PRIMARY KEY, path BLOB NOT NULL);  -- path inside its store
CREATE TABLE hidden (key TEXT NOT NULL, reason TEXT NOT NULL);  -- hidden_of has taken its place
CREATE TABLE changes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER NOT NULL, name BLOB NOT NULL,
    buried INTEGER NOT NULL       -- the node that died; 0 if the name is new
);
"""

_INOS_A_QUESTION = 512
_COLUMNS = "ino, parent, name, source, size, mtime, version, dead"


class Node(NamedTuple):
    ino: int
    parent: int
    name: bytes
    source: int
    size_bytes: int | None
    mtime_ns: int
    version: str | None
    dead: int

    @property
    def is_directory(self) -> bool:
        return self.size_bytes is None


class Change(NamedTuple):
    seq: int
    parent: int
    name: bytes
    buried: int


class Tree:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only`: for a worker, whose server has it open and keeps it."""
        self.path = path
        self._local = threading.local()
        self._read_only = read_only
        self.users_lock = -1
        if read_only:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It names every key. Made here, because SQLite gives its journals the mode that the
        # database has when they are made: a chmod afterwards comes too late for those.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._create()
        self.users_lock = self._enter()

    # -- lookups ------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        row = (
            self.connection()
            .execute(f"SELECT {_COLUMNS} FROM nodes WHERE ino = ?", (ino,))
            .fetchone()
        )
        if row is None:
            raise StaleInode(f"inode {ino} is not in the catalog any more")
        return Node._make(row)

    def nodes(self, inos: Sequence[int]) -> dict[int, Node]:
        """Those of them that are in the catalog, the dead included."""
        found: dict[int, Node] = {}
        for first in range(0, len(inos), _INOS_A_QUESTION):
            some = list(inos[first : first + _INOS_A_QUESTION])
            places = ", ".join("?" * len(some))
            rows = self.connection().execute(
                f"SELECT {_COLUMNS} FROM nodes WHERE ino IN ({places})", some
            )
            found.update((row[0], Node._make(row)) for row in rows)
        return found

    def lookup(self, parent: int, name: bytes) -> Node | None:
        row = (
            self.connection()
            .execute(
                f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name = ? AND dead = 0",
                (parent, name),
            )
            .fetchone()
        )
        return Node._make(row) if row is not None else None

    def lookup_many(self, names: Sequence[tuple[int, bytes]]) -> list[Node]:
        """Those of these (parent, name) that are there. One statement: each by itself lets go of
        the interpreter's lock three times, and a hundred threads wait for it."""
        if not names:
            return []
        wanted = ",".join(["(?, ?)"] * len(names))
        columns = ", ".join(f"nodes.{column}" for column in _COLUMNS.split(", "))
        rows = self.connection().execute(
            f"WITH wanted (parent, name) AS (VALUES {wanted}) SELECT {columns} FROM wanted "
            "CROSS JOIN nodes ON nodes.parent = wanted.parent AND nodes.name = wanted.name "
            "AND nodes.dead = 0",
            [value for pair in names for value in pair],
        )
        return [Node._make(row) for row in rows.fetchall()]

    def children(self, parent: int, after: int, limit: int) -> list[Node]:
        """By name, from behind the child numbered `after` (0: from the start).

        The number alone finds the place again, so a listing needs no state here, and goes on
        rightly when entries come and go in between.
        """
        name = b"" if after == 0 else self.node(after).name
        rows = self.connection().execute(
            f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name > ? AND dead = 0 "
            "ORDER BY name LIMIT ?",
            (parent, name, limit),
        )
        return [Node._make(row) for row in rows]

    def directory_path(self, ino: int) -> str:
        """A directory's path inside its store: what its files' keys begin with."""
        row = (
            self.connection()
            .execute("SELECT path FROM directories WHERE ino = ?", (ino,))
            .fetchone()
        )
        if row is None:
            raise StaleInode(f"directory {ino} is not in the catalog any more")
        return decode(row[0])

    def files_numbered(self, parent: int, after: int, up_to: int) -> list[Node]:
        """The files of a folder whose numbers lie in (after, up_to]."""
        rows = self.connection().execute(
            f"SELECT {_COLUMNS} FROM nodes WHERE ino > ? AND ino <= ? AND parent = ? AND dead = 0 "
            "AND size IS NOT NULL ORDER BY ino",
            (after, up_to, parent),
        )
        return [Node._make(row) for row in rows]

    def files(self) -> Iterator[Node]:
        for row in self.connection().execute(
            f"SELECT {_COLUMNS} FROM nodes WHERE dead = 0 AND size IS NOT NULL"
        ):
            yield Node._make(row)

    # -- the whole ----------------------------------------------------------------------

    def totals(self) -> tuple[int, int]:
        """(files, bytes) of the last listing."""
        return self._meta("files", 0), self._meta("bytes", 0)

    def listed_at(self) -> float | None:
        """When the last complete listing was taken in; None before the first."""
        return self._meta("listed_at", None)

    def sources(self) -> list[SourceRow]:
        """The stores that it has ever held, also those that are not mounted any more."""
        return all_sources(self.connection())

    def hidden(self, limit: int) -> list[tuple[str, str]]:
        """(key, reason) of the hidden; of very many, only the first are kept by name."""
        return (
            self.connection()
            .execute("SELECT key, reason FROM hidden_of ORDER BY key LIMIT ?", (limit,))
            .fetchall()
        )

    def hidden_counts(self) -> dict[str, int]:
        """How many objects are hidden for each reason, those included that are not listed."""
        counts = Counter[str]()
        for row in self.sources():
            counts.update(row.hidden_counts)
        return dict(counts)

    def changes_since(self, seq: int, limit: int) -> list[Change]:
        rows = self.connection().execute(
            "SELECT seq, parent, name, buried FROM changes WHERE seq > ? ORDER BY seq LIMIT ?",
            (seq, limit),
        )
        return [Change._make(row) for row in rows]

    def last_change(self) -> int:
        return self.connection().execute("SELECT max(seq) FROM changes").fetchone()[0] or 0

    def change_number(self) -> int:
        """Grows with every change, also when those that everybody knows of are cleared away."""
        row = (
            self.connection()
            .execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
            .fetchone()
        )
        return row[0] if row is not None else 0

    # -- connections --------------------------------------------------------------------

    def connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._connect()
        return found

    def _connect(self) -> sqlite3.Connection:
        if self._read_only:
            address = f"{self.path.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)
        else:
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        # Each thread's own cache holds the upper levels; the rest is the kernel's to keep. A
        # mapping would count a walk over a million files as our memory.
        connection.execute("PRAGMA cache_size = -256")
        return connection

    def _create(self) -> None:
        connection = self.connection()
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            make_tables(connection)
            return
        if version != 0:
            raise PenstockError(
                f"{self.path}: a catalog of another Penstock (schema {version})",
                hint="remove that file; it is built again from the bucket",
            )
        connection.executescript(
            "BEGIN IMMEDIATE;"
            + _SCHEMA
            + f"INSERT INTO nodes VALUES ({ROOT}, 0, x'', -1, NULL, {time.time_ns()}, NULL, 0);"
            + f"INSERT INTO directories VALUES ({ROOT}, x'');"
            + f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
        make_tables(connection)

    def _enter(self) -> int:
        """Notes that this process uses the catalog. The first one clears away dead nodes, which
        no kernel can hold any more."""
        descriptor = os.open(f"{self.path}.users", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            self.connection().executescript(
                "BEGIN IMMEDIATE; DELETE FROM nodes WHERE dead = 1; DELETE FROM changes; "
                "DELETE FROM directories WHERE ino NOT IN (SELECT ino FROM nodes); COMMIT;"
            )
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def close(self) -> None:
        os.close(self.users_lock)

    def _meta(self, key: str, default: Any) -> Any:
        row = self.connection().execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else row[0]
