"""Takes new listings into the catalog: what is new, gone, rewritten, hidden.

A listing goes into scratch tables on disk and is compared in SQL, so memory does not grow with the
bucket, and readers see the old tree until the new one is complete. Each source of a mount is
listed and taken in by itself: one that fails keeps its old tree, and costs the others nothing.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.listing import SILENCE_S, list_in_parallel
from penstock.catalog.merge import Comparison
from penstock.catalog.sources import all_sources, covered_by_others, number_of
from penstock.catalog.staging import MOST_FILES, SCRATCH_SCHEMA, Incoming
from penstock.catalog.tree import Tree
from penstock.errors import CatalogDamaged, PenstockError, UsageError
from penstock.store import Store

Progress = Callable[[int, int], None]  # objects listed so far, and their bytes


@dataclass(frozen=True, slots=True)
class Mounted:
    """A store and where its tree begins; a mount is a list of these."""

    path: str  # "" for the root
    store: Store


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that could not be listed; what was known of it stays."""

    path: str
    error: PenstockError

    def __str__(self) -> str:
        return f"{self.path}: {self.error}" if self.path else str(self.error)


@dataclass(frozen=True, slots=True)
class Summary:
    files: int
    size_bytes: int
    changed: int
    hidden: int
    failures: tuple[Failure, ...] = ()


def numbered(tree: Tree, mounts: list[Mounted]) -> dict[int, Mounted]:
    """By the numbers that the catalog knows them by."""
    places = [(mounted.path, mounted.store.identity) for mounted in mounts]
    known = {(row.path, row.identity): row.number for row in tree.sources()}
    if not known.keys() >= set(places):
        with tree.writing() as database:
            known = {place: number_of(database, *place) for place in places}
    return {known[place]: mounted for place, mounted in zip(places, mounts, strict=True)}


def unlisted(tree: Tree, mounts: list[Mounted]) -> list[Mounted]:
    """Those that were never listed, or when other sources than now hid a part of them."""
    numbers = numbered(tree, mounts)
    paths = [mounted.path for mounted in mounts]
    rows = {row.number: row for row in tree.sources()}
    return [
        mounted
        for number, mounted in numbers.items()
        if rows[number].listed_at is None
        or rows[number].covered_paths != covered_by_others(mounted.path, paths)
    ]


def refresh(
    tree: Tree,
    mounts: list[Mounted],
    progress: Progress,
    *,
    only: Collection[Mounted] | None = None,
    most_files: int = MOST_FILES,
    silence_s: float = SILENCE_S,
    in_use: bool = False,
) -> Summary:
    """Makes the tree equal to what is found: sources that are not mounted any more are gone, new
    ones have their directories at once, and then every store, or `only` some, is listed. One at a
    time per catalog.

    A listing that fails, that repeats itself, that makes it more than `most_files` files and
    directories or says nothing for `silence_s` leaves what was there as it was. Of a mount of one
    source that is raised; of several the others go on. `in_use`: a kernel may know this tree, so
    that even its first listing is news. Raises CatalogDamaged before it lists anything, and
    once another catalog has taken the place of this one.
    """
    tree.verify()
    numbers = numbered(tree, mounts)
    tree.checkpoint()  # what readers have kept in the log until now
    database = tree.connection()
    paths = {number: mounted.path for number, mounted in numbers.items()}
    wanted = {n: one for n, one in numbers.items() if only is None or one in only}
    failures: list[Failure] = []
    listed = size_bytes = 0
    try:
        with _only_one(tree):
            changed = _arrange(tree, paths)
            for number, mounted in wanted.items():
                others = sum(row.files for row in all_sources(database) if row.number != number)
                with _scratch(database):
                    incoming = Incoming(database, paths, number, most_files, others)
                    try:
                        with closing(list_in_parallel(mounted.store, silence_s=silence_s)) as pages:
                            for page in pages:
                                tree.check_in_place()
                                incoming.add(page, mounted.store)
                                progress(listed + incoming.listed, size_bytes + incoming.size_bytes)
                    except CatalogDamaged:
                        raise
                    except PenstockError as error:
                        failures.append(Failure(mounted.path, error))
                        continue
                    incoming.settle()
                    changed += Comparison(tree, incoming, paths, in_use=in_use).apply()
                    listed += incoming.listed
                    size_bytes += incoming.size_bytes
    except sqlite3.Error as error:
        if (damage := tree.as_damage(error)) is not None:
            raise damage from error
        if not isinstance(error, sqlite3.OperationalError):
            raise
        raise UsageError(
            f"{tree.path}: {error}",
            hint="the catalog needs room there, and while it lists in /var/tmp (or where "
            "SQLITE_TMPDIR says)",
        ) from error
    if failures and len(mounts) == 1:
        raise failures[0].error
    files, size = tree.totals()
    hidden = sum(tree.hidden_counts().values())
    return Summary(files, size, changed, hidden, tuple(failures))


def _arrange(tree: Tree, paths: dict[int, str]) -> int:
    """Directories for what is mounted now, and nothing of what is not any more."""
    database = tree.connection()
    rows = all_sources(database)
    if {row.number for row in rows if row.present} == set(paths):
        return 0
    with _scratch(database):
        incoming = Incoming(database, paths, None, MOST_FILES)
        return Comparison(tree, incoming, paths, in_use=True).apply()


@contextmanager
def _scratch(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("ATTACH DATABASE '' AS scratch")  # '': a file that SQLite removes itself
    try:
        for table in SCRATCH_SCHEMA:
            database.execute(table)
        yield
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute("DETACH DATABASE scratch")


@contextmanager
def _only_one(tree: Tree) -> Iterator[None]:
    """Two mounts of one source share its catalog; their refreshes take turns."""
    descriptor = os.open(f"{tree.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def catalog_path(state: Path, digest: str) -> Path:
    return state / "catalogs" / f"{digest}.sqlite"
