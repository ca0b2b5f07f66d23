"""The sources of a catalog: the stores whose objects it holds, each with a number of its own.

A number is never given to another store. A node names its store by that number, and the kernel may
hold the node for days: so a source that is mounted at the same path and has the same data keeps its
number while others come and go.

Threading: any thread may read, with its own connection; numbers are given out in a transaction,
since two processes may prepare to serve one catalog.
"""

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.catalog.names import why_no_name
from penstock.errors import OptionError


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


def has_tables(database: sqlite3.Connection) -> bool:
    """Return False for a catalog from before a mount could have several sources."""
    found = database.execute(
        "SELECT count(*) FROM sqlite_master WHERE name IN ('sources', 'hidden_of')"
    ).fetchone()
    return found[0] == 2


def all_sources(database: sqlite3.Connection) -> list[SourceRow]:
    rows = database.execute(
        "SELECT number, path, identity, present, files, bytes, listed_at, covered, hidden "
        "FROM sources ORDER BY number"
    )
    return list(map(SourceRow._make, rows))


def number_of(database: sqlite3.Connection, path: str, identity: str) -> int:
    """Return the number of the store mounted at `path`: its old one or a new one.

    Call it in a transaction.
    """
    place = path, identity
    found = "SELECT number FROM sources WHERE path = ? AND identity = ?"
    if (row := database.execute(found, place).fetchone()) is not None:
        return row[0]
    (number,) = database.execute("SELECT coalesce(max(number) + 1, 0) FROM sources").fetchone()
    database.execute(
        "INSERT INTO sources VALUES (?, ?, ?, 0, 0, 0, NULL, '[]', '{}')", (number, *place)
    )
    if number == 0:
        _migrate_single_source(database)
    return number


def _migrate_single_source(database: sqlite3.Connection) -> None:
    """Migrate a catalog from before: it had one store, at the root, with the number 0."""
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


# -- which source a path belongs to --------------------------------------------------------
#
# Paths are below the mount point, without slashes at their ends; "" is the mount point. Of two
# nested sources the deeper one owns what is below its path, and hides what the other has there.

NOBODY = -1


def check_paths(paths: list[str]) -> None:
    for path in paths:
        for name in path.split("/") if path else []:
            if why := why_no_name(name):
                raise OptionError(f"{path!r} is not a path below a mount point: {why}")
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        raise OptionError(f"two sources have the same path: {twice[0] or '/'!r}")


def owner_of(path: str, numbers: Mapping[str, int]) -> tuple[int, str]:
    """Return the number of the source that a directory belongs to, and its path inside it."""
    above = path
    while above not in numbers:
        if not above:
            return NOBODY, ""
        above = above.rpartition("/")[0]
    return numbers[above], path[len(above) :].lstrip("/")


def covered_by_others(path: str, others: list[str]) -> list[str]:
    """Return which of the other sources are mounted below `path`, as paths inside it."""
    start = f"{path}/" if path else ""
    return sorted(
        other[len(start) :] for other in others if other != path and other.startswith(start)
    )
