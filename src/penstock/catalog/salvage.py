"""Rebuilds a damaged catalog from the rows on its undamaged pages.

The kernel and the readers of open files know files by their numbers. A number means the same file
for ever: its row changes only in `dead`, and in the source of a directory that belonged to none.
So a row on a page whose checksum is right is right, wherever in the file that page is, and its file
keeps its number. SQLite cannot find these rows, since the pages that lead to them may be damaged;
they are read here as the file format describes them.

Files whose rows are lost get new numbers from a listing: see CatalogDatabase.repair.
"""

import os
import sqlite3
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import xxhash

from penstock.catalog.page_sums import PageSums, sum_pages
from penstock.catalog.schema import CHANGES_FROM, INCOMPLETE, INDEXES, ROOT, new_catalog
from penstock.catalog.sources import SourceRow

_LEAF_OF_A_TABLE = 0x0D
_FIRST_PAGE_HEADER_BYTES = 100
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)

Value = int | bytes | None
# The row's number, and its columns.
Row = tuple[int, list[Value]]

# A rebuilt catalog numbers its nodes from the time in seconds times this. So its numbers are above
# all that the damaged one gave out, which cannot always be read: no listing has 16 million files a
# second.
_NUMBERS_PER_SECOND = 1 << 24
# The row of a number may be found twice, also as it was before the node died.
_INSERT = {
    "nodes": "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ino) DO UPDATE SET "
    "dead = max(dead, excluded.dead), source = max(source, excluded.source)",
    "directories": "INSERT INTO directories VALUES (?, ?) ON CONFLICT (ino) DO UPDATE SET "
    "path = max(path, excluded.path)",
    "sources": "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, 0, 0, NULL, '[]', '{}')",
}
_DELETE_WITHOUT_SOURCE = """
DELETE FROM nodes WHERE source >= 0 AND source NOT IN (SELECT number FROM sources);
"""
# A folder that cannot be found by its path gets another number, and its old row is deleted. Then
# processes that hold it get ESTALE; a dead row would be an empty folder. Its files stay readable.
_DELETE_WITHOUT_PATH = f"""
CREATE TEMP TABLE folders AS SELECT ino, parent FROM nodes
WHERE size IS NULL AND dead = 0 AND ino IN (SELECT ino FROM directories);
CREATE INDEX temp.folders_by_parent ON folders (parent);
DELETE FROM nodes WHERE size IS NULL AND dead = 0 AND ino NOT IN (
    WITH RECURSIVE found (ino) AS (
        VALUES ({ROOT}) UNION
        SELECT folders.ino FROM found JOIN folders ON folders.parent = found.ino
    )
    SELECT ino FROM found
);
"""
_MARK_OLDER_DEAD = """
UPDATE nodes SET dead = 1 WHERE dead = 0 AND ino NOT IN
(SELECT max(ino) FROM nodes WHERE dead = 0 GROUP BY parent, name);
"""


def rebuild(
    fresh: Path, descriptor: int, sums: PageSums | None, known: list[SourceRow], damage: str
) -> "array[int]":
    """Write a new catalog to `fresh`, incomplete until its sources are listed.

    Returns the checksums of its pages. `descriptor`: of the damaged file, or -1; `sums`: of its
    pages; `known`: sources whose numbers must stay.
    """
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh, isolation_level=None)) as new:
        # No process uses it yet: after a crash of the machine the rebuild starts over.
        new.executescript("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")
        new.execute("PRAGMA secure_delete = ON")  # as in `database`
        new.executescript(f"{new_catalog(indexed=False)} BEGIN;")
        if descriptor >= 0:
            for table, rows in _salvage(descriptor, sums):
                new.executemany(_INSERT[table], rows)
        new.executemany(_INSERT["sources"], [row[:4] for row in known])
        new.executescript(_DELETE_WITHOUT_SOURCE)
        try:
            new.executescript(INDEXES)
        except sqlite3.IntegrityError:  # two nodes of one name
            new.executescript(_MARK_OLDER_DEAD + INDEXES)
        new.executescript(_DELETE_WITHOUT_PATH)
        first = int(time.time()) * _NUMBERS_PER_SECOND
        new.execute("INSERT INTO sqlite_sequence VALUES ('changes', ?)", (first,))
        new.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [
                (INCOMPLETE, 1),
                ("next_ino", first),
                (CHANGES_FROM, first),
                ("damage", f"{time.strftime('%F %T')} {damage}"),
            ],
        )
        new.execute("PRAGMA journal_mode = WAL")
        (page_bytes,) = new.execute("PRAGMA page_size").fetchone()
    with open(fresh, "rb") as file:
        os.fsync(file.fileno())
        return sum_pages(file.fileno(), page_bytes)


class Salvaged(NamedTuple):
    """Rows of one page, to be inserted into a table of the new catalog."""

    table: str
    rows: list[tuple[object, ...]]


def _salvage(descriptor: int, sums: PageSums | None) -> Iterator[Salvaged]:
    """Yield rows page by page; none if the checksums are not known."""
    if sums is None:
        return
    for at, expected in enumerate(sums.sums):
        try:
            page = os.pread(descriptor, sums.page_bytes, at * sums.page_bytes)
        except OSError:
            continue  # the disk cannot read it
        if xxhash.xxh3_64_intdigest(page) == expected:
            rows = list(_rows(page, _FIRST_PAGE_HEADER_BYTES if at == 0 else 0))
            if salvaged := _of_table(rows):
                yield salvaged


def _of_table(rows: list[Row]) -> Salvaged | None:
    """Find the table of these rows by the number of its columns; see `schema`.

    A column that is the row's number is stored as NULL.
    """
    columns = {len(values) for _, values in rows}
    if len(columns) != 1 or any(values[0] is not None for _, values in rows):
        return None
    match columns.pop():
        case 8:
            return Salvaged("nodes", [(ino, *v[1:6], _text(v[6]), v[7]) for ino, v in rows])
        case 2:
            return Salvaged("directories", [(ino, path) for ino, (_, path) in rows])
        case 9:
            return Salvaged("sources", [(n, _text(v[1]), _text(v[2]), v[3]) for n, v in rows])
        case _:
            return None


def _text(value: Value) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _rows(page: bytes, start: int) -> Iterator[Row]:
    if page[start] != _LEAF_OF_A_TABLE:
        return
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    for at in range(start + 8, start + 8 + 2 * cells, 2):
        position = int.from_bytes(page[at : at + 2], "big")
        length, position = _varint(page, position)
        number, position = _varint(page, position)
        # A longer row continues on other pages. Names never do; of paths only the longest.
        if length <= len(page) - 35:
            yield number, _columns(page[position : position + length])


def _columns(record: bytes) -> list[Value]:
    header_bytes, at = _varint(record, 0)
    kinds: list[int] = []
    while at < header_bytes:
        kind = record[at]
        at += 1
        if kind >= 0x80:  # a value of more than 57 bytes
            kind, at = _varint(record, at - 1)
        kinds.append(kind)
    values: list[Value] = []
    for kind in kinds:
        value: Value
        if kind >= 12:  # bytes if even, text if odd
            length = (kind - 12) // 2
            value = record[at : at + length]
        elif 1 <= kind <= 6:
            length = _INTEGER_BYTES[kind]
            value = int.from_bytes(record[at : at + length], "big", signed=True)
        else:  # 8 and 9 are the numbers 0 and 1; 7 is a float, which no column that we keep has
            length = 8 if kind == 7 else 0
            value = kind - 8 if kind in (8, 9) else None
        values.append(value)
        at += length
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the offset behind it."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1
