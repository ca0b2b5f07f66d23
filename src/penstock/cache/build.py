"""From what the user said of tiers to a working cache."""

from penstock.cache.directory import CacheDirectory, StripedTier, open_directory
from penstock.cache.index import stored_bytes
from penstock.cache.policy import POLICIES
from penstock.cache.tier import Tier, TierSpec, prepare_directory
from penstock.cache.tiered import Cache
from penstock.metrics import Counters


def build_tier(spec: TierSpec, policy: str, counters: Counters) -> StripedTier:
    share = None if spec.quota_bytes is None else spec.quota_bytes // len(spec.paths)
    directories: list[CacheDirectory] = []
    for path in spec.paths:
        quota = prepare_directory(path, share, stored_bytes(path / "index.sqlite"))
        directories.append(
            open_directory(
                path, name=spec.medium, quota_bytes=quota, high=spec.high, low=spec.low,
                policy=POLICIES[policy](), counters=counters,
            )
        )  # fmt: skip
    return StripedTier(spec.medium, directories)


def build_cache(
    specs: list[TierSpec], *, policy: str, block_bytes: int, buffer_bytes: int, fetchers: int,
    counters: Counters, threads: int = 32, deadline_s: float = 60.0,
) -> Cache:  # fmt: skip
    tiers: list[Tier] = [build_tier(spec, policy, counters) for spec in specs]
    return Cache(
        tiers, block_bytes=block_bytes, buffer_bytes=buffer_bytes, fetchers=fetchers,
        threads=threads, deadline_s=deadline_s, counters=counters,
    )  # fmt: skip
