"""Collect what `penstock stats` shows of one mount."""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.daemon.catalog_refresher import Refresher
from penstock.daemon.epoch_plans import EpochPlans
from penstock.daemon.resource_limits import Limits, open_descriptors, resident_bytes
from penstock.daemon.shared_stats import SharedEstimate, describe
from penstock.daemon.warm_requests import WarmRequests
from penstock.daemon.worker_pool import WorkerPool
from penstock.fuse.backing import BackingFiles
from penstock.fuse.session import Session
from penstock.metrics import BUFFERS, Counters
from penstock.settings import MountSettings
from penstock.vfs.filesystem import FileSystem
from penstock.warm.prefetcher import Prefetcher


@dataclass(frozen=True, slots=True)
class ServedMount:
    """The parts of a mount that its statistics and metrics are collected from."""

    settings: MountSettings
    numbers: Collection[int]  # of its sources
    mode: str
    files: FileSystem
    session: Session | WorkerPool  # what counts the requests of the kernel
    backings: BackingFiles | None
    refresher: Refresher
    counters: Counters
    started_s: float
    remembered: Mapping[str, Any]  # by the supervisor
    limits: Limits
    plans: EpochPlans
    loads: WarmRequests
    prefetcher: Prefetcher
    workers: WorkerPool | None
    estimate: SharedEstimate | None


def collect(mount: ServedMount) -> dict[str, Any]:
    settings, numbers, files, session = mount.settings, mount.numbers, mount.files, mount.session
    counters, limits, remembered = mount.counters, mount.limits, mount.remembered
    backings, workers, estimate = mount.backings, mount.workers, mount.estimate
    count, size = files.totals()
    files.cache.wait_until_stored()  # workers report their counts with it
    if estimate is not None:
        estimate.refresh(wait=True)
    return {
        "mountpoint": str(settings.mountpoint),
        "source": settings.shown,
        "mode": mount.mode,
        "state": "serving",
        "pid": os.getpid(),
        "supervisor_pid": remembered["supervisor_pid"],
        "restarts": remembered["restarts"],
        "last_end": remembered["last_end"],
        "uptime_s": round(time.time() - mount.started_s, 3),
        "memory_bytes": resident_bytes([] if workers is None else workers.pids()),
        "memory_limit_bytes": limits.memory_bytes,
        "descriptors": open_descriptors(),
        "descriptor_limit": limits.descriptors,
        "files": count,
        "bytes": size,
        "hidden": sum(files.tree.hidden_counts().values()),
        "cached_bytes": cached_bytes(files, numbers, files.cache.source_bytes, estimate),
        "parts": _parts(settings, files, numbers),
        "capacity_bytes": _capacity_bytes(files, estimate),
        "shared": _shared(files, counters, workers, estimate),
        "tiers": [tier.describe() for tier in files.cache.tiers],
        "hit_bytes": _hit_bytes(counters),
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
        "fetching": files.cache.fetching,
        "buffered_bytes": files.cache.buffered_bytes,
        "pushed_bytes": counters.total("pushed_bytes"),
        "loaded_regions": counters.total("loaded_regions"),
        "read_bytes": session.read_bytes(),
        "fetched_over_read": fetched_over_read(counters, session.read_bytes()),
        "plans": mount.plans.describe(),
        "gets_in_flight": mount.prefetcher.in_flight,
        "gets_in_flight_target": mount.prefetcher.pace.target,
        "workers": {"count": 1, "pids": [], "restarts": 0}
        if workers is None
        else workers.describe(),
        "corrupt_blocks": counters.total("corrupt_blocks"),
        "cache_warnings": counters.total("cache_warnings"),
        "refreshes": counters.total("refreshes"),
        "catalog": str(files.tree.path),
        "catalog_damage": _damage(files),
        "listed_at_s": files.tree.listed_at(),
        "last_change": files.tree.change_number(),
        "refresh_error": mount.refresher.last_error,
    }


def collect_brief(mount: ServedMount) -> dict[str, Any]:
    """Return the few values that are polled of many mounts. Never waits, and reads no file;
    `cached_bytes` may be a tenth of a second old."""
    numbers, files, counters = mount.numbers, mount.files, mount.counters
    estimate = mount.estimate
    count, size = files.totals()
    if estimate is not None:
        estimate.refresh(wait=False)
    return {
        "files": count,
        "bytes": size,
        "cached_bytes": cached_bytes(files, numbers, files.cache.indexed_bytes, estimate),
        "capacity_bytes": _capacity_bytes(files, estimate),
        "listed_at_s": files.tree.listed_at(),
        "last_change": files.tree.change_number(),
        "hit_bytes": _hit_bytes(counters),
        "store_bytes": counters.total("store_bytes"),
        "read_bytes": mount.session.read_bytes(),
        "mode": mount.mode,
        "refresh_error": mount.refresher.last_error,
    }


def _damage(files: FileSystem) -> dict[str, Any] | None:
    """Return the last damage of the catalog, and whether it is repaired."""
    what = files.tree.damage()
    return None if what is None else {"what": what, "healed": files.tree.is_complete()}


def _parts(
    settings: MountSettings, files: FileSystem, numbers: Collection[int]
) -> list[dict[str, Any]]:
    sources = {part.path: part.source for part in settings.parts}
    return [
        {
            "path": row.path,
            "source": str(sources[row.path]),
            "files": row.files,
            "bytes": row.size_bytes,
            "cached_bytes": files.cache.source_bytes(row.identity),
            "listed_at_s": row.listed_at,
        }
        for row in files.tree.sources()
        if row.number in numbers
    ]


def cached_bytes(
    files: FileSystem,
    numbers: Collection[int],
    of: Callable[[str], int],
    estimate: SharedEstimate | None,
) -> int:
    """Sum over all sources; the same data at two places is cached once. With a shared tier, what
    it holds counts as well."""
    identities = {row.identity for row in files.tree.sources() if row.number in numbers}
    here = sum(map(of, identities))
    size = files.totals()[1]
    return here if estimate is None else min(size, max(here, estimate.cached_bytes(size)))


def _capacity_bytes(files: FileSystem, estimate: SharedEstimate | None) -> int:
    here = sum(tier.quota_bytes for tier in files.cache.tiers)
    return here if estimate is None else here + estimate.capacity_bytes


def _shared(
    files: FileSystem,
    counters: Counters,
    workers: WorkerPool | None,
    estimate: SharedEstimate | None,
) -> dict[str, Any] | None:
    tier = files.cache.shared
    if tier is None or estimate is None:
        return None
    out = {} if workers is None else workers.shared_out()
    return describe(estimate, tier, counters, out, files.totals()[1])


def _hit_bytes(counters: Counters) -> dict[str, int]:
    """What came from the tiers; what came from memory was fetched a moment ago."""
    return {tier: size for tier, size in counters.by_label("hit_bytes").items() if tier != BUFFERS}


def fetched_over_read(counters: Counters, read_bytes: int) -> float | None:
    handed_over = read_bytes + counters.total("pushed_bytes")
    return round(counters.total("store_bytes") / handed_over, 4) if handed_over else None
