"""Stages a listing in scratch tables: each entry becomes a file, a directory or a hidden object.

All that grows with the bucket is in those tables, on disk; memory is bounded. A listing that cannot
end (it repeats itself, or always has something new) is given up.

Threading: one thread, the one that refreshes.
"""

import sqlite3
from collections.abc import Mapping

from penstock.catalog.names import (
    COVERED,
    DOUBLE_ROLE,
    MARKER_WITH_DATA,
    decode,
    encode,
    plausible_mtime_ns,
    printable_key,
    why_implausible,
    why_no_key,
    why_no_name,
)
from penstock.catalog.sources import NOBODY, covered_by_others, owner_of
from penstock.catalog.tree import ROOT
from penstock.errors import SourceError
from penstock.store import ObjectInfo, Store

MOST_FILES = 100_000_000

# An entry may come again for good reasons: a listing that restarts, a marker beside its prefix.
# That is two or three times, never four. Small listings may repeat more.
_MAX_TIMES_LISTED = 4
_REPEATS_ALLOWED = 10_000
# Directories cached by path; when the cache is full it is cleared, and they are found in SQL.
# Listings come in order, so the directory of an entry is nearly always that of the one before.
_DIRECTORIES_CACHED = 16_384

SCRATCH_SCHEMA = (
    "CREATE TABLE scratch.incoming (parent INTEGER, name BLOB, source INTEGER, size INTEGER, "
    "mtime INTEGER, version TEXT, key BLOB, PRIMARY KEY (parent, name)) WITHOUT ROWID",
    "CREATE TABLE scratch.seen (ino INTEGER PRIMARY KEY, parent INTEGER, name BLOB, "
    "source INTEGER, path BLOB, UNIQUE (parent, name))",
    "CREATE TABLE scratch.unshown (key TEXT PRIMARY KEY, reason TEXT) WITHOUT ROWID",
)


class StagedListing:
    def __init__(
        self,
        database: sqlite3.Connection,
        paths: Mapping[int, str],
        source: int | None,
        most_files: int,
        files_of_others: int = 0,
    ) -> None:
        """`paths`: where each source of the mount begins; `source`: the one that is listed."""
        self._database = database
        self._most_files = most_files
        self._files_of_others = files_of_others
        self.first_ino: int = database.execute(
            "SELECT max((SELECT max(ino) + 1 FROM nodes), "
            "coalesce((SELECT value FROM meta WHERE key = 'next_ino'), 0))"
        ).fetchone()[0]
        self.next_ino = self.first_ino
        self.listed = 0  # entries received
        self.size_bytes = 0  # of all of them
        self._found = 0  # files, directories and hidden objects among them
        self._roots: dict[int, int] = {}
        self._directories: dict[str, int | str] = {}
        database.execute("INSERT INTO seen VALUES (?, 0, x'', ?, x'')", (ROOT, NOBODY))
        self._make_roots(paths)
        self.source = NOBODY if source is None else source
        own = paths.get(self.source, "")
        self._path_prefix = f"{own}/" if own else ""
        self.covered = covered_by_others(own, list(paths.values())) if source is not None else []
        self._covered = tuple((path, f"{path}/") for path in self.covered)

    def _make_roots(self, paths: Mapping[int, str]) -> None:
        """Create a directory where each source is mounted, whatever the listings say."""
        numbers = {path: number for number, path in paths.items()}
        for number, path in paths.items():
            ino, walked = ROOT, ""
            for name in path.split("/") if path else []:
                walked = f"{walked}/{name}" if walked else name
                ino = self._directory_node(ino, name, *owner_of(walked, numbers))
            self._roots[number] = ino
        self._found = 0

    def add(self, page: list[ObjectInfo], store: Store) -> None:
        """Stage one page of the listing. Raises SourceError for a listing without end."""
        self._database.execute("BEGIN")
        files: list[tuple[int, bytes, int, int, int, str, bytes]] = []
        hidden: list[tuple[str, str]] = []
        for info in page:
            folder, slash, name = info.key.rpartition("/")
            parent = why_no_key(info.key) or self._why_covered(info) or self._parent(folder, slash)
            if isinstance(parent, str):
                if name or info.size_bytes or parent is not COVERED:
                    hidden.append((self._printable_key(info.key), parent))
            elif not name:
                if info.size_bytes:
                    hidden.append((self._printable_key(info.key), MARKER_WITH_DATA))
            elif reason := (
                why_no_name(name) or store.why_unreadable(info.key) or why_implausible(info)
            ):
                hidden.append((self._printable_key(info.key), reason))
            else:
                what = info.size_bytes, plausible_mtime_ns(info), info.version
                files.append((parent, encode(name), self.source, *what, encode(info.key)))
        self._insert_files(files)
        self._insert_hidden(hidden)
        self._database.execute("COMMIT")
        self.listed += len(page)
        self.size_bytes += sum(info.size_bytes for info in page)
        self._check_bounds(store)

    def finish(self) -> None:
        """Hide files whose key is a directory too."""
        twice = self._database.execute(
            "SELECT i.key FROM incoming i JOIN seen s ON s.parent = i.parent AND s.name = i.name"
        )
        self._database.executemany(
            "INSERT OR IGNORE INTO unshown VALUES (?, ?)",
            ((self._printable_key(decode(row[0])), DOUBLE_ROLE) for row in twice),
        )
        self._database.execute(
            "DELETE FROM incoming WHERE EXISTS (SELECT 1 FROM seen s "
            "WHERE s.parent = incoming.parent AND s.name = incoming.name)"
        )

    def _why_covered(self, info: ObjectInfo) -> str | None:
        for path, below in self._covered:
            if info.key == path or info.key.startswith(below):
                return COVERED
        return None

    def _printable_key(self, key: str) -> str:
        """Return the path in the mount: two sources may have the same key."""
        return printable_key(f"{self._path_prefix}{key}")

    # -- rows -----------------------------------------------------------------------------

    def _insert_files(self, rows: list[tuple[int, bytes, int, int, int, str, bytes]]) -> None:
        run = self._database.executemany
        fresh = run("INSERT OR IGNORE INTO incoming VALUES (?, ?, ?, ?, ?, ?, ?)", rows).rowcount
        if fresh < len(rows):
            # An entry that was listed twice counts once; the last one wins.
            run("INSERT OR REPLACE INTO incoming VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._found += max(0, fresh)

    def _insert_hidden(self, rows: list[tuple[str, str]]) -> None:
        fresh = self._database.executemany("INSERT OR IGNORE INTO unshown VALUES (?, ?)", rows)
        self._found += max(0, fresh.rowcount)

    def _check_bounds(self, store: Store) -> None:
        if self._found + self._files_of_others > self._most_files:
            raise SourceError(
                f"{store.identity}: more than {self._most_files:,} files and directories",
                hint="mount a prefix of it, or raise --max-files",
            )
        if self.listed > _MAX_TIMES_LISTED * self._found + _REPEATS_ALLOWED:
            raise SourceError(
                f"{store.identity}: its listing repeats itself: {self.listed:,} entries, and "
                f"only {self._found:,} different ones",
                hint="the endpoint does not go on from page to page as an object store does; "
                "check --endpoint, and any proxy before it",
            )

    # -- directories ----------------------------------------------------------------------

    def _parent(self, folder: str, slash: str) -> int | str:
        if folder:
            return self._directory(folder)
        # `/name` has no folder but a slash: its first segment is empty.
        return why_no_name("") or "" if slash else self._roots[self.source]

    def _directory(self, path: str) -> int | str:
        """Return the directory's number, or why there can be none."""
        found = self._directories.get(path)
        if found is not None:
            return found
        missing: list[str] = []  # from here up to a known directory
        above = path
        while found is None:
            missing.append(above)
            above, slash, _ = above.rpartition("/")
            found = self._directories.get(above) or (None if above else self._parent("", slash))
        for walked in reversed(missing):
            if isinstance(found, int):
                name = walked.rpartition("/")[2]
                found = why_no_name(name) or self._directory_node(found, name, self.source, walked)
            self._remember(walked, found)
        return found

    def _directory_node(self, parent: int, name: str, source: int, path: str) -> int:
        run = self._database.execute
        place = parent, encode(name)
        if seen := run("SELECT ino FROM seen WHERE parent = ? AND name = ?", place).fetchone():
            return seen[0]
        # A directory of another source keeps that source and its number: readers may hold its
        # files, which are found by its path. A directory of no source may get one, and lose it
        # again.
        row: tuple[int, int, bytes] | None = run(
            "SELECT n.ino, n.source, d.path FROM nodes n JOIN directories d ON d.ino = n.ino "
            "WHERE n.parent = ? AND n.name = ? AND n.dead = 0 AND n.size IS NULL",
            place,
        ).fetchone()
        encoded, ino = encode(path), 0
        if row is not None and source == NOBODY:
            ino, source, encoded = row
        elif row is not None and row[1:] in ((source, encoded), (NOBODY, b"")):
            ino = row[0]
        ino = ino or self._take_number()
        run("INSERT INTO seen VALUES (?, ?, ?, ?, ?)", (ino, *place, source, encoded))
        self._found += 1
        return ino

    def _remember(self, path: str, found: int | str) -> None:
        if len(self._directories) >= _DIRECTORIES_CACHED:
            self._directories.clear()
        self._directories[path] = found

    def _take_number(self) -> int:
        self.next_ino += 1
        return self.next_ino - 1
