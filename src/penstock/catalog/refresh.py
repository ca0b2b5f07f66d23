"""Takes a whole new listing into the catalog: what is new, gone, rewritten, hidden.

The listing goes into a scratch table on disk and is compared in SQL, so memory does not grow
with the bucket, and readers see the old tree until the new one is complete.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.listing import list_in_parallel
from penstock.catalog.names import DOUBLE_ROLE, MARKER_WITH_DATA, decode, encode, why_no_name
from penstock.catalog.tree import ROOT, Tree
from penstock.store import ObjectInfo, Store

# How many changes are remembered for other mounts of the same catalog. One that misses more
# than these within one refresh keeps old names for at most --entry-cache.
_CHANGES_KEPT = 1_000_000


@dataclass(frozen=True, slots=True)
class Mounted:
    """A store and where its tree begins; a mount is a list of these."""

    path: str  # "" for the root
    store: Store


@dataclass(frozen=True, slots=True)
class Summary:
    files: int
    size_bytes: int
    changed: int
    hidden: int


def refresh(tree: Tree, mounts: list[Mounted], progress: Callable[[int], None]) -> Summary:
    """Lists every store and makes the tree equal to what was found. One at a time per catalog."""
    database = tree.connection()
    with _only_one(tree), _scratch(database):
        incoming = _Incoming(database)
        seen = 0
        for number, mounted in enumerate(mounts):
            incoming.mount_root(mounted.path, number)
            for page in list_in_parallel(mounted.store):
                incoming.add(page, mounted.store, number)
                seen += len(page)
                progress(seen)
        return incoming.apply()


class _Incoming:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._next_ino: int = database.execute(
            "SELECT max((SELECT max(ino) + 1 FROM nodes), "
            "coalesce((SELECT value FROM meta WHERE key = 'next_ino'), 0))"
        ).fetchone()[0]
        self._now = time.time_ns()
        # Every directory of the new listing. The only memory that grows, with directories.
        self._directories: dict[tuple[int, str], int | str] = {}
        self._hidden: list[tuple[str, str]] = []
        database.execute("INSERT INTO seen VALUES (?, 0, x'', -1, x'')", (ROOT,))

    def mount_root(self, path: str, source: int) -> None:
        ino = ROOT
        for name in path.split("/") if path else []:
            ino = self._directory_node(ino, name, -1, "")
        if ino != ROOT:
            self._database.execute("UPDATE seen SET source = ? WHERE ino = ?", (source, ino))
        self._directories[source, ""] = ino

    def add(self, page: list[ObjectInfo], store: Store, source: int) -> None:
        run = self._database.execute
        run("BEGIN")
        rows: list[tuple[int, bytes, int, int, int, str, bytes]] = []
        for info in page:
            folder, slash, name = info.key.rpartition("/")
            # `/name` has no folder and yet a slash: its first segment is empty.
            parent = self._directory(folder, source) if folder or not slash else why_no_name("")
            if not isinstance(parent, int):
                self._hidden.append((info.key, parent or ""))
            elif not name:
                if info.size_bytes:
                    self._hidden.append((info.key, MARKER_WITH_DATA))
            elif reason := why_no_name(name) or store.why_unreadable(info.key):
                self._hidden.append((info.key, reason))
            else:
                rows.append((parent, encode(name), source, *info[1:], encode(info.key)))
        # An entry that was listed twice is one entry.
        self._database.executemany(
            "INSERT OR REPLACE INTO incoming VALUES (?, ?, ?, ?, ?, ?, ?)", rows
        )
        run("COMMIT")

    def _directory(self, path: str, source: int) -> int | str:
        """The directory's number, or why there can be none."""
        found = self._directories.get((source, path))
        if found is not None:
            return found
        found = self._directories[source, ""]
        walked = ""
        for name in path.split("/"):
            walked = f"{walked}/{name}" if walked else name
            known = self._directories.get((source, walked)) if name else None
            if known is None and isinstance(found, int):
                reason = why_no_name(name)
                known = reason or self._directory_node(found, name, source, walked)
            found = known if known is not None else found
            self._directories[source, walked if name else path] = found
            if isinstance(found, str):
                break
        self._directories[source, path] = found
        return found

    def _directory_node(self, parent: int, name: str, source: int, path: str) -> int:
        row = self._database.execute(
            "SELECT ino FROM nodes WHERE parent = ? AND name = ? AND dead = 0 AND size IS NULL",
            (parent, encode(name)),
        ).fetchone()
        ino = row[0] if row else self._take_number()
        self._database.execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?)",
            (ino, parent, encode(name), source, encode(path)),
        )
        return ino

    def _take_number(self) -> int:
        self._next_ino += 1
        return self._next_ino - 1

    # -- the comparison -------------------------------------------------------------------

    def apply(self) -> Summary:
        run = self._database.execute
        hidden_twice = run(
            "SELECT i.key FROM incoming i JOIN seen s ON s.parent = i.parent AND s.name = i.name"
        ).fetchall()
        self._hidden.extend((decode(row[0]), DOUBLE_ROLE) for row in hidden_twice)
        run(
            "DELETE FROM incoming WHERE EXISTS (SELECT 1 FROM seen s "
            "WHERE s.parent = incoming.parent AND s.name = incoming.name)"
        )
        run("BEGIN IMMEDIATE")
        try:
            before = self._last_seq()
            self._bury()
            self._plant()
            if run("SELECT 1 FROM meta WHERE key = 'listed_at'").fetchone() is None:
                run("DELETE FROM changes")  # the first listing is news to nobody
            self._note_hidden()
            run(
                "DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - ?",
                (_CHANGES_KEPT,),
            )
            files, size = run("SELECT count(*), coalesce(sum(size), 0) FROM incoming").fetchone()
            changed = run("SELECT count(*) FROM changes WHERE seq > ?", (before,)).fetchone()[0]
            # Numbers are never used again, not even those of nodes that were cleared away.
            run(
                "INSERT OR REPLACE INTO meta SELECT 'next_ino', max(ino) + 1 FROM "
                "(SELECT max(ino) AS ino FROM nodes UNION ALL SELECT ?)",
                (self._next_ino - 1,),
            )
            run(
                "INSERT OR REPLACE INTO meta VALUES ('files', ?), ('bytes', ?), ('listed_at', ?)",
                (files, size, time.time()),
            )
            hidden = run("SELECT count(*) FROM hidden").fetchone()[0]
            run("COMMIT")
        except BaseException:
            run("ROLLBACK")
            raise
        return Summary(files, size, changed, hidden)

    def _last_seq(self) -> int:
        row = self._database.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
        ).fetchone()
        return row[0] if row is not None else 0

    def _bury(self) -> None:
        """Nodes that are gone or rewritten die; their rows stay for readers that hold them."""
        run = self._database.execute
        run(
            "CREATE TABLE scratch.dying AS SELECT n.ino, n.parent, n.name FROM nodes n "
            "LEFT JOIN incoming i ON i.parent = n.parent AND i.name = n.name "
            "WHERE n.dead = 0 AND n.size IS NOT NULL AND (i.key IS NULL OR "
            "i.version != n.version OR i.size != n.size OR i.source != n.source)"
        )
        run(
            "INSERT INTO scratch.dying SELECT n.ino, n.parent, n.name FROM nodes n "
            f"WHERE n.dead = 0 AND n.size IS NULL AND n.ino != {ROOT} "
            "AND n.ino NOT IN (SELECT ino FROM seen)"
        )
        run("UPDATE nodes SET dead = 1 WHERE ino IN (SELECT ino FROM dying)")
        run("INSERT INTO changes (parent, name, buried) SELECT parent, name, ino FROM dying")

    def _plant(self) -> None:
        run = self._database.execute
        run(
            "INSERT INTO nodes SELECT s.ino, s.parent, s.name, s.source, NULL, ?, NULL, 0 "
            "FROM seen s WHERE s.ino NOT IN (SELECT ino FROM nodes)",
            (self._now,),
        )
        run(
            "INSERT INTO changes (parent, name, buried) SELECT s.parent, s.name, 0 FROM seen s "
            "WHERE s.ino NOT IN (SELECT ino FROM directories)"
        )
        run("INSERT OR REPLACE INTO directories SELECT ino, path FROM seen")
        first = self._next_ino
        run(
            "INSERT INTO nodes SELECT ? + row_number() OVER (ORDER BY i.parent, i.name), "
            "i.parent, i.name, i.source, i.size, i.mtime, i.version, 0 FROM incoming i "
            "WHERE NOT EXISTS (SELECT 1 FROM nodes n "
            "WHERE n.parent = i.parent AND n.name = i.name AND n.dead = 0)",
            (first,),
        )
        run(
            "INSERT INTO changes (parent, name, buried) SELECT parent, name, 0 FROM nodes n "
            "WHERE n.ino > ? "
            "AND NOT EXISTS (SELECT 1 FROM dying d WHERE d.parent = n.parent AND d.name = n.name)",
            (first,),
        )

    def _note_hidden(self) -> None:
        self._database.execute("DELETE FROM hidden")
        self._database.executemany(
            "INSERT INTO hidden VALUES (?, ?)",
            ((key.encode("utf-8", "backslashreplace").decode(), why) for key, why in self._hidden),
        )


@contextmanager
def _scratch(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("ATTACH DATABASE '' AS scratch")  # '': a file that SQLite removes itself
    try:
        database.execute(
            "CREATE TABLE scratch.incoming (parent INTEGER, name BLOB, source INTEGER, "
            "size INTEGER, mtime INTEGER, version TEXT, key BLOB, "
            "PRIMARY KEY (parent, name)) WITHOUT ROWID"
        )
        database.execute(
            "CREATE TABLE scratch.seen (ino INTEGER PRIMARY KEY, parent INTEGER, name BLOB, "
            "source INTEGER, path BLOB, UNIQUE (parent, name))"
        )
        yield
    finally:
        database.execute("DETACH DATABASE scratch")


@contextmanager
def _only_one(tree: Tree) -> Iterator[None]:
    """Two mounts of one source share its catalog; their refreshes take turns."""
    descriptor = os.open(f"{tree.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def catalog_path(state: Path, digest: str) -> Path:
    return state / "catalogs" / f"{digest}.sqlite"
