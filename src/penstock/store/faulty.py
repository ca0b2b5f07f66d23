"""A store wrapper that injects faults at random, from a seed that can be reused.

For tests of everything above it. It wraps a store below the checks and retries, in the place of the
network.

Threading: any thread. With several threads, the order decides which one gets which fault, but not
how often each fault is drawn.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from typing_extensions import Buffer

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    StoreError,
)
from penstock.store import Chunks, Level, ObjectInfo, Pending, Progress, Store

log = logging.getLogger(__name__)

_TRANSIENT = (
    "refused",
    "reset",
    "server_error",
    "slow_down",
    "timeout",
    "short_body",
    "wrong_length",
)
_PERMANENT: Mapping[str, type[PenstockError]] = {
    "changed": ObjectChanged,
    "not_found": ObjectNotFound,
    "denied": AccessDenied,
}
DELAY, WRONG_BYTES = "delay", "wrong_bytes"
FAULTS = (*_TRANSIENT, *_PERMANENT, DELAY, WRONG_BYTES)

# Faults that a reader must not notice, except for the time that they take.
BAD_DAY: Mapping[str, float] = {**dict.fromkeys(_TRANSIENT, 0.03), DELAY: 0.05}


class FaultyStore:
    """`rates` gives the probability of each fault for each request; at most one is injected."""

    def __init__(
        self,
        store: Store,
        rates: Mapping[str, float] = BAD_DAY,
        *,
        seed: int | None = None,
        delay_s: float = 0.02,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if unknown := set(rates) - set(FAULTS):
            raise ValueError(f"unknown faults: {sorted(unknown)}")
        self.identity = store.identity
        self.rates = dict(rates)  # may be changed while it is in use
        self.seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        self.injected: Counter[str] = Counter()
        self._store = store
        self._delay_s = delay_s
        self._sleep = sleep
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        log.warning("injecting faults with seed %d", self.seed)

    def get(
        self,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        fault = self._draw(f"{self.identity}/{key}")
        data = self._store.get(key, version, start, length, size_bytes)
        if fault != WRONG_BYTES or not length:
            return data
        damaged = bytearray(data)
        with self._lock:
            damaged[self._random.randrange(length)] ^= 1 << self._random.randrange(8)
        return damaged

    def list_all(self, prefix: str, after: str = "") -> Iterator[list[ObjectInfo]]:
        for page in self._store.list_all(prefix, after):
            self._draw(f"{self.identity}/{prefix}")
            yield page

    def list_level(self, prefix: str) -> Level | None:
        self._draw(f"{self.identity}/{prefix}")
        return self._store.list_level(prefix)

    def begin(self, key: str, version: str, size_bytes: int) -> Pending | None:
        return None

    def why_unreadable(self, key: str) -> str | None:
        return self._store.why_unreadable(key)

    def put_file(self, key: str, chunks: Chunks, size_bytes: int) -> str:
        fault = self._draw(f"{self.identity}/{key}")
        if fault != WRONG_BYTES or not size_bytes:
            return self._store.put_file(key, chunks, size_bytes)
        return self._store.put_file(key, lambda: self._damaged(chunks()), size_bytes)

    def delete(self, key: str) -> None:
        self._draw(f"{self.identity}/{key}")
        self._store.delete(key)

    def clear_partial(self, key: str) -> None:
        self._draw(f"{self.identity}/{key}")
        self._store.clear_partial(key)

    def _damaged(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        """Yield the chunks with the first byte changed."""
        for number, chunk in enumerate(chunks):
            data = bytearray(chunk)
            if not number and data:
                data[0] ^= 1
            yield data

    def _draw(self, where: str) -> str | None:
        with self._lock:
            point = self._random.random()
            fault = None
            for name, rate in self.rates.items():
                point -= rate
                if point < 0:
                    fault = name
                    self.injected[name] += 1
                    break
        if fault == DELAY:
            self._sleep(self._delay_s)
        elif fault is not None and fault in _TRANSIENT:
            raise StoreError(f"{where}: injected {fault}", kind=fault)
        elif fault is not None and fault in _PERMANENT:
            raise _PERMANENT[fault](f"{where}: injected {fault}")
        return fault
