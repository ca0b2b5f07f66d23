"""The tiers together: order, filling, failures, what they hold, and what no tier can be."""

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typing_extensions import Buffer

from penstock.cache.build import build_cache
from penstock.cache.contents import CachedBytes, Contents
from penstock.cache.fetch import FetchOutcome
from penstock.cache.identity import Block, CachedObject, block_of, identify
from penstock.cache.striped import StripedTier
from penstock.cache.tier import TierSpec, parse_tier, prepare_directory
from penstock.cache.tiered import Cache
from penstock.errors import CacheDirError, OptionError
from penstock.metrics import Counters
from penstock.store import Progress

BLOCK = 256 * 1024
DATA = random.Random(3).randbytes(5 * BLOCK + 99)


class Origin:
    """Counts what is fetched of one object."""

    def __init__(self, data: bytes, key: str = "key") -> None:
        self.data = data
        self.key = key
        self.ranges: list[tuple[int, int]] = []

    def get(self, start: int, length: int, _progress: Progress | None = None) -> bytes:
        self.ranges.append((start, length))
        return self.data[start : start + length]

    @property
    def obj(self) -> CachedObject:
        return identify("s3://b", self.key, "v1", len(self.data), BLOCK)


def build(
    counters: Counters,
    *specs: TierSpec,
    policy: str = "keep",
    warn: Callable[[str], None] = lambda _line: None,
) -> Cache:
    return build_cache(
        list(specs),
        policy=policy,
        block_bytes=BLOCK,
        buffer_bytes=1 << 30,
        large_threads=4,
        counters=counters,
        warn=warn,
    )


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def cache(tmp_path: Path, counters: Counters) -> Iterator[Cache]:
    built = build(counters, TierSpec("SSD", (tmp_path / "ssd",), 1 << 30))
    yield built
    built.close()


def read(cache: Cache, origin: Origin, offset: int, length: int) -> bytes:
    return b"".join(cache.read(origin.obj, origin.get, offset, length))


@pytest.mark.parametrize(
    ("ask", "size"), [("cached_bytes", 1000), ("complete_file", 2 * BLOCK), ("source_bytes", 1000)]
)
def test_an_object_that_was_read_is_in_the_cache(cache: Cache, ask: str, size: int) -> None:
    origin = Origin(DATA[:size])
    answered, go_on = threading.Event(), threading.Event()

    def done(_: object) -> None:
        """Its reader has the bytes, and is quicker than the thread that puts them away."""
        answered.set()
        go_on.wait(30)

    cache.deliver(origin.obj, origin.get, 0, size, done)
    assert answered.wait(30)
    argument = "s3://b" if ask == "source_bytes" else origin.obj
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(getattr(cache, ask), argument)
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.1)
        go_on.set()
        found = answer.result(timeout=30)
    assert isinstance(found, Path) if ask == "complete_file" else found == size


@pytest.mark.parametrize("tiers", [0, 1])
def test_a_held_block_is_stored_without_another_fetch(
    tmp_path: Path, counters: Counters, tiers: int
) -> None:
    """In memory, where no tier has it, or in a tier."""
    cache = build(counters, *[TierSpec("SSD", (tmp_path / "ssd",), 1 << 30)] * tiers)
    origin, placed = Origin(DATA[:1000]), list[bytes]()
    fetch_ahead = partial(cache.fetch_ahead, origin.obj, origin.get, 0)

    def place(data: memoryview) -> bool:
        placed.append(bytes(data))
        return True

    assert fetch_ahead(None, 0.0).outcome is FetchOutcome.FETCHED
    cache.wait_until_stored()
    later_s = time.monotonic()
    assert fetch_ahead(None, later_s).outcome is FetchOutcome.CACHED
    assert fetch_ahead(place, later_s).outcome is FetchOutcome.CACHED
    assert (placed, origin.ranges) == ([DATA[:1000]], [(0, 1000)])
    cache.drop_idle()
    assert fetch_ahead(None, time.monotonic()).outcome is (
        FetchOutcome.CACHED if tiers else FetchOutcome.FETCHED
    )
    cache.close()


def test_an_object_that_does_not_fit_the_first_tier_goes_to_the_next(
    tmp_path: Path, counters: Counters
) -> None:
    specs = (
        TierSpec("MEM", (tmp_path / "mem",), 2 * BLOCK, high=1.0),
        TierSpec("SSD", (tmp_path / "a", tmp_path / "b"), 1 << 30),
    )
    cache = build(counters, *specs)
    origin = Origin(DATA)
    assert read(cache, origin, 0, len(DATA)) == DATA
    cache.close()
    fast, slow = cache.tiers
    assert isinstance(fast, StripedTier)
    assert isinstance(slow, StripedTier)
    assert fast.source_bytes("s3://b") == 2 * BLOCK
    assert slow.source_bytes("s3://b") == len(DATA) - 2 * BLOCK
    again = build(counters, replace(specs[0], quota_bytes=1 << 30), specs[1])
    fetched = len(origin.ranges)
    assert read(again, origin, 0, len(DATA)) == DATA
    assert len(origin.ranges) == fetched
    assert counters.by_label("hit_bytes")["MEM"] == 2 * BLOCK
    assert again.source_bytes("s3://b") == len(DATA), "what came from a tier is not stored again"
    again.close()


def test_a_failing_tier_costs_a_warning_and_never_the_read(
    tmp_path: Path, cache: Cache, counters: Counters
) -> None:
    origin = Origin(DATA)
    (tmp_path / "ssd" / "objects").rename(tmp_path / "ssd" / "gone")
    assert read(cache, origin, 0, len(DATA)) == DATA
    assert counters.total("cache_warnings") > 0


def test_a_hanging_disk_costs_its_readers_a_fetch_and_others_nothing(
    tmp_path: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = build(counters, TierSpec("SSD", (tmp_path / "a", tmp_path / "b"), 1 << 30))
    (tier,) = cache.tiers
    origins = [Origin(DATA[:1000], f"key{number}") for number in range(20)]
    hung, fine = (
        [one for one in origins if tier.share_of(one.obj.digest) == share] for share in (0, 1)
    )
    for origin in origins:
        read(cache, origin, 0, 1000)
    cache.wait_until_stored()
    later_s, disk, entered = 0.0, threading.Event(), threading.Event()
    guarded = tier.directories[0]
    assert guarded._directory is not None
    monkeypatch.setattr(guarded, "_clock", lambda: time.monotonic() + later_s)
    monkeypatch.setattr(guarded._directory, "read", lambda *_: entered.set() or disk.wait(30))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(cache.read_now, hung[0].obj, 0, 1000)
        assert entered.wait(30)
        later_s = 100.0
        cache.check_for_hangs()
        assert [one["state"] for one in tier.describe()["directories"]] == ["out", "ok"]
        assert [cache.read_now(one.obj, 0, 1000) for one in hung] == [None] * len(hung)
        assert [cache.read_now(one.obj, 0, 1000) for one in fine] == [[DATA[:1000]]] * len(fine)
        assert read(cache, hung[0], 0, 1000) == DATA[:1000]
        assert [len(one.ranges) for one in (hung[0], *fine)] == [2] + [1] * len(fine)
        disk.set()
    cache.close()


class Memory:
    """A tier that is on no disk of this machine."""

    name = "MEM"

    def __init__(self) -> None:
        self.blocks: dict[Block, bytes] = {}

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        found = self.blocks.get(block)
        return None if found is None else memoryview(found)[start:stop]

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        self.blocks[block] = bytes(data)
        return True

    def has(self, block: Block) -> bool:
        return block in self.blocks

    def has_room(self, block: Block) -> bool:
        return True


def test_a_tier_without_a_disk_is_read_and_written_but_not_probed(
    counters: Counters,
) -> None:
    tier, origin = Memory(), Origin(DATA[:1000])
    cache = Cache(
        [tier], block_bytes=BLOCK, buffer_bytes=1 << 30, large_threads=1, counters=counters
    )
    assert read(cache, origin, 0, 1000) == DATA[:1000]
    cache.wait_until_stored()
    assert cache.is_stored(block_of(origin.obj, 0, BLOCK))
    assert cache.read_now(origin.obj, 0, 1000) == [DATA[:1000]]
    assert (cache.tiers, cache.cached_bytes(origin.obj), len(origin.ranges)) == ([], 0, 1)
    cache.close()


def test_a_released_object_is_no_longer_held_in_memory(cache: Cache) -> None:
    origins = [Origin(DATA, key) for key in "abc"]
    for origin in origins:
        read(cache, origin, 0, 100)
        read(cache, origin, 2 * BLOCK, 100)
    cache.wait_until_stored()
    assert cache.buffered_bytes == 6 * BLOCK
    cache.release([origins[0].obj, origins[2].obj])
    assert cache.buffered_bytes == 2 * BLOCK
    cache.drop_idle()
    assert cache.buffered_bytes == 0


@pytest.mark.parametrize(
    "text",
    [
        "MEM:/x",
        "RAM:/x:1GiB",
        "SSD::1GiB",
        "SSD:/x:0",
        "SSD:/x:-1",
        "SSD:/x:1GiB:high=2",
        "SSD:/x:1GiB:low=0.9,high=0.5",
        "SSD:/x:1GiB:hihg=0.9",
        "SSD:/x:1GiB:high=x",
    ],
)
def test_an_invalid_tier_is_rejected(text: str) -> None:
    with pytest.raises(OptionError):
        parse_tier(text)


def test_tier_specs_are_parsed_in_the_forms_of_fluid_and_our_own() -> None:
    tier = parse_tier("SSD:/nvme0,/nvme1:400GiB:high=0.95,low=0.7")
    assert tier == TierSpec("SSD", (Path("/nvme0"), Path("/nvme1")), 400 << 30, 0.95, 0.7)
    assert parse_tier("MEM:/x:1GiB") == TierSpec("MEM", (Path("/x"),), 1 << 30, 0.99, 0.8)


# -- what the tiers hold of an object is never more than the object ----------------------------

HALF = BLOCK // 2
LARGE = identify("s3://b", "large", "1", 3 * BLOCK + HALF, BLOCK)
SMALL = identify("s3://b", "small", "1", 1000, BLOCK)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cache]:
    specs = [TierSpec(medium, (tmp_path / medium,), 10 << 20) for medium in ("MEM", "SSD")]
    made = build(Counters(), *specs, policy="lru")
    yield made
    made.close()


def put(cache: Cache, tier: int, obj: CachedObject, *numbers: int) -> None:
    for number in numbers:
        block = block_of(obj, number, BLOCK)
        data = DATA[block.start : block.start + block.length]
        assert cache.tiers[tier].write(obj, BLOCK, block, data)


def test_a_block_in_two_tiers_counts_once(two: Cache) -> None:
    contents = Contents(two)
    put(two, 0, LARGE, 0, 1)
    put(two, 1, LARGE, 1, 3)
    put(two, 0, SMALL, 0)
    put(two, 1, SMALL, 0)
    large, small = contents.lookup([LARGE, SMALL])
    assert large == CachedBytes((2 * BLOCK, BLOCK + HALF), 2 * BLOCK + HALF)
    assert small == CachedBytes((1000, 1000), 1000)
    assert contents.missing(LARGE, large) == [2]
    assert contents.missing(SMALL, small) == []
    put(two, 1, LARGE, 2)
    (whole,) = contents.lookup([LARGE])
    assert whole.cached_bytes == LARGE.size_bytes


def test_only_an_object_split_over_tiers_is_looked_up_block_by_block(
    two: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents, asked, is_stored = Contents(two), list[int](), two.is_stored
    monkeypatch.setattr(two, "is_stored", lambda one: asked.append(one.number) or is_stored(one))
    put(two, 0, LARGE, 0, 1, 2, 3)
    (held,) = contents.lookup([LARGE])
    assert (contents.missing(LARGE, held), asked) == ([], [])
    put(two, 1, LARGE, 0)
    assert contents.lookup([LARGE])[0].cached_bytes == LARGE.size_bytes
    assert asked == [0, 1, 2, 3]


def test_a_failing_tier_holds_nothing_and_costs_a_warning(
    two: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_digests: list[bytes]) -> dict[bytes, int]:
        raise OSError(errno.EIO, "Input/output error")

    put(two, 0, SMALL, 0)
    monkeypatch.setattr(two.tiers[1], "cached_sizes", fail)
    assert Contents(two).lookup([SMALL]) == [CachedBytes((1000, 0), 1000)]
    assert two._tiers._counters.total("cache_warnings") == 1


def test_an_object_that_left_the_bucket_is_outdated_in_every_tier(two: Cache) -> None:
    put(two, 0, LARGE, 0)
    put(two, 1, LARGE, 1)
    put(two, 1, SMALL, 0)
    assert two.source_bytes("s3://b") == two.indexed_bytes("s3://b") == 2 * BLOCK + 1000
    two.mark_outdated([LARGE])
    assert two.source_bytes("s3://b") == 1000


def test_a_removed_object_is_in_no_tier(two: Cache) -> None:
    contents = Contents(two)
    put(two, 0, LARGE, 0)
    put(two, 1, LARGE, 1, 3)
    put(two, 1, SMALL, 0)
    assert contents.remove([LARGE]) == 2 * BLOCK + HALF
    assert contents.lookup([LARGE, SMALL]) == [CachedBytes((0, 0), 0), CachedBytes((0, 1000), 1000)]
    assert contents.missing(LARGE, CachedBytes((0, 0), 0)) == [0, 1, 2, 3]


def test_a_damaged_block_is_dropped_from_its_tier_and_counted(two: Cache) -> None:
    contents = Contents(two)
    put(two, 0, LARGE, 0, 1)
    put(two, 1, LARGE, 2, 3)
    path = two.tiers[1].file_of(LARGE.digest)
    assert path is not None
    with open(path, "r+b") as file:
        file.seek(2 * BLOCK + HALF)
        file.write(b"rotten")
    assert contents.verify(LARGE) == 1
    assert contents.lookup([LARGE]) == [CachedBytes((2 * BLOCK, HALF), 2 * BLOCK + HALF)]
    assert contents.verify(LARGE) == 0


def test_wanted_objects_are_evicted_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TierSpec("SSD", (tmp_path / "c",), 10_000, high=1.0, low=0.8)
    cache = build(Counters(), spec, policy="lru")
    tier = cache.tiers[0]
    assert tier.free_beside(lambda _share: 0) == [10_000]
    put(cache, 0, SMALL, 0)
    assert tier.free_beside(lambda _share: 0) == [9000]
    assert tier.free_beside(lambda _share: 1000) == [9000]
    others = [identify("s3://b", f"other{n}", "1", 1000, BLOCK) for n in range(9)]
    for other in others:
        put(cache, 0, other, 0)
    # Full: what evicts goes down to the low watermark, and that has to hold what is wanted.
    assert tier.free_beside(lambda _share: 1000) == [7000]
    cache.close()
    cache = build(Counters(), replace(spec, quota_bytes=5000), policy="lru")
    assert cache.tiers[0].free_beside(lambda _share: 5000) == [0], "more is there than its quota"
    cache.close()
    cache = build(Counters(), replace(spec, quota_bytes=50_000), policy="lru")
    nearly_full = SimpleNamespace(f_bavail=3, f_frsize=1000)
    monkeypatch.setattr(os, "statvfs", lambda _path: nearly_full)
    assert cache.tiers[0].free_beside(lambda _share: 0) == [3000], "others use the disk too"
    cache.close()


# -- disks that cannot hold a cache, or not one as large as its quota ---------------------------


def test_a_quota_larger_than_the_disk_is_clamped_only_on_request(tmp_path: Path) -> None:
    reported: list[str] = []
    spec = TierSpec("SSD", (tmp_path / "c",), 1 << 60)
    with pytest.raises(CacheDirError, match="a quota of"):
        build(Counters(), spec)
    cache = build(Counters(), replace(spec, clamp=True), warn=reported.append)
    (tier,) = cache.tiers
    assert isinstance(tier, StripedTier)
    disk = os.statvfs(tmp_path)
    assert 0 < tier.quota_bytes <= disk.f_blocks * disk.f_frsize
    cache.close()
    (line,) = reported
    assert f"tier SSD: {tmp_path}/c has room for" in line
    assert "1024.0 PiB" in line
    build(Counters(), replace(spec, quota_bytes=1 << 20, clamp=True), warn=reported.append).close()
    assert reported == [line], "one that fits is left as it is"


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written"), (errno.EIO, "another")],
)
def test_an_unwritable_disk_is_rejected_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(CacheDirError, match=os.strerror(number)) as caught:
        prepare_directory(tmp_path, 1 << 20)
    assert hint in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_returns_other_bytes_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", lambda _descriptor, length, _offset: bytes(length))
    with pytest.raises(CacheDirError, match="Input/output error"):
        prepare_directory(tmp_path, 1 << 20)


def test_a_full_disk_has_room_only_for_the_bytes_cached_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_blocks=1 << 30, f_frsize=1, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(CacheDirError, match="is full"):
        prepare_directory(tmp_path, 1 << 20)
    assert prepare_directory(tmp_path, 1 << 20, used_bytes=1 << 20) == 1 << 20
    full.f_bavail = 9_000_000
    assert prepare_directory(tmp_path, None, used_bytes=1_000_000) == 9_000_000, "a share of it"
