"""Sets of files of a catalog, in an order.

A set is a scratch table of SQLite, so that adding a million files twice takes no memory here; the
result is inode numbers, 8 bytes each.

Threading: one thread, the one that made the set.
"""

import sqlite3
from array import array
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from penstock.catalog.tree import ROOT, Tree
from penstock.errors import PenstockError

# By name means folder by folder, as in a listing.
ORDERS = {
    "name": "nodes.source, directories.path, nodes.name",
    "newest": "nodes.mtime DESC, nodes.ino",
    "largest": "nodes.size DESC, nodes.ino",
}

_BELOW = """
WITH RECURSIVE below(ino) AS (
    VALUES (?)
    UNION ALL
    SELECT nodes.ino FROM nodes JOIN below ON nodes.parent = below.ino
    WHERE nodes.dead = 0 AND nodes.size IS NULL
)
INSERT OR IGNORE INTO file_set SELECT nodes.ino FROM nodes JOIN below ON nodes.parent = below.ino
WHERE nodes.dead = 0 AND nodes.size IS NOT NULL
"""
_ALL = "INSERT OR IGNORE INTO file_set SELECT ino FROM nodes WHERE dead = 0 AND size IS NOT NULL"


class Selection(NamedTuple):
    inos: "array[int]"
    size_bytes: int


class FileSet:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        with tree.reading() as database:
            database.executescript(
                "DROP TABLE IF EXISTS temp.file_set; "
                "CREATE TEMP TABLE file_set (ino INTEGER PRIMARY KEY);"
            )

    def add(self, inos: Iterable[int]) -> None:
        rows = [(ino,) for ino in inos]
        if rows:
            with self._tree.reading() as database:
                database.execute("BEGIN")
                database.executemany("INSERT OR IGNORE INTO file_set VALUES (?)", rows)
                database.execute("COMMIT")

    def add_below(self, folder: int) -> None:
        """Add all files in this folder and in those below it."""
        with self._tree.reading() as database:
            if folder == ROOT:
                database.execute(_ALL)
            else:
                database.execute(_BELOW, (folder,))

    def take(self, order: str) -> Selection:
        """Return the files in one of ORDERS, and drop the set."""
        inos = array("Q")
        with self._tree.reading() as database:
            rows = database.execute(
                "SELECT file_set.ino FROM file_set CROSS JOIN nodes USING (ino) "
                f"JOIN directories ON directories.ino = nodes.parent ORDER BY {ORDERS[order]}"
            )
            while some := rows.fetchmany(10_000):
                inos.extend(ino for (ino,) in some)
            (size,) = database.execute(
                "SELECT coalesce(sum(size), 0) FROM file_set JOIN nodes USING (ino)"
            ).fetchone()
            database.execute("DROP TABLE temp.file_set")
        return Selection(inos, size)


def read_sizes(catalog: Path, most: int) -> "array[int]":
    """Return the sizes of files, evenly sampled if there are more than `most`.

    Reads the file of a catalog that a mount may be using, without registering as a user.
    """
    try:
        # as_uri() would refuse a relative path, and a plain one may hold `?` and `%`.
        address = f"file:{quote(str(catalog))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=60)) as database:
            # Not by their numbers: those of a rebuilt catalog have large gaps.
            files = "FROM nodes NOT INDEXED WHERE dead = 0 AND size IS NOT NULL"
            (count,) = database.execute(f"SELECT count(*) {files}").fetchone()
            step = max(1, -(-count // most))
            # Not through the index by name either: that would make the reads random.
            rows = database.execute(f"SELECT size {files}")
            return array("q", (size for (size,) in islice(rows, step - 1, None, step)))
    except sqlite3.Error as error:
        raise PenstockError(f"{catalog}: {error}") from error
