"""Makes the catalog equal to a staged listing, in one transaction.

Threading: one thread, the one that refreshes.
"""

import time
from collections.abc import Mapping

from penstock.catalog.schema import INCOMPLETE, ROOT
from penstock.catalog.sources import NOBODY, all_sources, note_listed, note_present, note_totals
from penstock.catalog.staging import StagedListing
from penstock.catalog.tree import Tree

# How many changes are kept for other mounts of the same catalog. A mount that misses more than
# these within one refresh keeps old names for at most --entry-cache.
_CHANGES_KEPT = 1_000_000
# How many hidden objects of a source are listed by name; the rest are counted by their reason.
_HIDDEN_KEPT = 10_000
_MOST_BYTES = 2**63 - 1


class Merge:
    def __init__(
        self, tree: Tree, staged: StagedListing, paths: Mapping[int, str], *, in_use: bool
    ) -> None:
        self._tree = tree
        self._database = tree.connection()
        self._staged = staged
        self._source = staged.source  # the listed one, or NOBODY
        self._mounted = set(paths)
        self._in_use = in_use
        self._now = time.time_ns()

    def apply(self) -> int:
        """Apply the listing; return how many names changed."""
        with self._tree.writing() as database:
            run = database.execute
            before = self._last_seq()
            rows = {row.number: row for row in all_sources(database)}
            gone = [n for n, row in rows.items() if row.present and n not in self._mounted]
            is_first = self._source == NOBODY or rows[self._source].listed_at is None
            self._mark_dead(gone)
            self._insert_new(is_first=is_first)
            known = run("SELECT 1 FROM meta WHERE key = 'listed_at'").fetchone() is not None
            if not known and not self._in_use:
                run("DELETE FROM changes")  # before the first listing no kernel knows a name
            self._update_totals(gone)
            run(
                "DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - ?",
                (_CHANGES_KEPT,),
            )
            counted = run("SELECT count(*) FROM changes WHERE seq > ?", (before,))
            changed: int = counted.fetchone()[0]
            # Numbers are never used again, not even those of nodes that were deleted.
            run(
                "INSERT OR REPLACE INTO meta SELECT 'next_ino', max(ino) + 1 FROM "
                "(SELECT max(ino) AS ino FROM nodes UNION ALL SELECT ?)",
                (self._staged.next_ino - 1,),
            )
        return changed

    def _last_seq(self) -> int:
        row = self._database.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
        ).fetchone()
        return row[0] if row is not None else 0

    def _mark_dead(self, gone: list[int]) -> None:
        """Mark nodes that are gone or rewritten; their rows stay for readers that hold them."""
        run = self._database.execute
        run("CREATE TABLE scratch.dying (ino INTEGER PRIMARY KEY, parent INTEGER, name BLOB)")
        into = "INSERT OR IGNORE INTO scratch.dying SELECT n.ino, n.parent, n.name FROM "
        run(
            f"{into} nodes n LEFT JOIN incoming i ON i.parent = n.parent AND i.name = n.name "
            "WHERE n.dead = 0 AND n.size IS NOT NULL AND n.source = ? AND (i.key IS NULL OR "
            "i.version != n.version OR i.size != n.size OR i.source != n.source)",
            (self._source,),
        )
        others = ", ".join(map(str, self._mounted - {self._source}))
        run(
            f"{into} nodes n WHERE n.dead = 0 AND n.size IS NULL AND n.ino != {ROOT} "
            f"AND n.source NOT IN ({others}) AND n.ino NOT IN (SELECT ino FROM seen)"
        )
        if gone:
            run(
                f"{into} nodes n WHERE n.dead = 0 AND n.size IS NOT NULL "
                f"AND n.source IN ({', '.join(map(str, gone))})"
            )
        # Nodes that another source is mounted over now, and all nodes below dying directories.
        run(
            f"{into} seen s JOIN nodes n ON n.parent = s.parent AND n.name = s.name "
            "WHERE n.dead = 0 AND n.ino != s.ino"
        )
        run(
            "WITH RECURSIVE below (ino) AS ("
            "SELECT d.ino FROM dying d JOIN nodes n ON n.ino = d.ino WHERE n.size IS NULL UNION "
            "SELECT n.ino FROM below JOIN nodes n ON n.parent = below.ino AND n.dead = 0 "
            "WHERE n.size IS NULL) "
            f"{into} below JOIN nodes n ON n.parent = below.ino AND n.dead = 0 "
            "WHERE n.ino NOT IN (SELECT ino FROM seen)"
        )
        run("UPDATE nodes SET dead = 1 WHERE ino IN (SELECT ino FROM dying)")
        run("INSERT INTO changes (parent, name, buried) SELECT parent, name, ino FROM dying")

    def _insert_new(self, *, is_first: bool) -> None:
        run = self._database.execute
        run(
            "INSERT INTO nodes SELECT s.ino, s.parent, s.name, s.source, NULL, ?, NULL, 0 "
            "FROM seen s WHERE s.ino NOT IN (SELECT ino FROM nodes)",
            (self._now,),
        )
        run(
            f"UPDATE nodes SET source = (SELECT s.source FROM seen s WHERE s.ino = nodes.ino) "
            f"WHERE source = {NOBODY} AND ino IN (SELECT ino FROM seen WHERE source != {NOBODY})"
        )
        # Names in new directories are no changes: no kernel knows them, and there may be a million.
        known = f"AND parent < {self._staged.first_ino}" if is_first else ""
        run(
            "INSERT INTO changes (parent, name, buried) SELECT s.parent, s.name, 0 FROM seen s "
            f"WHERE s.ino NOT IN (SELECT ino FROM directories) {known}"
        )
        run("INSERT OR REPLACE INTO directories SELECT ino, path FROM seen")
        first = self._staged.next_ino
        run(
            "INSERT INTO nodes SELECT ? + row_number() OVER (ORDER BY i.parent, i.name), "
            "i.parent, i.name, i.source, i.size, i.mtime, i.version, 0 FROM incoming i "
            "WHERE NOT EXISTS (SELECT 1 FROM nodes n "
            "WHERE n.parent = i.parent AND n.name = i.name AND n.dead = 0)",
            (first,),
        )
        run(
            "INSERT INTO changes (parent, name, buried) SELECT parent, name, 0 FROM nodes n "
            f"WHERE n.ino > ? {known} "
            "AND NOT EXISTS (SELECT 1 FROM dying d WHERE d.parent = n.parent AND d.name = n.name)",
            (first,),
        )

    # -- what the catalog keeps of each source -----------------------------------------

    def _update_totals(self, gone: list[int]) -> None:
        database = self._database
        note_present(database, self._mounted, gone)
        if self._source != NOBODY:
            note_totals(database, self._source, *self._totals("incoming"))
            note_listed(
                database, self._source, self._staged.covered, self._update_hidden(self._source)
            )
        # Sources that were not listed now lose the files that another source hides.
        reduced = database.execute(
            "SELECT DISTINCT n.source FROM dying d JOIN nodes n ON n.ino = d.ino "
            "WHERE n.size IS NOT NULL AND n.source != ?",
            (self._source,),
        ).fetchall()
        for (number,) in reduced:
            if number in self._mounted:
                alive = f"nodes WHERE dead = 0 AND size IS NOT NULL AND source = {number}"
                note_totals(database, number, *self._totals(alive))
        rows = [row for row in all_sources(database) if row.number in self._mounted]
        files, size = sum(row.files for row in rows), sum(row.size_bytes for row in rows)
        database.execute(
            "INSERT OR REPLACE INTO meta VALUES ('files', ?), ('bytes', ?)",
            (files, min(size, _MOST_BYTES)),
        )
        # The tree is as old as the oldest listing in it.
        listed = [row.listed_at for row in rows if row.listed_at is not None]
        if listed:
            database.execute("INSERT OR REPLACE INTO meta VALUES ('listed_at', ?)", (min(listed),))
        if len(listed) == len(rows):  # a rebuilt catalog is complete again
            database.execute("DELETE FROM meta WHERE key = ?", (INCOMPLETE,))

    def _totals(self, files_in: str) -> tuple[int, int]:
        # In two halves: SQLite's own sum would overflow and raise for extreme sizes.
        files, high, low = self._database.execute(
            "SELECT count(*), coalesce(sum(size >> 32), 0), coalesce(sum(size & 0xffffffff), 0) "
            f"FROM {files_in}"
        ).fetchone()
        return files, min((high << 32) + low, _MOST_BYTES)

    def _update_hidden(self, source: int) -> dict[str, int]:
        run = self._database.execute
        run("DELETE FROM hidden_of WHERE source = ?", (source,))
        run(
            "INSERT INTO hidden_of SELECT ?, key, reason FROM unshown ORDER BY key LIMIT ?",
            (source, _HIDDEN_KEPT),
        )
        return dict(run("SELECT reason, count(*) FROM unshown GROUP BY reason").fetchall())
