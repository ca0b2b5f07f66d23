"""Desired and observed state, apart from each other, in one SQLite file.

    wanted     written by clients that apply and delete: the manifest, with its secrets sealed
    observed   written by the loop, the operations and the jobs: the status, and a note of what they
               made on this machine, so that it can be removed when the manifest is gone
    events     the last few events of each resource

Each change is one transaction, and is on disk when it returns, so any process may be killed at any
moment.

Threading: any thread; each has a connection of its own.
"""

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from penstock.errors import UsageError
from penstock.paths import state_dir
from penstock.reconcile.snapshot import Event, Snapshot, Stored
from penstock.specs.kinds import ResourceKey


class SecretBox:
    """Seals secrets at rest with a key that only this user can read.

    Root and this user can open them. It protects every copy of the state: a backup, a support
    bundle, a file sent by mail.
    """

    def __init__(self, key_file: Path) -> None:
        self._file = key_file
        self._fernet: Fernet | None = None

    def seal(self, values: dict[str, str]) -> bytes | None:
        """Return None for no values: most resources have no secrets."""
        return self._key(make=True).encrypt(json.dumps(values).encode()) if values else None

    def open(self, sealed: bytes | None) -> dict[str, str]:
        if sealed is None:
            return {}
        try:
            try:
                text = self._key(make=False).decrypt(sealed)
            except InvalidToken:
                self._fernet = None  # the key file may have been replaced since it was read
                text = self._key(make=False).decrypt(sealed)
            return json.loads(text)
        except InvalidToken as error:
            raise UsageError(
                f"{self._file} is not the key that the secrets were sealed with",
                hint="put the old key back, or apply the manifests with their secrets again",
            ) from error

    def key_file(self) -> Path:
        """Return the path of the key, which is made if there is none yet."""
        self._read(make=True)
        return self._file

    def _key(self, *, make: bool) -> Fernet:
        if self._fernet is None:
            try:
                self._fernet = Fernet(self._read(make=make))
            except ValueError as error:
                raise UsageError(
                    f"{self._file} is not a key",
                    hint="put the old key back, or remove the file and apply the manifests with "
                    "their secrets again; inside a training job the key is hidden",
                ) from error
        return self._fernet

    def _read(self, *, make: bool) -> bytes:
        try:
            return self._file.read_bytes()
        except FileNotFoundError as error:
            if not make:
                raise UsageError(
                    f"{self._file} is gone: the secrets cannot be opened",
                    hint="apply the manifests with their secrets again",
                ) from error
        return self._make()

    def _make(self) -> bytes:
        """Make the key file whole or not at all; of two processes at once, the first one wins."""
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, Fernet.generate_key())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(fresh, self._file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return self._file.read_bytes()


_VERSION = 1
_EVENTS_KEPT = 20
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE wanted (
    uid TEXT PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    generation INTEGER NOT NULL,  -- counts changes of the manifest
    manifest TEXT NOT NULL,       -- JSON, secrets replaced
    sealed BLOB,                  -- those secrets
    created_s REAL NOT NULL,
    deleting TEXT,                -- JSON of how, NULL where it is to stay
    UNIQUE (kind, namespace, name)
);
CREATE TABLE observed (uid TEXT PRIMARY KEY, status TEXT NOT NULL, note TEXT NOT NULL);
CREATE TABLE events (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
    message TEXT NOT NULL, first_s REAL NOT NULL, last_s REAL NOT NULL, count INTEGER NOT NULL
);
CREATE INDEX events_of ON events (uid);
INSERT INTO meta VALUES ('changes', 0), ('labels', '{}');
"""
_COLUMNS = (
    "wanted.uid, kind, namespace, name, generation, manifest, sealed, created_s, deleting, "
    "status, note"
)

Json = dict[str, Any]


class State:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_dir()
        self.box = SecretBox(self.folder / "secrets.key")
        self._path = self.folder / "resources.sqlite"
        self._local = threading.local()
        self._prepare()

    # -- reading ------------------------------------------------------------------------

    def find(self, key: ResourceKey) -> Stored | None:
        row = self._run(
            f"SELECT {_COLUMNS} FROM wanted LEFT JOIN observed USING (uid) "
            "WHERE kind = ? AND namespace = ? AND name = ?",
            key,
        ).fetchone()
        return _stored(row) if row is not None else None

    def by_uid(self, uid: str) -> Stored | None:
        row = self._run(
            f"SELECT {_COLUMNS} FROM wanted LEFT JOIN observed USING (uid) WHERE uid = ?", (uid,)
        ).fetchone()
        return _stored(row) if row is not None else None

    def all(self, kinds: Iterable[str] | None = None, namespace: str | None = None) -> list[Stored]:
        """Return resources in the order of their names, by default of all kinds and namespaces."""
        rows = self._run(
            f"SELECT {_COLUMNS} FROM wanted LEFT JOIN observed USING (uid) "
            "ORDER BY kind, namespace, name"
        )
        wanted = None if kinds is None else set(kinds)
        return [
            _stored(row)
            for row in rows
            if (wanted is None or row[1] in wanted) and namespace in (None, row[2])
        ]

    def secrets(self, stored: Stored) -> dict[str, str]:
        """Return the secrets by their place in the manifest."""
        return self.box.open(stored.sealed)

    def events(self, uid: str) -> list[Event]:
        rows = self._run(
            "SELECT kind, reason, message, first_s, last_s, count FROM events WHERE uid = ? "
            "ORDER BY last_s, id",
            (uid,),
        )
        return [Event(*row) for row in rows]

    def changes(self) -> int:
        """Return a counter that grows with each change of the desired state."""
        return self._run("SELECT value FROM meta WHERE key = 'changes'").fetchone()[0]

    def labels(self) -> dict[str, str]:
        """Return the labels that the user gave to this machine."""
        return json.loads(self._run("SELECT value FROM meta WHERE key = 'labels'").fetchone()[0])

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Read everything as of one moment. Neither waits for writers nor blocks them."""
        connection = self._connection()
        if connection.in_transaction:
            yield
            return
        connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")

    def snapshot(self) -> Snapshot:
        """Return all resources and this machine's labels as they are at one moment."""
        with self.read_transaction():
            return Snapshot({one.key: one for one in self.all()}, self.labels())

    # -- desired state ------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all or nothing. No other process writes meanwhile, so what is read stays true."""
        connection = self._connection()
        if connection.in_transaction:
            yield
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def put(self, key: ResourceKey, manifest: Json, secrets: Mapping[str, str]) -> str:
        """Store a manifest. Return `created`, `configured` or `unchanged`."""
        with self.transaction():
            before = self.find(key)
            if before is None:
                self._run(
                    "INSERT INTO wanted VALUES (?, ?, ?, ?, 1, ?, ?, ?, NULL)",
                    (
                        str(uuid.uuid4()),
                        *key,
                        json.dumps(manifest),
                        self.box.seal(dict(secrets)),
                        time.time(),
                    ),
                )
                self._count_change()
                return "created"
            if before.deleting is not None:
                raise UsageError(f"{key} is being deleted", hint="apply it again once that is done")
            if before.manifest == manifest and self._has_secrets(before, secrets):
                return "unchanged"
            self._run(
                "UPDATE wanted SET generation = generation + 1, manifest = ?, sealed = ? "
                "WHERE uid = ?",
                (json.dumps(manifest), self.box.seal(dict(secrets)), before.uid),
            )
            self._count_change()
            return "configured"

    def reset_if_ended(self, key: ResourceKey, *, changed: bool) -> bool:
        """Let an operation or job that has ended run once more, if it failed or was changed.

        Return whether it will.
        """
        with self.transaction():
            found = self.find(key)
            phase = found.status.get("phase") if found is not None else None
            failed, done = phase in ("Failed", "FAILED"), phase in ("Complete", "SUCCEEDED")
            if found is None or not (failed or (changed and done)):
                return False
            self._run("DELETE FROM observed WHERE uid = ?", (found.uid,))
            self._count_change()
            return True

    def mark_deleted(self, uid: str, how: Json) -> None:
        with self.transaction():
            self._run("UPDATE wanted SET deleting = ? WHERE uid = ?", (json.dumps(how), uid))
            self._count_change()

    def request_recheck(self) -> None:
        """Have the loop look at everything again, though nothing changed."""
        with self.transaction():
            self._count_change()

    def set_labels(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        with self.transaction():
            labels = {**self.labels(), **changes}
            kept = {name: value for name, value in labels.items() if value is not None}
            self._run("UPDATE meta SET value = ? WHERE key = 'labels'", (json.dumps(kept),))
            self._count_change()
            return kept

    # -- observed state -----------------------------------------------------------------

    def record(self, uid: str, *, status: Json | None = None, note: Json | None = None) -> None:
        """Set these fields and keep the others; None removes a field."""
        with self.transaction():
            row = self._run("SELECT status, note FROM observed WHERE uid = ?", (uid,)).fetchone()
            before: tuple[Json, Json] = ({}, {})
            if row is not None:
                before = json.loads(row[0]), json.loads(row[1])
            after = (_merged(before[0], status), _merged(before[1], note))
            if after == before and row is not None:
                return
            # SELECT FROM wanted: nothing is written for a resource that was deleted meanwhile.
            self._run(
                "INSERT OR REPLACE INTO observed SELECT uid, ?, ? FROM wanted WHERE uid = ?",
                (json.dumps(after[0]), json.dumps(after[1]), uid),
            )

    def forget(self, uid: str) -> None:
        """Remove the resource: the last step of a deletion."""
        with self.transaction():
            for table in ("wanted", "observed", "events"):
                self._run(f"DELETE FROM {table} WHERE uid = ?", (uid,))
            self._count_change()

    def add_event(self, uid: str, reason: str, message: str, *, kind: str = "Normal") -> None:
        now_s = time.time()
        with self.transaction():
            counted = self._run(
                "UPDATE events SET count = count + 1, last_s = ? "
                "WHERE uid = ? AND kind = ? AND reason = ? AND message = ?",
                (now_s, uid, kind, reason, message),
            ).rowcount
            if not counted:
                self._run(
                    "INSERT INTO events (uid, kind, reason, message, first_s, last_s, count) "
                    "SELECT uid, ?, ?, ?, ?, ?, 1 FROM wanted WHERE uid = ?",
                    (kind, reason, message, now_s, now_s, uid),
                )
                self._run(
                    "DELETE FROM events WHERE uid = ? AND id NOT IN "
                    "(SELECT id FROM events WHERE uid = ? ORDER BY last_s DESC LIMIT ?)",
                    (uid, uid, _EVENTS_KEPT),
                )

    # -- inside -------------------------------------------------------------------------

    def _has_secrets(self, stored: Stored, secrets: Mapping[str, str]) -> bool:
        try:
            return self.secrets(stored) == dict(secrets)
        except UsageError:
            return False  # their key is lost: the new values replace them

    def _count_change(self) -> None:
        self._run("UPDATE meta SET value = value + 1 WHERE key = 'changes'")

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._connection().execute(statement, values)

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=30, isolation_level=None)
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = FULL")
            self._local.connection = found
        return found

    def _version(self) -> int:
        return self._run("PRAGMA user_version").fetchone()[0]

    def _prepare(self) -> None:
        # Before SQLite opens it: the journals get the mode that the database has by then.
        try:
            self._path.touch(mode=0o600)
        except OSError as error:
            raise UsageError(
                f"{self._path}: {error.strerror}",
                hint="set PENSTOCK_STATE_DIR to a folder you can write",
            ) from error
        try:
            if self._version() == 0:
                with self.transaction():
                    if self._version() == 0:  # another process may have made the tables meanwhile
                        for statement in _SCHEMA.split(";"):
                            self._run(statement)
                        self._run(f"PRAGMA user_version = {_VERSION}")
            if self._version() > _VERSION:
                raise UsageError(
                    f"{self._path} was written by a newer release",
                    hint="use that release, or another PENSTOCK_STATE_DIR",
                )
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"{self._path}: {error}",
                hint="move it away and apply your manifests again; no data is lost",
            ) from error


def _stored(row: tuple[Any, ...]) -> Stored:
    uid, kind, namespace, name, generation, manifest, sealed, created_s, deleting, status, note = (
        row
    )
    return Stored(
        uid,
        ResourceKey(kind, namespace, name),
        generation,
        json.loads(manifest),
        created_s,
        json.loads(deleting) if deleting is not None else None,
        json.loads(status) if status is not None else {},
        json.loads(note) if note is not None else {},
        sealed,
    )


def _merged(before: Json, changes: Json | None) -> Json:
    merged = {**before, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}
