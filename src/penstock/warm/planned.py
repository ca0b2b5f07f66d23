"""An epoch plan as a feed: what comes next before its readers need it, and no further than helps.

What the kernel holds already is passed over. Files are kept in the page cache as long as there is
room for them; those that come when it is full are dropped again behind the cursor, so that they
push nothing out that will be read sooner.

Threading: `take` by one thread; numbers may be looked at by any.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.blocks import block_count
from penstock.cache.tiered import Arrival, Brought
from penstock.catalog.tree import Node
from penstock.errors import StaleInode
from penstock.vfs.filesystem import FileSystem
from penstock.warm import look
from penstock.warm.looker import MOST_AT_ONCE, Looker
from penstock.warm.memory import PageBudget
from penstock.warm.order import OrderReader
from penstock.warm.pace import Pace
from penstock.warm.prefetcher import Wanted
from penstock.warm.window import Demand, window_bytes

_MOST_AHEAD = 200_000  # positions; tiny files must not make the list of what is ahead endless
_FIRST_LOOK = 16  # the first GETs do not wait until a hundred files were looked at
_NEW, _KEPT, _MISSING = range(3)


class PlannedFeed:
    def __init__(
        self, order: OrderReader, files: FileSystem, looker: Looker | None, pages: PageBudget,
        pace: Pace, drop_pages: Callable[[int], None], label: str, pid: int,
    ) -> None:  # fmt: skip
        """`looker`: None if nothing can be pushed."""
        self.label = label
        self.pid = pid
        self._order = order
        self._files = files
        self._looker = looker
        self._pages = pages
        self._pace = pace
        self._drop_pages = drop_pages
        self._inos = array("Q", bytes(8 * order.files))  # 0: not looked up yet
        self._states = bytearray(order.files)
        self._generation = order.generation
        self._next = order.done  # the first position that was not looked at
        self._passing: deque[tuple[int, int]] = deque()  # (position, file) to drop when done
        self._at_once = _FIRST_LOOK
        self._ready: deque[Wanted] = deque()
        self._sizes: deque[tuple[int, int]] = deque()  # (position, bytes) ahead of the readers
        self._ahead_bytes = 0
        self._window_bytes = 0
        self._kept_bytes = 0
        self._demand = Demand()
        self._ended = dict.fromkeys(Brought, 0)
        self._counting = threading.Lock()
        self._resident = 0
        self._missing = 0
        self._dropped = 0

    def take(self, most: int) -> list[Wanted]:
        self._follow()
        while len(self._ready) < most and self._may_go_on():
            self._look_at_more()
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def end(self) -> None:
        """Its memory is for others from now on; the kernel lets go of it when it has to."""
        self._pages.give_back(self._kept_bytes)

    def describe(self) -> dict[str, Any]:
        order = self._order
        return {
            "label": self.label, "pid": self.pid, "files": order.files,
            "handed_out": order.handed_out, "done": order.done, "end": order.end,
            "ahead": self._next, "ahead_bytes": self._ahead_bytes,
            "window_bytes": self._window_bytes, "kept_bytes": self._kept_bytes,
            "resident": self._resident, "dropped": self._dropped, "missing": self._missing,
            **{how.name.lower(): count for how, count in self._ended.items()},
        }  # fmt: skip

    # -- the cursor ----------------------------------------------------------------------

    def _follow(self) -> None:
        order = self._order
        handed_out, done = order.handed_out, order.done
        if order.generation != self._generation:  # what comes next is something else
            self._generation = order.generation
            self._next = min(self._next, handed_out)
            self._ready.clear()
            while self._passing and self._passing[-1][0] >= self._next:
                self._passing.pop()
        if self._next < done:
            self._skip_to(done)
        taken = 0
        while self._sizes and self._sizes[0][0] < handed_out:
            taken += self._sizes.popleft()[1]
        while self._sizes and self._sizes[-1][0] >= self._next:
            taken += self._sizes.pop()[1]
        self._ahead_bytes -= taken
        self._demand.note(taken, time.monotonic())
        self._window_bytes = window_bytes(
            latency_s=self._pace.latency_s, bytes_per_s=self._pace.bytes_per_s,
            demand_bytes_per_s=self._demand.bytes_per_s, budget_bytes=self._pages.passing_bytes,
        )  # fmt: skip
        self._drop_behind(done)

    def _may_go_on(self) -> bool:
        return (
            self._next < self._order.end
            and self._ahead_bytes < self._window_bytes
            and len(self._sizes) < _MOST_AHEAD
        )

    def _skip_to(self, done: int) -> None:
        """Readers were faster. What they read by themselves counts as if we had brought it."""
        while self._next < done:
            for position, number, node in self._nodes_at(done):
                self._admit(position, number, node.size_bytes or 0)

    def _drop_behind(self, done: int) -> None:
        """What its readers are done with, and what there is no room to keep."""
        while self._passing and self._passing[0][0] < done:
            _, number = self._passing.popleft()
            self._drop_pages(self._inos[number])
            self._dropped += 1

    # -- what comes next -----------------------------------------------------------------

    def _look_at_more(self) -> None:
        nodes = self._nodes_at(self._order.end)
        looks, looked_s = look.HELD * len(nodes), time.monotonic()
        if self._looker is not None:
            looks = self._looker.look([self._order.name(number) for _, number, _ in nodes])
        handed_out = self._order.handed_out
        for (position, number, node), seen in zip(nodes, looks, strict=True):
            size = node.size_bytes or 0
            if position >= handed_out:
                self._sizes.append((position, size))
                self._ahead_bytes += size
            self._admit(position, number, size)
            if seen == look.RESIDENT[0]:
                self._resident += 1
            else:
                self._want(node, looked_s)

    def _nodes_at(self, stop: int) -> list[tuple[int, int, Node]]:
        """(position, file, node) of the next positions, of which there is one at least."""
        start, self._next = self._next, min(stop, self._next + self._at_once)
        self._at_once = min(MOST_AT_ONCE, self._at_once * 2)
        numbers = self._order.files_at(start, self._next)
        nodes = self._find(set(numbers))
        return [
            (position, number, nodes[number])
            for position, number in enumerate(numbers, start)
            if number in nodes
        ]

    def _admit(self, position: int, number: int, size: int) -> None:
        """Decides whether the file stays in memory once it was read."""
        if self._looker is None:
            return
        if self._states[number] == _NEW and self._pages.reserve(size):
            self._states[number] = _KEPT
            self._kept_bytes += size
        if self._states[number] != _KEPT:
            self._passing.append((position, number))

    def _want(self, node: Node, looked_s: float) -> None:
        push = self._looker is not None
        for block in range(block_count(node.size_bytes or 0, self._files.cache.block_bytes)):
            self._ready.append(Wanted(node.ino, block, push, looked_s, self._note_end))

    def _note_end(self, arrival: Arrival) -> None:
        with self._counting:
            self._ended[arrival.how] += 1

    def _find(self, numbers: set[int]) -> dict[int, Node]:
        nodes: dict[int, Node] = {}
        unknown: list[int] = []
        for number in numbers:
            if number >= self._order.files or self._states[number] == _MISSING:
                continue  # ELSEWHERE, for one
            if (node := self._known(number)) is not None:
                nodes[number] = node
            else:
                unknown.append(number)
        found = self._files.find_many([self._order.name(number) for number in unknown])
        for number, node in zip(unknown, found, strict=True):
            if node is None or node.is_directory:
                self._states[number] = _MISSING
                self._missing += 1
                self._order.note_missing(number)
            else:
                self._inos[number] = node.ino
                nodes[number] = node
        return nodes

    def _known(self, number: int) -> Node | None:
        if ino := self._inos[number]:
            try:
                node = self._files.node(ino)
                return None if node.dead else node
            except StaleInode:
                return None  # rewritten, and cleared away: its name leads to the new one
        return None
