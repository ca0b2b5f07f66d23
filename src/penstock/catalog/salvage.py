"""What the undamaged pages of a damaged catalog still say, for the one that takes its place.

The kernel and those who have files open know them by their numbers. A number means the same file
for ever: its row never changes but for `dead`, and for the source of a directory that was nobody's.
So a row on a page whose sum is right is right, wherever in the file that page is, and its file
keeps its number. SQLite cannot be asked for these rows, since the pages that lead to them may be
damaged; they are read as the file format describes them.

Rows that are lost get new numbers from a listing: see Tree.renew.
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

from penstock.catalog.page_sums import Sealed, page_sums
from penstock.catalog.schema import CHANGES_FROM, INCOMPLETE, INDEXES, ROOT, new_catalog
from penstock.catalog.sources import SourceRow

_LEAF_OF_A_TABLE = 0x0D
_FIRST_PAGE_HEADER_BYTES = 100
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)

Value = int | bytes | None
# The row's number, and its columns.
Row = tuple[int, list[Value]]

# A catalog that is made anew numbers from here on, and so above all that was ever given out by the
# one before it, which cannot always be asked: nobody lists 16 million files a second.
_NUMBERS_A_SECOND = 1 << 24
# A number's row may be found twice, also as it was before it died; the later one of a name counts.
_TAKE_IN = {
    "nodes": "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ino) DO UPDATE SET "
    "dead = max(dead, excluded.dead), source = max(source, excluded.source)",
    "directories": "INSERT INTO directories VALUES (?, ?) ON CONFLICT (ino) DO UPDATE SET "
    "path = max(path, excluded.path)",
    "sources": "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, 0, 0, NULL, '[]', '{}')",
}
_FORGET_WITHOUT_SOURCE = """
DELETE FROM nodes WHERE source >= 0 AND source NOT IN (SELECT number FROM sources);
"""
# A folder that cannot be found by its path gets another number. Who holds the old one is told that
# it is stale: as one that is merely dead it would be an empty folder. Its files can still be read.
_FORGET_WITHOUT_PATH = f"""
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
_BURY_OLDER = """
UPDATE nodes SET dead = 1 WHERE dead = 0 AND ino NOT IN
(SELECT max(ino) FROM nodes WHERE dead = 0 GROUP BY parent, name);
"""


def make_anew(
    fresh: Path, descriptor: int, sealed: Sealed | None, known: list[SourceRow], what: str
) -> "array[int]":
    """Writes a new catalog, incomplete until its sources are listed, and returns the sums of its
    pages. `descriptor`: of the damaged one, or -1; `known`: sources whose numbers must stay;
    `what`: the damage."""
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh, isolation_level=None)) as new:
        # Nobody has it yet: what is lost with the machine is begun again.
        new.executescript("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")
        new.execute("PRAGMA secure_delete = ON")  # as in `tree`
        new.executescript(f"{new_catalog(indexed=False)} BEGIN;")
        if descriptor >= 0:
            for table, rows in _salvage(descriptor, sealed):
                new.executemany(_TAKE_IN[table], rows)
        new.executemany(_TAKE_IN["sources"], [row[:4] for row in known])
        new.executescript(_FORGET_WITHOUT_SOURCE)
        try:
            new.executescript(INDEXES)
        except sqlite3.IntegrityError:  # two of one name
            new.executescript(_BURY_OLDER + INDEXES)
        new.executescript(_FORGET_WITHOUT_PATH)
        first = int(time.time()) * _NUMBERS_A_SECOND
        new.execute("INSERT INTO sqlite_sequence VALUES ('changes', ?)", (first,))
        new.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [
                (INCOMPLETE, 1),
                ("next_ino", first),
                (CHANGES_FROM, first),
                ("damage", f"{time.strftime('%F %T')} {what}"),
            ],
        )
        new.execute("PRAGMA journal_mode = WAL")
        (page_bytes,) = new.execute("PRAGMA page_size").fetchone()
    with open(fresh, "rb") as file:
        os.fsync(file.fileno())
        return page_sums(file.fileno(), page_bytes)


class Salvaged(NamedTuple):
    """Rows of one page, to be put into a table of a new catalog."""

    table: str
    rows: list[tuple[object, ...]]


def _salvage(descriptor: int, sealed: Sealed | None) -> Iterator[Salvaged]:
    """Page by page. Nothing of a catalog whose sums are not known: nothing of it is sure."""
    if sealed is None:
        return
    for at, expected in enumerate(sealed.sums):
        try:
            page = os.pread(descriptor, sealed.page_bytes, at * sealed.page_bytes)
        except OSError:
            continue  # the disk does not give it
        if xxhash.xxh3_64_intdigest(page) == expected:
            rows = list(_rows(page, _FIRST_PAGE_HEADER_BYTES if at == 0 else 0))
            if salvaged := _of_table(rows):
                yield salvaged


def _of_table(rows: list[Row]) -> Salvaged | None:
    """Tables are told apart by how many columns they have; see `schema` and `sources`.
    Those that have the row's number as a column have NULL in its place."""
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
        # Longer ones go on in other pages. Names never do; of paths only the longest.
        if length <= len(page) - 35:
            yield number, _columns(page[position : position + length])


def _columns(record: bytes) -> list[Value]:
    header_bytes, at = _varint(record, 0)
    kinds: list[int] = []
    while at < header_bytes:
        kind = record[at]
        at += 1
        if kind >= 0x80:  # of what is longer than 57 bytes
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
        else:  # 8 and 9 are the numbers 0 and 1; 7 is a float, which no column that we keep is
            length = 8 if kind == 7 else 0
            value = kind - 8 if kind in (8, 9) else None
        values.append(value)
        at += length
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1
