"""An epoch plan as a feed: fetches files before their readers need them, and no further than helps.

Files whose pages the kernel holds are skipped. Files are kept in the page cache as long as there is
room for them; when it is full, later files are dropped again behind the cursor, so that they evict
nothing that will be read sooner. Of a file larger than the window only the beginning is pushed; its
reader's own readahead fetches the rest.

Threading: `take` by one thread; `end` and reading numbers by any. Pages are dropped in another
thread, since that waits for readers of those pages.
"""

import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.blocks import block_count
from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.catalog.tree import Node
from penstock.errors import StaleInode
from penstock.vfs.filesystem import FileSystem
from penstock.warm import residency
from penstock.warm.order import OrderReader
from penstock.warm.pace import Demand, Pace, window_bytes
from penstock.warm.page_cache import FILES_PER_PROBE, PageBudget, PageCacheProbe
from penstock.warm.prefetcher import Wanted

_MOST_AHEAD = 200_000  # positions; tiny files must not make the list of what is ahead endless
_ELSEWHERE_S = 0.02  # until a block that another machine is fetching is asked for again
_FIRST_CHECK = 16  # the first GETs do not wait for the check of a hundred files
# Blocks of one file that is not pushed: 256 GiB of 4 MiB.
_MOST_BLOCKS = 65_536
# Checks, of 128 files each, in one turn: what a plan that has nothing to fetch may take from
# others.
_CHECKS_PER_TURN = 8
# How many of the positions that readers have passed before the feed are still looked up: one turn's
# worth.
_MOST_SKIPPED = _CHECKS_PER_TURN * FILES_PER_PROBE
_NEW, _KEPT, _MISSING = range(3)


class PlannedFeed:
    def __init__(
        self,
        order: OrderReader,
        files: FileSystem,
        probe: PageCacheProbe | None,
        pages: PageBudget,
        pace: Pace,
        drop_pages: Callable[[int], None],
        in_background: Callable[[Callable[[], None]], None],
        label: str,
        pid: int,
    ) -> None:
        """`probe`: None if nothing can be pushed. `in_background`: runs a function in another
        thread."""
        self.label = label
        self.pid = pid
        self._order = order
        self._files = files
        self._probe = probe
        self._pages = pages
        self._pace = pace
        self._drop_pages = drop_pages
        self._in_background = in_background
        self._lock = threading.Lock()
        self._is_over = False
        self._inos = array("Q", bytes(8 * order.files))  # 0: not looked up yet
        self._states = bytearray(order.files)
        self._generation = order.generation
        self._next = order.done  # the first position that was not checked
        self._ahead = self._next  # the same, for `describe`
        self._passing: deque[tuple[int, int]] = deque()  # (position, file) to drop when done
        self._at_once = _FIRST_CHECK
        self._passes = Counter[int]()  # how often a file is in `_passing`
        self._ready: deque[Wanted] = deque()
        self._sizes: deque[tuple[int, int]] = deque()  # (position, bytes) ahead of the readers
        self._ahead_bytes = 0
        self._window_bytes = 0
        self._kept_bytes = 0
        self._demand = Demand()
        self._ended = dict.fromkeys(FetchOutcome, 0)
        # Blocks that another machine is fetching, and when to ask for them again.
        self._elsewhere: deque[tuple[float, Wanted]] = deque()
        self._resident = 0
        self._missing = 0
        self._dropped = 0

    def take(self, most: int) -> list[Wanted]:
        self._update_cursor()
        for _ in range(_CHECKS_PER_TURN):
            if len(self._ready) >= most or not self._may_check_more():
                break
            self._check_more()
        self._ahead = self._next  # only after the check, which may take a while
        self._ask_again()
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def end(self) -> None:
        """Release the plan's memory budget; the kernel drops the pages when it has to."""
        with self._lock:
            self._is_over = True
        for number, state in enumerate(self._states):
            if state == _KEPT:
                self._pages.release(self._inos[number])

    def describe(self) -> dict[str, Any]:
        order = self._order
        return {
            "label": self.label,
            "pid": self.pid,
            "files": order.files,
            "handed_out": order.handed_out,
            "done": order.done,
            "end": order.end,
            "ahead": self._ahead,
            "ahead_bytes": self._ahead_bytes,
            "window_bytes": self._window_bytes,
            "kept_bytes": self._kept_bytes,
            "resident": self._resident,
            "dropped": self._dropped,
            "missing": self._missing,
            **{outcome.name.lower(): count for outcome, count in self._ended.items()},
        }

    # -- the cursor ----------------------------------------------------------------------

    def _update_cursor(self) -> None:
        order = self._order
        handed_out, done = order.handed_out, order.done
        if order.generation != self._generation:  # the plan has changed what comes next
            self._generation = order.generation
            self._next = min(self._next, handed_out)
            self._ready.clear()
            while self._passing and self._passing[-1][0] >= self._next:
                self._passes[self._passing.pop()[1]] -= 1
        if self._next < done:
            self._skip_to(done)
        taken = cut = 0
        while self._sizes and self._sizes[0][0] < handed_out:
            taken += self._sizes.popleft()[1]
        while self._sizes and self._sizes[-1][0] >= self._next:
            cut += self._sizes.pop()[1]
        self._ahead_bytes -= taken + cut
        self._demand.note(taken, time.monotonic())
        self._window_bytes = window_bytes(
            latency_s=self._pace.latency_s,
            bytes_per_s=self._pace.bytes_per_s,
            demand_bytes_per_s=self._demand.bytes_per_s,
            budget_bytes=self._pages.passing_bytes,
        )
        self._drop_behind(done)

    def _may_check_more(self) -> bool:
        return (
            self._next < self._order.end
            and self._ahead_bytes < self._window_bytes
            and len(self._sizes) < _MOST_AHEAD
            and not self._is_over
        )

    def _skip_to(self, done: int) -> None:
        """Skip what readers have already read. It counts as if the feed had fetched it."""
        self._next = max(self._next, done - _MOST_SKIPPED)
        while self._next < done:
            for one in self._upcoming(done):
                self._admit(one)

    def _drop_behind(self, done: int) -> None:
        """Drop the pages of files that its readers are done with, and that there is no room to
        keep."""
        while self._passing and self._passing[0][0] < done:
            _, number = self._passing.popleft()
            self._passes[number] -= 1
            if not self._passes[number]:  # it does not come again soon
                del self._passes[number]
                self._in_background(partial(self._drop, self._inos[number]))

    def _drop(self, ino: int) -> None:
        if not self._pages.is_kept(ino):  # another plan may keep it
            self._drop_pages(ino)
            self._dropped += 1

    # -- what comes next -----------------------------------------------------------------

    def _check_more(self) -> None:
        comes = self._within_window(self._upcoming(self._order.end))
        states, missing_since_s = residency.HELD * len(comes), time.monotonic()
        if self._probe is not None:
            states = self._probe.check([one.name for one in comes])
        handed_out = self._order.handed_out
        for one, seen in zip(comes, states, strict=True):
            size = one.node.size_bytes or 0
            if one.position >= handed_out:
                self._sizes.append((one.position, size))
                self._ahead_bytes += size
            self._admit(one)
            if seen == residency.RESIDENT[0]:
                self._resident += 1
            else:
                self._enqueue(one.node, missing_since_s)

    def _within_window(self, comes: "list[_Upcoming]") -> "list[_Upcoming]":
        room = self._window_bytes - self._ahead_bytes
        for index, one in enumerate(comes):
            if room <= 0:
                self._next = one.position
                return comes[:index]
            room -= one.node.size_bytes or 0
        return comes

    def _upcoming(self, stop: int) -> "list[_Upcoming]":
        """Return the files at the next positions; there is at least one position."""
        start, self._next = self._next, min(stop, self._next + self._at_once)
        self._at_once = min(FILES_PER_PROBE, self._at_once * 2)
        numbers = self._order.files_at(start, self._next)
        # Read names once: the next read of that memory may find others.
        names = {
            number: self._order.name(number)
            for number in numbers
            if number < self._order.files and self._states[number] != _MISSING
        }
        nodes = self._find(names)
        return [
            _Upcoming(position, number, names[number], nodes[number])
            for position, number in enumerate(numbers, start)
            if number in nodes
        ]

    def _admit(self, one: "_Upcoming") -> None:
        """Decide whether the file stays in memory after it is read."""
        if self._probe is None:
            return
        number, size = one.number, one.node.size_bytes or 0
        with self._lock:
            is_new = self._states[number] == _NEW and not self._is_over
            if is_new and self._pages.keep(one.node.ino, size):
                self._states[number] = _KEPT
                self._kept_bytes += size
        if self._states[number] != _KEPT:
            self._passing.append((one.position, number))
            self._passes[number] += 1

    def _enqueue(self, node: Node, missing_since_s: float) -> None:
        push, block_bytes = self._probe is not None, self._files.cache.block_bytes
        most = max(1, self._window_bytes // block_bytes) if push else _MOST_BLOCKS
        for block in range(min(most, block_count(node.size_bytes or 0, block_bytes))):
            wanted = Wanted(node.ino, block, push, missing_since_s, _ignore)
            self._ready.append(wanted._replace(ended=partial(self._note_end, wanted)))

    def _note_end(self, wanted: Wanted, result: FetchResult) -> None:
        with self._lock:
            self._ended[result.outcome] += 1
            if result.outcome is FetchOutcome.ELSEWHERE and not self._is_over:
                self._elsewhere.append((time.monotonic() + _ELSEWHERE_S, wanted))

    def _ask_again(self) -> None:
        """Ask again, before all others, for blocks that another machine was fetching."""
        now_s = time.monotonic()
        while self._elsewhere and self._elsewhere[0][0] <= now_s:
            wanted = self._elsewhere.popleft()[1]._replace(missing_since_s=now_s)
            self._ready.appendleft(wanted._replace(ended=partial(self._note_end, wanted)))

    # -- files ---------------------------------------------------------------------------

    def _find(self, names: dict[int, bytes]) -> dict[int, Node]:
        nodes = {number: node for number in names if (node := self._known(number)) is not None}
        unknown = [number for number in names if number not in nodes]
        found = self._files.find_many([names[number] for number in unknown])
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
        if not (ino := self._inos[number]):
            return None
        try:
            node = self._files.node(ino)
            if not node.dead:
                return node
        except StaleInode:
            pass
        self._forget(number)  # rewritten: its name leads to the new inode
        return None

    def _forget(self, number: int) -> None:
        with self._lock:
            if self._states[number] == _KEPT and not self._is_over:
                self._kept_bytes -= self._pages.release(self._inos[number])
                self._states[number] = _NEW


def _ignore(_result: FetchResult) -> None:
    """Stands in for a function that needs the block itself."""


class _Upcoming(NamedTuple):
    position: int
    number: int  # of the file in the plan
    name: bytes
    node: Node
