"""The catalog on disk: inodes, names, and what is hidden.

A node's number is its row, and the kernel's inode number: nothing is kept in memory for the
inodes the kernel holds, so a million of them cost nothing. Numbers are never used again, and
a rewritten object gets a new one, so pages of two versions cannot meet in one inode.

A catalog that is damaged raises CatalogDamaged, whatever is asked of it: it never says that a name
is not there, and never lists a part of the names. `repair` puts another in its place, which has the
rows that are not damaged, with their numbers. That one is incomplete until its sources were listed:
it says which file a number is and finds the names that it has; whatever must be complete raises.

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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.catalog import sources
from penstock.catalog.names import decode
from penstock.catalog.page_sums import (
    NO_STAMP,
    Seal,
    Sealed,
    Stamp,
    damaged_pages,
    new_stamp,
    page_sums,
    read_log,
    stamp_of,
)
from penstock.catalog.salvage import make_anew
from penstock.catalog.schema import CHANGES_FROM, INCOMPLETE, SCHEMA_VERSION, new_catalog
from penstock.catalog.schema import ROOT as ROOT
from penstock.catalog.sources import SourceRow
from penstock.errors import CatalogDamaged, PenstockError, StaleInode

log = logging.getLogger(__name__)

_INOS_A_QUESTION = 512
# How long the log's pages wait for readers who still need the old ones. Else they stay in the log
# until `seal` is called again.
_CHECKPOINT_WAIT_MS = 2000
_OPENS_WITHIN_S = 5.0
# Above 2 SQLite only reads a file, above 2 in the next byte it does not even that.
_WRITE_VERSION_AT = 18
_COLUMNS = "ino, parent, name, source, size, mtime, version, dead"
# CPython 3.11 raises the second one where SQLite's message quotes a schema that is not UTF-8.
_Fault = sqlite3.Error | UnicodeDecodeError
_FAULTS = (sqlite3.Error, UnicodeDecodeError)


T = TypeVar("T")


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
    buried: int


class _Opened(NamedTuple):
    connection: sqlite3.Connection
    ino: int  # of the catalog's file: another may have its name meanwhile


class Tree:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only`: for a worker, whose server has it open and keeps it."""
        self.path = path
        self._local = threading.local()
        self._read_only = read_only
        self._seal = Seal(path)
        self._sealed_as: Stamp | None = None  # of the file when it was last known to be good
        self._damaged_as: tuple[Stamp, str] | None = None  # when it was last found damaged, and how
        self._complete_ino = 0  # of the file that is known to be complete
        self._sources: list[SourceRow] = []  # as they were last seen: their numbers must not change
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._file, self._file_ino = -1, 0
        self.found_damaged: CatalogDamaged | None = None  # when it was opened
        # Called by any thread that has asked something and met damage.
        self.on_damage: Callable[[], None] = lambda: None
        self.users_lock = -1
        if read_only:
            return
        self.found_damaged = self.repair()
        self.with_repair(self._create)
        self.with_repair(self.checkpoint)  # what a process that was killed has left in the log
        self.users_lock = self.with_repair(self._enter)

    # -- lookups ------------------------------------------------------------------------

    def node(self, ino: int) -> Node:
        rows = self._query(f"SELECT {_COLUMNS} FROM nodes WHERE ino = ?", (ino,))
        if not rows:
            raise StaleInode(f"inode {ino} is not in the catalog any more")
        return Node._make(rows[0])

    def nodes(self, inos: Sequence[int]) -> dict[int, Node]:
        """Those of them that are in the catalog, the dead included."""
        found: dict[int, Node] = {}
        for first in range(0, len(inos), _INOS_A_QUESTION):
            some = list(inos[first : first + _INOS_A_QUESTION])
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
            self.node(parent)  # or it is a folder that we know nothing of
            return None
        return Node._make(rows[0])

    def lookup_many(self, names: Sequence[tuple[int, bytes]]) -> list[Node]:
        """Those of these (parent, name) that are there. One statement: each by itself lets go of
        the interpreter's lock three times, and a hundred threads wait for it."""
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
        """By name, from behind the child numbered `after` (0: from the start).

        The number alone finds the place again, so a listing needs no state here, and goes on
        rightly when entries come and go in between.
        """
        name = b"" if after == 0 else self.node(after).name
        rows = self._query(
            f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name > ? AND dead = 0 "
            "ORDER BY name LIMIT ?",
            (parent, name, limit),
            complete=True,
        )
        if not rows:
            self.node(parent)  # or it is a folder that we know nothing of
        return [Node._make(row) for row in rows]

    def directory_path(self, ino: int) -> str:
        """A directory's path inside its store: what its files' keys begin with."""
        rows = self._query("SELECT path FROM directories WHERE ino = ?", (ino,))
        if not rows:
            raise StaleInode(f"directory {ino} is not in the catalog any more")
        return decode(rows[0][0])

    def files_numbered(self, parent: int, after: int, up_to: int) -> list[Node]:
        """The files of a folder whose numbers lie in (after, up_to]."""
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

    # -- the whole ----------------------------------------------------------------------

    def totals(self) -> tuple[int, int]:
        """(files, bytes) of the last listing."""
        return self._meta("files", 0), self._meta("bytes", 0)

    def listed_at(self) -> float | None:
        """When the last complete listing was taken in; None before the first."""
        return self._meta("listed_at", None)

    def damage(self) -> str | None:
        """When and why it was made anew last, if it ever was."""
        return self._meta("damage", None)

    def is_complete(self) -> bool:
        """Not while it is being made anew."""
        return not self._meta(INCOMPLETE, 0)

    def sources(self) -> list[SourceRow]:
        """The stores that it has ever held, also those that are not mounted any more."""
        rows = self._query("SELECT * FROM sources ORDER BY number")
        self._sources = list(map(SourceRow._make, rows))
        return self._sources

    def hidden(self, limit: int) -> list[tuple[str, str]]:
        """(key, reason) of the hidden; of very many, only the first are kept by name."""
        return self._query("SELECT key, reason FROM hidden_of ORDER BY key LIMIT ?", (limit,))

    def hidden_counts(self) -> dict[str, int]:
        """How many objects are hidden for each reason, those included that are not listed."""
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
        """Whoever has not seen this change may have missed others: they went with a catalog that
        was damaged."""
        return self._meta(CHANGES_FROM, 0)

    def names_after(self, ino: int, limit: int) -> list[tuple[int, int, bytes]]:
        """(its number, that of its folder, its name) of the next in the order of their numbers."""
        return self._query(
            "SELECT ino, parent, name FROM nodes WHERE dead = 0 AND ino > ? ORDER BY ino LIMIT ?",
            (max(ino, ROOT), limit),
            complete=True,
        )

    def last_change(self) -> int:
        return self._query("SELECT max(seq) FROM changes")[0][0] or 0

    def change_number(self) -> int:
        """Grows with every change, also when those that everybody knows of are cleared away."""
        rows = self._query("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")
        return rows[0][0] if rows else 0

    def _meta(self, key: str, default: Any) -> Any:
        rows = self._query("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else default

    # -- reading ------------------------------------------------------------------------

    def _query(
        self,
        statement: str,
        values: Sequence[object] = (),
        *,
        complete: bool = False,
        unless_found: bool = False,
    ) -> list[Any]:
        """`complete`: the answer would be wrong if the catalog lacked a row; `unless_found`: only
        if there is none."""
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
                self._close()  # what has met damage is not used again
                if replaced:
                    continue
                raise self.as_damage(error) or error from error
            # Afterwards: all that was read was there before this look at the file.
            if self._is_good(opened):
                return rows
            self._close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For several statements, on all of the catalog."""
        try:
            opened = self._opened()
            try:
                self._check_complete(opened)
                yield opened.connection
            except _FAULTS as error:
                raise self.as_damage(error) or error from error
            if not self._is_good(opened):
                raise self._damaged("was made anew meanwhile")
        except CatalogDamaged:
            self.on_damage()
            raise

    def _is_good(self, opened: _Opened) -> bool:
        """Is the file what was sealed? False if another has taken its place, which has to be asked
        instead. Raises CatalogDamaged."""
        now = self._stamp()
        if now.ino != opened.ino:
            return False
        if now == self._sealed_as:
            return True
        with self._seal.shared_at_once() as is_still:
            if is_still:  # or it is being sealed: whoever does that looks at all that is not new
                self._compare()
        return True

    def _compare(self) -> None:
        """Raises CatalogDamaged unless the file is as it was sealed. Nobody may seal meanwhile."""
        sealed_as = self._seal.stamp()
        if sealed_as is None:
            return  # someone was killed while he sealed it: SQLite's own checks must do for now
        now = self._stamp()
        if sealed_as != now:
            if self._damaged_as is not None and self._damaged_as[0] == now:
                raise CatalogDamaged(self._damaged_as[1])
            try:
                self._compare_pages()
            except CatalogDamaged as error:
                self._damaged_as = now, str(error)  # everybody asks again until it is made anew
                raise
        self._sealed_as = now

    def _stamp(self, look: Callable[[Path], Stamp] = stamp_of) -> Stamp:
        try:
            return look(self.path)
        except FileNotFoundError:
            raise self._damaged("is gone") from None

    def _compare_pages(self) -> None:
        sealed = self._seal.read()
        if sealed is not None and (wrong := damaged_pages(self._descriptor(), sealed)):
            raise self._damaged_pages(wrong, sealed)

    def verify(self) -> None:
        """Compares all of it with its checksums; raises CatalogDamaged. 0.04 s for a million
        files."""
        with self._seal.shared():
            self._stamp()
            self._compare_pages()

    def _check_complete(self, opened: _Opened) -> None:
        found = opened.connection.execute("SELECT 1 FROM meta WHERE key = ?", (INCOMPLETE,))
        if found.fetchone() is not None:
            raise self._damaged("was damaged, and is being made anew from a listing")
        self._complete_ino = opened.ino

    def as_damage(self, error: _Fault) -> CatalogDamaged | None:
        """None if it is another error."""
        return self._damaged(str(error)) if _is_damage(error) else None

    def _damaged(self, what: str) -> CatalogDamaged:
        return CatalogDamaged(f"catalog {self.path}: {what}")

    def _damaged_pages(self, wrong: set[int], sealed: Sealed) -> CatalogDamaged:
        return self._damaged(f"{len(wrong):,} of its {len(sealed.sums):,} pages are damaged")

    # -- connections --------------------------------------------------------------------

    def connection(self) -> sqlite3.Connection:
        return self._opened().connection

    def _opened(self) -> _Opened:
        found: _Opened | None = getattr(self._local, "opened", None)
        if found is None:
            with self._seal.shared():  # or it could be joined to the log of another file
                found = self._local.opened = self._connect()
        return found

    def _close(self) -> None:
        """This thread's connection."""
        found: _Opened | None = getattr(self._local, "opened", None)
        if found is not None:
            found.connection.close()
            self._local.opened = None

    def check_in_place(self) -> None:
        """Raises CatalogDamaged if this thread's connection is to one that was replaced."""
        if self._was_replaced(self._opened()):
            raise self._damaged("was made anew meanwhile")

    def _was_replaced(self, opened: _Opened) -> bool:
        return self.path.exists() and self._stamp().ino != opened.ino

    def _connect(self) -> _Opened:
        now = self._stamp()
        if now.size_bytes == 0 and self._was_there():
            # SQLite would wait for all who read it, to make a new database of it.
            raise self._damaged("is empty")
        try:
            return _Opened(_connect(self.path, read_only=self._read_only), now.ino)
        except _FAULTS as error:
            raise self.as_damage(error) or error from error

    def _descriptor(self) -> int:
        """Of the file itself. One for all threads, and never closed while a connection uses that
        file: closing any descriptor of a file lets go of all locks that SQLite has on it."""
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
        """A transaction. Raises CatalogDamaged if the catalog is not what it was, in whatever part:
        what is damaged must not become the base of what is new."""
        opened = self._opened()
        with self._seal.shared():
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
            # Whoever closes the catalog last moves the log into the file: no sums for that.
            with suppress(OSError):
                self._seal.open()
            raise

    def checkpoint(self) -> None:
        """Moves what is in the log into the file, and notes its checksums. A reader who needs the
        log for longer leaves both as they are: see `is_checkpointed`."""
        opened = self._opened()
        with self._seal.alone():
            self.check_in_place()
            before, logged = self._seal.read(), read_log(self._beside("-wal"))
            if before is not None and logged is None:
                return
            self._compare()
            known = None
            if before is not None and logged is not None:
                known = logged.after(before.sums)
            stamp = self._stamp()
            self._seal.open()
            try:
                if _move_log(opened.connection):
                    self._note_sums(known)
                elif before is not None and self._stamp() == stamp:
                    self._seal.write(before)  # nothing was moved
            except sqlite3.Error as error:
                raise self.as_damage(error) or error from error

    def is_checkpointed(self) -> bool:
        """Whether the file has all that the log had. If not, `seal` has to be called again."""
        try:
            is_moved = self._beside("-wal").stat().st_size == 0
        except FileNotFoundError:
            is_moved = True
        return is_moved and self._seal.stamp() is not None

    def _note_sums(self, sums: "array[int] | None") -> None:
        """`sums`: what they must be; None if that is not known, and all of it is to be checked."""
        connection = self.connection()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        # First: what others write from here on is found by it.
        stamp = self._stamp(new_stamp)
        if sums is None:
            _check_all(connection)
            sums = page_sums(self._descriptor(), page_bytes)
        sealed = Sealed(stamp, page_bytes, sums)
        if wrong := damaged_pages(self._descriptor(), sealed):
            self._seal.write(sealed._replace(stamp=NO_STAMP))
            raise self._damaged_pages(wrong, sealed)
        self._seal.write(sealed)
        self._sealed_as = stamp

    def _create(self) -> None:
        connection = self.connection()
        with self._seal.alone():
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                raise PenstockError(
                    f"{self.path}: a catalog of another Penstock (schema {version})",
                    hint="remove that file; it is built again from the bucket",
                )
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {new_catalog(indexed=True)} COMMIT;")
            elif not sources.has_tables(connection):
                connection.executescript(f"BEGIN IMMEDIATE; {sources.SCHEMA} COMMIT;")

    def _enter(self) -> int:
        """Notes that this process uses the catalog. The first one clears away dead nodes, which
        no kernel can hold any more."""
        descriptor = os.open(f"{self.path}.users", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            try:
                self._clear_away()
            except BaseException:
                os.close(descriptor)
                raise
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def _clear_away(self) -> None:
        with self.writing() as database:
            database.execute("DELETE FROM nodes WHERE dead = 1")
            database.execute("DELETE FROM changes")
            database.execute("DELETE FROM directories WHERE ino NOT IN (SELECT ino FROM nodes)")

    def close(self) -> None:
        os.close(self.users_lock)

    # -- damage -------------------------------------------------------------------------

    def with_repair(self, question: Callable[[], T]) -> T:
        """Return what `question` returns. A catalog that it finds damaged is made anew, and asked
        again: for a server that starts, which has no refresher yet to do that."""
        try:
            return question()
        except CatalogDamaged as error:
            log.debug("%s", error)
            self._close()
            self.found_damaged = self.repair(thorough=True) or self.found_damaged
            return question()

    def repair(self, *, thorough: bool = False) -> CatalogDamaged | None:
        """Puts another catalog in the place of a damaged one, which is kept beside it. Returns what
        was wrong; None if nothing is, or if another process has done it. `thorough`: also where
        the checksums are right, as SQLite has found fault with it.

        The new one has all rows of undamaged pages, and is incomplete until its sources are listed.
        """
        with self._renewing:
            self._damaged_as = None
            self._remove_left_overs()
            with self._seal.shared():
                damaged = _number_of(self.path)
                damage = self._find_damage(thorough=thorough)
            if damage is None or not self._replace(damaged, damage):
                return None
        log.error(
            "%s; it is kept as %s, and made anew from a listing",
            damage,
            self._beside(".damaged").name,
        )
        return damage

    def _remove_left_overs(self) -> None:
        """Of processes that were killed while they made another catalog."""
        for left in self.path.parent.glob(f"{self.path.name}.[0-9]*"):
            pid, _, _ = left.suffix[1:].partition("-")  # of SQLite's journals
            if not Path(f"/proc/{pid}").exists():
                left.unlink(missing_ok=True)

    def _was_there(self) -> bool:
        """Has there been a catalog here before?"""
        return self._file >= 0 or self._beside(".users").exists() or self._seal.stamp() is not None

    def _find_damage(self, *, thorough: bool) -> CatalogDamaged | None:
        """Also creates the file if there never was one."""
        sealed = self._seal.read()
        was_there = self._was_there()
        if not self.path.exists():
            if was_there:
                return self._damaged("is gone")
            # It names every key. Made here, because SQLite gives its journals the mode that the
            # database has when they are made: a chmod afterwards comes too late for those.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            if self._stamp().size_bytes == 0:
                # Numbers that were given out must not be given again.
                return self._damaged("is empty") if was_there else None
            if sealed is not None:
                self._compare_pages()
            if thorough or sealed is None:
                if os.pread(self._descriptor(), 2, _WRITE_VERSION_AT) not in (b"\1\1", b"\2\2"):
                    return self._damaged("its header is of no release of SQLite")
                with closing(_connect(self.path, read_only=False)) as connection:
                    _check_all(connection)
        except CatalogDamaged as error:
            return error
        except _FAULTS as error:
            if (damage := self.as_damage(error)) is None:
                raise
            return damage
        return None

    def _replace(self, damaged: int | None, damage: CatalogDamaged) -> bool:
        """False if another process has replaced the file with this number."""
        fresh = self._beside(f".{os.getpid()}")
        try:
            # One that was deleted is still there for whoever has it open.
            descriptor = self._descriptor() if damaged is not None else self._file
            sums = make_anew(fresh, descriptor, self._seal.read(), self._sources, str(damage))
            with self._seal.alone():
                if _number_of(self.path) != damaged:
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
        self._seal.open()
        os.replace(fresh, self.path)
        self._close()
        self._local.opened = self._connect()
        self._note_sums(sums)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Reads once: only then the log is opened too. Never creates the file."""
    address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    until_s = time.monotonic() + _OPENS_WITHIN_S
    while True:
        try:
            return _connect_once(address, read_only=read_only)
        except sqlite3.OperationalError as error:
            # While another process opens or closes it as the first or the last, SQLite does not
            # wait, whatever time it was given.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _connect_once(address: str, *, read_only: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=60)
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # `seal` does that
            # Else pages that are free keep rows as they were, which `salvage` would believe.
            connection.execute("PRAGMA secure_delete = ON")
        # Each thread's own cache holds the upper levels; the rest is the kernel's to keep. A
        # mapping would count a walk over a million files as our memory.
        connection.execute("PRAGMA cache_size = -256")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _number_of(path: Path) -> int | None:
    return stamp_of(path).ino if path.exists() else None


def _move_log(connection: sqlite3.Connection) -> bool:
    """From the log into the file, all of it; False if a reader needs the log for longer."""
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute("PRAGMA busy_timeout = 60000")
    return not busy


def _check_all(connection: sqlite3.Connection) -> None:
    """Of a catalog whose checksums are not known. Raises sqlite3.DatabaseError. 3 s for a million
    files."""
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        return  # nothing is in it yet, or it is not ours
    if not sources.has_tables(connection):
        return
    found = dict(
        connection.execute(
            "SELECT source, count(*) FROM nodes WHERE dead = 0 AND size IS NOT NULL GROUP BY source"
        )
    )
    for row in sources.all_sources(connection):
        if row.listed_at is not None and row.files != found.get(row.number, 0):
            raise sqlite3.DatabaseError(
                f"{found.get(row.number, 0):,} files are in it, and {row.files:,} were listed"
            )


def _is_damage(error: _Fault) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # text that is not UTF-8, or an error of ours
        return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
    if code == sqlite3.SQLITE_ERROR:
        # A table or a column is missing, or the header says that there are others to come.
        return str(error).startswith(("no such ", "unsupported file format"))
    if code in (sqlite3.SQLITE_IOERR_NOMEM, sqlite3.SQLITE_IOERR_SHMSIZE):
        return False  # no memory, no room
    return code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
    )
