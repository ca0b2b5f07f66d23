"""A quota that is larger than its disk: an error, or what the disk has and a word about it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.build import build_cache
from penstock.cache.striped import StripedTier
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Cache
from penstock.errors import CacheDirError
from penstock.metrics import Counters


def build(spec: TierSpec, said: list[str]) -> Cache:
    return build_cache(
        [spec], policy="keep", block_bytes=1 << 20, buffer_bytes=1 << 20, fetchers=1,
        counters=Counters(), say=said.append,
    )  # fmt: skip


def test_a_quota_larger_than_the_disk_is_cut_only_if_that_is_wanted(tmp_path: Path) -> None:
    said: list[str] = []
    spec = TierSpec("SSD", (tmp_path / "c",), 1 << 60)
    with pytest.raises(CacheDirError, match="a quota of"):
        build(spec, said)
    cache = build(replace(spec, clamp=True), said)
    (tier,) = cache.tiers
    assert isinstance(tier, StripedTier)
    disk = os.statvfs(tmp_path)
    assert 0 < tier.quota_bytes <= disk.f_blocks * disk.f_frsize
    assert len(said) == 1
    assert f"tier SSD: {tmp_path}/c has room for" in said[0]
    assert "1024.0 PiB" in said[0]
    cache.close()


def test_a_quota_that_fits_is_left_as_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    cache = build(TierSpec("SSD", (tmp_path / "c",), 1 << 20, clamp=True), said)
    (tier,) = cache.tiers
    assert isinstance(tier, StripedTier)
    assert (tier.quota_bytes, said) == (1 << 20, [])
    cache.close()
