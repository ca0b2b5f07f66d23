"""Every metric that `penstock stats` shows: its name, unit and meaning.

Many threads add to the counters. A lock around an integer costs 0.1 us, and warm reads, which never
reach this process, touch none of them.
"""

import threading
from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "hit_bytes": "bytes served from a cache tier, by tier",
    "store_requests": "requests sent to object storage, by verb",
    "store_bytes": "bytes of object data received from object storage",
    "store_retries": "retries of requests that object storage failed, by kind of failure",
    "store_reopens": "times the credentials were read again after object storage denied access",
    "store_mismatches": "bodies that did not match their ETag; fetched again",
    "hedges": "second fetches of a block whose first was slow",
    "hedges_won": "second fetches that finished first",
    "shared_hits": "blocks that a member of the shared tier had, by member",
    "shared_misses": "blocks that it did not have, by member",
    "shared_waits": "times it was asked for a block that another machine was fetching, by member",
    "shared_waited_in_vain": "blocks that another machine did not fetch in time",
    "shared_damaged": "blocks that a member had, but not as they were written, by member",
    "shared_failures": "requests that a member did not answer in time or properly, by member",
    "shared_us": "microseconds that hits took, by member",
    "shared_filled_bytes": "bytes written into the shared tier, by member",
    "shared_fills_dropped": "blocks that were not written into the shared tier: it failed, or was "
    "slower than the store",
    "errors": "requests that the reader got an error for, by name",
    "corrupt_blocks": "cached blocks whose checksum did not match; dropped and fetched again",
    "cache_warnings": "times a tier failed and the read went on without it",
    "prefetched_blocks": "blocks fetched before a reader requested them",
    "pushed_bytes": "bytes put into the kernel's page cache before a reader requested them",
    "refreshes": "listings compared with the catalog",
}

# Metrics that are counted elsewhere, or computed from others.
OTHERS: Mapping[str, str] = {
    "read_bytes": "bytes that the server has answered reads with; what the kernel reads by itself "
    "(pages that it keeps, files of the cache in passthrough mode) is not in it",
    "fetched_over_read": "bytes received from object storage over bytes handed to the kernel (read "
    "or pushed): 1 is ideal, below it the local cache helped, above it something was fetched that "
    "no reader has requested yet, as a warm-up does; null before the first byte",
}


class Counters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, int]] = {name: {} for name in COUNTERS}

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        values = self._values[name]
        with self._lock:
            values[label] = values.get(label, 0) + amount

    def take(self) -> list[tuple[str, str, int]]:
        """Return (name, label, amount) of all counters, and reset them to 0."""
        with self._lock:
            taken = [
                (name, label, amount)
                for name, values in self._values.items()
                for label, amount in values.items()
            ]
            for values in self._values.values():
                values.clear()
            return taken

    def total(self, name: str) -> int:
        with self._lock:
            return sum(self._values[name].values())

    def by_label(self, name: str) -> dict[str, int]:
        with self._lock:
            return dict(self._values[name])
