"""The tree of a catalog: inodes, names, changes, and what is hidden.

A node's number is its row, and the kernel's inode number: nothing is kept in memory for the inodes
that the kernel holds, so a million of them cost nothing. Numbers are never used again, and a
rewritten object gets a new one, so pages of two versions cannot meet in one inode.

Threading and damage: see penstock.catalog.database.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.catalog.database import CatalogDatabase
from penstock.catalog.names import decode
from penstock.catalog.schema import CHANGES_FROM, INCOMPLETE
from penstock.catalog.schema import ROOT as ROOT
from penstock.errors import StaleInode

_INOS_PER_QUERY = 512
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
    buried: int  # the node that died; 0 if the name is new


class Tree(CatalogDatabase):
    # -- lookups ------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        rows = self._query(f"SELECT {_COLUMNS} FROM nodes WHERE ino = ?", (ino,))
        if not rows:
            raise StaleInode(f"inode {ino} is not in the catalog any more")
        return Node._make(rows[0])

    def nodes(self, inos: Sequence[int]) -> dict[int, Node]:
        """Return those of the inodes that are in the catalog, dead ones included."""
        found: dict[int, Node] = {}
        for first in range(0, len(inos), _INOS_PER_QUERY):
            some = list(inos[first : first + _INOS_PER_QUERY])
            places = ", ".join("?" * len(some))
            rows = self._query(f"SELECT {_COLUMNS} FROM nodes WHERE ino IN ({places})", some)
            found.update((row[0], Node._make(row)) for row in rows)
        return found

    def lookup(self, parent: int, name: bytes) -> Node | None:
        rows = self._query(
            f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name = ? AND dead = 0",
            (parent, name),
            complete=True,
            unless_found=True,
        )
        if not rows:
            self.node(parent)  # raises for a folder that is not in the catalog
            return None
        return Node._make(rows[0])

    def lookup_many(self, names: Sequence[tuple[int, bytes]]) -> list[Node]:
        """Return those of these (parent, name) that exist.

        One statement: each statement releases the interpreter's lock three times, and a hundred
        threads wait for it.
        """
        if not names:
            return []
        wanted = ",".join(["(?, ?)"] * len(names))
        columns = ", ".join(f"nodes.{column}" for column in _COLUMNS.split(", "))
        rows = self._query(
            f"WITH wanted (parent, name) AS (VALUES {wanted}) SELECT {columns} FROM wanted "
            "CROSS JOIN nodes ON nodes.parent = wanted.parent AND nodes.name = wanted.name "
            "AND nodes.dead = 0",
            [value for pair in names for value in pair],
            complete=True,
        )
        return [Node._make(row) for row in rows]

    def children(self, parent: int, after: int, limit: int) -> list[Node]:
        """Return children by name, starting behind the child numbered `after` (0: at the start).

        The number alone finds the place again, so a listing needs no state here, and continues
        correctly when entries come and go in between.
        """
        name = b"" if after == 0 else self.node(after).name
        rows = self._query(
            f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name > ? AND dead = 0 "
            "ORDER BY name LIMIT ?",
            (parent, name, limit),
            complete=True,
        )
        if not rows:
            self.node(parent)  # raises for a folder that is not in the catalog
        return [Node._make(row) for row in rows]

    def directory_path(self, ino: int) -> str:
        """Return a directory's path inside its store: the prefix of its files' keys."""
        rows = self._query("SELECT path FROM directories WHERE ino = ?", (ino,))
        if not rows:
            raise StaleInode(f"directory {ino} is not in the catalog any more")
        return decode(rows[0][0])

    def files_numbered(self, parent: int, after: int, up_to: int) -> list[Node]:
        """Return the files of a folder whose numbers lie in (after, up_to]."""
        rows = self._query(
            f"SELECT {_COLUMNS} FROM nodes WHERE ino > ? AND ino <= ? AND parent = ? AND dead = 0 "
            "AND size IS NOT NULL ORDER BY ino",
            (after, up_to, parent),
        )
        return [Node._make(row) for row in rows]

    def files(self) -> Iterator[Node]:
        with self.reading() as connection:
            for row in connection.execute(
                f"SELECT {_COLUMNS} FROM nodes WHERE dead = 0 AND size IS NOT NULL"
            ):
                yield Node._make(row)

    def sample(self, count: int) -> list[Node]:
        """Return about `count` files, picked at random; all of them if there are no more."""
        if self.totals()[0] <= count:
            return list(self.files())
        last = self._query("SELECT max(ino) FROM nodes")[0][0] or 0
        found: dict[int, Node] = {}
        for _ in range(count):
            rows = self._query(
                f"SELECT {_COLUMNS} FROM nodes WHERE dead = 0 AND size IS NOT NULL AND ino >= ? "
                "ORDER BY ino LIMIT 1",
                (random.randint(1, last),),
            )
            found.update((row[0], Node._make(row)) for row in rows)
        return list(found.values())

    # -- the whole catalog --------------------------------------------------------------

    def totals(self) -> tuple[int, int]:
        """Return (files, bytes) of the last listing."""
        return self._meta("files", 0), self._meta("bytes", 0)

    def listed_at(self) -> float | None:
        """Return when the last complete listing was taken in; None before the first."""
        return self._meta("listed_at", None)

    def damage(self) -> str | None:
        """Return when and why the catalog was last rebuilt, if it ever was."""
        return self._meta("damage", None)

    def is_complete(self) -> bool:
        """Return False while the catalog is being rebuilt."""
        return not self._meta(INCOMPLETE, 0)

    def hidden(self, limit: int) -> list[tuple[str, str]]:
        """Return (key, reason) of hidden objects; of very many, only the first are kept by name."""
        return self._query("SELECT key, reason FROM hidden_of ORDER BY key LIMIT ?", (limit,))

    def hidden_counts(self) -> dict[str, int]:
        """Return how many objects are hidden for each reason, also those not kept by name."""
        counts = Counter[str]()
        for row in self.sources():
            counts.update(row.hidden_counts)
        return dict(counts)

    def changes_since(self, seq: int, limit: int) -> list[Change]:
        rows = self._query(
            "SELECT seq, parent, name, buried FROM changes WHERE seq > ? ORDER BY seq LIMIT ?",
            (seq, limit),
        )
        return [Change._make(row) for row in rows]

    def changes_from(self) -> int:
        """Return the first change that is known.

        A mount whose last change is older may have missed others: these were lost with a damaged
        catalog.
        """
        return self._meta(CHANGES_FROM, 0)

    def names_after(self, ino: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return (inode, parent, name) of the next nodes in the order of their numbers."""
        return self._query(
            "SELECT ino, parent, name FROM nodes WHERE dead = 0 AND ino > ? ORDER BY ino LIMIT ?",
            (max(ino, ROOT), limit),
            complete=True,
        )

    def last_change(self) -> int:
        return self._query("SELECT max(seq) FROM changes")[0][0] or 0

    def change_number(self) -> int:
        """Return a number that grows with every change, also when old changes are deleted."""
        rows = self._query("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
        return rows[0][0] if rows else 0

    def _meta(self, key: str, default: Any) -> Any:
        rows = self._query("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else default
