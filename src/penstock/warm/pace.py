"""How fast to prefetch: GETs in flight, how far ahead of readers, bytes per second. Pure.

`Pace` climbs: it runs a round (as many GETs as are in flight) with half as many more, and if that
brought no more bytes per second, it goes back and tries again some rounds later. Rounds in which
there was not enough to fetch are ignored. A 503 halves the number at once.

Threading: under the lock of the owner, unless a class says otherwise.
"""

import threading
import time
from collections.abc import Callable

from penstock.units import MIB

LEAST = 4
_FIRST = 96  # 1,786 samples/s at 30 ms are 54 in flight; a busy store takes longer
_STEP = 1.5
_WORTH_IT = 1.1  # the least gain of a step
_ROUNDS_BETWEEN_TRIES = 16


class Pace:
    def __init__(self, most: int, first: int = _FIRST) -> None:
        self.most = max(1, most)
        self.target = min(self.most, first)
        self._latency_s: float | None = None
        self._bytes_per_s = 0.0
        self._before: tuple[int, float] | None = None  # (target, bytes/s) before the last step
        self._rest = 0  # rounds until the next try
        self._round_s = 0.0  # sum of the latencies of this round
        self._round_bytes = 0
        self._round = 0
        self._is_full = True
        self._since_s: float | None = None

    @property
    def latency_s(self) -> float:
        """The shortest mean time of a request."""
        return self._latency_s or 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate of the last round."""
        return self._bytes_per_s

    def note(self, took_s: float, length: int, now_s: float, *, full: bool) -> None:
        """Record a successful request. `full`: as many were in flight as allowed."""
        if self._since_s is None:
            self._since_s = now_s - took_s
        self._round_s += took_s
        self._round_bytes += length
        self._round += 1
        self._is_full = self._is_full and full
        if self._round >= self.target:
            self._end_round(now_s, self._since_s)

    def note_throttling(self, now_s: float) -> None:
        """Storage rejected requests as too many."""
        self.target = max(min(LEAST, self.most), self.target // 2)
        self._before, self._rest = None, _ROUNDS_BETWEEN_TRIES
        self._begin_round(now_s)

    def _end_round(self, now_s: float, since_s: float) -> None:
        mean_s = self._round_s / self._round
        self._latency_s = min(mean_s, self._latency_s or mean_s)
        self._bytes_per_s = self._round_bytes / max(now_s - since_s, 1e-6)
        if self._is_full:
            self._climb()
        self._begin_round(now_s)

    def _climb(self) -> None:
        if self._before is not None:
            target, bytes_per_s = self._before
            if self._bytes_per_s < bytes_per_s * _WORTH_IT:
                self.target, self._before, self._rest = target, None, _ROUNDS_BETWEEN_TRIES
                return
        if self._rest:
            self._rest -= 1
        elif self.target < self.most:
            self._before = self.target, self._bytes_per_s
            self.target = min(self.most, int(self.target * _STEP) + 1)

    def _begin_round(self, now_s: float) -> None:
        self._round_s, self._round_bytes, self._round = 0.0, 0, 0
        self._is_full = True
        self._since_s = now_s


# How far ahead of its readers a plan may run.

# Enough for a few batches before anything is measured.
_LEAST_BYTES = 64 * MIB
# Without spare memory it still runs a few files ahead.
_FLOOR_BYTES = 8 * MIB
# Several times the bytes in flight at full speed: a round trip that takes three times as long as
# usual then causes no stall.
_ROUND_TRIPS = 4
# And this much of the accelerator's demand: an outage of this length is not noticed.
_DEMAND_S = 10.0


def window_bytes(
    *, latency_s: float, bytes_per_s: float, demand_bytes_per_s: float, budget_bytes: int
) -> int:
    """`budget_bytes`: the memory that may hold unread data."""
    in_flight = latency_s * bytes_per_s * _ROUND_TRIPS
    wanted = max(_LEAST_BYTES, int(in_flight), int(demand_bytes_per_s * _DEMAND_S))
    return max(_FLOOR_BYTES, min(wanted, budget_bytes))


class Demand:
    """How many bytes per second readers take, measured from a cursor that is checked now and
    then."""

    _SETTLES_S = 2.0  # a new rate counts fully after about this long

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._taken = 0
        self.bytes_per_s = 0.0

    def note(self, taken_bytes: int, now_s: float) -> None:
        """`taken_bytes`: since the last call."""
        if self._since_s is None:
            self._since_s = now_s
            return  # what was handed out before the first call says nothing about the rate
        self._taken += taken_bytes
        passed_s = now_s - self._since_s
        if passed_s < 0.2:
            return
        share = min(1.0, passed_s / self._SETTLES_S)
        self.bytes_per_s += share * (self._taken / passed_s - self.bytes_per_s)
        self._since_s, self._taken = now_s, 0


# What may accumulate while nothing is fetched: enough for several rounds of the prefetcher, and no
# burst that other users of the network would notice.
_HOLDS_S = 0.1


class RateLimit:
    """A token bucket: limits the bytes fetched per second.

    A caller may take bytes while any are left, even if that leaves the bucket in debt; the next
    waits until the debt is paid. So a block larger than a second's worth passes too, and the rate
    is exact over time; over one second it is exceeded by at most the bucket and one block.

    Threading: one thread takes; any may give back.
    """

    def __init__(self, bytes_per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._most = bytes_per_s * _HOLDS_S
        self._tokens = self._most
        self._filled_s = clock()

    def take(self, size_bytes: int) -> bool:
        """Whether these bytes may be fetched now; if so, they are counted."""
        with self._lock:
            now_s = self._clock()
            grown = self._tokens + (now_s - self._filled_s) * self._bytes_per_s
            self._tokens, self._filled_s = min(self._most, grown), now_s
            if self._tokens <= 0:
                return False
            self._tokens -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Return bytes that were not fetched after all."""
        with self._lock:
            self._tokens += size_bytes
