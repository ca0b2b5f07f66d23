"""Takes a whole new listing into the catalog: what is new, gone, rewritten, hidden.

The listing goes into scratch tables on disk and is compared in SQL, so memory does not grow
with the bucket, and readers see the old tree until the new one is complete.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.incoming import MOST_FILES, SCRATCH_SCHEMA, Incoming
from penstock.catalog.listing import SILENCE_S, list_in_parallel
from penstock.catalog.tree import ROOT, Tree
from penstock.errors import UsageError
from penstock.store import Store

# How many changes are remembered for other mounts of the same catalog. One that misses more
# than these within one refresh keeps old names for at most --entry-cache.
_CHANGES_KEPT = 1_000_000
# So many hidden objects are listed by name; the rest are counted by their reason.
_HIDDEN_KEPT = 10_000
_MOST_BYTES = 2**63 - 1


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


def refresh(
    tree: Tree, mounts: list[Mounted], progress: Callable[[int], None], *,
    most_files: int = MOST_FILES, silence_s: float = SILENCE_S,
) -> Summary:  # fmt: skip
    """Lists every store and makes the tree equal to what was found. One at a time per catalog.

    A listing that fails, that repeats itself, that holds more than `most_files` files and
    directories or says nothing for `silence_s` raises, and leaves the tree as it was.
    """
    database = tree.connection()
    try:
        with _only_one(tree), _scratch(database):
            incoming = Incoming(database, most_files)
            for number, mounted in enumerate(mounts):
                incoming.mount_root(mounted.path, number)
                with closing(list_in_parallel(mounted.store, silence_s=silence_s)) as pages:
                    for page in pages:
                        incoming.add(page, mounted.store, number)
                        progress(incoming.listed)
            incoming.settle()
            return _Comparison(database, incoming.next_ino).apply()
    except sqlite3.OperationalError as error:
        raise UsageError(
            f"{tree.path}: {error}",
            hint="the catalog needs room there, and while it lists in /var/tmp (or where "
            "SQLITE_TMPDIR says)",
        ) from error


class _Comparison:
    """Makes the catalog equal to what is in the scratch tables, in one transaction."""

    def __init__(self, database: sqlite3.Connection, next_ino: int) -> None:
        self._database = database
        self._next_ino = next_ino
        self._now = time.time_ns()

    def apply(self) -> Summary:
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        try:
            before = self._last_seq()
            self._bury()
            self._plant()
            if run("SELECT 1 FROM meta WHERE key = 'listed_at'").fetchone() is None:
                run("DELETE FROM changes")  # the first listing is news to nobody
            hidden = self._note_hidden()
            run(
                "DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - ?",
                (_CHANGES_KEPT,),
            )
            files, size = self._totals()
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

    def _totals(self) -> tuple[int, int]:
        # In two halves: sizes can be such that SQLite's own sum would overflow, and raise.
        files, high, low = self._database.execute(
            "SELECT count(*), coalesce(sum(size >> 32), 0), coalesce(sum(size & 0xffffffff), 0) "
            "FROM incoming"
        ).fetchone()
        return files, min((high << 32) + low, _MOST_BYTES)

    def _note_hidden(self) -> int:
        run = self._database.execute
        counts = dict(run("SELECT reason, count(*) FROM unshown GROUP BY reason").fetchall())
        run("DELETE FROM hidden")
        run(
            "INSERT INTO hidden SELECT key, reason FROM unshown ORDER BY key LIMIT ?",
            (_HIDDEN_KEPT,),
        )
        run("INSERT OR REPLACE INTO meta VALUES ('hidden_counts', ?)", (json.dumps(counts),))
        return sum(counts.values())


@contextmanager
def _scratch(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("ATTACH DATABASE '' AS scratch")  # '': a file that SQLite removes itself
    try:
        for table in SCRATCH_SCHEMA:
            database.execute(table)
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
