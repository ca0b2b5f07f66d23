"""The tiers together: order, filling, failures, one fetch for many waiters."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from penstock.cache.build import build_cache
from penstock.cache.identity import CachedObject, identify
from penstock.cache.striped import StripedTier
from penstock.cache.tier import TierSpec, parse_tier
from penstock.cache.tiered import Brought, Cache
from penstock.errors import OptionError, StoreError
from penstock.metrics import Counters

BLOCK = 256 * 1024
DATA = random.Random(3).randbytes(5 * BLOCK + 99)


class Origin:
    """Counts what is fetched of one object."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, start: int, length: int) -> bytes:
        self.gate.wait(30)
        self.ranges.append((start, length))
        return self.data[start : start + length]

    @property
    def what(self) -> CachedObject:
        return identify("s3://b", "key", "v1", len(self.data), BLOCK)


def build(counters: Counters, *specs: TierSpec, buffer_bytes: int = 1 << 30) -> Cache:
    return build_cache(
        list(specs), policy="keep", block_bytes=BLOCK, buffer_bytes=buffer_bytes, fetchers=4,
        counters=counters,
    )  # fmt: skip


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def cache(tmp_path: Path, counters: Counters) -> Iterator[Cache]:
    built = build(counters, TierSpec("SSD", (tmp_path / "ssd",), 1 << 30))
    yield built
    built.close()


def read(cache: Cache, origin: Origin, offset: int, length: int) -> bytes:
    return b"".join(cache.read(origin.what, origin.fetch, offset, length))


def test_any_range_is_what_the_object_has_there(cache: Cache) -> None:
    origin = Origin(DATA)
    for offset, length in ((0, 10), (BLOCK - 5, 10), (0, len(DATA)), (len(DATA) - 3, 100)):
        assert read(cache, origin, offset, length) == DATA[offset : offset + length]
    assert read(cache, origin, len(DATA), 10) == b""


def test_each_block_is_fetched_once_by_sixteen_readers_at_once(cache: Cache) -> None:
    origin = Origin(DATA)
    origin.gate.clear()
    with ThreadPoolExecutor(16) as readers:
        answers = [readers.submit(read, cache, origin, 0, len(DATA)) for _ in range(16)]
        origin.gate.set()
        assert all(answer.result() == DATA for answer in answers)
    assert sorted(origin.ranges) == [
        (start, min(BLOCK, len(DATA) - start)) for start in range(0, len(DATA), BLOCK)
    ]


def test_a_failed_fetch_fails_its_reader_and_not_the_next(cache: Cache) -> None:
    origin = Origin(DATA[:1000])
    failing = [True]

    def fetch(start: int, length: int) -> bytes:
        if failing[0]:
            raise StoreError("down")
        return origin.fetch(start, length)

    with pytest.raises(StoreError, match="down"):
        cache.read(origin.what, fetch, 0, 1000)
    failing[0] = False
    assert b"".join(cache.read(origin.what, fetch, 0, 1000)) == DATA[:1000]


@pytest.mark.parametrize(
    ("ask", "size"), [("cached_bytes", 1000), ("complete_file", 2 * BLOCK), ("source_bytes", 1000)]
)
def test_who_has_read_an_object_finds_it_in_the_cache(cache: Cache, ask: str, size: int) -> None:
    origin = Origin(DATA[:size])
    answered, go_on = threading.Event(), threading.Event()

    def done(_: object) -> None:
        """Its reader has the bytes, and is quicker than the thread that puts them away."""
        answered.set()
        go_on.wait(30)

    cache.deliver(origin.what, origin.fetch, 0, size, done)
    assert answered.wait(30)
    argument = "s3://b" if ask == "source_bytes" else origin.what
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(getattr(cache, ask), argument)
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.1)
        go_on.set()
        found = answer.result(timeout=30)
    assert isinstance(found, Path) if ask == "complete_file" else found == size


@pytest.mark.parametrize("tiers", [0, 1])
def test_what_is_at_hand_is_placed_and_not_fetched_again(
    tmp_path: Path, counters: Counters, tiers: int
) -> None:
    """In memory, where no tier has it, or in a tier."""
    cache = build(counters, *[TierSpec("SSD", (tmp_path / "ssd",), 1 << 30)] * tiers)
    origin, placed = Origin(DATA[:1000]), list[bytes]()
    bring = partial(cache.bring, origin.what, origin.fetch, 0)

    def place(data: memoryview) -> bool:
        placed.append(bytes(data))
        return True

    assert bring(None, 0.0).how is Brought.FETCHED
    cache.settle()
    later_s = time.monotonic()
    assert bring(None, later_s).how is Brought.CACHED
    assert bring(place, later_s).how is Brought.CACHED
    assert (placed, origin.ranges) == ([DATA[:1000]], [(0, 1000)])
    cache.let_go()
    assert bring(None, time.monotonic()).how is (Brought.CACHED if tiers else Brought.FETCHED)
    cache.close()


def test_what_the_bucket_has_no_more_is_outdated_in_every_tier(cache: Cache) -> None:
    origin = Origin(DATA[:1000])
    read(cache, origin, 0, 1000)
    assert cache.source_bytes("s3://b") == cache.noted_bytes("s3://b") == 1000
    cache.outdate([origin.what])
    assert cache.source_bytes("s3://b") == 0


def test_what_does_not_fit_the_first_tier_goes_to_the_next(
    tmp_path: Path, counters: Counters
) -> None:
    cache = build(
        counters,
        TierSpec("MEM", (tmp_path / "mem",), 2 * BLOCK, high=1.0),
        TierSpec("SSD", (tmp_path / "a", tmp_path / "b"), 1 << 30),
    )
    origin = Origin(DATA)
    assert read(cache, origin, 0, len(DATA)) == DATA
    cache.close()
    fast, slow = cache.tiers
    assert isinstance(fast, StripedTier)
    assert isinstance(slow, StripedTier)
    assert fast.source_bytes("s3://b") == 2 * BLOCK
    assert slow.source_bytes("s3://b") == len(DATA) - 2 * BLOCK
    again = build(
        counters,
        TierSpec("MEM", (tmp_path / "mem",), 2 * BLOCK, high=1.0),
        TierSpec("SSD", (tmp_path / "a", tmp_path / "b"), 1 << 30),
    )
    fetched = len(origin.ranges)
    assert read(again, origin, 0, len(DATA)) == DATA
    assert len(origin.ranges) == fetched
    assert counters.by_label("hit_bytes")["MEM"] == 2 * BLOCK
    again.close()


def test_a_tier_that_fails_costs_a_warning_and_never_the_read(
    tmp_path: Path, cache: Cache, counters: Counters
) -> None:
    origin = Origin(DATA)
    (tmp_path / "ssd" / "objects").rename(tmp_path / "ssd" / "gone")
    assert read(cache, origin, 0, len(DATA)) == DATA
    assert counters.total("cache_warnings") > 0


@pytest.mark.parametrize(
    "text",
    ["MEM:/x", "RAM:/x:1GiB", "SSD::1GiB", "SSD:/x:0", "SSD:/x:-1", "SSD:/x:1GiB:high=2",
     "SSD:/x:1GiB:low=0.9,high=0.5", "SSD:/x:1GiB:hihg=0.9", "SSD:/x:1GiB:high=x"],
)  # fmt: skip
def test_what_is_no_tier_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_tier(text)


def test_a_tier_is_read_as_fluid_and_we_write_it() -> None:
    tier = parse_tier("SSD:/nvme0,/nvme1:400GiB:high=0.95,low=0.7")
    assert tier == TierSpec("SSD", (Path("/nvme0"), Path("/nvme1")), 400 << 30, 0.95, 0.7)
    assert parse_tier("MEM:/x:1GiB") == TierSpec("MEM", (Path("/x"),), 1 << 30, 0.99, 0.8)
