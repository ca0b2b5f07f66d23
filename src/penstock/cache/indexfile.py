"""The SQLite file of a cache directory's index: created, opened, checked, and replaced when
damaged.

Whatever an index records can be fetched again, so a damaged one is removed and an empty one
created; the files that it recorded are swept. Several processes may have it open meanwhile. Two
rules keep that safe:

- A connection is opened under the shared side of `index.lock`, and the file is replaced under its
  exclusive side: so no connection joins a new file to the write-ahead log of an old one.
- A process that has the old file open goes on with a file without a name, and detects that by
  comparing inodes (`IndexIdentity`). SQLite does the same before it removes a log by name.

Functions only. Threading: any thread.
"""

import errno
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from penstock.cache.identity import Block
from penstock.cache.locks import locked

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
# A process that is stopped in the middle of a transaction must not block the others for longer.
_BUSY_TIMEOUT_S = 10
# A lookup takes 8 us with it, and 13 us without. All processes that have the file open share it.
_MAPPED_BYTES = 64 << 20
_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
_OUTDATED = ""  # the source that outdated objects are counted under

_SCHEMA = """\
CREATE TABLE sources (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE objects (
    digest BLOB PRIMARY KEY,
    source INTEGER NOT NULL,
    key TEXT NOT NULL, version TEXT NOT NULL, size INTEGER NOT NULL,
    block_bytes INTEGER NOT NULL,
    cached INTEGER NOT NULL,      -- how many of its bytes are here
    used INTEGER NOT NULL,        -- seconds; 0: outdated, first to go
    sums BLOB                     -- of an object of one block
);
CREATE TABLE blocks (
    digest BLOB NOT NULL, number INTEGER NOT NULL, sums BLOB NOT NULL, PRIMARY KEY (digest, number)
) WITHOUT ROWID;
CREATE INDEX objects_outdated ON objects (used) WHERE used = 0;
"""
_STATEMENTS = _SCHEMA.split(";\n")[:-1]


class IndexDamaged(sqlite3.DatabaseError):
    """The index contains something that Penstock did not write."""


class IndexReplaced(sqlite3.OperationalError):
    """The open file no longer has the index's name: it was removed."""


class IndexIdentity(NamedTuple):
    """The inodes of an index and its log, which are not reused while the files are open."""

    database: tuple[int, int]
    log: tuple[int, int]


class Opened(NamedTuple):
    connection: sqlite3.Connection
    identity: IndexIdentity


def open_index(path: Path, damaged: IndexIdentity | None = None) -> Opened:
    """Open the index. Rebuild it if there is none, if it is damaged, or if it is still the file
    that was found damaged before (`damaged`)."""
    with locked(_lock_file(path), exclusive=True):
        # Without comparing the log, which SQLite removes with the last connection.
        if damaged is not None and path.exists() and _inode(path) == damaged.database:
            log.warning("%s is damaged: rebuilt empty; its objects are fetched again", path)
            _remove(path)
        try:
            return _open(path)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            log.warning("%s: %s: rebuilt empty; its objects are fetched again", path, error)
        _remove(path)
        return _open(path)


def connect(path: Path) -> Opened:
    """Open one more connection to the index that `path` names now."""
    with locked(_lock_file(path), exclusive=False):
        return _connect(path, make=False)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection for a process that never writes rows."""
    with locked(_lock_file(path), exclusive=False):
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            timeout=_BUSY_TIMEOUT_S,
            check_same_thread=False,
        )
        connection.execute("PRAGMA cache_size = -256")
        connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")
        _load_schema(connection)
        return connection


def has_our_tables(path: Path) -> bool:
    """Return whether the file is an index. Writes nothing beside it."""
    address = f"{path.absolute().as_uri()}?immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            rows = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return False
    return {row[0] for row in rows if row[0]} == set(_STATEMENTS)


def digests_on_disk(path: Path) -> set[bytes]:
    """Return the objects that an index and its log record; none if there is no index, or a damaged
    one.

    It reads a copy in memory, because SQLite cannot read a log without room on its disk. Raises
    OSError or sqlite3.Error if it cannot be read.
    """
    if not path.exists():
        return set()
    with TemporaryDirectory(prefix="penstock-index-", dir=_MEMORY) as folder:
        copy = Path(folder) / path.name
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        try:
            with closing(sqlite3.connect(copy)) as connection:
                _load_schema(connection)
                return {row[0] for row in connection.execute("SELECT digest FROM objects")}
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            return set()


def identity_of(path: Path) -> IndexIdentity:
    return IndexIdentity(_inode(path), _inode(Path(f"{path}-wal")))


def stored_bytes(path: Path) -> int:
    """Return how many bytes an index records, without opening it for use; 0 if there is none."""
    if not path.exists():
        return 0
    try:
        with (
            locked(_lock_file(path), exclusive=False),
            # With a damaged log SQLite waits as if another process held its lock for ever.
            closing(sqlite3.connect(path, timeout=0.1)) as connection,
        ):
            _load_schema(connection)
            total = connection.execute("SELECT sum(bytes) FROM sources").fetchone()[0]
    except (sqlite3.Error, OSError):
        return 0  # opening it for use will report the error
    return total if isinstance(total, int) else 0


def stored_sums(connection: sqlite3.Connection, block: Block) -> bytes | None:
    """Return the checksums that a block's row has; None if there is no row."""
    if block.whole:
        query, place = "SELECT sums FROM objects WHERE digest = ?", (block.digest,)
    else:
        query, place = "SELECT sums FROM blocks WHERE digest = ? AND number = ?", block[:2]
    row = connection.execute(query, place).fetchone()
    # A value of any other type is damaged: no bytes would match it.
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def is_damage(error: Exception) -> bool:
    """Whether opening the same index again would give the same error."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, IndexReplaced):
        return False
    if isinstance(error, IndexDamaged):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by the sqlite3 module itself, like text that is not UTF-8
        return isinstance(error, sqlite3.OperationalError)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_ERROR,  # no such table, no such column
    )


def is_full(error: Exception) -> bool:
    """Whether the disk is full. A full disk is not a failing one: its files can be read."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", None)
    # SHMSIZE: no room on a tmpfs for the memory that its users share.
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        # A COMMIT that fails (full, I/O error) may leave the transaction open, or may not.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# -- inside -----------------------------------------------------------------------------


def _open(path: Path) -> Opened:
    if os.path.lexists(path):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise IndexDamaged("not a plain file")
        # an empty file cannot be filled while it has a log, or another process has it open
        if not status.st_size:
            raise IndexDamaged("empty")
    else:
        _remove(path)  # the log of a file that was deleted
        # Private, since it names every key. With O_EXCL, because closing any descriptor of a file
        # that SQLite has open would release SQLite's locks on it.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    opened = _connect(path, make=True)
    try:
        _check(opened.connection)
    except BaseException:
        opened.connection.close()
        raise
    return opened


def _connect(path: Path, *, make: bool) -> Opened:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
    )
    try:
        _load_schema(connection)
        if make:
            # Only here: with a file that was truncated under its users, it would wait for them to
            # go, and block a reader.
            connection.execute("PRAGMA journal_mode = WAL")
        # Losing the last batch costs a second fetch; an fsync for each batch would slow every cold
        # epoch.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -256")
        connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")
        _load_schema(connection)  # also opens the log
        return Opened(connection, identity_of(path))
    except BaseException:
        connection.close()
        raise


def _load_schema(connection: sqlite3.Connection) -> None:
    """Read the schema, so that a damaged one raises IndexDamaged. SQLite quotes what it cannot
    parse, and the sqlite3 module fails to decode that with an error that is not a database error
    (CPython 3.11)."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except UnicodeDecodeError as error:
        raise IndexDamaged(f"its schema: {error.object[:100]!r}") from error


def _check(connection: sqlite3.Connection) -> None:
    """Check or create the tables, in constant time; `Index.check` reads every page later."""
    with transaction(connection) as run:
        (version,) = run.execute("PRAGMA user_version").fetchone()
        found = {row[0] for row in run.execute("SELECT sql FROM sqlite_schema") if row[0]}
        if not found and version == 0:
            for statement in _STATEMENTS:
                run.execute(statement)
            run.execute("INSERT INTO sources VALUES (0, ?, 0)", (_OUTDATED,))
            run.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise IndexDamaged(f"its format is {version} instead of {SCHEMA_VERSION}")
        elif found != set(_STATEMENTS):
            raise IndexDamaged("its tables are not ours")
        sources: list[tuple[Any, ...]] = run.execute(
            "SELECT id, name, bytes FROM sources"
        ).fetchall()
        if not all(isinstance(row[2], int) and row[2] >= 0 for row in sources):
            raise IndexDamaged("its counts are not numbers")
        if (0, _OUTDATED) not in {row[:2] for row in sources}:
            raise IndexDamaged("its counts are not complete")


def _remove(path: Path) -> None:
    """Remove the index and its log. A process that has them open keeps using them, without a
    name."""
    for one in (path, *_side_files(path)):
        if one.is_dir() and not one.is_symlink():
            one.rmdir()
        else:
            one.unlink(missing_ok=True)


def _side_files(path: Path) -> list[Path]:
    return [Path(f"{path}-{name}") for name in ("wal", "shm", "journal")]


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def _lock_file(path: Path) -> Path:
    return path.with_name("index.lock")
