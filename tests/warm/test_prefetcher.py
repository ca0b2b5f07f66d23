"""What is in flight, what has to wait, and who is asked."""

import threading
import time
from collections.abc import Callable

from penstock.cache.tiered import Arrival, Brought
from penstock.metrics import Counters
from penstock.warm.prefetcher import Prefetcher, Wanted
from tests.support.gated_set import BLOCK, MakeSet
from tests.support.waiting import wait_until


class ListFeed:
    """Wants what it was told, once."""

    def __init__(self, wanted: list[tuple[int, int]]) -> None:
        self.left = wanted
        self.ended: list[Brought] = []
        self.asked = threading.Event()

    def take(self, most: int) -> list[Wanted]:
        self.asked.set()
        taken, self.left = self.left[:most], self.left[most:]
        return [Wanted(ino, number, False, time.monotonic(), self._end) for ino, number in taken]

    def _end(self, arrival: Arrival) -> None:
        self.ended.append(arrival.how)


def test_blocks_that_find_no_room_wait_and_do_not_spin(make_set: MakeSet) -> None:
    some = make_set({"a": bytes(20 * BLOCK)}, buffer_bytes=2 * BLOCK)
    some.store.gate.clear()
    prefetcher = Prefetcher(some.files, None, Counters())
    feed = ListFeed([(some.ino("a"), number) for number in range(20)])
    prefetcher.add(feed)
    wait_until(lambda: len(some.store.asked) == 2)
    before, began_s = some.cache.brings, time.monotonic()
    time.sleep(0.3)
    tried = some.cache.brings - before
    # 50 looks a second; each may try what waits once more.
    assert tried <= 20 * ((time.monotonic() - began_s) * 50 + 1)
    some.store.gate.set()
    wait_until(lambda: len(feed.ended) == 20)
    assert set(feed.ended) == {Brought.FETCHED}
    assert len(some.store.asked) == 20
    prefetcher.close(1)


class At(Counters):
    """Does something in the middle of a look at the feeds."""

    act: Callable[[], None] | None = None

    def by_label(self, name: str) -> dict[str, int]:
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().by_label(name)


def test_a_feed_that_comes_while_only_old_blocks_are_left_is_asked(make_set: MakeSet) -> None:
    """It ended the thread: who had been the first of no feeds at all?"""
    some = make_set({"a": bytes(20 * BLOCK)}, buffer_bytes=2 * BLOCK)
    some.store.gate.clear()
    counters = At()
    prefetcher = Prefetcher(some.files, None, counters)
    first, second = ListFeed([(some.ino("a"), number) for number in range(20)]), ListFeed([])
    prefetcher.add(first)
    wait_until(lambda: not first.left and len(some.store.asked) == 2)
    prefetcher.remove(first)
    counters.act = lambda: prefetcher.add(second)
    assert second.asked.wait(10)
    prefetcher.close(0)
