"""Cache directories that are closed when the test ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.directory import CacheDirectory
from penstock.cache.policy import Keep, Policy
from penstock.metrics import Counters
from tests.support.cache_samples import Opener


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    caches: list[CacheDirectory] = []

    def open_cache(
        policy: Policy | None = None, quota: int = 1 << 30, **marks: float
    ) -> CacheDirectory:
        cache = CacheDirectory(
            tmp_path / "cache", name="SSD", quota_bytes=quota, high=marks.get("high", 1.0),
            low=marks.get("low", 0.5), policy=policy or Keep(), counters=Counters(),
        )  # fmt: skip
        caches.append(cache)
        return cache

    yield open_cache
    for cache in caches:
        cache.close()
