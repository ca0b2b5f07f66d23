"""Readers of blocks and of files in a row are followed, and others are left alone."""

import random

import pytest

from penstock.cache.identity import CachedObject, identify
from penstock.cache.tiered import Cache, Fetch
from penstock.metrics import Counters
from penstock.units import MIB
from penstock.vfs.neighbours import Neighbours
from penstock.vfs.readahead import Readahead

BLOCK = 8 * MIB
PARENT = 7
WHAT = identify("s3://b", "large", "1", 100 * BLOCK, BLOCK)


class Asked(Cache):
    """A cache that notes what it is asked to fetch ahead."""

    def __init__(self) -> None:
        super().__init__([], block_bytes=BLOCK, buffer_bytes=BLOCK, fetchers=1, counters=Counters())
        self.blocks: list[int] = []

    def prefetch(self, what: CachedObject, fetch: Fetch, number: int) -> bool:
        self.blocks.append(number)
        return True


def fetch(start: int, length: int) -> bytes:
    return bytes(length)


def test_a_sequential_reader_is_followed_further_and_further_and_nothing_twice() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=8)
    distances: list[int] = []
    for offset in range(0, 40 * BLOCK, MIB):
        ahead.observe(WHAT, fetch, offset, MIB)
        distances.append(max(cache.blocks) - offset // BLOCK)
    assert len(cache.blocks) == len(set(cache.blocks))
    assert cache.blocks == sorted(cache.blocks)
    assert max(distances[-BLOCK // MIB :]) >= 8
    assert max(distances) <= 9
    # Further with each block and not with each read; the last read of a block ends in the next.
    assert distances[:9] == [2] * 7 + [5, 4]


def test_a_reader_who_starts_again_is_followed_from_the_beginning() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=8)
    for offset in (50 * BLOCK, 0, MIB):
        ahead.observe(WHAT, fetch, offset, MIB)
    assert cache.blocks == [1, 2]


def test_a_reader_slightly_out_of_order_is_followed_and_a_random_one_is_not() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=8)
    for number in (50, 3, 77, 20, 91, 33):
        ahead.observe(WHAT, fetch, number * BLOCK, 128 * 1024)
    assert cache.blocks == []
    small = identify("s3://b", "small", "1", 3 * BLOCK, BLOCK)
    for offset in (0, 2, 1, 3, 5, 4, *range(6, 24)):
        ahead.observe(small, fetch, offset * MIB, MIB)
    assert cache.blocks == [1, 2], "nothing is asked for behind the end"


def test_no_more_readers_are_remembered_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.vfs.readahead._READERS_REMEMBERED", 3)
    ahead = Readahead(Asked(), most_blocks=8)
    objects = [identify("s3://b", f"o{n}", "1", 9 * BLOCK, BLOCK) for n in range(5)]
    for what in objects:
        ahead.observe(what, fetch, 0, MIB)
    assert list(ahead._readers) == [what.digest for what in objects[2:]]


# -- files in a row ------------------------------------------------------------------------


class Announced:
    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.neighbours = Neighbours(self._note)

    def _note(self, parent: int, after: int, up_to: int) -> None:
        assert parent == PARENT
        self.runs.append((after, up_to))

    def read(self, *numbers: int) -> None:
        for number in numbers:
            self.neighbours.observe(PARENT, number)

    @property
    def numbers(self) -> list[int]:
        return [number for after, up_to in self.runs for number in range(after + 1, up_to + 1)]


def test_a_run_is_announced_from_its_fourth_file_without_gaps_and_never_twice() -> None:
    announced = Announced()
    announced.read(*[50] * 50)
    announced.read(100, 101, 102)
    assert announced.runs == []
    announced.read(103)
    assert announced.runs == [(103, 107)]
    announced.read(*range(104, 400))
    assert announced.numbers == list(range(104, announced.numbers[-1] + 1))
    assert 32 <= announced.numbers[-1] - 399 <= 64


def test_eight_readers_are_eight_runs() -> None:
    announced = Announced()
    for step in range(10):
        announced.read(*(1000 * reader + step for reader in range(1, 9)))
    assert {number // 1000 for number in announced.numbers} == set(range(1, 9))


def test_a_shuffled_reader_of_few_files_is_hardly_ever_mistaken() -> None:
    wrong = 0
    for seed in range(100):
        announced = Announced()
        order = list(range(100))
        random.Random(seed).shuffle(order)
        announced.read(*order)
        wrong += len(announced.numbers)
    assert wrong / (100 * 100) < 0.05
