"""Keeps the catalog current behind the mount, and tells the kernel what changed."""

import logging
import threading
import time
from collections.abc import Callable

from penstock.catalog.refresh import Mounted, Summary, refresh
from penstock.catalog.tree import Tree
from penstock.errors import PenstockError
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem

log = logging.getLogger(__name__)

# A burst of outdated reads asks for one listing, not for a hundred.
_LEAST_INTERVAL_S = 5.0
_CHANGES_AT_ONCE = 10_000


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
        self.last_error: str | None = None

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

    def refresh_now(self, progress: Callable[[int], None] = lambda _: None) -> Summary:
        with self._one_at_a_time:
            summary = refresh(self._tree, self._mounts, progress, most_files=self._max_files)
            self._counters.add("refreshes")
            self._tell_kernel()
            self.last_error = None
            return summary

    def _run(self) -> None:
        while True:
            asked = self._wake.wait(self._interval_s)
            if self._stopping:
                return
            self._wake.clear()
            try:
                self.refresh_now()
            except Exception as error:  # what is known goes on being served
                self.last_error = str(error)
                known = isinstance(error, PenstockError)
                log.warning("refresh: %s", error, exc_info=None if known else error)
            if asked:
                time.sleep(_LEAST_INTERVAL_S)

    def _tell_kernel(self) -> None:
        while changes := self._tree.changes_since(self.seen, _CHANGES_AT_ONCE):
            self._files.outdate([change.buried for change in changes if change.buried])
            for change in changes:
                self._session.invalidate_entry(change.parent, change.name)
            for parent in {change.parent for change in changes}:
                self._session.invalidate_pages(parent)  # a directory's pages are its listing
            self.seen = changes[-1].seq
            self._told(self.seen)
