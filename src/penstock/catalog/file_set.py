"""Files picked from the catalog, each once, put into an order.

They are gathered in a scratch table of SQLite, so that picking a million of them, twice over,
takes no memory here; what comes out are inode numbers, 8 bytes each.

Threading: one thread, the one that made it.
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

# By name means folder by folder: files of one folder come together, as they do in a listing.
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
INSERT OR IGNORE INTO picked SELECT nodes.ino FROM nodes JOIN below ON nodes.parent = below.ino
WHERE nodes.dead = 0 AND nodes.size IS NOT NULL
"""
_ALL = "INSERT OR IGNORE INTO picked SELECT ino FROM nodes WHERE dead = 0 AND size IS NOT NULL"


class Selection(NamedTuple):
    inos: "array[int]"
    size_bytes: int


class FileSet:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        with tree.reading() as database:
            database.executescript(
                "DROP TABLE IF EXISTS temp.picked; "
                "CREATE TEMP TABLE picked (ino INTEGER PRIMARY KEY);"
            )

    def add(self, inos: Iterable[int]) -> None:
        rows = [(ino,) for ino in inos]
        if rows:
            with self._tree.reading() as database:
                database.execute("BEGIN")
                database.executemany("INSERT OR IGNORE INTO picked VALUES (?)", rows)
                database.execute("COMMIT")

    def add_below(self, folder: int) -> None:
        """All files in this folder and in those below it."""
        with self._tree.reading() as database:
            if folder == ROOT:
                database.execute(_ALL)
            else:
                database.execute(_BELOW, (folder,))

    def take(self, order: str) -> Selection:
        """All that was picked, in one of ORDERS; then it is empty."""
        inos = array("Q")
        with self._tree.reading() as database:
            rows = database.execute(
                "SELECT picked.ino FROM picked CROSS JOIN nodes USING (ino) "
                f"JOIN directories ON directories.ino = nodes.parent ORDER BY {ORDERS[order]}"
            )
            while some := rows.fetchmany(10_000):
                inos.extend(ino for (ino,) in some)
            (size,) = database.execute(
                "SELECT coalesce(sum(size), 0) FROM picked JOIN nodes USING (ino)"
            ).fetchone()
            database.execute("DROP TABLE temp.picked")
        return Selection(inos, size)


# The sizes of a catalog's files, for whoever only wants to know what they are like.
#
# Reads the file of a catalog that a mount may be using, without entering it as a user.


def read_sizes(catalog: Path, most: int) -> "array[int]":
    """At most `most`: of more files every so-manieth, in the order of their numbers."""
    try:
        # as_uri() would refuse a relative path, and a plain one may hold `?` and `%`.
        address = f"file:{quote(str(catalog))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=60)) as database:
            # Not by their numbers: a catalog that was made anew leaves out most of them.
            files = "FROM nodes NOT INDEXED WHERE dead = 0 AND size IS NOT NULL"
            (count,) = database.execute(f"SELECT count(*) {files}").fetchone()
            step = max(1, -(-count // most))
            rows = database.execute(f"SELECT size {files}")  # the index by name would jump about
            return array("q", (size for (size,) in islice(rows, step - 1, None, step)))
    except sqlite3.Error as error:
        raise PenstockError(f"{catalog}: {error}") from error
