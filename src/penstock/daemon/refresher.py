"""Keeps the catalog current behind the mount, and tells the kernel what changed."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.catalog.refresh import Mounted, Summary, refresh, unlisted
from penstock.catalog.tree import Tree
from penstock.errors import PenstockError
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem

log = logging.getLogger(__name__)

# A burst of outdated reads asks for one listing, not for a hundred.
_LEAST_INTERVAL_S = 5.0
_CHANGES_AT_ONCE = 10_000
# A source that was added and could not be listed is tried again so soon, whatever --refresh says.
_FIRST_LISTING_AGAIN_S = 30.0


class Refresher:
    def __init__(
        self, tree: Tree, mounts: list[Mounted], files: FileSystem, session: Session,
        interval_s: float | None, max_files: int, counters: Counters, seen: int | None,
        told: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._tree = tree
        self._mounts = mounts
        self._files = files
        self._session = session
        self._interval_s = interval_s
        self._max_files = max_files
        self._counters = counters
        self._told = told  # called with the last change that the kernel knows of
        # From the start: someone may ask for a refresh before we have caught up.
        self.seen = tree.last_change() if seen is None else seen
        self._one_at_a_time = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)
        self._errors: dict[str, str] = {}  # by the path of the source

    def catch_up(self) -> None:
        """Tells the kernel what the server before us may not have told it any more."""
        with self._one_at_a_time:
            self._tell_kernel()

    def start(self, *, at_once: bool) -> None:
        if at_once and self._interval_s is not None:
            self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def request(self) -> None:
        """A reader met a version that we do not know: look soon."""
        self._wake.set()

    def refresh_now(self) -> Summary:
        """All sources, one after the other: of each the kernel is told before the next is listed.
        Raises if there is only one, and its listing fails."""
        with self._one_at_a_time:
            self._counters.add("refreshes")
            return self._list(self._mounts)

    def list_new(self) -> Summary:
        """Only sources that were never listed as they are now; others cost nothing."""
        with self._one_at_a_time:
            return self._list(unlisted(self._tree, self._mounts))

    @property
    def last_error(self) -> str | None:
        """What went wrong with the last listing of each source, if anything did."""
        return "; ".join(self._errors.values()) or None

    def _list(self, wanted: Sequence[Mounted]) -> Summary:
        # At first nothing: what is not mounted any more goes at once, however slow the others are.
        summaries = [self._refresh([]), *(self._refresh([mounted]) for mounted in wanted)]
        return replace(
            summaries[-1], changed=sum(one.changed for one in summaries),
            failures=tuple(failure for one in summaries for failure in one.failures),
        )  # fmt: skip

    def _refresh(self, only: list[Mounted]) -> Summary:
        try:
            summary = refresh(
                self._tree, self._mounts, lambda _files, _bytes: None, only=only,
                most_files=self._max_files, in_use=True,
            )  # fmt: skip
        except Exception as error:
            self._errors = {"": str(error)}  # of the only one, or of all
            raise
        finally:
            self._tell_kernel()
        for mounted in only:
            self._errors.pop(mounted.path, None)
        for failure in summary.failures:
            log.warning("refresh: %s", failure)
            self._errors[failure.path] = str(failure)
        return summary

    def _run(self) -> None:
        self._try(full=False)
        due_s = _later(self._interval_s)
        while True:
            asked = self._wake.wait(self._wait_s(due_s))
            if self._stopping:
                return
            self._wake.clear()
            full = asked or time.monotonic() >= due_s
            self._try(full=full)
            if full:
                due_s = _later(self._interval_s)
            if asked:
                time.sleep(_LEAST_INTERVAL_S)

    def _wait_s(self, due_s: float) -> float | None:
        if unlisted(self._tree, self._mounts):  # its listing failed: nothing of it is shown yet
            due_s = min(due_s, _later(_FIRST_LISTING_AGAIN_S))
        return None if due_s == math.inf else max(0.0, due_s - time.monotonic())

    def _try(self, *, full: bool) -> None:
        try:
            if full:
                self.refresh_now()
                return
            self.list_new()
        except Exception as error:  # what is known goes on being served
            known = isinstance(error, PenstockError)
            log.warning("refresh: %s", error, exc_info=None if known else error)

    def _tell_kernel(self) -> None:
        while changes := self._tree.changes_since(self.seen, _CHANGES_AT_ONCE):
            self._files.outdate([change.buried for change in changes if change.buried])
            for change in changes:
                self._session.invalidate_entry(change.parent, change.name)
            for parent in {change.parent for change in changes}:
                self._session.invalidate_pages(parent)  # a directory's pages are its listing
            self.seen = changes[-1].seq
            self._told(self.seen)


def _later(seconds: float | None) -> float:
    return math.inf if seconds is None else time.monotonic() + seconds
