"""What two tiers hold of an object is never more than the object."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.build import build_cache
from penstock.cache.contents import Contents, Held
from penstock.cache.identity import CachedObject, block_of, identify
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Cache
from penstock.metrics import Counters

BLOCK = 100_000
DATA = random.Random(1).randbytes(350_000)
LARGE = identify("s3://b", "large", "1", len(DATA), BLOCK)
SMALL = identify("s3://b", "small", "1", 1000, BLOCK)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = build_cache(
        [TierSpec(medium, (tmp_path / medium,), 10 << 20) for medium in ("MEM", "SSD")],
        policy="lru", block_bytes=BLOCK, buffer_bytes=1 << 20, fetchers=1, counters=Counters(),
    )  # fmt: skip
    yield made
    made.close()


def put(cache: Cache, tier: int, what: CachedObject, *numbers: int) -> None:
    for number in numbers:
        block = block_of(what, number, BLOCK)
        data = DATA[block.start : block.start + block.length]
        assert cache.tiers[tier].write(what, BLOCK, block, data)


def test_a_block_in_two_tiers_counts_once(cache: Cache) -> None:
    contents = Contents(cache)
    put(cache, 0, LARGE, 0, 1)
    put(cache, 1, LARGE, 1, 3)
    put(cache, 0, SMALL, 0)
    put(cache, 1, SMALL, 0)
    large, small = contents.look([LARGE, SMALL])
    assert large == Held((200_000, 150_000), 250_000)
    assert small == Held((1000, 1000), 1000)
    assert contents.missing(LARGE, large) == [2]
    assert contents.missing(SMALL, small) == []
    put(cache, 1, LARGE, 2)
    (whole,) = contents.look([LARGE])
    assert whole.cached_bytes == len(DATA)


def test_what_is_removed_is_in_no_tier(cache: Cache) -> None:
    contents = Contents(cache)
    put(cache, 0, LARGE, 0)
    put(cache, 1, LARGE, 1, 3)
    put(cache, 1, SMALL, 0)
    assert contents.remove([LARGE]) == 250_000
    assert contents.look([LARGE, SMALL]) == [Held((0, 0), 0), Held((0, 1000), 1000)]
    assert contents.missing(LARGE, Held((0, 0), 0)) == [0, 1, 2, 3]


def test_a_damaged_block_is_dropped_from_its_tier_and_counted(cache: Cache) -> None:
    contents = Contents(cache)
    put(cache, 0, LARGE, 0, 1)
    put(cache, 1, LARGE, 2, 3)
    path = cache.tiers[1].file_of(LARGE.digest)
    assert path is not None
    with open(path, "r+b") as file:
        file.seek(250_000)
        file.write(b"rotten")
    assert contents.verify(LARGE) == 1
    assert contents.look([LARGE]) == [Held((200_000, 50_000), 250_000)]
    assert contents.verify(LARGE) == 0


def test_what_is_wanted_is_not_evicted_before_what_is_not(tmp_path: Path) -> None:
    cache = build_cache(
        [TierSpec("SSD", (tmp_path / "c",), 10_000, high=1.0, low=0.8)], policy="lru",
        block_bytes=BLOCK, buffer_bytes=1 << 20, fetchers=1, counters=Counters(),
    )  # fmt: skip
    tier = cache.tiers[0]
    assert tier.rooms_beside(lambda _share: 0) == [10_000]
    put(cache, 0, SMALL, 0)
    assert tier.rooms_beside(lambda _share: 0) == [9000]
    assert tier.rooms_beside(lambda _share: 1000) == [9000]
    others = [identify("s3://b", f"other{n}", "1", 1000, BLOCK) for n in range(9)]
    for other in others:
        put(cache, 0, other, 0)
    # Full: what evicts goes down to the low watermark, and that has to hold what is wanted.
    assert tier.rooms_beside(lambda _share: 1000) == [7000]
    cache.close()
