"""DataMigrate: copy every object that is missing in the target or differs there.

Listings decide, so a migration may be killed at any time: started again, it lists both sides and
skips what is already right. The journal keeps what listings cannot tell where ETags cannot be
compared: which version of the target is a copy of which version of the source.

Threading: one thread lists, decides and writes the journal; others copy.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import find_served
from penstock.errors import PenstockError, StoreError, UsageError
from penstock.metrics import Counters
from penstock.operations.copying import Copier, Stopped
from penstock.operations.locations import Found, Location, open_location
from penstock.operations.migration_journal import Journal, There
from penstock.operations.options import MigrateOptions, read_migrate_options
from penstock.operations.work import Work
from penstock.specs.operations import DataMigrate, DatasetToMigrate
from penstock.store import Store
from penstock.store.etags import is_md5
from penstock.units import counted, format_size
from penstock.warm.pace import RateLimit

_REPORT_S = 0.2
# After so many failures the target is down or full: give up, rather than try a million objects.
_MOST_FAILURES_IN_A_ROW = 50
_FAILURES_NAMED = 10
# An object that was rewritten while it was copied is copied in the next round.
_ROUNDS = 2
_LISTING_TAKES_AT_MOST_S = 3600


def run(work: Work) -> dict[str, Any]:
    resource = work.resource
    assert isinstance(resource, DataMigrate)
    options = read_migrate_options(resource.spec.options)
    for line in options.without_effect:
        work.add_event("NoEffect", line)
    counters = Counters()
    source = open_location(work, resource.spec.from_, counters, "spec.from", written=False)
    target = open_location(work, resource.spec.to, counters, "spec.to", written=True)
    if source.overlaps(target):
        raise UsageError(
            f"{source.title} and {target.title} overlap: data would be copied onto itself",
            hint="name two places, neither of them inside the other",
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
    files: int = 0  # listed and chosen
    size_bytes: int = 0
    skipped: int = 0
    wanted: int = 0  # to be copied; dry-run only counts them
    wanted_bytes: int = 0
    deleted: int = 0
    left_out: int = 0  # objects that cannot be read
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
        self._is_chosen = path_filter(options.include, options.exclude)
        self._stopping = threading.Event()
        self._until_s = (
            time.monotonic() + options.timeout_s if options.timeout_s is not None else None
        )
        self._moved_bytes = 0
        self._moved_lock = threading.Lock()
        self._reported_s = 0.0
        self._failures_in_a_row = 0
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
                hint="apply it again: it continues where it stopped",
            )
        if self._options.delete_to:
            self._delete_unseen(tally)
        if self._options.delete_from:
            self._delete_copied(tally)
        return self._infos(tally)

    def _clear_partial(self) -> None:
        """Remove the parts of uploads that were killed."""
        for path in self._journal.begun():
            store, key = self._target.find(path)
            try:
                store.clear_partial(key)
            except PenstockError as error:
                # The store or its keys do not allow it; copying is still possible.
                self._work.add_event("NotCleared", f"{path}: parts of it may remain: {error}")
            self._journal.forget_begun(path)

    # -- compare and copy ----------------------------------------------------------------

    def _round(self) -> _Tally:
        tally = _Tally()
        self._journal.start_round()
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
                and self._is_chosen(found.path)
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
        # Our copy of another version. Dates do not show that: S3's are whole seconds, by another
        # clock.
        if copied_from is not None or there.size_bytes != info.size_bytes:
            return True
        if is_md5(info.version) and is_md5(there.version):
            return info.version != there.version
        return there.mtime_ns < info.mtime_ns

    # -- results -------------------------------------------------------------------------

    def _take(self, running: dict[Future[str], Found], tally: _Tally) -> None:
        """Wait for at least one copy, or for a moment."""
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
                self._failures_in_a_row = 0
                info = found.info
                self._journal.add_done(found.path, info.size_bytes, info.version, version)
        self._check_time()
        self._report("copying", tally)

    def _fail(self, found: Found, error: PenstockError, tally: _Tally) -> None:
        tally.failed += 1
        self._failures_in_a_row += 1
        if len(tally.failures) < _FAILURES_NAMED:
            tally.failures.append((found.path, str(error)))
            self._work.add_event("NotCopied", f"{found.path}: {error}")
        if self._failures_in_a_row >= _MOST_FAILURES_IN_A_ROW:
            what = f"{_MOST_FAILURES_IN_A_ROW} objects in a row could not be copied"
            raise StoreError(f"{what}; the last: {error}", hint=error.hint)

    def _check_time(self) -> None:
        if self._until_s is not None and time.monotonic() > self._until_s:
            raise UsageError(
                "spec.options.timeout is over",
                hint="apply it again, with a longer timeout: it continues where it stopped",
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
        infos = {
            "Copied": f"{counted(copied, 'file')}, {format_size(copied_bytes)}",
            "Skipped": f"{counted(tally.files - copied - tally.left_out, 'file')}",
            "From": self._source.title,
            "To": self._target.title,
        }
        if self._options.dry_run:
            infos["DryRun"] = "nothing was copied"
        if tally.left_out:
            infos["LeftOut"] = f"{counted(tally.left_out, 'file')} that cannot be read"
        if self._options.delete_to or self._options.delete_from:
            infos["Deleted"] = f"{counted(tally.deleted, 'file')}"
        return infos

    # -- deleting ------------------------------------------------------------------------

    def _delete_unseen(self, tally: _Tally) -> None:
        if not self._journal.has_seen_any():
            raise UsageError(
                f"{self._source.title} is empty: nothing was deleted in {self._target.title}",
                hint="delete-dst deletes what the source does not have; check spec.from",
            )
        for path in self._journal.unseen():
            if self._is_chosen(path):
                self._delete(*self._target.find(path), tally)

    def _delete_copied(self, tally: _Tally) -> None:
        """Delete source objects that were copied in this run or are proven equal; dates prove
        nothing."""
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


def _refresh(work: Work, dataset: DatasetToMigrate) -> None:
    """Refresh the target's mount, so that new files show at once; a failure is only an event."""
    namespace = dataset.namespace or work.resource.metadata.namespace
    try:
        socket = find_served(work.mountpoint(dataset.name, namespace)).socket_path
        ask(socket, "refresh", timeout_s=_LISTING_TAKES_AT_MOST_S)
    except PenstockError as error:
        work.add_event("NotRefreshed", f"new files show at the next refresh: {error}")


# -- include and exclude patterns, as in rsync and `juicefs sync` -------------------------------
#
# `*` and `?` stand for parts of a name, `**` for any number of folders. A pattern that begins
# with a slash matches from the beginning; others match at any depth. A pattern that matches a
# folder matches everything below it.


def path_filter(include: list[str], exclude: list[str]) -> Callable[[str], bool]:
    """Return whether a path is copied. `include` wins over `exclude`; other paths are copied,
    unless there are only patterns to include."""
    included = [_compiled(pattern) for pattern in include]
    excluded = [_compiled(pattern) for pattern in exclude]
    otherwise = not included or bool(excluded)

    def is_chosen(path: str) -> bool:
        if any(pattern.search(path) for pattern in included):
            return True
        return otherwise and not any(pattern.search(path) for pattern in excluded)

    return is_chosen


def _compiled(pattern: str) -> re.Pattern[str]:
    start = "^" if pattern.startswith("/") else "(?:^|/)"
    # A pattern that ends in a slash means a folder: something must be below it.
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
