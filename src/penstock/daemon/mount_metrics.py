"""Collect the metrics of one mount for a monitoring system: the verb `metrics` of its server.

Unlike `penstock stats`, this never waits for anything: a scrape must not depend on a slow disk.
What workers have counted may be a second old.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.cache.shared_tier import SharedTier
from penstock.daemon.mount_stats import ServedMount, cached_bytes, fetched_over_read
from penstock.daemon.resource_limits import open_descriptors, resident_bytes
from penstock.metrics import Labels
from penstock.release import __version__

Value = tuple[str, Labels, float]  # name, labels in the order of the table, value


def collect_metrics(mount: ServedMount) -> list[Value]:
    """Return all metrics but those that the supervisor knows."""
    files, session, counters = mount.files, mount.session, mount.counters
    workers, estimate = mount.workers, mount.estimate
    if estimate is not None:
        estimate.refresh(wait=False)
    cache, tree = files.cache, files.tree
    file_count, size_bytes = files.totals()
    read_bytes = session.read_bytes()
    plain: dict[str, float | None] = {
        "started_timestamp_seconds": mount.started_s,
        "read_bytes": read_bytes,
        "fetched_over_read_ratio": fetched_over_read(counters, read_bytes),
        "passthrough_opens": mount.backings.opens if mount.backings is not None else 0,
        "catalog_files": file_count,
        "catalog_bytes": size_bytes,
        "catalog_hidden_objects": sum(tree.hidden_counts().values()),
        "catalog_listed_timestamp_seconds": tree.listed_at(),
        "catalog_rebuilding": not tree.is_complete(),
        "refresh_failing": mount.refresher.last_error is not None,
        "cached_bytes": cached_bytes(files, mount.numbers, cache.indexed_bytes, estimate),
        "declined_blocks": cache.declined_blocks,
        "fetches_in_flight": cache.fetching,
        "ahead_in_flight": mount.prefetcher.in_flight,
        "ahead_in_flight_target": mount.prefetcher.pace.target,
        "buffered_bytes": cache.buffered_bytes,
        "buffer_limit_bytes": mount.settings.buffer_bytes,
        "memory_bytes": resident_bytes([] if workers is None else workers.pids()),
        "memory_limit_bytes": mount.limits.memory_bytes,
        "descriptors": open_descriptors(),
        "descriptor_limit": mount.limits.descriptors,
        "plans_in_progress": mount.plans.count,
        "loads_in_progress": mount.loads.loads,
        "workers": 1 if workers is None else workers.count,
        "worker_restarts": 0 if workers is None else workers.restarts,
    }
    return [
        ("build_info", (__version__, mount.mode), 1),
        *((name, (), float(value)) for name, value in plain.items() if value is not None),
        *(("requests", (name.lower(),), count) for name, count in session.requests().items()),
        *_of_tiers([tier.describe() for tier in cache.tiers]),
        *_of_shared(cache.shared, {} if workers is None else workers.shared_out()),
        *counters.listed(),
    ]


def _of_shared(tier: SharedTier | None, out_of_workers: Mapping[str, str]) -> list[Value]:
    """What is known of the members, and zeros before the first block: see `Metric.from_zero`."""
    members: list[dict[str, Any]] = [] if tier is None else tier.describe()["members"]
    found: list[Value] = []
    for one in members:
        name: str = one["member"]
        is_out = bool(one["out"]) or name in out_of_workers
        found.append(("shared_member_out", (name,), is_out))
        counted = ("hits", "misses", "waits", "damaged", "failures", "filled_bytes")
        found += [(f"shared_{what}", (name,), 0) for what in counted]
    return found


def _of_tiers(tiers: list[dict[str, Any]]) -> list[Value]:
    """Two tiers on one medium have one name, and are summed up."""
    found = Counter[tuple[str, str]]()
    for tier in tiers:
        out = sum(one["state"] == "out" for one in tier["directories"])
        found.update(
            {
                ("tier_used_bytes", tier["name"]): tier["used_bytes"],
                ("tier_quota_bytes", tier["name"]): tier["quota_bytes"],
                ("tier_directories_out", tier["name"]): out,
            }
        )
    return [(name, (tier,), value) for (name, tier), value in found.items()]
