"""Lists the sources of a mount and updates the catalog: new, gone, rewritten and hidden objects.

A listing is staged in scratch tables on disk and merged in SQL, so memory does not grow with the
bucket, and readers see the old tree until the new one is complete. Each source of a mount is listed
and merged by itself: one that fails keeps its old tree, and does not affect the others.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.listing import SILENCE_S, list_in_parallel
from penstock.catalog.merge import Merge
from penstock.catalog.sources import all_sources, covered_by_others, number_of
from penstock.catalog.staging import MOST_FILES, SCRATCH_SCHEMA, StagedListing
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
    """A source that could not be listed; its old tree stays."""

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
    """Return the sources by their numbers in the catalog."""
    places = [(mounted.path, mounted.store.identity) for mounted in mounts]
    known = {(row.path, row.identity): row.number for row in tree.sources()}
    if not known.keys() >= set(places):
        with tree.writing() as database:
            known = {place: number_of(database, *place) for place in places}
    return {known[place]: mounted for place, mounted in zip(places, mounts, strict=True)}


def unlisted(tree: Tree, mounts: list[Mounted]) -> list[Mounted]:
    """Return the sources that were never listed, or whose covered paths have changed since."""
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
    """List the stores, or `only` some of them, and make the tree equal to what is found.

    First removes sources that are not mounted any more and creates the directories of new ones.
    One refresh at a time per catalog.

    A listing that fails, repeats itself, has more than `most_files` files and directories, or makes
    no progress for `silence_s` leaves the tree of its source as it was. The error is raised if the
    mount has one source; else the other sources are still listed. `in_use`: a kernel may know this
    tree, so that even its first listing is recorded as changes. Raises CatalogDamaged before
    anything is listed, and once the catalog was replaced by another one.
    """
    tree.verify()
    numbers = numbered(tree, mounts)
    tree.checkpoint()  # pages that readers have kept in the log until now
    database = tree.connection()
    paths = {number: mounted.path for number, mounted in numbers.items()}
    wanted = {n: one for n, one in numbers.items() if only is None or one in only}
    failures: list[Failure] = []
    listed = size_bytes = 0
    try:
        with _locked(tree):
            changed = _update_mounted(tree, paths)
            for number, mounted in wanted.items():
                others = sum(row.files for row in all_sources(database) if row.number != number)
                with _scratch(database):
                    staged = StagedListing(database, paths, number, most_files, others)
                    try:
                        with closing(_stage(tree, staged, mounted.store, silence_s)) as pages:
                            for _ in pages:
                                progress(listed + staged.listed, size_bytes + staged.size_bytes)
                    except CatalogDamaged:
                        raise
                    except PenstockError as error:
                        failures.append(Failure(mounted.path, error))
                        continue
                    changed += Merge(tree, staged, paths, in_use=in_use).apply()
                    listed += staged.listed
                    size_bytes += staged.size_bytes
    except sqlite3.Error as error:
        if (damage := tree.as_damage(error)) is not None:
            raise damage from error
        if not isinstance(error, sqlite3.OperationalError):
            raise
        raise UsageError(
            f"{tree.path}: {error}",
            hint="the catalog needs space there, and during a listing in /var/tmp (or in "
            "SQLITE_TMPDIR)",
        ) from error
    if failures and len(mounts) == 1:
        raise failures[0].error
    files, size = tree.totals()
    hidden = sum(tree.hidden_counts().values())
    return Summary(files, size, changed, hidden, tuple(failures))


def _stage(
    tree: Tree, staged: StagedListing, store: Store, silence_s: float
) -> Generator[None, None, None]:
    """Stage a listing; yield after each page."""
    with closing(list_in_parallel(store, silence_s=silence_s)) as pages:
        for page in pages:
            tree.check_in_place()
            staged.add(page, store)
            yield
    staged.finish()


def _update_mounted(tree: Tree, paths: dict[int, str]) -> int:
    """Create the directories of new sources, and remove sources that are not mounted any more."""
    database = tree.connection()
    rows = all_sources(database)
    if {row.number for row in rows if row.present} == set(paths):
        return 0
    with _scratch(database):
        staged = StagedListing(database, paths, None, MOST_FILES)
        return Merge(tree, staged, paths, in_use=True).apply()


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
def _locked(tree: Tree) -> Iterator[None]:
    """Wait for the refresh of another mount that shares this catalog."""
    descriptor = os.open(f"{tree.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def catalog_path(state: Path, digest: str) -> Path:
    return state / "catalogs" / f"{digest}.sqlite"
