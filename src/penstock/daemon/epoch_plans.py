"""The epoch plans that training processes have with this mount.

A plan arrives over the control socket as shared memory and an open connection, and ends when the
training process closes the connection. The supervisor keeps both descriptors, so a server that
takes over continues the plan, and the training process notices nothing.

Threading: any thread; one waits for the end of each plan.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.cache.pool import Pool
from penstock.daemon.control_socket import Answer, Connection
from penstock.errors import PlanError
from penstock.vfs.filesystem import FileSystem
from penstock.warm.order import OrderReader
from penstock.warm.page_cache import PageBudget, PageCacheProbe
from penstock.warm.planned import PlannedFeed
from penstock.warm.prefetcher import Prefetcher

log = logging.getLogger(__name__)

# Each is two descriptors that travel in one message when a server takes over (253 at most).
_MOST_PLANS = 64
_PREFIX = "plan-"
_PARTS = (".memory", ".line")
# All labels travel in one message, too, of 128 KiB at most.
_LONGEST_LABEL = 200


@dataclass(frozen=True, slots=True)
class Keeping:
    """The messages that tell the supervisor what must outlive this server."""

    keep: Callable[[str, int], None]
    drop: Callable[[str], None]
    remember: Callable[[dict[str, Any]], None]


class EpochPlans:
    def __init__(
        self,
        files: FileSystem,
        prefetcher: Prefetcher,
        probe: PageCacheProbe | None,
        pages: PageBudget,
        drop_pages: Callable[[int], None],
        keeping: Keeping,
    ) -> None:
        self._files = files
        self._prefetcher = prefetcher
        self._probe = probe
        self._pages = pages
        self._drop_pages = drop_pages
        self._aside = Pool(1, "drop")
        self._keeping = keeping
        self._lock = threading.Lock()
        self._feeds: dict[str, PlannedFeed] = {}
        self._count = 0

    def converse(self, request: Answer, line: Connection, descriptors: list[int]) -> None:
        """The verb `plan` of the control socket."""
        if len(descriptors) != 1:
            raise PlanError("a plan comes with one descriptor, its memory")
        label, pid = str(request.get("label", ""))[:_LONGEST_LABEL], int(request.get("pid", 0))
        feed = self._open(descriptors[0], label, pid)
        with self._lock:
            if len(self._feeds) >= _MOST_PLANS:
                raise PlanError(
                    f"this mount has {_MOST_PLANS} plans already",
                    hint="end the processes that made them; `penstock stats` names them",
                )
            self._count += 1
            name = f"{_PREFIX}{os.getpid()}-{self._count}"
            self._feeds[name] = feed
        try:
            self._keeping.keep(f"{name}.memory", descriptors[0])
            self._keeping.keep(f"{name}.line", line.fileno())
            self._keeping.remember({name: [label, pid]})
        except BaseException:
            self._forget(name)
            raise
        os.close(descriptors.pop())  # mapped by now
        self._begin(name, feed, line)
        self._accept(name, feed, line)

    def adopt(self, kept: dict[str, int], remembered: dict[str, Any]) -> None:
        """Continue the plans of the server before this one."""
        for name in _plan_names([*kept, *remembered]):
            memory, end = kept.pop(f"{name}.memory", None), kept.pop(f"{name}.line", None)
            known = remembered.get(name)
            if memory is None or end is None or not known:
                # That server was killed while it accepted or dropped the plan. A client that still
                # waits for the answer sees the connection close, and asks again.
                for descriptor in (memory, end):
                    if descriptor is not None:
                        os.close(descriptor)
                self._forget(name)
                continue
            label, pid, *accepted = known
            line = Connection(socket.socket(fileno=end))
            try:
                feed = self._open(memory, label, pid)
            except PlanError as error:
                log.error("the plan %s is lost: %s", label, error)
                line.close()
                self._forget(name)
                continue
            finally:
                os.close(memory)
            with self._lock:
                self._feeds[name] = feed
            self._begin(name, feed, line)
            if not accepted:
                self._accept(name, feed, line)

    @property
    def count(self) -> int:
        """How many plans are followed."""
        return len(self._feeds)

    def describe(self) -> list[dict[str, Any]]:
        with self._lock:
            return [feed.describe() for feed in self._feeds.values()]

    def _open(self, memory: int, label: str, pid: int) -> PlannedFeed:
        return PlannedFeed(
            OrderReader(memory),
            self._files,
            self._probe,
            self._pages,
            self._prefetcher.pace,
            self._drop_pages,
            self._aside.submit,
            label,
            pid,
        )

    def _begin(self, name: str, feed: PlannedFeed, line: Connection) -> None:
        self._prefetcher.add(feed)
        thread = threading.Thread(target=self._wait, args=(name, feed, line), daemon=True)
        thread.start()

    def _accept(self, name: str, feed: PlannedFeed, line: Connection) -> None:
        """Confirm the plan to its process, and note that, for a server that takes over."""
        try:
            line.send({"accepted": True})
            self._keeping.remember({name: [feed.label, feed.pid, True]})
        except OSError as error:
            log.debug("the process of a plan is gone: %s", error)  # `_wait` sees that too

    def _wait(self, name: str, feed: PlannedFeed, line: Connection) -> None:
        line.wait_for_end()
        line.close()
        self._prefetcher.remove(feed)
        feed.end()
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._feeds.pop(name, None)
        for part in _PARTS:
            self._keeping.drop(f"{name}{part}")
        self._keeping.remember({name: None})


def _plan_names(names: list[str]) -> list[str]:
    """Return the names of plans, from their own and those of their parts."""
    found = {name.removesuffix(".memory").removesuffix(".line") for name in names}
    return sorted(name for name in found if name.startswith(_PREFIX))
