"""How many fetchers a mount has, and what is put into one message."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cache.tier import TierSpec
from penstock.daemon import fetchers
from penstock.daemon.fetchers import fetchers_of
from penstock.daemon.settings import MountSettings
from penstock.daemon.settings_codec import decode, encode
from penstock.warm.carried import Carried

CACHED = MountSettings((), Path("/mnt"), tiers=(TierSpec("SSD", (Path("/cache"),), None),))


@pytest.mark.parametrize(("cores", "most"), [(3, 0), (4, 1), (16, 4), (64, 4)])
def test_there_is_one_for_each_four_cores_and_four_at_most(
    cores: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert fetchers_of(CACHED) == most
    assert fetchers_of(replace(CACHED, fetchers=7)) == 7
    assert fetchers_of(replace(CACHED, fetchers=0)) == 0
    assert fetchers_of(replace(CACHED, tiers=())) == 0


def test_settings_of_before_there_were_any_mean_the_default() -> None:
    told = encode(replace(CACHED, fetchers=3))
    assert decode(told).fetchers == 3
    del told["fetchers"]
    assert decode(told).fetchers is None


def named(key: str) -> Carried:
    anything: Any = None
    return Carried(anything, anything, (0, key, "v1", 1, "/cache/x", 0))


def test_messages_are_shared_out_and_neither_long_nor_many() -> None:
    def lengths(some: list[Carried], processes: int) -> list[int]:
        return [len(message) for message in fetchers._messages(some, processes)]  # pyright: ignore

    short = [named("k") for _ in range(40)]
    assert lengths([], 2) == []
    assert lengths(short[:3], 2) == [2, 1]
    assert lengths(short, 2) == [16, 16, 8]
    long = [named("k" * 1000) for _ in range(16)]
    assert lengths(long, 1) == [15, 1]
