"""Every metric of a mount: its name, kind, unit, labels and meaning.

The server counts those of COUNTED in `Counters`; those of COLLECTED are read elsewhere when someone
asks. `penstock stats` shows them for people, `daemon/exposition.py` for Prometheus, and
docs/reference/metrics.md lists them. A label has few values: never the name of an object.

Many threads add to the counters. A lock around an integer costs 0.1 us, and warm reads, which never
reach this process, touch none of them.
"""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final


class Kind(Enum):
    COUNTER = "counter"  # grows; begins at 0 with each server
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    # Series that are shown from the start, at 0: a rate misses the first event of a new series.
    from_zero: tuple["Labels", ...] = ()

    @staticmethod
    def unit(name: str) -> str:
        """Return the unit, which ends the name; "" for a number of things."""
        last = name.rpartition("_")[2]
        return last if last in UNITS else ""

    def exported_name(self, name: str) -> str:
        """Return the name that Prometheus shows: `penstock_read_bytes_total`."""
        return f"penstock_{name}{'_total' if self.kind is Kind.COUNTER else ''}"


def _counter(meaning: str, *labels: str, from_zero: Sequence["Labels"] = ()) -> Metric:
    return Metric(Kind.COUNTER, meaning, labels, tuple(from_zero) if labels else ((),))


def _gauge(meaning: str, *labels: str) -> Metric:
    return Metric(Kind.GAUGE, meaning, labels)


def _histogram(meaning: str, *labels: str, from_zero: Sequence["Labels"] = ()) -> Metric:
    return Metric(Kind.HISTOGRAM, meaning, labels, tuple(from_zero) if labels else ((),))


Labels = tuple[str, ...]

UNITS: Final = ("bytes", "seconds", "ratio")
# What mostly fails; others appear once they have happened.
_FAILURES: Final = ("refused", "reset", "server_error", "short_body", "slow_down", "timeout")

OK: Final = "ok"  # the outcome of a request that object storage answered
BUFFERS: Final = "buffers"  # among the tiers: blocks in memory, on their way into a tier

# What a server counts as it works. The unit of a metric ends its name.
COUNTED: Final[Mapping[str, Metric]] = {
    "hits": _counter(
        "parts of reads that a cache tier answered, or `buffers`: blocks in memory",
        "tier",
        from_zero=[(BUFFERS,)],
    ),
    "hit_bytes": _counter("bytes of these parts", "tier", from_zero=[(BUFFERS,)]),
    "misses": _counter("reads that had to wait for object storage, or the shared tier"),
    "store_requests": _counter(
        "requests to object storage, by how they ended: `ok`, `denied`, `not_found`, `changed`, "
        "`invalid`, or what failed, such as `timeout`, `slow_down`, `server_error`, `reset`",
        "verb",
        "outcome",
        from_zero=[(verb, word) for verb in ("get", "list") for word in (OK, "denied", *_FAILURES)],
    ),
    "store_request_seconds": _histogram(
        "how long the requests took that object storage answered, until the last byte",
        "verb",
        from_zero=[("get",), ("list",)],
    ),
    "store_bytes": _counter("bytes of object data received from object storage"),
    "store_retries": _counter(
        "retries of requests that object storage failed, by kind of failure",
        "kind",
        from_zero=[(kind,) for kind in _FAILURES],
    ),
    "store_reopens": _counter(
        "times the credentials were read again after object storage denied access"
    ),
    "store_mismatches": _counter("bodies that did not match their ETag; fetched again"),
    "fetch_seconds": _histogram(
        "how long the first reader of a block waited for object storage or the shared tier: for "
        "memory, for its request and for retries"
    ),
    "hedges": _counter("second fetches of a block whose first was slow"),
    "hedges_won": _counter("second fetches that finished first"),
    "shared_hits": _counter("blocks that a member of the shared tier had", "member"),
    "shared_misses": _counter("blocks that it did not have", "member"),
    "shared_waits": _counter(
        "times it was asked for a block that another machine was fetching", "member"
    ),
    "shared_waited_in_vain": _counter("blocks that another machine did not fetch in time"),
    "shared_damaged": _counter("blocks that a member had, but not as they were written", "member"),
    "shared_failures": _counter(
        "requests that a member did not answer in time or properly", "member"
    ),
    "shared_hit_seconds": _histogram("how long hits took", "member"),
    "shared_filled_bytes": _counter("bytes written into the shared tier", "member"),
    "shared_fills_dropped": _counter(
        "blocks that were not written into the shared tier: it failed, or was slower than the store"
    ),
    "errors": _counter(
        "requests that the reader got an error for, by name",
        "error",
        from_zero=[("EACCES",), ("EIO",), ("ESTALE",)],
    ),
    "corrupt_blocks": _counter(
        "cached blocks whose checksum did not match; dropped and fetched again"
    ),
    "cache_warnings": _counter("times a tier failed and the read went on without it"),
    "prefetched_blocks": _counter("blocks fetched before a reader requested them"),
    "pushed_bytes": _counter(
        "bytes put into the kernel's page cache before a reader requested them"
    ),
    "loaded_regions": _counter(
        "regions of large files that the kernel was asked to load, since they were read at random"
    ),
    "refreshes": _counter("listings compared with the catalog"),
}

# What is counted or known elsewhere, or computed from others.
COLLECTED: Final[Mapping[str, Metric]] = {
    "serving": _gauge("1 while a server answers; 0 while the next one starts, and readers wait"),
    "restarts": _counter("servers that ended and were replaced; kept over restarts"),
    "build_info": _gauge("always 1; its labels say what serves", "version", "mode"),
    "started_timestamp_seconds": _gauge("when the mount was made"),
    "requests": _counter(
        "requests of the kernel, by operation", "operation", from_zero=[("read",)]
    ),
    "read_bytes": _counter(
        "bytes that the server has answered reads with; what the kernel reads by itself (pages "
        "that it keeps, files of the cache in passthrough mode) is not in it"
    ),
    "fetched_over_read_ratio": _gauge(
        "bytes received from object storage over bytes handed to the kernel (read or pushed): 1 is "
        "ideal, below it the local cache helped, above it something was fetched that no reader has "
        "requested yet, as a warm-up does; missing before the first byte"
    ),
    "passthrough_opens": _counter("files that the kernel was given to read by itself"),
    "catalog_files": _gauge("files of the last listing"),
    "catalog_bytes": _gauge("bytes of these files"),
    "catalog_hidden_objects": _gauge("objects that cannot be shown as files"),
    "catalog_listed_timestamp_seconds": _gauge(
        "when the last complete listing was taken in; its age is `time()` minus this"
    ),
    "catalog_rebuilding": _gauge("1 while a damaged catalog is rebuilt from a listing"),
    "refresh_failing": _gauge("1 if the last listing of a source failed"),
    "cached_bytes": _gauge("bytes of the data set that are in the tiers"),
    "tier_used_bytes": _gauge("bytes that a tier holds, of all its data sets", "tier"),
    "tier_quota_bytes": _gauge("bytes that a tier may hold", "tier"),
    "tier_directories_out": _gauge("directories of a tier that are out of service", "tier"),
    "shared_member_out": _gauge("1 while a member of the shared tier is out of service", "member"),
    "declined_blocks": _counter("fetched blocks that no tier had room for"),
    "fetches_in_flight": _gauge("blocks that are being fetched or stored"),
    "ahead_in_flight": _gauge("blocks of plans and loads that are being fetched"),
    "ahead_in_flight_target": _gauge("how many of these are wanted at once"),
    "buffered_bytes": _gauge("memory that holds blocks in flight, or not yet read to the end"),
    "buffer_limit_bytes": _gauge("how much that may be: `--buffer-size`"),
    "memory_bytes": _gauge("resident memory of the server and its workers"),
    "memory_limit_bytes": _gauge("how much that may be: `--memory`"),
    "descriptors": _gauge("open file descriptors of the server"),
    "descriptor_limit": _gauge("how many that may be"),
    "plans_in_progress": _gauge("epoch plans that are followed"),
    "loads_in_progress": _gauge("loads and warm-ups that are running"),
    "workers": _gauge("worker processes that answer reads; 1 if the server answers itself"),
    "worker_restarts": _counter("workers that ended and were replaced"),
}

METRICS: Final[Mapping[str, Metric]] = {**COLLECTED, **COUNTED}

# The upper bounds of the buckets of a histogram: from a store in the same rack to its deadline.
BUCKETS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, inf)
# In the place of a bound: the sum of what was observed.
SUM: Final = "sum"
_BOUNDS: Final = tuple(map(str, BUCKETS_S))


class Counters:
    """Of a histogram, each bucket is a counter: its last label is its bound, or SUM."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in COUNTED}

    def add(self, name: str, amount: int = 1, label: str = "", outcome: str = "") -> None:
        values, labels = self._values[name], _labels(label, outcome)
        with self._lock:
            values[labels] = values.get(labels, 0) + amount

    def add_hit(self, tier: str, length: int) -> None:
        """Count a part of a read that was here, under one lock: this is on the path of each."""
        labels = (tier,)
        hits, hit_bytes = self._values["hits"], self._values["hit_bytes"]
        with self._lock:
            hits[labels] = hits.get(labels, 0) + 1
            hit_bytes[labels] = hit_bytes.get(labels, 0) + length

    def observe(self, name: str, seconds: float, label: str = "") -> None:
        """Add to a histogram."""
        before = _labels(label)
        bucket = (*before, _BOUNDS[bisect_left(BUCKETS_S, seconds)])
        self.add_all([(name, bucket, 1), (name, (*before, SUM), seconds)])

    def add_all(self, amounts: Sequence[tuple[str, Labels, float]]) -> None:
        """Add what `take` of another process returned."""
        with self._lock:
            for name, labels, amount in amounts:
                values = self._values[name]
                values[labels] = values.get(labels, 0) + amount

    def take(self) -> list[tuple[str, Labels, float]]:
        """Return (name, labels, amount) of all counters, and reset them to 0."""
        with self._lock:
            taken = self._listed()
            for values in self._values.values():
                values.clear()
            return taken

    def listed(self) -> list[tuple[str, Labels, float]]:
        """Return (name, labels, amount) of all counters."""
        with self._lock:
            return self._listed()

    def _listed(self) -> list[tuple[str, Labels, float]]:
        return [
            (name, labels, amount)
            for name, values in self._values.items()
            for labels, amount in values.items()
        ]

    def sums(self, name: str) -> dict[str, float]:
        """Return the sums of a histogram by its first label."""
        with self._lock:
            return {
                labels[0]: amount
                for labels, amount in self._values[name].items()
                if labels[-1] == SUM
            }

    def total(self, name: str) -> int:
        return sum(self.by_label(name).values())

    def by_label(self, name: str) -> dict[str, int]:
        """Return the amounts by their first label. Of requests with an outcome, only those that
        were answered count."""
        found: dict[str, int] = {}
        with self._lock:
            for labels, amount in self._values[name].items():
                label, outcome = (*labels, "", "")[:2]
                if outcome in ("", OK):
                    found[label] = found.get(label, 0) + int(amount)
        return found


def _labels(label: str, outcome: str = "") -> Labels:
    if outcome:
        return (label, outcome)
    return (label,) if label else ()
