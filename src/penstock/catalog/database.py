"""The SQLite file of a catalog: connections, transactions, checkpoints, damage and repair.

A damaged catalog raises CatalogDamaged for every query: it never claims that a name does not exist,
and never lists a part of the names. `repair` replaces it with another one that has the undamaged
rows, with their numbers. That one is incomplete until its sources were listed: it finds the rows
that it has, and raises for every query whose answer must be complete.

Threading: any thread reads, each with a connection of its own (WAL: a refresh never blocks
readers). One thread at a time writes, in `writing`. Any thread may call `repair`, also while
another one lists or writes: that one gets CatalogDamaged.
"""

import fcntl
import logging
import os
import sqlite3
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.catalog.page_sums import (
    NO_STAMP,
    PageSums,
    Stamp,
    SumsFile,
    damaged_pages,
    read_log,
    set_new_stamp,
    stamp_of,
    sum_pages,
)
from penstock.catalog.salvage import rebuild
from penstock.catalog.schema import INCOMPLETE, SCHEMA_VERSION, SOURCES_SCHEMA, new_catalog
from penstock.catalog.sources import SourceRow, all_sources, has_tables
from penstock.errors import CatalogDamaged, PenstockError

log = logging.getLogger(__name__)

# How long a checkpoint waits for readers that still need the old pages. After that the new pages
# stay in the log until `checkpoint` is called again.
_CHECKPOINT_WAIT_MS = 2000
_OPEN_WAIT_S = 5.0
# The offset of the write version, followed by the read version: above 2 in the first, SQLite only
# reads a file; above 2 in the second, it does not even read it.
_WRITE_VERSION_AT = 18
# CPython 3.11 raises the second one where SQLite's message quotes a schema that is not UTF-8.
_Fault = sqlite3.Error | UnicodeDecodeError
_FAULTS = (sqlite3.Error, UnicodeDecodeError)

T = TypeVar("T")


class _Opened(NamedTuple):
    connection: sqlite3.Connection
    ino: int  # of the catalog's file: another file may have its name meanwhile


class CatalogDatabase:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only`: for a worker, whose server has the catalog open and writes it."""
        self.path = path
        self._local = threading.local()
        self._read_only = read_only
        self._sums_file = SumsFile(path)
        self._good_stamp: Stamp | None = None  # of the file when it was last known to be undamaged
        self._damage: tuple[Stamp, str] | None = None  # when it was last found damaged, and how
        self._complete_ino = 0  # of the file that is known to be complete
        self._sources: list[SourceRow] = []  # as last read: a repair must keep their numbers
        self._lock = threading.Lock()
        self._repairing = threading.Lock()
        self._file, self._file_ino = -1, 0
        self.found_damaged: CatalogDamaged | None = None  # when it was opened
        # Called by any thread whose query has met damage.
        self.on_damage: Callable[[], None] = lambda: None
        self.users_lock = -1
        if read_only:
            return
        self.found_damaged = self.repair()
        self.with_repair(self._create)
        self.with_repair(self.checkpoint)  # what a process that was killed has left in the log
        self.users_lock = self.with_repair(self._enter)

    def close(self) -> None:
        """Release the catalog. Connections of other threads close when those threads end."""
        self._close()
        os.close(self.users_lock)

    def sources(self) -> list[SourceRow]:
        """Return the stores that the catalog has ever held, also those no longer mounted."""
        rows = self._query("SELECT * FROM sources ORDER BY number")
        self._sources = list(map(SourceRow._make, rows))
        return self._sources

    # -- reading ------------------------------------------------------------------------

    def _query(
        self,
        statement: str,
        values: Sequence[object] = (),
        *,
        complete: bool = False,
        unless_found: bool = False,
    ) -> list[Any]:
        """Return the rows of a statement.

        `complete`: the answer would be wrong if the catalog lacked a row, so an incomplete catalog
        raises; with `unless_found` only if there is no row.
        """
        try:
            return self._ask(statement, values, complete=complete, unless_found=unless_found)
        except CatalogDamaged:
            self.on_damage()
            raise

    def _ask(
        self, statement: str, values: Sequence[object], *, complete: bool, unless_found: bool
    ) -> list[Any]:
        while True:
            opened = self._opened()
            is_sure = not complete or opened.ino == self._complete_ino
            run = opened.connection.execute
            try:
                if not is_sure and not unless_found:
                    self._check_complete(opened)
                rows = run(statement, values).fetchall()
                if not is_sure and not rows:
                    self._check_complete(opened)
                    rows = run(statement, values).fetchall()
            except _FAULTS as error:
                replaced = self._was_replaced(opened)
                self._close()  # a connection that has met damage is not used again
                if replaced:
                    continue
                raise self.as_damage(error) or error from error
            # After the query: so all rows were read before the file is checked.
            if self._is_undamaged(opened):
                return rows
            self._close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for several statements, on a complete catalog."""
        try:
            opened = self._opened()
            try:
                self._check_complete(opened)
                yield opened.connection
            except _FAULTS as error:
                raise self.as_damage(error) or error from error
            if not self._is_undamaged(opened):
                raise self._damaged("was rebuilt meanwhile")
        except CatalogDamaged:
            self.on_damage()
            raise

    def _is_undamaged(self, opened: _Opened) -> bool:
        """Return whether the file is as it was at the last checkpoint.

        False if another file has taken its place: the query must be repeated there. Raises
        CatalogDamaged.
        """
        now = self._stamp()
        if now.ino != opened.ino:
            return False
        if now == self._good_stamp:
            return True
        with self._sums_file.try_shared() as is_locked:
            if is_locked:  # else a checkpoint is under way, which compares all pages but the new
                self._compare()
        return True

    def _compare(self) -> None:
        """Raise CatalogDamaged unless the file is as it was at the last checkpoint.

        No checkpoint may run meanwhile.
        """
        stamp = self._sums_file.stamp()
        if stamp is None:
            return  # a checkpoint was killed: SQLite's own checks must do for now
        now = self._stamp()
        if stamp != now:
            if self._damage is not None and self._damage[0] == now:
                raise CatalogDamaged(self._damage[1])
            try:
                self._compare_pages()
            except CatalogDamaged as error:
                self._damage = now, str(error)  # every query asks again until the repair
                raise
        self._good_stamp = now

    def _stamp(self, take: Callable[[Path], Stamp] = stamp_of) -> Stamp:
        try:
            return take(self.path)
        except FileNotFoundError:
            raise self._damaged("is gone") from None

    def _compare_pages(self) -> None:
        sums = self._sums_file.read()
        if sums is not None and (wrong := damaged_pages(self._descriptor(), sums)):
            raise self._damaged_pages(wrong, sums)

    def verify(self) -> None:
        """Compare all pages with their checksums; raise CatalogDamaged.

        0.04 s for a million files.
        """
        with self._sums_file.shared():
            self._stamp()
            self._compare_pages()

    def _check_complete(self, opened: _Opened) -> None:
        found = opened.connection.execute("SELECT 1 FROM meta WHERE key = ?", (INCOMPLETE,))
        if found.fetchone() is not None:
            raise self._damaged("was damaged, and is being rebuilt from a listing")
        self._complete_ino = opened.ino

    def as_damage(self, error: _Fault) -> CatalogDamaged | None:
        """Return the error as CatalogDamaged; None if it does not mean damage."""
        return self._damaged(str(error)) if _is_damage(error) else None

    def _damaged(self, what: str) -> CatalogDamaged:
        return CatalogDamaged(f"catalog {self.path}: {what}")

    def _damaged_pages(self, wrong: set[int], sums: PageSums) -> CatalogDamaged:
        return self._damaged(f"{len(wrong):,} of its {len(sums.sums):,} pages are damaged")

    # -- connections --------------------------------------------------------------------

    def connection(self) -> sqlite3.Connection:
        return self._opened().connection

    def _opened(self) -> _Opened:
        found: _Opened | None = getattr(self._local, "opened", None)
        if found is None:
            # Locked, or the connection could combine this file with the log of another one.
            with self._sums_file.shared():
                found = self._local.opened = self._connect()
        return found

    def _close(self) -> None:
        """Close this thread's connection."""
        found: _Opened | None = getattr(self._local, "opened", None)
        if found is not None:
            found.connection.close()
            self._local.opened = None

    def check_in_place(self) -> None:
        """Raise CatalogDamaged if this thread's connection is to a file that was replaced."""
        if self._was_replaced(self._opened()):
            raise self._damaged("was rebuilt meanwhile")

    def _was_replaced(self, opened: _Opened) -> bool:
        return self.path.exists() and self._stamp().ino != opened.ino

    def _connect(self) -> _Opened:
        now = self._stamp()
        if now.size_bytes == 0 and self._existed():
            # SQLite would wait for all its readers, and then make a new database of it.
            raise self._damaged("is empty")
        try:
            return _Opened(_connect(self.path, read_only=self._read_only), now.ino)
        except _FAULTS as error:
            raise self.as_damage(error) or error from error

    def _descriptor(self) -> int:
        """Return a descriptor of the file itself, one for all threads.

        It is never closed while a connection uses that file: closing any descriptor of a file
        releases all locks that SQLite has on it.
        """
        with self._lock:
            if self._stamp().ino != self._file_ino:
                before, self._file = self._file, os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._file_ino = os.fstat(self._file).st_ino
                if before >= 0:
                    os.close(before)
            return self._file

    # -- writing ------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction.

        Raises CatalogDamaged if any part of the catalog is damaged: new rows must not be based on
        damaged ones.
        """
        opened = self._opened()
        with self._sums_file.shared():
            self.check_in_place()
            self._compare()
            run = opened.connection.execute
            run("BEGIN IMMEDIATE")
            try:
                yield opened.connection
                run("COMMIT")
            except BaseException:
                if opened.connection.in_transaction:
                    run("ROLLBACK")
                raise
        try:
            self.checkpoint()
        except CatalogDamaged:
            raise  # its sums say what is damaged, and what can be salvaged
        except BaseException:
            # The last process to close the catalog moves the log into the file: the sums would be
            # wrong then.
            with suppress(OSError):
                self._sums_file.clear()
            raise

    def checkpoint(self) -> None:
        """Move the log's pages into the file, and write its checksums.

        A reader that needs the log for longer leaves both as they are: see `is_checkpointed`.
        """
        opened = self._opened()
        with self._sums_file.exclusive():
            self.check_in_place()
            before, logged = self._sums_file.read(), read_log(self._beside("-wal"))
            if before is not None and logged is None:
                return
            self._compare()
            expected = None
            if before is not None and logged is not None:
                expected = logged.applied_to(before.sums)
            stamp = self._stamp()
            self._sums_file.clear()
            try:
                if _move_log(opened.connection):
                    self._write_sums(expected)
                elif before is not None and self._stamp() == stamp:
                    self._sums_file.write(before)  # nothing was moved
            except sqlite3.Error as error:
                raise self.as_damage(error) or error from error

    def is_checkpointed(self) -> bool:
        """Return whether all of the log is in the file. If not, call `checkpoint` again."""
        try:
            is_moved = self._beside("-wal").stat().st_size == 0
        except FileNotFoundError:
            is_moved = True
        return is_moved and self._sums_file.stamp() is not None

    def _write_sums(self, expected: "array[int] | None") -> None:
        """Write the file's sums. None if they are not known: then all of the file is checked."""
        connection = self.connection()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        # Before the sums are compared: the stamp reveals what others write from here on.
        stamp = self._stamp(set_new_stamp)
        if expected is None:
            _check_all(connection)
            expected = sum_pages(self._descriptor(), page_bytes)
        sums = PageSums(stamp, page_bytes, expected)
        if wrong := damaged_pages(self._descriptor(), sums):
            self._sums_file.write(sums._replace(stamp=NO_STAMP))
            raise self._damaged_pages(wrong, sums)
        self._sums_file.write(sums)
        self._good_stamp = stamp

    def _create(self) -> None:
        connection = self.connection()
        with self._sums_file.exclusive():
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise PenstockError(
                    f"{self.path}: a catalog of another Penstock (schema {version})",
                    hint="remove that file; it is rebuilt from the bucket",
                )
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {new_catalog(indexed=True)} COMMIT;")
            elif not has_tables(connection):
                connection.executescript(f"BEGIN IMMEDIATE; {SOURCES_SCHEMA} COMMIT;")

    def _enter(self) -> int:
        """Record that this process uses the catalog; return the lock that says so.

        The first process deletes dead nodes, which no kernel can hold any more.
        """
        descriptor = os.open(f"{self.path}.users", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            try:
                self._delete_dead_nodes()
            except BaseException:
                os.close(descriptor)
                raise
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def _delete_dead_nodes(self) -> None:
        with self.writing() as database:
            database.execute("DELETE FROM nodes WHERE dead = 1")
            database.execute("DELETE FROM changes")
            database.execute("DELETE FROM directories WHERE ino NOT IN (SELECT ino FROM nodes)")

    # -- repair -------------------------------------------------------------------------

    def with_repair(self, query: Callable[[], T]) -> T:
        """Return what `query` returns; if it finds the catalog damaged, repair that and retry.

        For a server that starts, which has no refresher yet to repair the catalog.
        """
        try:
            return query()
        except CatalogDamaged as error:
            log.debug("%s", error)
            self._close()
            self.found_damaged = self.repair(thorough=True) or self.found_damaged
            return query()

    def repair(self, *, thorough: bool = False) -> CatalogDamaged | None:
        """Replace a damaged catalog, which is kept beside the new one, and return the damage.

        Returns None if nothing is damaged, or if another process has done the repair. `thorough`:
        also check what the checksums cannot show, as SQLite has reported an error. The new catalog
        has all rows of undamaged pages, and is incomplete until its sources are listed.
        """
        with self._repairing:
            self._damage = None
            self._remove_left_overs()
            with self._sums_file.shared():
                damaged_ino = _ino_of(self.path)
                damage = self._find_damage(thorough=thorough)
            if damage is None or not self._replace(damaged_ino, damage):
                return None
        log.error(
            "%s; it is kept as %s, and rebuilt from a listing",
            damage,
            self._beside(".damaged").name,
        )
        return damage

    def _remove_left_overs(self) -> None:
        """Remove the files of processes that were killed during a repair."""
        for left in self.path.parent.glob(f"{self.path.name}.[0-9]*"):
            pid, _, _ = left.suffix[1:].partition("-")  # SQLite's journals have an ending
            if not Path(f"/proc/{pid}").exists():
                left.unlink(missing_ok=True)

    def _existed(self) -> bool:
        """Return whether there was a catalog here before."""
        return (
            self._file >= 0
            or self._beside(".users").exists()
            or self._sums_file.stamp() is not None
        )

    def _find_damage(self, *, thorough: bool) -> CatalogDamaged | None:
        """Return the damage, if any. Also creates the file if there never was one."""
        sums = self._sums_file.read()
        existed = self._existed()
        if not self.path.exists():
            if existed:
                return self._damaged("is gone")
            # Private, since it names every key. Created here, because SQLite gives its journals the
            # mode that the database has when they are made: a later chmod would miss those.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            if self._stamp().size_bytes == 0:
                # Numbers that were given out must not be given out again.
                return self._damaged("is empty") if existed else None
            if sums is not None:
                self._compare_pages()
            if thorough or sums is None:
                if os.pread(self._descriptor(), 2, _WRITE_VERSION_AT) not in (b"\1\1", b"\2\2"):
                    return self._damaged("its header is not of any release of SQLite")
                with closing(_connect(self.path, read_only=False)) as connection:
                    _check_all(connection)
        except CatalogDamaged as error:
            return error
        except _FAULTS as error:
            if (damage := self.as_damage(error)) is None:
                raise
            return damage
        return None

    def _replace(self, damaged_ino: int | None, damage: CatalogDamaged) -> bool:
        """Return False if another process has replaced the damaged file."""
        fresh = self._beside(f".{os.getpid()}")
        try:
            # A deleted file can still be read through a descriptor that is open.
            descriptor = self._descriptor() if damaged_ino is not None else self._file
            sums = rebuild(fresh, descriptor, self._sums_file.read(), self._sources, str(damage))
            with self._sums_file.exclusive():
                if _ino_of(self.path) != damaged_ino:
                    return False
                self._put_in_place(fresh, sums)
        finally:
            fresh.unlink(missing_ok=True)
        return True

    def _put_in_place(self, fresh: Path, sums: "array[int]") -> None:
        aside = self._beside(".damaged")
        if self.path.exists():
            aside.unlink(missing_ok=True)
            os.link(self.path, aside)
        for name in ("-wal", "-shm"):
            self._beside(name).unlink(missing_ok=True)
        self._sums_file.clear()
        os.replace(fresh, self.path)
        self._close()
        self._local.opened = self._connect()
        self._write_sums(sums)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a connection and read once: only then is the log opened too. Never creates the file."""
    address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    until_s = time.monotonic() + _OPEN_WAIT_S
    while True:
        try:
            return _connect_once(address, read_only=read_only)
        except sqlite3.OperationalError as error:
            # While another process opens or closes the catalog as the first or the last one, SQLite
            # does not wait, whatever timeout it has.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _connect_once(address: str, *, read_only: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # `checkpoint` does that
            # Else free pages would keep deleted rows, which `salvage` would believe.
            connection.execute("PRAGMA secure_delete = ON")
        # Each thread's own cache holds the upper levels; the kernel caches the rest. A mapping
        # would count a walk over a million files as our memory.
        connection.execute("PRAGMA cache_size = -256")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _ino_of(path: Path) -> int | None:
    return stamp_of(path).ino if path.exists() else None


def _move_log(connection: sqlite3.Connection) -> bool:
    """Move all of the log into the file; return False if a reader needs the log for longer."""
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute("PRAGMA busy_timeout = 60000")
    return not busy


def _check_all(connection: sqlite3.Connection) -> None:
    """Check a catalog whose checksums are not known. Raises sqlite3.DatabaseError.

    3 s for a million files.
    """
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        return  # it is still empty, or not a catalog of this release
    if not has_tables(connection):
        return
    found = dict(
        connection.execute(
            "SELECT source, count(*) FROM nodes WHERE dead = 0 AND size IS NOT NULL GROUP BY source"
        )
    )
    for row in all_sources(connection):
        if row.listed_at is not None and row.files != found.get(row.number, 0):
            raise sqlite3.DatabaseError(
                f"it has {found.get(row.number, 0):,} files, and {row.files:,} were listed"
            )


def _is_damage(error: _Fault) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # text that is not UTF-8, or an error that we raised
        return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
    if code == sqlite3.SQLITE_ERROR:
        # A table or a column is missing, or the header claims a later file format.
        return str(error).startswith(("no such ", "unsupported file format"))
    if code in (sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMSIZE):
        return False  # out of memory, or no space left
    return code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
    )
