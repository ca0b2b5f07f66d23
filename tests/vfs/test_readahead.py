"""Readers of blocks and of files in a row are followed, and others are left alone."""

import random

import pytest

from penstock.cache.identity import CachedObject, identify
from penstock.units import KIB, MIB
from penstock.vfs.readahead import Ahead, Readahead, SmallFileReadahead

BLOCK = 8 * MIB
PARENT = 7
WHAT = identify("s3://b", "large", "1", 100 * BLOCK, BLOCK)
NOTHING = Ahead(range(0), 0)


class Follower:
    """Reads, and has fetched what it is told; each block is expected by the process that fetches
    it."""

    def __init__(self, most_blocks: int = 8, obj: CachedObject = WHAT, processes: int = 1) -> None:
        self.obj = obj
        self.processes = [Readahead(BLOCK, most_blocks) for _ in range(processes)]
        self.fetched: list[int] = []

    def of(self, number: int) -> Readahead:
        return self.processes[number % len(self.processes)]

    def read(self, offset: int, length: int, *, is_stored: bool = False) -> Ahead:
        ahead = self.of(offset // BLOCK).observe(self.obj, offset, length, is_stored=is_stored)
        for number in ahead.numbers:
            self.of(number).expect(self.obj, number, ahead.window)
            if number not in self.fetched:
                self.fetched.append(number)
        return ahead


@pytest.mark.parametrize("processes", [1, 3])
def test_a_sequential_reader_gets_growing_readahead_without_gaps(
    processes: int,
) -> None:
    """The processes know nothing of each other but the blocks that they are asked to fetch."""
    reader = Follower(processes=processes)
    distances: list[int] = []
    for offset in range(0, 40 * BLOCK, MIB):
        reader.read(offset, MIB)
        distances.append(max(reader.fetched) - offset // BLOCK)
    assert reader.fetched == list(range(1, 48))
    assert distances[:: BLOCK // MIB] == [2, 4, 4, *[8] * 37], "further with each block"
    assert max(distances) == 8


def test_readahead_continues_from_a_prefetched_block_once() -> None:
    ahead = Readahead(BLOCK, most_blocks=8)
    ahead.expect(WHAT, 5, 4)
    ahead.expect(WHAT, 5, 1)  # it is known already
    where = 5 * BLOCK + 3 * MIB
    assert ahead.observe(WHAT, where, 4 * KIB, is_stored=True) == Ahead(range(6, 10), 8)
    assert ahead.observe(WHAT, where + 4 * KIB, 4 * KIB, is_stored=True) == NOTHING
    ahead.expect(WHAT, 5, 4)
    assert ahead.observe(WHAT, where + 8 * KIB, 4 * KIB, is_stored=False) == NOTHING, "not twice"
    again = ahead.observe(WHAT, where, 4 * KIB, is_stored=False)
    assert again == Ahead(range(6, 10), 8), "the block is read again"
    other = identify("s3://b", "other", "1", 100 * BLOCK, BLOCK)
    ahead.expect(WHAT, 7, 8)
    assert ahead.observe(other, 7 * BLOCK, MIB, is_stored=False) == NOTHING, "of another object"
    assert ahead.observe(WHAT, 7 * BLOCK, MIB, is_stored=False) == Ahead(range(8, 16), 8)


def test_a_read_from_the_start_begins_readahead_unless_stored() -> None:
    assert Follower().read(0, 4 * KIB) == Ahead(range(1, 3), 4)
    assert Follower(most_blocks=1).read(0, 4 * KIB) == Ahead(range(1, 2), 1)
    assert Follower(most_blocks=0).read(0, MIB) == NOTHING
    reader = Follower()
    for offset in range(0, 3 * BLOCK, MIB):
        reader.read(offset, MIB, is_stored=True)
    assert reader.fetched == [], "what follows is mostly stored, too"
    reader.read(3 * BLOCK, MIB)
    reader.read(3 * BLOCK + MIB, MIB)
    assert reader.fetched == [4, 5], "from where it is not"


def test_a_reader_in_the_middle_gets_readahead_once_it_continues() -> None:
    reader, middle = Follower(), 50 * BLOCK + 5
    assert reader.read(middle, 4 * KIB) == NOTHING
    assert reader.read(middle + 4 * KIB, 4 * KIB) == Ahead(range(51, 53), 4)
    # Where the last read ended is what counts, and not where the first one was.
    reader = Follower()
    for step in (0, 100, 10):
        assert reader.read(middle + step * KIB, 4 * KIB) == NOTHING
    assert reader.read(middle + 14 * KIB, 4 * KIB).numbers == range(51, 53)
    # At the end of a block, the next begins anew.
    reader = Follower()
    for offset in range(51 * BLOCK - MIB, 51 * BLOCK + MIB, MIB):
        assert reader.read(offset, MIB) == NOTHING
    assert reader.read(51 * BLOCK + MIB, MIB).numbers == range(52, 54)


def test_a_slightly_reordered_reader_gets_readahead_and_a_jumping_one_does_not() -> None:
    """The kernel's readahead sends several requests at a time, each of 128 KiB at least."""
    start, least = 20 * BLOCK, 128 * KIB
    end = start + 4 * MIB
    followed = {
        (distance, length): bool(reader.read(end + distance, length).numbers)
        for distance, length in [
            (-4 * MIB, least),
            (2 * MIB, least),
            (2 * MIB, least - 1),
            (4 * MIB - 1, least),
        ]
        if not (reader := Follower()).read(end - least, least).numbers
    }
    assert list(followed.values()) == [True, True, False, True]
    for distance in (4 * MIB, 4 * MIB + 1):
        reader = Follower()
        reader.read(start, least)
        assert bool(reader.read(start + least + distance, least).numbers) == (distance == 4 * MIB)


def test_random_readers_of_16_kib_get_no_readahead() -> None:
    reader, chance = Follower(), random.Random(7)
    for _ in range(3000):
        reader.read(chance.randrange(1, 10 * BLOCK), 16 * KIB)
    for number in (50, 30, 77, 20, 91, 33):
        reader.read(number * BLOCK, BLOCK // 2)
    assert reader.fetched == []


def test_nothing_is_prefetched_past_the_end() -> None:
    for size in (3 * BLOCK, 2 * BLOCK + 1):
        reader = Follower(obj=identify("s3://b", "small", "1", size, BLOCK))
        for offset in range(0, size, MIB):
            reader.read(offset, MIB)
        assert reader.fetched == [1, 2]
    assert reader.read(2 * BLOCK, 1).numbers == range(0)


def test_the_number_of_remembered_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.vfs.readahead._BLOCKS_REMEMBERED", 3)
    ahead = Readahead(BLOCK, most_blocks=8)
    for number in range(1, 6):
        ahead.observe(WHAT, number * BLOCK, MIB, is_stored=False)
    assert [number for _, number in ahead._readers] == [3, 4, 5]
    for number in range(6, 10):
        ahead.expect(WHAT, number, 2)
    assert [number for _, number in ahead._readers] == [7, 8, 9]
    ahead.observe(WHAT, 0, MIB, is_stored=True)
    assert [number for _, number in ahead._readers] == [7, 8, 9], "what is stored is not noted"


# -- files in a row ------------------------------------------------------------------------


class Announced:
    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.small_reads = SmallFileReadahead(self._note)

    def _note(self, parent: int, after: int, up_to: int) -> None:
        assert parent == PARENT
        self.runs.append((after, up_to))

    def read(self, *numbers: int) -> None:
        for number in numbers:
            self.small_reads.observe(PARENT, number)

    @property
    def numbers(self) -> list[int]:
        return [number for after, up_to in self.runs for number in range(after + 1, up_to + 1)]


def test_a_run_is_announced_from_its_fourth_file_without_gaps_or_repeats() -> None:
    announced = Announced()
    announced.read(*[50] * 50)
    announced.read(100, 101, 102)
    assert announced.runs == []
    announced.read(103)
    assert announced.runs == [(103, 107)]
    announced.read(*range(104, 400))
    assert announced.numbers == list(range(104, announced.numbers[-1] + 1))
    assert 32 <= announced.numbers[-1] - 399 <= 64


def test_eight_readers_make_eight_runs() -> None:
    announced = Announced()
    for step in range(10):
        announced.read(*(1000 * reader + step for reader in range(1, 9)))
    assert {number // 1000 for number in announced.numbers} == set(range(1, 9))


def test_a_shuffled_reader_of_few_files_is_rarely_taken_for_a_run() -> None:
    wrong = 0
    for seed in range(100):
        announced = Announced()
        order = list(range(100))
        random.Random(seed).shuffle(order)
        announced.read(*order)
        wrong += len(announced.numbers)
    assert wrong / (100 * 100) < 0.05
