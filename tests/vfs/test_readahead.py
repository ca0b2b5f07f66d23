"""Who is followed, and who is left alone."""

import pytest

from penstock.cache.identity import CachedObject, identify
from penstock.cache.tiered import Cache, Fetch
from penstock.metrics import Counters
from penstock.units import MIB
from penstock.vfs.readahead import Readahead

BLOCK = 8 * MIB
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


def test_requests_slightly_out_of_order_are_still_one_reader() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=4)
    for offset in (0, 2 * MIB, MIB, 3 * MIB, 5 * MIB, 4 * MIB):
        ahead.observe(WHAT, fetch, offset, MIB)
    assert cache.blocks


def test_a_random_reader_is_not_followed() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=8)
    for number in (50, 3, 77, 20, 91, 33):
        ahead.observe(WHAT, fetch, number * BLOCK, 128 * 1024)
    assert cache.blocks == []


def test_nothing_is_asked_for_behind_the_end() -> None:
    cache = Asked()
    ahead = Readahead(cache, most_blocks=8)
    small = identify("s3://b", "small", "1", 3 * BLOCK, BLOCK)
    for offset in range(0, 3 * BLOCK, MIB):
        ahead.observe(small, fetch, offset, MIB)
    assert cache.blocks == [1, 2]


def test_no_more_readers_are_remembered_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.vfs.readahead._READERS_REMEMBERED", 3)
    ahead = Readahead(Asked(), most_blocks=8)
    objects = [identify("s3://b", f"o{n}", "1", 9 * BLOCK, BLOCK) for n in range(5)]
    for what in objects:
        ahead.observe(what, fetch, 0, MIB)
    assert list(ahead._readers) == [what.digest for what in objects[2:]]
