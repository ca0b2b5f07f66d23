"""The epoch plans that training processes have with this mount.

A plan comes over the control socket as memory and an open connection, and ends when the other end
of that is closed. Both descriptors are given to the supervisor to keep: a server that takes over
goes on where the last one was, and the training process need not know.

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
from penstock.daemon.control import Answer, Line
from penstock.errors import PlanError
from penstock.vfs.filesystem import FileSystem
from penstock.warm.looker import Looker
from penstock.warm.memory import PageBudget
from penstock.warm.order import OrderReader
from penstock.warm.planned import PlannedFeed
from penstock.warm.prefetcher import Prefetcher

log = logging.getLogger(__name__)

# Each is two descriptors that travel in one message when a server takes over (253 at most).
_MOST_PLANS = 64
_PREFIX = "plan-"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the supervisor is told what must outlive this server."""

    keep: Callable[[str, int], None]
    drop: Callable[[str], None]
    remember: Callable[[dict[str, Any]], None]


class Plans:
    def __init__(
        self, files: FileSystem, prefetcher: Prefetcher, looker: Looker | None,
        pages: PageBudget, drop_pages: Callable[[int], None], keeping: Keeping,
    ) -> None:  # fmt: skip
        self._files = files
        self._prefetcher = prefetcher
        self._looker = looker
        self._pages = pages
        self._drop_pages = drop_pages
        self._aside = Pool(1, "drop")
        self._keeping = keeping
        self._lock = threading.Lock()
        self._feeds: dict[str, PlannedFeed] = {}
        self._count = 0

    def converse(self, request: Answer, line: Line, descriptors: list[int]) -> None:
        """The verb `plan` of the control socket."""
        if len(descriptors) != 1:
            raise PlanError("a plan comes with one descriptor, its memory")
        label, pid = str(request.get("label", "")), int(request.get("pid", 0))
        with self._lock:
            if len(self._feeds) >= _MOST_PLANS:
                raise PlanError(
                    f"this mount has {_MOST_PLANS} plans already",
                    hint="end the processes that made them; `penstock stats` names them",
                )
            self._count += 1
            name = f"{_PREFIX}{os.getpid()}-{self._count}"
        feed = self._open(descriptors[0], label, pid)
        self._keeping.keep(f"{name}.memory", descriptors[0])
        self._keeping.keep(f"{name}.line", line.fileno())
        self._keeping.remember({name: [label, pid]})
        line.send({"accepted": True})
        os.close(descriptors.pop())  # mapped by now
        self._begin(name, feed, line)

    def adopt(self, kept: dict[str, int], remembered: dict[str, Any]) -> None:
        """Goes on with the plans of the server before us."""
        for memory_name in [name for name in kept if name.endswith(".memory")]:
            name = memory_name.removesuffix(".memory")
            memory, end = kept.pop(memory_name), kept.pop(f"{name}.line", None)
            if end is None or not remembered.get(name):
                continue  # killed while it took it: who sent it has seen no answer
            label, pid = remembered[name]
            line = Line(socket.socket(fileno=end))
            try:
                feed = self._open(memory, label, pid)
            except PlanError as error:
                log.error("the plan %s is lost: %s", label, error)
                line.close()
                continue
            finally:
                os.close(memory)
            self._begin(name, feed, line)

    def describe(self) -> list[dict[str, Any]]:
        with self._lock:
            return [feed.describe() for feed in self._feeds.values()]

    def _open(self, memory: int, label: str, pid: int) -> PlannedFeed:
        return PlannedFeed(
            OrderReader(memory), self._files, self._looker, self._pages, self._prefetcher.pace,
            self._drop_pages, self._aside.put, label, pid,
        )  # fmt: skip

    def _begin(self, name: str, feed: PlannedFeed, line: Line) -> None:
        with self._lock:
            self._feeds[name] = feed
        self._prefetcher.add(feed)
        thread = threading.Thread(target=self._wait, args=(name, feed, line), daemon=True)
        thread.start()

    def _wait(self, name: str, feed: PlannedFeed, line: Line) -> None:
        line.wait_for_end()
        line.close()
        self._prefetcher.remove(feed)
        with self._lock:
            del self._feeds[name]
        feed.end()
        for part in ("memory", "line"):
            self._keeping.drop(f"{name}.{part}")
        self._keeping.remember({name: None})
