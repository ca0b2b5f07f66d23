"""DataMigrate: copies every object that is missing in the target, or differs there.

Listings decide, not memory: killed anywhere and begun again, it lists both sides, and what is there
and right is passed over. The journal remembers what listings cannot tell: which version of the
target was made of which of the source, where their ETags cannot be compared.

Threading: one thread lists, decides and writes the journal; others copy.
"""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.daemon.control import ask
from penstock.daemon.registry import find_served
from penstock.errors import PenstockError, StoreError, UsageError
from penstock.metrics import Counters
from penstock.operations.copying import Copier, Found, Location, Stopped, make_folder
from penstock.operations.options import MigrateOptions, read_migrate_options
from penstock.operations.work import Work
from penstock.settings import Part
from penstock.specs.operations import DataMigrate, DatasetToMigrate, DataToMigrate, ExternalStorage
from penstock.store import ObjectInfo, Store
from penstock.store.etags import is_md5
from penstock.units import format_size
from penstock.warm.pace import RateLimit

# Addresses of external storage as `juicefs sync` takes them, with the endpoint inside. Pure.
#
# minio://HOST:9000/BUCKET/PREFIX s3://BUCKET/PREFIX, endpoint http://HOST:9000
# s3://BUCKET.s3.REGION.amazonaws.com/PREFIX s3://BUCKET/PREFIX, endpoint and region
# oss://BUCKET.oss-cn-hangzhou.aliyuncs.com/… oss://BUCKET/…, endpoint

# What the keys of external storage are called in Fluid's manifests, and their names here.
NAMES = {"access-key": "access-key", "secret-key": "secret-key", "token": "session-token"}

_AWS = re.compile(r"(?P<bucket>[^/]+?)\.s3[.-](?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_ELSEWHERE = re.compile(r"(?P<bucket>[^./]+)\.(?P<endpoint>[^/]+\.[a-z]{2,})")


def take_apart(uri: str) -> tuple[str, dict[str, str]]:
    """The address without its endpoint, and that as options."""
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    if scheme == "minio":
        bucket = path.strip("/")
        if not host or not bucket:
            raise UsageError(
                f"{uri!r} names no bucket", hint="write it like minio://HOST:9000/BUCKET/PREFIX"
            )
        return f"s3://{bucket}", {"endpoint": f"http://{host}", "path-style": "true"}
    if scheme == "s3" and (match := _AWS.fullmatch(host)):
        return _joined("s3", match["bucket"], path), {"region": match["region"]}
    if scheme in ("oss", "bos", "obs", "cos") and (match := _ELSEWHERE.fullmatch(host)):
        return _joined(scheme, match["bucket"], path), {"endpoint": match["endpoint"]}
    return uri, {}


def _joined(scheme: str, bucket: str, path: str) -> str:
    return f"{scheme}://{bucket}/{path}".rstrip("/")


# Which paths are meant, by the patterns of rsync and `juicefs sync`. Pure.
#
# `*` and `?` stand for parts of a name, `**` for any number of folders. A pattern that begins
# with a slash is bound to the beginning; another may match at any depth. One that matches a
# folder matches all below it.


def chooser(include: list[str], exclude: list[str]) -> Callable[[str], bool]:
    """What is included is meant, whatever else; what is excluded is not; of the rest everything is,
    unless there is only something to include."""
    kept = [_compiled(pattern) for pattern in include]
    left_out = [_compiled(pattern) for pattern in exclude]
    otherwise = not kept or bool(left_out)

    def choose(path: str) -> bool:
        if any(pattern.search(path) for pattern in kept):
            return True
        return otherwise and not any(pattern.search(path) for pattern in left_out)

    return choose


def _compiled(pattern: str) -> re.Pattern[str]:
    start = "^" if pattern.startswith("/") else "(?:^|/)"
    # One that ends in a slash means folders: something must lie below.
    end = "/" if pattern.endswith("/") else "(?:/|$)"
    body = "".join(map(_expression, re.findall(r"\*\*/?|\*|\?|\[[^\]]+\]|.", pattern.strip("/"))))
    return re.compile(start + body + end, re.DOTALL)


def _expression(token: str) -> str:
    if token in ("**", "**/"):
        return ".*" if token == "**" else "(?:.*/)?"
    if token in ("*", "?"):
        return "[^/]*" if token == "*" else "[^/]"
    if token.startswith("[") and len(token) > 1:
        inner = token[1:-1].replace("\\", "\\\\")
        return f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
    return re.escape(token)


# What a migration has done so far, on disk: killed, it goes on from here.
#
#     there   what the target held when this run looked
#     seen    what this run has met in the source
#     begun   what was being written, in parts, and is not done as far as is known
#     done    what was copied ever: of which version of the source came which version of the target
#
# A run that did not come to its end is the same run when it is begun again.
#
# Threading: one thread.

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (number INTEGER NOT NULL, open INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS there (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime INTEGER NOT NULL, version TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS begun (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS done (
    path TEXT PRIMARY KEY, run INTEGER NOT NULL, size INTEGER NOT NULL,
    from_version TEXT NOT NULL, to_version TEXT NOT NULL
) WITHOUT ROWID;
"""


class There(NamedTuple):
    size_bytes: int
    mtime_ns: int
    version: str


class Journal:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        path.chmod(0o600)
        self._connection.execute("PRAGMA journal_mode = WAL")
        # What was not written when the power went is copied again, or found to be there.
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)
        self._run = self._begin()

    def close(self) -> None:
        self._connection.close()

    def look_anew(self) -> None:
        self._connection.executescript("BEGIN; DELETE FROM there; DELETE FROM seen; COMMIT;")

    def add_there(self, found: Iterable[tuple[str, ObjectInfo]]) -> None:
        self._many(
            "INSERT OR REPLACE INTO there VALUES (?, ?, ?, ?)",
            [(_told(path), info.size_bytes, info.mtime_ns, info.version) for path, info in found],
        )

    def find_there(self, path: str) -> There | None:
        row = self._connection.execute(
            "SELECT size, mtime, version FROM there WHERE path = ?", (_told(path),)
        ).fetchone()
        return None if row is None else There._make(row)

    def add_seen(self, paths: Iterable[str]) -> None:
        self._many("INSERT OR IGNORE INTO seen VALUES (?)", [(_told(path),) for path in paths])

    def has_seen_any(self) -> bool:
        return self._connection.execute("SELECT 1 FROM seen LIMIT 1").fetchone() is not None

    def unseen(self) -> Iterator[str]:
        """What the target held and the source did not."""
        rows = self._connection.execute(
            "SELECT path FROM there WHERE path NOT IN (SELECT path FROM seen)"
        )
        return (_read(path) for (path,) in rows.fetchall())

    def add_begun(self, path: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO begun VALUES (?)", (_told(path),))

    def begun(self) -> list[str]:
        return [_read(path) for (path,) in self._connection.execute("SELECT path FROM begun")]

    def forget_begun(self, path: str) -> None:
        self._connection.execute("DELETE FROM begun WHERE path = ?", (_told(path),))

    def add_done(self, path: str, size_bytes: int, from_version: str, to_version: str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?, ?)",
            (_told(path), self._run, size_bytes, from_version, to_version),
        )
        self.forget_begun(path)

    def copied_from(self, path: str, to_version: str) -> str | None:
        """Return the source's version that this version of the target is a copy of, if we made
        it."""
        row = self._connection.execute(
            "SELECT from_version FROM done WHERE path = ? AND to_version = ?",
            (_told(path), to_version),
        ).fetchone()
        return None if row is None else row[0]

    def was_copied(self, path: str, from_version: str) -> bool:
        """In this run?"""
        row = self._connection.execute(
            "SELECT 1 FROM done WHERE path = ? AND from_version = ? AND run = ?",
            (_told(path), from_version, self._run),
        ).fetchone()
        return row is not None

    def copied(self) -> tuple[int, int]:
        """(objects, bytes) of this run, also of its beginnings that were cut short."""
        return self._connection.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM done WHERE run = ?", (self._run,)
        ).fetchone()

    def end(self) -> None:
        self._connection.execute("UPDATE run SET open = 0")

    def _begin(self) -> int:
        row = self._connection.execute("SELECT number, open FROM run").fetchone()
        if row is not None and row[1]:
            return row[0]
        number: int = 1 if row is None else row[0] + 1
        self._connection.executescript(
            f"BEGIN; DELETE FROM run; INSERT INTO run VALUES ({number}, 1); COMMIT;"
        )
        return number

    def _many(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")


# A name that is not UTF-8 is no text for SQLite.
def _told(path: str) -> str | bytes:
    try:
        path.encode()
        return path
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")


def _read(path: str | bytes) -> str:
    return path if isinstance(path, str) else path.decode("utf-8", "surrogateescape")


_REPORT_S = 0.2
# The target is away, or takes nothing more: to go on through a million objects helps nobody.
_MOST_FAILURES_IN_A_ROW = 50
_FAILURES_NAMED = 10
# What was rewritten while it was copied is copied in the next.
_ROUNDS = 2
_LISTING_TAKES_AT_MOST_S = 3600


def run(work: Work) -> dict[str, Any]:
    resource = work.resource
    assert isinstance(resource, DataMigrate)
    options = read_migrate_options(resource.spec.options)
    for line in options.without_effect:
        work.tell("NoEffect", line)
    counters = Counters()
    source = _location(work, resource.spec.from_, counters, "spec.from", written=False)
    target = _location(work, resource.spec.to, counters, "spec.to", written=True)
    if source.overlaps(target):
        raise UsageError(
            f"{source.title} and {target.title} overlap: it would be copied onto itself",
            hint="name two places of which neither lies in the other",
        )
    work.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(Journal(work.folder / "journal.sqlite")) as journal:
        infos = _Migration(work, source, target, options, journal).run()
        journal.end()
    if resource.spec.to.dataset is not None and not options.dry_run:
        _refresh(work, resource.spec.to.dataset)
    return infos


@dataclass(slots=True)
class _Tally:
    files: int = 0  # looked at
    size_bytes: int = 0
    skipped: int = 0
    wanted: int = 0  # to be copied; with dry-run nothing more happens
    wanted_bytes: int = 0
    deleted: int = 0
    left_out: int = 0  # what no store can read
    failures: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    failed: int = 0


class _Migration:
    def __init__(
        self,
        work: Work,
        source: Location,
        target: Location,
        options: MigrateOptions,
        journal: Journal,
    ) -> None:
        self._work = work
        self._source = source
        self._target = target
        self._options = options
        self._journal = journal
        self._chooses = chooser(options.include, options.exclude)
        self._stopping = threading.Event()
        self._until_s = (
            time.monotonic() + options.timeout_s if options.timeout_s is not None else None
        )
        self._moved_bytes = 0
        self._moved_lock = threading.Lock()
        self._reported_s = 0.0
        self._in_a_row = 0
        self._copier = Copier(
            rate_limit=RateLimit(options.bytes_per_s) if options.bytes_per_s else None,
            moved=self._move,
            stopping=self._stopping,
        )

    def run(self) -> dict[str, Any]:
        tally = _Tally()
        self._clear_partial()
        for _ in range(_ROUNDS):
            tally = self._round()
            if not tally.failed:
                break
        if tally.failed:
            path, why = tally.failures[0]
            raise StoreError(
                f"{tally.failed:,} of {tally.files:,} objects could not be copied; {path}: {why}",
                hint="applied again, it goes on where it was",
            )
        if self._options.delete_to:
            self._delete_unseen(tally)
        if self._options.delete_from:
            self._delete_copied(tally)
        return self._infos(tally)

    def _clear_partial(self) -> None:
        """What was on its way when it was killed."""
        for path in self._journal.begun():
            store, key = self._target.find(path)
            try:
                store.clear_partial(key)
            except PenstockError as error:
                # A store that cannot say, or keys that may not: no reason not to copy.
                self._work.tell("NotCleared", f"{path}: parts of it may be left: {error}")
            self._journal.forget_begun(path)

    # -- what is where -------------------------------------------------------------------

    def _round(self) -> _Tally:
        tally = _Tally()
        self._journal.look_anew()
        for page in self._target.list_all():
            self._journal.add_there((found.path, found.info) for found in page)
            self._check_time()
            self._report("looking", tally)
        with ThreadPoolExecutor(self._options.threads, "copy") as pool:
            try:
                self._copy_all(pool, tally)
            except BaseException:
                self._stopping.set()
                raise
        return tally

    def _copy_all(self, pool: ThreadPoolExecutor, tally: _Tally) -> None:
        running: dict[Future[str], Found] = {}
        for found in self._chosen():
            tally.files += 1
            tally.size_bytes += found.info.size_bytes
            if found.store.why_unreadable(found.info.key) is not None:
                tally.left_out += 1
            elif not self._is_needed(found, self._journal.find_there(found.path)):
                tally.skipped += 1
            else:
                tally.wanted += 1
                tally.wanted_bytes += found.info.size_bytes
                if self._options.dry_run:
                    continue
                store, key = self._target.find(found.path)
                self._journal.add_begun(found.path)
                running[pool.submit(self._copier.copy, found, store, key)] = found
            while len(running) >= 2 * self._options.threads:
                self._take(running, tally)
            self._report("copying", tally)
        while running:
            self._take(running, tally)

    def _chosen(self) -> Iterator[Found]:
        options, count = self._options, 0
        for page in self._source.list_all():
            chosen = [
                found
                for found in page
                if found.path >= options.start
                and (not options.end or found.path <= options.end)
                and self._chooses(found.path)
            ]
            self._journal.add_seen(found.path for found in chosen)
            for found in chosen:
                if options.limit is not None and count >= options.limit:
                    return
                count += 1
                yield found

    def _is_needed(self, found: Found, there: There | None) -> bool:
        options, info = self._options, found.info
        if there is None:
            return options.missing
        if not options.existing:
            return False
        if options.force:
            return True
        copied_from = self._journal.copied_from(found.path, there.version)
        if copied_from == info.version:
            return False
        if options.update and there.mtime_ns >= info.mtime_ns:
            return False
        # Our copy of another version. Dates would not tell: those of S3 are whole seconds, and by
        # another clock.
        if copied_from is not None or there.size_bytes != info.size_bytes:
            return True
        if is_md5(info.version) and is_md5(there.version):
            return info.version != there.version
        return there.mtime_ns < info.mtime_ns

    # -- what came of it -----------------------------------------------------------------

    def _take(self, running: dict[Future[str], Found], tally: _Tally) -> None:
        """Waits for one copy at least, or for a moment."""
        for future in wait(running, _REPORT_S, FIRST_COMPLETED).done:
            found = running.pop(future)
            try:
                version = future.result()
            except PenstockError as error:
                self._journal.forget_begun(found.path)
                self._fail(found, error, tally)
            except Stopped:
                continue
            else:
                self._in_a_row = 0
                info = found.info
                self._journal.add_done(found.path, info.size_bytes, info.version, version)
        self._check_time()
        self._report("copying", tally)

    def _fail(self, found: Found, error: PenstockError, tally: _Tally) -> None:
        tally.failed += 1
        self._in_a_row += 1
        if len(tally.failures) < _FAILURES_NAMED:
            tally.failures.append((found.path, str(error)))
            self._work.tell("NotCopied", f"{found.path}: {error}")
        if self._in_a_row >= _MOST_FAILURES_IN_A_ROW:
            raise StoreError(
                f"{self._in_a_row} objects in a row could not be copied; the last: {error}",
                hint=error.hint,
            )

    def _check_time(self) -> None:
        if self._until_s is not None and time.monotonic() > self._until_s:
            raise UsageError(
                "spec.options.timeout is over",
                hint="applied again, it goes on where it was; a longer timeout helps",
            )

    def _move(self, size_bytes: int) -> None:
        with self._moved_lock:
            self._moved_bytes += size_bytes

    def _report(self, phase: str, tally: _Tally) -> None:
        if time.monotonic() - self._reported_s < _REPORT_S:
            return
        self._reported_s = time.monotonic()
        copied, copied_bytes = self._journal.copied()
        self._work.report(
            {
                "phase": phase,
                "files": copied,
                "bytes": copied_bytes,
                "ofFiles": tally.files,
                "ofBytes": tally.size_bytes,
                "skipped": tally.skipped,
                "failed": tally.failed,
                "movedBytes": self._moved_bytes,
            }
        )

    def _infos(self, tally: _Tally) -> dict[str, Any]:
        copied, copied_bytes = self._journal.copied()
        if self._options.dry_run:
            copied, copied_bytes = tally.wanted, tally.wanted_bytes
        told = {
            "Copied": f"{copied:,} files, {format_size(copied_bytes)}",
            "Skipped": f"{tally.files - copied - tally.left_out:,} files",
            "From": self._source.title,
            "To": self._target.title,
        }
        if self._options.dry_run:
            told["DryRun"] = "nothing was copied"
        if tally.left_out:
            told["LeftOut"] = f"{tally.left_out:,} files that cannot be read"
        if self._options.delete_to or self._options.delete_from:
            told["Deleted"] = f"{tally.deleted:,} files"
        return told

    # -- deleting ------------------------------------------------------------------------

    def _delete_unseen(self, tally: _Tally) -> None:
        if not self._journal.has_seen_any():
            raise UsageError(
                f"{self._source.title} is empty: nothing is deleted in {self._target.title}",
                hint="delete-dst deletes what the source does not have; check spec.from",
            )
        for path in self._journal.unseen():
            if self._chooses(path):
                self._delete(*self._target.find(path), tally)

    def _delete_copied(self, tally: _Tally) -> None:
        """Once all of it is there: what was copied now, or is the same beyond doubt. A date is no
        proof."""
        for found in list(self._chosen()):
            version, there = found.info.version, self._journal.find_there(found.path)
            same = there is not None and (
                self._journal.copied_from(found.path, there.version) == version
                or (is_md5(version) and version == there.version)
            )
            if same or self._journal.was_copied(found.path, version):
                self._delete(found.store, found.info.key, tally)

    def _delete(self, store: Store, key: str, tally: _Tally) -> None:
        tally.deleted += 1
        if not self._options.dry_run:
            store.delete(key)
        self._report("deleting", tally)


# -- the two sides ---------------------------------------------------------------------------


def _location(
    work: Work, side: DataToMigrate, counters: Counters, where: str, *, written: bool
) -> Location:
    if (side.dataset is None) == (side.external_storage is None):
        raise UsageError(
            f"{where} must name one thing: a dataset or an externalStorage",
            hint=f"write {where}.dataset or {where}.externalStorage",
        )
    if side.dataset is not None:
        namespace = side.dataset.namespace or work.resource.metadata.namespace
        parts = work.parts(side.dataset.name, namespace)
        title = f"dataset {namespace}/{side.dataset.name}"
        path = side.dataset.path
        title += f" {path}" if path.strip("/") else ""
    else:
        assert side.external_storage is not None
        parts, path = (_external(work, side.external_storage),), ""
        title = str(parts[0].source)
    for part in parts if written else ():
        make_folder(part)
    return Location(parts, path, title, counters)


def _external(work: Work, storage: ExternalStorage) -> Part:
    uri, options = take_apart(storage.uri)
    namespace = work.resource.metadata.namespace
    for option in storage.encrypt_options:
        reference = option.value_from.secret_key_ref
        value = work.secret(namespace, reference.name, reference.key or option.name)
        options[NAMES.get(option.name, option.name)] = value
    return work.external(uri, options)


def _refresh(work: Work, dataset: DatasetToMigrate) -> None:
    """What was written is seen at once; the copy is done also if nobody can be told."""
    namespace = dataset.namespace or work.resource.metadata.namespace
    try:
        socket = find_served(work.mountpoint(dataset.name, namespace)).socket_path
        ask(socket, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S)
    except PenstockError as error:
        work.tell("NotRefreshed", f"its files are seen at the next refresh: {error}")
