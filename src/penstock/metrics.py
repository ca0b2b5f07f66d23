"""Every number that `penstock stats` shows, named once, with its unit and meaning.

Counters are added to from many threads; a lock around an integer costs 0.1 us, and none of
these is touched by a warm read, which never reaches this process.
"""

import threading
from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "hit_bytes": "bytes served from a cache tier, by tier",
    "store_requests": "requests sent to object storage, by verb",
    "store_bytes": "bytes of object data received from object storage",
    "store_retries": "requests sent again after object storage failed, by what had happened",
    "store_reopens": "times the credentials were read again because object storage refused them",
    "store_mismatches": "bodies that did not match their ETag; fetched again",
    "hedges": "second fetches of a block whose first was slow",
    "hedges_won": "second fetches that came first",
    "errors": "requests answered with an error that the reader sees, by name",
    "corrupt_blocks": "cached blocks whose checksum did not match; dropped and fetched again",
    "cache_warnings": "times a tier failed and the read went on without it",
    "prefetched_blocks": "blocks fetched before they were asked for",
    "pushed_bytes": "bytes put into the kernel's page cache before they were asked for",
    "refreshes": "listings compared with the catalog",
}

# Counted elsewhere, or made of others.
OTHERS: Mapping[str, str] = {
    "read_bytes": "bytes that the server has answered reads with; what the kernel reads by itself "
    "(pages that it keeps, files of the cache in passthrough mode) is not in it",
    "fetched_over_read": "bytes received from object storage over bytes handed to the kernel (read "
    "or pushed): 1 is ideal, below it the local cache helped, above it something was fetched that "
    "nobody has asked the server for so far, as a warm-up does; null before the first byte",
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
        """(name, label, amount) of all that was added since the last time; they begin at 0."""
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
