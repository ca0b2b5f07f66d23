"""Disks that cannot hold a cache, or not one as large as its quota."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cache.build import build_cache
from penstock.cache.striped import StripedTier
from penstock.cache.tier import TierSpec, prepare_directory
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


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written"), (errno.EIO, "another")],
)
def test_a_disk_that_cannot_be_written_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(CacheDirError, match=os.strerror(number)) as caught:
        prepare_directory(tmp_path, 1 << 20)
    assert hint in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_returns_other_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", lambda _descriptor, length, _offset: bytes(length))
    with pytest.raises(CacheDirError, match="Input/output error"):
        prepare_directory(tmp_path, 1 << 20)


def test_a_full_disk_has_room_only_for_what_is_cached_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_blocks=1 << 30, f_frsize=1, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(CacheDirError, match="is full"):
        prepare_directory(tmp_path, 1 << 20)
    assert prepare_directory(tmp_path, 1 << 20, used_bytes=1 << 20) == 1 << 20
