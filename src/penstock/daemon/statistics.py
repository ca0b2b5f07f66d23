"""What `penstock stats` shows of one mount, gathered."""

import os
import time
from pathlib import Path
from typing import Any

from penstock.cache.directory import StripedTier
from penstock.daemon.refresher import Refresher
from penstock.daemon.settings import MountSettings
from penstock.fuse.backing import Backings
from penstock.fuse.session import Session
from penstock.metrics import Counters
from penstock.vfs.filesystem import FileSystem


def collect(
    settings: MountSettings, mode: str, files: FileSystem, session: Session,
    backings: Backings | None, refresher: Refresher, counters: Counters, started_s: float,
) -> dict[str, Any]:  # fmt: skip
    count, size = files.totals()
    return {
        "mountpoint": str(settings.mountpoint),
        "source": str(settings.source),
        "mode": mode,
        "pid": os.getpid(),
        "uptime_s": round(time.time() - started_s, 3),
        "memory_bytes": resident_bytes(),
        "files": count,
        "bytes": size,
        "hidden": sum(files.tree.hidden_counts().values()),
        "cached_bytes": files.source_bytes(),
        "tiers": [_tier(tier) for tier in files.cache.tiers if isinstance(tier, StripedTier)],
        "hit_bytes": counters.by_label("hit_bytes"),
        "store_requests": counters.total("store_requests"),
        "store_requests_by_verb": counters.by_label("store_requests"),
        "store_bytes": counters.total("store_bytes"),
        "store_retries": counters.total("store_retries"),
        "store_retries_by_kind": counters.by_label("store_retries"),
        "store_reopens": counters.total("store_reopens"),
        "store_mismatches": counters.total("store_mismatches"),
        "hedges": counters.total("hedges"),
        "hedges_won": counters.total("hedges_won"),
        "requests": session.requests(),
        "errors": counters.total("errors"),
        "errors_by_name": counters.by_label("errors"),
        "passthrough_opens": backings.opens if backings is not None else 0,
        "prefetched_blocks": counters.total("prefetched_blocks"),
        "buffered_bytes": files.cache.buffered_bytes,
        "corrupt_blocks": counters.total("corrupt_blocks"),
        "cache_warnings": counters.total("cache_warnings"),
        "refreshes": counters.total("refreshes"),
        "listed_at_s": files.tree.listed_at(),
        "refresh_error": refresher.last_error,
    }


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _tier(tier: StripedTier) -> dict[str, Any]:
    for directory in tier.directories:
        directory.index.reread_usage(least_interval_s=0)
    return {
        "name": tier.name,
        "paths": [str(directory.path) for directory in tier.directories],
        "quota_bytes": sum(directory.quota_bytes for directory in tier.directories),
        "used_bytes": sum(directory.used_bytes for directory in tier.directories),
    }
