"""Conditions, phases and amounts, in the form that Fluid's statuses have. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]

NOT_BOUND, BOUND, FAILED = "NotBound", "Bound", "Failed"
PENDING, EXECUTING, COMPLETE = "Pending", "Executing", "Complete"
READY, PARTIAL_READY, NOT_READY = "Ready", "PartialReady", "NotReady"
WITHOUT_EFFECT = "FieldsWithoutEffect"


class Condition(NamedTuple):
    kind: str
    holds: bool
    reason: str
    message: str


def with_conditions(
    before: Iterable[Json], fresh: Iterable[Condition], now_s: float, *, probed: bool = False
) -> list[Json]:
    """Return the conditions as a status shows them.

    A condition whose status did not change keeps its lastTransitionTime. `probed`: the time of the
    last look is lastProbeTime, as in runtimes and operations; data sets call it lastUpdateTime.
    """
    seen_at = "lastProbeTime" if probed else "lastUpdateTime"
    known = {condition["type"]: condition for condition in before}
    conditions: list[Json] = []
    for one in fresh:
        status = "True" if one.holds else "False"
        condition = {
            "type": one.kind,
            "status": status,
            "reason": one.reason,
            "message": one.message,
            seen_at: stamp(now_s),
            "lastTransitionTime": stamp(now_s),
        }
        if (old := known.get(one.kind)) is not None and old["status"] == status:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
            if old["message"] == one.message and old["reason"] == one.reason:
                condition = old
        conditions.append(condition)
    return conditions


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(size_bytes: float) -> str:
    """Format a size as Fluid prints it: `143.67GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size_bytes) < 1024 or unit == "PiB":
            return f"{size_bytes:.2f}{unit}"
        size_bytes /= 1024
    raise AssertionError


def share(part: float, whole: float) -> str:
    """Format a share: `47.3%`. An empty whole gives 100.0%; an incomplete part never does."""
    if part >= whole:
        return "100.0%"
    return f"{min(99.9, 100 * part / whole):.1f}%"


def dataset_amounts(brief: Json) -> Json:
    """Return the part of a Dataset's status that changes as it is read.

    `brief`: the answer of its mount to `brief`.
    """
    return {
        "ufsTotal": amount(brief["bytes"]),
        "fileNum": str(brief["files"]),
        "cacheStates": _cache_states(brief),
        # The same, to the byte.
        "bytes": {
            "total": brief["bytes"],
            "cached": brief["cached_bytes"],
            "capacity": brief["capacity_bytes"],
        },
    }


def _cache_states(brief: Json) -> Json:
    hits, misses = sum(brief["hit_bytes"].values()), brief["store_bytes"]
    states = {
        "cacheCapacity": amount(brief["capacity_bytes"]),
        "cached": amount(brief["cached_bytes"]),
        "cachedPercentage": share(brief["cached_bytes"], brief["bytes"]),
    }
    if hits + misses:
        states["cacheHitRatio"] = states["localHitRatio"] = f"{100 * hits / (hits + misses):.1f}%"
    return states
