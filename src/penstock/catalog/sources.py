"""The stores whose objects a catalog holds, each with a number that is never given to another.

A node says which store it is of by that number, and the kernel may hold the node for days: so what
is mounted at the same path and is the same data keeps its number while others come and go.

Threading: any thread may read, with the connection of its own that it hands in; numbers are given
in a transaction, since two processes may prepare to serve one catalog.
"""

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sources (
    number INTEGER PRIMARY KEY,
    path TEXT NOT NULL,           -- where its tree begins; '' for the root
    identity TEXT NOT NULL,
    present INTEGER NOT NULL,     -- is it in the tree, if only as an empty directory?
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    listed_at REAL,               -- NULL: never
    covered TEXT NOT NULL,        -- JSON: paths of its own that other sources hid at that time
    hidden TEXT NOT NULL,         -- JSON: how many of its objects are hidden for each reason
    UNIQUE (path, identity)
);
CREATE TABLE IF NOT EXISTS hidden_of (
    source INTEGER NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL
);
"""


class SourceRow(NamedTuple):
    number: int
    path: str
    identity: str
    present: int
    files: int
    size_bytes: int
    listed_at: float | None
    covered: str
    hidden: str

    @property
    def covered_paths(self) -> list[str]:
        return json.loads(self.covered)

    @property
    def hidden_counts(self) -> dict[str, int]:
        return json.loads(self.hidden)


def make_tables(database: sqlite3.Connection) -> None:
    found = database.execute(
        "SELECT count(*) FROM sqlite_master WHERE name IN ('sources', 'hidden_of')"
    ).fetchone()
    if found[0] < 2:  # a catalog from before a mount could have several
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")


def all_sources(database: sqlite3.Connection) -> list[SourceRow]:
    return list(map(SourceRow._make, database.execute("SELECT * FROM sources ORDER BY number")))


def number_of(database: sqlite3.Connection, path: str, identity: str) -> int:
    """The number of what is mounted there: the one that it has, or a new one."""
    what = path, identity
    found = "SELECT number FROM sources WHERE path = ? AND identity = ?"
    if (row := database.execute(found, what).fetchone()) is not None:
        return row[0]
    database.execute("BEGIN IMMEDIATE")
    try:
        if (row := database.execute(found, what).fetchone()) is None:
            row = database.execute("SELECT coalesce(max(number) + 1, 0) FROM sources").fetchone()
            database.execute(
                "INSERT INTO sources VALUES (?, ?, ?, 0, 0, 0, NULL, '[]', '{}')", (row[0], *what)
            )
            if row[0] == 0:
                _take_over_what_was_listed(database)
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise
    return row[0]


def _take_over_what_was_listed(database: sqlite3.Connection) -> None:
    """Of a catalog from before: there was one store, at the root, and it had this number."""
    run = database.execute
    meta = dict(run("SELECT key, value FROM meta").fetchall())
    if "listed_at" not in meta:
        return
    run("INSERT INTO hidden_of SELECT 0, key, reason FROM hidden")
    run(
        "UPDATE sources SET present = 1, files = ?, bytes = ?, listed_at = ?, hidden = ? "
        "WHERE number = 0",
        (meta["files"], meta["bytes"], meta["listed_at"], meta.get("hidden_counts", "{}")),
    )


def note_present(database: sqlite3.Connection, present: Iterable[int], gone: Iterable[int]) -> None:
    database.executemany(
        "UPDATE sources SET present = 1 WHERE number = ?", [(number,) for number in present]
    )
    for number in gone:
        database.execute(
            "UPDATE sources SET present = 0, files = 0, bytes = 0, listed_at = NULL, "
            "covered = '[]', hidden = '{}' WHERE number = ?",
            (number,),
        )
        database.execute("DELETE FROM hidden_of WHERE source = ?", (number,))


def note_totals(database: sqlite3.Connection, number: int, files: int, size_bytes: int) -> None:
    database.execute(
        "UPDATE sources SET files = ?, bytes = ? WHERE number = ?", (files, size_bytes, number)
    )


def note_listed(
    database: sqlite3.Connection, number: int, covered: list[str], hidden: dict[str, int]
) -> None:
    database.execute(
        "UPDATE sources SET listed_at = ?, covered = ?, hidden = ? WHERE number = ?",
        (time.time(), json.dumps(covered), json.dumps(hidden), number),
    )
