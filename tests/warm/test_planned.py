"""How far a plan runs ahead, what it keeps and lets go of, and what its prefetcher asks for."""

import errno
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cache.fetch import FetchOutcome, FetchResult
from penstock.errors import StaleInode
from penstock.metrics import Counters
from penstock.units import MIB
from penstock.warm import residency
from penstock.warm.order import OrderReader, OrderWriter
from penstock.warm.pace import Pace
from penstock.warm.page_cache import PageBudget, PageCacheProbe
from penstock.warm.planned import PlannedFeed
from penstock.warm.prefetcher import LocalFetcher, Prefetcher, PushPages, Wanted
from tests.support.gated_set import BLOCK, MakeSet, Set
from tests.support.waiting import wait_until


class Forgetful(PageCacheProbe):
    """The page cache holds nothing at all."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.looked: list[bytes] = []

    def check(self, names: Sequence[bytes]) -> bytes:
        self.looked += names
        return residency.HELD * len(names)


class Planned:
    """A plan over a set, and both its sides."""

    def __init__(self, some: Set, names: list[str], pages: PageBudget) -> None:
        self.writer = OrderWriter([name.encode() for name in names], 10_000)
        self.probe = Forgetful()
        self.dropped: list[int] = []
        self.waiting: list[Callable[[], None]] = []
        self.feed = PlannedFeed(
            OrderReader(self.writer.descriptor),
            some.files,
            self.probe,
            pages,
            Pace(64),
            self.dropped.append,
            self.waiting.append,
            "plan",
            1,
        )

    def extend(self, numbers: list[int]) -> None:
        self.writer.add(array("I", numbers))

    def all(self) -> list[Wanted]:
        taken: list[Wanted] = []
        while more := self.feed.take(1000):
            taken += more
        return taken

    def drop(self) -> list[int]:
        self.feed.take(0)
        for job in self.waiting:
            job()
        self.waiting.clear()
        return self.dropped


def test_large_files_stay_within_the_window(make_set: MakeSet) -> None:
    names = [f"{n:02}" for n in range(40)]
    some = make_set(dict.fromkeys(names, bytes(4 * MIB)))
    planned = Planned(some, names, PageBudget(64 * MIB))  # 16 MiB for what passes through
    planned.extend(list(range(40)))
    assert len(planned.all()) == 4 * 4 * MIB // BLOCK
    assert len(planned.probe.looked) == 4
    planned.writer.move(1, 0)
    assert len(planned.all()) == 4 * MIB // BLOCK


def test_the_start_of_a_file_larger_than_the_window_is_fetched(make_set: MakeSet) -> None:
    some = make_set({"huge": bytes(30 * MIB), "small": b"some"})
    planned = Planned(some, ["huge", "small"], PageBudget(0))  # 8 MiB, at least
    planned.extend([0, 1])
    assert [wanted.number for wanted in planned.all()] == list(range(8 * MIB // BLOCK))
    planned.writer.move(1, 0)
    assert [wanted.ino for wanted in planned.all()] == [some.ino("small")]


def test_a_plan_with_nothing_to_fetch_yields_to_others(make_set: MakeSet) -> None:
    some = make_set({"a": b"some"})
    planned = Planned(some, [*(f"absent{n}" for n in range(5000)), "a"], PageBudget(MIB))
    planned.extend(list(range(5001)))
    turns = 0
    while not planned.feed.take(1):
        turns += 1
        assert turns < 10
    assert turns >= 4
    assert planned.writer.missing[0] == 5000


def test_a_file_is_dropped_after_its_last_use_unless_another_plan_keeps_it(
    make_set: MakeSet,
) -> None:
    some = make_set({"a": bytes(1000), "b": bytes(1000)})
    pages = PageBudget(1400)  # room for one
    passing, keeping = Planned(some, ["a", "b"], pages), Planned(some, ["b"], pages)
    passing.extend([0, 1])
    passing.all()  # a is kept, b is not
    passing.feed.end()
    keeping.extend([0])
    keeping.all()
    passing.writer.move(2, 2)
    assert passing.drop() == []
    # It comes again soon.
    planned = Planned(some, ["a", "b"], PageBudget(0))
    planned.extend([0, 1, 0])
    planned.all()
    planned.writer.move(2, 2)
    assert planned.drop() == [some.ino("b")]
    planned.writer.move(3, 3)
    assert planned.drop() == [some.ino("b"), some.ino("a")]


def test_a_rewritten_file_counts_with_its_new_size(make_set: MakeSet, tmp_path: Path) -> None:
    some = make_set({"a": bytes(1000)})
    pages = PageBudget(4000)
    planned = Planned(some, ["a"], pages)
    planned.extend([0])
    planned.all()
    (tmp_path / "set" / "a").write_bytes(bytes(2500))
    some.refresh()
    planned.extend([0])
    assert [wanted.ino for wanted in planned.all()] == [some.ino("a")]
    assert planned.feed.describe()["kept_bytes"] == 2500
    assert pages.keep(999, 500)
    assert not pages.keep(998, 500)


def test_an_impossible_cursor_fetches_nothing_and_breaks_nothing(make_set: MakeSet) -> None:
    some = make_set({"a": b"some"})
    planned = Planned(some, ["a"], PageBudget(MIB))
    planned.extend([0, 7, 0xFFFF_FFFF])
    planned.writer.move(2**63, 2**64 - 1)
    assert planned.all() == []
    planned.writer.move(0, 0)
    planned.writer.cut()
    planned.extend([0])
    assert [wanted.ino for wanted in planned.all()] == [some.ino("a")]


class ListFeed:
    """Wants what it was told, once."""

    def __init__(self, wanted: list[tuple[int, int]]) -> None:
        self.left = wanted
        self.ended: list[FetchOutcome] = []
        self.asked = threading.Event()

    def take(self, most: int) -> list[Wanted]:
        self.asked.set()
        taken, self.left = self.left[:most], self.left[most:]
        return [Wanted(ino, number, False, time.monotonic(), self._end) for ino, number in taken]

    def _end(self, arrival: FetchResult) -> None:
        self.ended.append(arrival.outcome)


@contextmanager
def prefetching(some: Set, counters: Counters) -> Iterator[Prefetcher]:
    fetcher = LocalFetcher(some.files, None, counters)
    prefetcher = Prefetcher(fetcher, counters)
    yield prefetcher
    prefetcher.close()
    fetcher.close()


def test_blocks_without_room_wait_and_do_not_spin(make_set: MakeSet) -> None:
    some = make_set({"a": bytes(20 * BLOCK)}, buffer_bytes=2 * BLOCK)
    some.store.gate.clear()
    feed = ListFeed([(some.ino("a"), number) for number in range(20)])
    with prefetching(some, Counters()) as prefetcher:
        prefetcher.add(feed)
        wait_until(lambda: len(some.store.asked) == 2)
        before, began_s = some.cache.fetches_ahead, time.monotonic()
        time.sleep(0.3)
        tried = some.cache.fetches_ahead - before
        # 50 looks a second; each may try what waits once more.
        assert tried <= 20 * ((time.monotonic() - began_s) * 50 + 1)
        some.store.gate.set()
        wait_until(lambda: len(feed.ended) == 20)
        assert set(feed.ended) == {FetchOutcome.FETCHED}
        assert len(some.store.asked) == 20


class At(Counters):
    """Does something in the middle of a look at the feeds."""

    act: Callable[[], None] | None = None

    def by_label(self, name: str) -> dict[str, int]:
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().by_label(name)


def test_a_feed_added_while_only_old_blocks_are_left_is_asked(make_set: MakeSet) -> None:
    """It ended the thread: who had been the first of no feeds at all?"""
    some = make_set({"a": bytes(20 * BLOCK)}, buffer_bytes=2 * BLOCK)
    some.store.gate.clear()
    counters = At()
    first, second = ListFeed([(some.ino("a"), number) for number in range(20)]), ListFeed([])
    with prefetching(some, counters) as prefetcher:
        prefetcher.add(first)
        wait_until(lambda: not first.left and len(some.store.asked) == 2)
        prefetcher.remove(first)
        counters.act = lambda: prefetcher.add(second)
        assert second.asked.wait(60)


# -- who fetches ------------------------------------------------------------------------------


class Results:
    """Collects the results that a fetcher reports."""

    def __init__(self) -> None:
        self.ends: list[tuple[Wanted, FetchResult]] = []

    def __call__(self, ends: list[tuple[Wanted, FetchResult]]) -> None:
        self.ends += ends

    @property
    def outcomes(self) -> list[FetchOutcome]:
        return [arrival.outcome for _, arrival in self.ends]


def fetch_ahead(some: Set, push: PushPages | None, counters: Counters, *wanted: Wanted) -> Results:
    fetcher, results = LocalFetcher(some.files, push, counters), Results()
    fetcher.fetch_ahead(list(wanted), results)
    wait_until(lambda: len(results.ends) == len(wanted))
    fetcher.close()
    return results


def wanted(ino: int, number: int = 0, *, push: bool = True, is_wanted: bool = True) -> Wanted:
    return Wanted(ino, number, push, 0.0, lambda _arrival: None, lambda: is_wanted)


def test_fetched_blocks_are_pushed_at_their_offset_and_each_result_is_reported(
    make_set: MakeSet,
) -> None:
    some, counters = make_set({"a": bytes(range(200)) * 1000, "b": b"some"}), Counters()
    pushed: dict[tuple[int, int], bytes] = {}

    def push(ino: int, offset: int, data: memoryview) -> bool:
        pushed[ino, offset] = bytes(data)
        return ino != some.ino("b")

    a, b, data = some.ino("a"), some.ino("b"), bytes(range(200)) * 1000
    many = [wanted(a, 0), wanted(a, 3), wanted(a, 1, push=False), wanted(b)]
    results = fetch_ahead(some, push, counters, *many)
    assert {id(one) for one, _ in results.ends} == set(map(id, many))
    assert set(results.outcomes) == {FetchOutcome.FETCHED}
    assert pushed == {
        (a, 0): data[:BLOCK],
        (a, 3 * BLOCK): data[3 * BLOCK :],
        (b, 0): b"some",
    }
    assert counters.total("pushed_bytes") == BLOCK + len(data) - 3 * BLOCK, "not what is refused"
    assert fetch_ahead(some, None, counters, wanted(a, 2)).outcomes == [FetchOutcome.FETCHED], (
        "nowhere to push"
    )


def test_failed_and_unwanted_fetches_end_with_a_reason(
    make_set: MakeSet, caplog: pytest.LogCaptureFixture
) -> None:
    some, counters = make_set({"a": b"some", "d/b": b"more"}), Counters()

    def fail(*_: object) -> bool:
        raise OSError(errno.EINVAL, "Invalid argument")

    assert fetch_ahead(some, fail, counters, wanted(some.ino("a"))).outcomes == [
        FetchOutcome.FETCHED
    ]
    assert "was not pushed: [Errno 22] Invalid argument" in caplog.text
    gone = wanted(some.ino("d/b"), is_wanted=False)
    assert fetch_ahead(some, None, counters, gone).outcomes == [FetchOutcome.FAILED]
    assert some.store.asked == [("a", 0)]
    ((_, stale),) = fetch_ahead(some, None, counters, wanted(999_999)).ends
    ((_, folder),) = fetch_ahead(some, None, counters, wanted(some.ino("d"))).ends
    assert (stale.outcome, type(stale.error)) == (FetchOutcome.FAILED, StaleInode)
    assert (folder.outcome, type(folder.error)) == (FetchOutcome.FAILED, IsADirectoryError)
