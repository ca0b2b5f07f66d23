"""Build a cache from the user's tier options, and open its directories."""

import logging
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.cache.directory import CacheDirectory
from penstock.cache.guarded import GuardedDirectory
from penstock.cache.indexfile import IndexIdentity, stored_bytes
from penstock.cache.members import parse_members
from penstock.cache.memcached import LEAST_CONNECTIONS, MOST_CONNECTIONS
from penstock.cache.policy import POLICIES, Policy
from penstock.cache.seal import open_packing
from penstock.cache.shared_tier import SharedTier
from penstock.cache.striped import StripedTier
from penstock.cache.sweep import sweep_unopened
from penstock.cache.tier import TierSpec, is_full_disk, prepare_directory, refuse_foreign
from penstock.cache.tiered import Cache
from penstock.errors import CacheDirError, OptionError
from penstock.metrics import Counters
from penstock.units import MIB, format_size

log = logging.getLogger(__name__)

Warn = Callable[[str], None]

_LEAST_QUEUE_BYTES = 8 * MIB


def build_cache(
    specs: list[TierSpec],
    *,
    policy: str,
    block_bytes: int,
    buffer_bytes: int,
    large_threads: int,
    counters: Counters,
    threads: int = 32,
    deadline_s: float = 60.0,
    shared: SharedTier | None = None,
    must_open: bool = True,
    warn: Warn = lambda _note: None,
) -> Cache:
    """Build the cache of a mount. Without `must_open`, a directory that cannot be opened now is out
    of service and retried later. `warn` receives messages for the user about tiers that differ from
    what was requested."""
    tiers = [build_tier(spec, policy, counters, must_open=must_open, warn=warn) for spec in specs]
    return Cache(
        tiers,
        block_bytes=block_bytes,
        buffer_bytes=buffer_bytes,
        large_threads=large_threads,
        threads=threads,
        deadline_s=deadline_s,
        shared=shared,
        counters=counters,
    )


def open_shared_tier(
    members: str | None,
    key_file: str | None,
    counters: Counters,
    *,
    buffer_bytes: int,
    deadline_s: float,
    workers: int = 1,
    must_open: bool = True,
) -> SharedTier | None:
    """Open the shared tier that the settings name, if they do. A tier whose members fail opens as
    well. `buffer_bytes`: of this process, for blocks in flight. `workers`: processes that serve the
    same mount. Without `must_open`, a key file that is gone costs the tier, and not the mount."""
    if members is None:
        return None
    try:
        packing = open_packing(None if key_file is None else Path(key_file))
    except OptionError as error:
        if must_open:
            raise
        log.warning("%s; reading without the shared tier", error)
        return None
    return SharedTier(
        parse_members(members),
        packing,
        counters,
        queue_bytes=max(_LEAST_QUEUE_BYTES, buffer_bytes // 4),
        connections=max(LEAST_CONNECTIONS, MOST_CONNECTIONS // workers),
        deadline_s=deadline_s,
    )


def build_tier(
    spec: TierSpec,
    policy: str,
    counters: Counters,
    *,
    must_open: bool = True,
    warn: Warn = lambda _note: None,
) -> StripedTier:
    directories = [
        GuardedDirectory(
            path,
            spec.medium,
            partial(_open_prepared, path, spec, policy, counters, warn),
            counters,
            must_open=must_open,
        )
        for path in spec.paths
    ]
    return StripedTier(spec.medium, directories)


def _open_prepared(
    path: Path,
    spec: TierSpec,
    policy: str,
    counters: Counters,
    warn: Warn,
    damaged: IndexIdentity | None,
) -> CacheDirectory:
    refuse_foreign(path)

    def prepare_and_open() -> CacheDirectory:
        share = None if spec.quota_bytes is None else spec.quota_bytes // len(spec.paths)
        stored = stored_bytes(path / "index.sqlite")
        quota = prepare_directory(path, share, stored, clamp=spec.clamp)
        if share is not None and quota < share:
            warn(
                f"tier {spec.medium}: {path} has room for {format_size(quota)} instead of the "
                f"requested {format_size(share)}"
            )
        return open_directory(
            path,
            name=spec.medium,
            quota_bytes=quota,
            high=spec.high,
            low=spec.low,
            policy=POLICIES[policy](),
            counters=counters,
            damaged=damaged,
        )

    try:
        return prepare_and_open()
    except CacheDirError:
        # An open index lets the sweep remove files without a row. On a full disk the index may not
        # open because of those files: remove them first.
        if not is_full_disk(path) or not sweep_unopened(path):
            raise
        return prepare_and_open()


def open_directory(
    path: Path,
    *,
    name: str,
    quota_bytes: int,
    high: float,
    low: float,
    policy: Policy,
    counters: Counters,
    damaged: IndexIdentity | None = None,
) -> CacheDirectory:
    refuse_foreign(path)
    try:
        return CacheDirectory(
            path,
            name=name,
            quota_bytes=quota_bytes,
            high=high,
            low=low,
            policy=policy,
            counters=counters,
            damaged=damaged,
        )
    except OSError as error:
        raise CacheDirError(
            f"cache directory {path}: {error.strerror}", hint="give another --cache-dir"
        ) from error
    except sqlite3.Error as error:
        raise CacheDirError(
            f"cache directory {path}: its index cannot be used ({error})",
            hint=f"remove {path / 'index.sqlite'}*; what it held is fetched again",
        ) from error
