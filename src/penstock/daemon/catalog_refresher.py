"""Keeps the catalog of a mount current, repairs it if it is damaged, and notifies the kernel of
changes.

Threading: three threads. None waits for anything that only a later one in this list can end.

    heal     replaces a damaged catalog, in seconds, with one of the undamaged rows. It waits for
             no storage and no reader.
    refresh  lists the sources, for as long as storage takes. If `heal` replaces the catalog of a
             listing, that listing ends and begins again.
    notify   notifies the kernel, which waits for readers that hold a folder or a page. Such a
             reader may wait for a catalog that `refresh` has to complete, so `refresh` does not
             wait for this thread then.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from penstock.catalog.refresh import Mounted, Summary, refresh, unlisted
from penstock.catalog.tree import Tree
from penstock.errors import CatalogDamaged, PenstockError
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem

log = logging.getLogger(__name__)

# A burst of outdated reads asks for one listing, not for a hundred.
_LEAST_INTERVAL_S = 5.0
_CHANGES_AT_ONCE = 10_000
# A new source that could not be listed is tried again after this time, whatever --refresh says. So
# is sealing a catalog whose log was in use by a reader.
_FIRST_LISTING_AGAIN_S = 30.0
_CATCHES_UP_WITHIN_S = 1.0
# Each request that waits for a catalog calls `heal` every second, even if it only waits for the
# listing. To compare the checksums takes 0.04 s for a million files.
_HEALS_EVERY_S = 3.0
_CHECKS_FOR_DAMAGE_EVERY_S = 0.1


class Refresher:
    def __init__(
        self,
        tree: Tree,
        mounts: list[Mounted],
        files: FileSystem,
        session: Session,
        interval_s: float | None,
        max_files: int,
        counters: Counters,
        seen: int | None,
        on_notified: Callable[[int], None],
    ) -> None:
        self._tree = tree
        self._mounts = mounts
        self._files = files
        self._session = session
        self._interval_s = interval_s
        self._max_files = max_files
        self._counters = counters
        self._on_notified = on_notified  # called with the last change that the kernel knows of
        # Set at once: a refresh may be requested before the kernel has caught up.
        self.seen = max(tree.last_change(), tree.changes_from()) if seen is None else seen
        self._one_at_a_time = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._is_outdated = False
        self._is_suspect = False  # a reader found damage in the catalog
        self._met_damage = threading.Event()
        self._caught_up = threading.Event()
        self._notifier = ThreadPoolExecutor(1, "notify")
        self._outdating = threading.Lock()
        self._errors: dict[str, str] = {}  # by the path of the source
        self._heard = threading.Event()  # every source has answered once, or one has failed
        self._failure: Exception | None = None  # the first that a listing met

    def catch_up(self) -> None:
        """Notify the kernel of changes that the server before this one may not have sent."""
        with self._one_at_a_time:
            self._notify_kernel()

    def start(self, *, at_once: bool) -> None:
        """Start; return when the kernel has been notified, or soon. Notifying waits for readers
        that hold a page or a folder, and those may wait for a catalog that is being rebuilt."""
        if at_once and self._interval_s is not None:
            self.request()
        for name, run in (("refresh", self._run_refresh), ("heal", self._run_heal)):
            threading.Thread(target=run, name=name, daemon=True).start()
        self._caught_up.wait(_CATCHES_UP_WITHIN_S)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._met_damage.set()

    def request(self) -> None:
        """Refresh soon: a reader found a version that is not in the catalog."""
        self._is_outdated = True
        self._wake.set()

    def heal(self) -> None:
        """Repair soon: a reader found the catalog damaged, or not complete yet."""
        self._is_suspect = True
        self._met_damage.set()
        self._wake.set()

    def first_answer(self, within_s: float) -> Exception | None:
        """Wait, no longer than this, until all sources have answered the first listing; return the
        error of the first one that failed."""
        self._heard.wait(within_s)
        return self._failure

    def refresh_now(self) -> Summary:
        """List all sources, one after the other, and notify the kernel of each before the next.
        Raises if there is only one, and its listing fails."""
        with self._one_at_a_time:
            self._counters.add("refreshes")
            return self._healed(lambda: self._mounts)

    def list_new(self) -> Summary:
        """List only sources that were never listed as they are now."""
        with self._one_at_a_time:
            return self._healed(lambda: unlisted(self._tree, self._mounts))

    @property
    def last_error(self) -> str | None:
        """The errors of the last listing of each source, if there were any."""
        return "; ".join(self._errors.values()) or None

    def _healed(self, wanted: Callable[[], list[Mounted]]) -> Summary:
        """List these sources; if the catalog is damaged, list all into a new one."""
        try:
            if self._is_suspect:
                self._renew()
            summary = self._list(wanted())
        except CatalogDamaged as error:
            log.debug("%s", error)
            self._renew()
            summary = self._list(unlisted(self._tree, self._mounts))
        if self._is_suspect and self._tree.is_complete():
            self._is_suspect = False
            self._session.retry_parked(math.inf)
            self._notify_kernel()
        return summary

    def _renew(self) -> None:
        self._is_suspect = True
        self._tree.repair(thorough=True)
        self._outdate([])  # folders may have other numbers

    def _outdate(self, removed: list[int]) -> None:
        with self._outdating:
            self._files.mark_outdated(removed)

    def _list(self, wanted: list[Mounted]) -> Summary:
        # First without any source: removed ones disappear at once, however slow the others are.
        summaries = [self._refresh([]), *(self._refresh([mounted]) for mounted in wanted)]
        return replace(
            summaries[-1],
            changed=sum(one.changed for one in summaries),
            failures=tuple(failure for one in summaries for failure in one.failures),
        )

    def _refresh(self, only: list[Mounted]) -> Summary:
        def report_progress(_files: int, _bytes: int) -> None:
            if only == self._mounts[-1:]:
                self._heard.set()

        try:
            summary = refresh(
                self._tree,
                self._mounts,
                report_progress,
                only=only,
                most_files=self._max_files,
                in_use=True,
            )
        except CatalogDamaged:
            raise  # it is repaired and listed again
        except Exception as error:
            self._errors = {"": str(error)}  # of the only source, or of all
            self._note_failure(error)
            raise
        finally:
            self._notify_kernel()
        report_progress(0, 0)  # an empty source reports nothing by itself
        for mounted in only:
            self._errors.pop(mounted.path, None)
        for failure in summary.failures:
            log.warning("refresh: %s", failure)
            self._errors[failure.path] = str(failure)
            self._note_failure(failure.error)
        return summary

    def _note_failure(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._heard.set()

    def _run_heal(self) -> None:
        while self._met_damage.wait() and not self._stopping:
            self._met_damage.clear()
            try:
                # Damage that only SQLite finds is left to the next refresh: finding it takes 3 s
                # for a million files.
                if self._tree.repair() is not None:
                    self._outdate([])
            except Exception as error:  # noqa: BLE001 - the next call tries again
                log.warning("the catalog cannot be rebuilt: %s", error)
            time.sleep(_HEALS_EVERY_S)

    def _run_refresh(self) -> None:
        try:
            self.catch_up()
        except Exception as error:  # noqa: BLE001 - the next refresh fails and reports it
            log.debug("%s", error)
        finally:
            self._caught_up.set()
        self._try(full=False)
        due_s = _later(self._interval_s)
        while True:
            self._wake.wait(self._wait_s(due_s))
            if self._stopping:
                return
            self._wake.clear()
            asked, self._is_outdated = self._is_outdated, False
            full = asked or time.monotonic() >= due_s
            succeeded = self._try(full=full)
            if full:
                due_s = _later(self._interval_s)
            if asked or not succeeded:
                time.sleep(_LEAST_INTERVAL_S)

    def _wait_s(self, due_s: float) -> float | None:
        try:
            # Its listing failed: nothing of it is shown yet.
            waits = bool(unlisted(self._tree, self._mounts)) or not self._tree.is_checkpointed()
        except Exception as error:  # noqa: BLE001 - `_try` fails and reports it
            log.debug("%s", error)
            waits = True
        if waits:
            due_s = min(due_s, _later(_FIRST_LISTING_AGAIN_S))
        return None if due_s == math.inf else max(0.0, due_s - time.monotonic())

    def _try(self, *, full: bool) -> bool:
        """Return whether all sources were listed that had to be."""
        try:
            summary = self.refresh_now() if full else self.list_new()
        except Exception as error:  # the mount goes on with the catalog that it has
            known = isinstance(error, PenstockError)
            log.warning("refresh: %s", error, exc_info=None if known else error)
            return False
        return not summary.failures

    def _notify_kernel(self) -> None:
        """Return when the kernel knows of all changes, or when damage is found: the reader that
        the kernel waits for may then be waiting for this thread."""
        if not self._tree.is_complete():
            return  # requests wait for it, holding folders that the kernel would wait for
        notified = self._notifier.submit(self._notify_changes)
        while not notified.done():
            if self._is_suspect:
                return
            wait([notified], _CHECKS_FOR_DAMAGE_EVERY_S)
        notified.result()

    def _notify_changes(self) -> None:
        changes_from = self._tree.changes_from()
        if self.seen < changes_from:
            self._forget_all_names()
            self.seen = changes_from
            self._on_notified(self.seen)
        while changes := self._tree.changes_since(self.seen, _CHANGES_AT_ONCE):
            self._outdate([change.buried for change in changes if change.buried])
            for change in changes:
                self._session.invalidate_entry(change.parent, change.name)
            for parent in {change.parent for change in changes}:
                self._session.invalidate_pages(parent)  # a directory's pages are its listing
            self.seen = changes[-1].seq
            self._on_notified(self.seen)

    def _forget_all_names(self) -> None:
        """Have the kernel look up everything again: the record of changes it missed is gone."""
        self._outdate([])
        ino = 0
        while names := self._tree.names_after(ino, _CHANGES_AT_ONCE):
            for _, parent, name in names:
                self._session.invalidate_entry(parent, name)
            for parent in {parent for _, parent, _ in names}:
                self._session.invalidate_pages(parent)
            ino = names[-1][0]


def _later(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds
