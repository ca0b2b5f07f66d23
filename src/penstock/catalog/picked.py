"""Files picked from the catalog, each once, put into an order.

They are gathered in a scratch table of SQLite, so that picking a million of them, twice over,
takes no memory here; what comes out are inode numbers, 8 bytes each.

Threading: one thread, the one that made it.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from penstock.catalog.tree import ROOT, Tree

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


class Picked:
    def __init__(self, tree: Tree) -> None:
        self._database = tree.connection()
        self._database.executescript(
            "DROP TABLE IF EXISTS temp.picked; CREATE TEMP TABLE picked (ino INTEGER PRIMARY KEY);"
        )

    def add(self, inos: Iterable[int]) -> None:
        rows = [(ino,) for ino in inos]
        if rows:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT OR IGNORE INTO picked VALUES (?)", rows)
            self._database.execute("COMMIT")

    def add_below(self, folder: int) -> None:
        """All files in this folder and in those below it."""
        if folder == ROOT:
            self._database.execute(_ALL)
        else:
            self._database.execute(_BELOW, (folder,))

    def take(self, order: str) -> Selection:
        """All that was picked, in one of ORDERS; then it is empty."""
        rows = self._database.execute(
            "SELECT picked.ino FROM picked CROSS JOIN nodes USING (ino) "
            f"JOIN directories ON directories.ino = nodes.parent ORDER BY {ORDERS[order]}"
        )
        inos = array("Q")
        while some := rows.fetchmany(10_000):
            inos.extend(ino for (ino,) in some)
        (size,) = self._database.execute(
            "SELECT coalesce(sum(size), 0) FROM picked JOIN nodes USING (ino)"
        ).fetchone()
        self._database.execute("DROP TABLE temp.picked")
        return Selection(inos, size)
