"""What every tier of the cache must do: directories of this machine, and the shared tier.

A tier is a subclass of TierContract with a fixture `tier`. `settle` waits until what was written
can be read.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.build import build_tier
from penstock.cache.identity import Block, CachedObject, block_of, identify
from penstock.cache.members import parse_members
from penstock.cache.seal import Packing, Sealing
from penstock.cache.shared_tier import SharedTier
from penstock.cache.striped import StripedTier
from penstock.cache.tier import Tier, TierSpec
from penstock.metrics import Counters
from tests.support.memcached import address_of, memcached

BLOCK_BYTES = 1024 * 1024
SMALL, LARGE = 110 * 1024, 2 * BLOCK_BYTES + 777


def some_object(size: int, name: str = "a", version: str = "1") -> CachedObject:
    return identify("s3://b", name, version, size, BLOCK_BYTES)


def bytes_of(block: Block) -> bytes:
    return random.Random(block.digest + bytes([block.number])).randbytes(block.length)


class TierContract:
    def settle(self, tier: Tier) -> None:
        raise AssertionError("a subclass says how")

    def store(self, tier: Tier, obj: CachedObject, number: int = 0) -> Block:
        block = block_of(obj, number, BLOCK_BYTES)
        assert tier.write(obj, BLOCK_BYTES, block, bytes_of(block))
        self.settle(tier)
        return block

    def test_a_block_that_was_never_written_is_a_miss(self, tier: Tier) -> None:
        block = block_of(some_object(SMALL), 0, BLOCK_BYTES)
        assert tier.read(block, 0, block.length) is None
        assert not tier.has(block)

    @pytest.mark.parametrize("size", [1, SMALL, BLOCK_BYTES])
    def test_a_whole_object_comes_back(self, tier: Tier, size: int) -> None:
        block = self.store(tier, some_object(size))
        assert tier.has(block)
        found = tier.read(block, 0, size)
        assert found is not None
        assert bytes(found) == bytes_of(block)

    def test_any_part_of_a_block_comes_back(self, tier: Tier) -> None:
        block = self.store(tier, some_object(SMALL))
        for start, stop in ((0, 1), (5, 70_000), (SMALL - 1, SMALL)):
            found = tier.read(block, start, stop)
            assert found is not None
            assert bytes(found) == bytes_of(block)[start:stop]

    def test_blocks_of_a_large_object_are_independent(self, tier: Tier) -> None:
        obj = some_object(LARGE)
        last = self.store(tier, obj, 2)
        first = block_of(obj, 0, BLOCK_BYTES)
        assert (tier.has(first), tier.has(last)) == (False, True)
        found = tier.read(last, 0, last.length)
        assert found is not None
        assert bytes(found) == bytes_of(last)
        self.store(tier, obj, 0)
        assert tier.has(first)

    def test_another_version_is_another_object(self, tier: Tier) -> None:
        self.store(tier, some_object(SMALL, version="1"))
        assert not tier.has(block_of(some_object(SMALL, version="2"), 0, BLOCK_BYTES))
        assert not tier.has(block_of(some_object(SMALL + 1, version="1"), 0, BLOCK_BYTES))

    def test_a_block_that_is_written_twice_is_there_once(self, tier: Tier) -> None:
        for _ in range(2):
            block = self.store(tier, some_object(SMALL))
        found = tier.read(block, 0, SMALL)
        assert found is not None
        assert bytes(found) == bytes_of(block)

    def test_a_tier_with_room_says_so(self, tier: Tier) -> None:
        assert tier.has_room(block_of(some_object(SMALL), 0, BLOCK_BYTES))


class LocalTier(TierContract):
    directories = 1

    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[StripedTier]:
        paths = tuple(tmp_path / str(number) for number in range(self.directories))
        tier = build_tier(TierSpec("SSD", paths, 64 * BLOCK_BYTES), "keep", Counters())
        yield tier
        tier.close()

    def settle(self, tier: Tier) -> None:
        """A local tier has what it has accepted."""


class TestOneDirectory(LocalTier):
    pass


class TestTwoDirectories(LocalTier):
    directories = 2


class OnMemcached(TierContract):
    packing = Packing()

    @pytest.fixture
    def tier(self) -> Iterator[SharedTier]:
        with memcached() as one, memcached() as two:
            tier = SharedTier(parse_members(address_of(one, two)), self.packing, Counters())
            yield tier
            tier.close(5.0)

    def settle(self, tier: Tier) -> None:
        assert isinstance(tier, SharedTier)
        assert tier.wait_until_filled(10.0)


class TestShared(OnMemcached):
    pass


class TestSharedAndSealed(OnMemcached):
    packing = Sealing(b"a secret of a cluster")
