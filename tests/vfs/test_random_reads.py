"""Which regions of a file are loaded after random reads, and which readers are left alone."""

import random

import pytest

from penstock.cache.identity import CachedObject, identify
from penstock.units import KIB, MIB
from penstock.vfs.random_reads import Extent, RandomReads

REGION = 8 * MIB
UNIT = 128 * KIB
READ = 16 * KIB


def file_of(size_bytes: int) -> CachedObject:
    return identify("s3://b", f"of-{size_bytes}", "1", size_bytes, REGION)


WHAT = file_of(64 * MIB)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def reads_of(*, block_bytes: int = REGION, budget_bytes: int = 1024 * MIB) -> RandomReads:
    return RandomReads(block_bytes, lambda: budget_bytes, Clock())


def read_units(
    reads: RandomReads, count: int, *, start: int = 0, obj: CachedObject = WHAT
) -> list[Extent]:
    """Read a little of `count` units, none of which follows another."""
    found = [reads.observe(obj, start + 3 * one * UNIT, READ) for one in range(count)]
    return [one for one in found if one is not None]


def test_a_region_is_loaded_once_an_eighth_of_its_units_was_read() -> None:
    reads = reads_of()
    assert read_units(reads, 7, start=REGION) == []
    assert read_units(reads, 8, start=REGION) == [Extent(REGION, REGION)]


def test_a_region_is_loaded_after_24_requests_for_few_units() -> None:
    reads = reads_of()
    assert [reads.observe(WHAT, page * 4096, 4096) for page in range(23)] == [None] * 23
    assert reads.observe(WHAT, 23 * 4096, 4096) == Extent(0, REGION)


def test_a_uniform_random_reader_loads_each_region_once() -> None:
    reads = reads_of()
    offsets = random.Random(1).sample(range(0, WHAT.size_bytes, READ), 2000)
    loaded = [extent for offset in offsets if (extent := reads.observe(WHAT, offset, READ))]
    assert sorted(loaded) == [Extent(start, REGION) for start in range(0, 64 * MIB, REGION)]


def test_a_reader_that_does_not_come_back_loads_nothing() -> None:
    reads = reads_of()
    for start in range(0, WHAT.size_bytes, REGION):
        assert read_units(reads, 7, start=start) == []


@pytest.mark.parametrize("request_bytes", [UNIT, 512 * KIB])
def test_a_sequential_reader_loads_nothing(request_bytes: int) -> None:
    reads = reads_of()
    assert reads.observe(WHAT, 0, 64 * KIB) is None, "its first request is shorter"
    for offset in range(64 * KIB, 32 * MIB, request_bytes):
        assert reads.observe(WHAT, offset, request_bytes) is None


def test_large_random_reads_load_a_region_too() -> None:
    reads = reads_of()
    offsets = [0, 4 * MIB, 2 * MIB, 6 * MIB]
    found = [reads.observe(WHAT, offset, 256 * KIB) for offset in offsets]
    assert found == [None, None, None, Extent(0, REGION)]


def test_nothing_more_is_loaded_while_a_region_arrives() -> None:
    reads = reads_of()
    assert len(read_units(reads, 20)) == 1


def test_a_region_that_the_kernel_dropped_is_loaded_again() -> None:
    clock = Clock()
    reads = RandomReads(REGION, lambda: 1024 * MIB, clock)
    assert len(read_units(reads, 8)) == 1
    clock.now_s += 2
    assert read_units(reads, 7) == []
    assert len(read_units(reads, 8)) == 1


def test_a_region_that_could_not_be_loaded_is_tried_at_the_next_read() -> None:
    reads = reads_of()
    (extent,) = read_units(reads, 8)
    reads.note_failure(WHAT, extent)
    assert reads.observe(WHAT, 7 * MIB, READ) == extent


def test_of_a_file_larger_than_the_budget_nothing_is_loaded() -> None:
    assert read_units(reads_of(budget_bytes=64 * MIB - 1), 20) == []
    assert len(read_units(reads_of(budget_bytes=64 * MIB), 20)) == 1


def test_regions_beyond_the_budget_are_forgotten() -> None:
    """As many are remembered as fit into 64 MiB."""
    files = [file_of(64 * MIB - one) for one in range(2)]
    for count, loads in ((1, 1), (0, 0)):
        reads = reads_of(budget_bytes=64 * MIB)
        assert read_units(reads, 7, obj=files[0]) == []
        for other in range(8 - count):
            assert read_units(reads, 1, start=other * REGION, obj=files[1]) == []
        found = reads.observe(files[0], 7 * MIB, READ)
        assert (found is not None) == bool(loads)


def test_no_region_crosses_a_block_or_the_end_of_the_file() -> None:
    short = file_of(9 * MIB)
    assert read_units(reads_of(), 3, start=REGION, obj=short) == [Extent(REGION, MIB)]
    blocks = reads_of(block_bytes=3 * MIB)
    assert read_units(blocks, 3, start=3 * MIB) == [Extent(3 * MIB, 3 * MIB)]
    large = reads_of(block_bytes=16 * MIB)
    assert read_units(large, 8, start=REGION) == [Extent(REGION, REGION)]
