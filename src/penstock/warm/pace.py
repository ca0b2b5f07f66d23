"""How many GETs to keep in flight: more while that brings more, fewer when storage says so. Pure.

Throughput is concurrency over latency. As long as a request takes about as long as it did with few
in flight, nothing is saturated and more of them bring more. Once it takes much longer, more only
queue up somewhere: in the network, in the store, or here. A 503 halves it at once.

Threading: under the lock of whoever owns it.
"""

LEAST = 4
_FIRST = 64  # 1,786 samples/s at 30 ms are 54 in flight
_GROW = 1.5
_SHRINK = 0.8
# Bounds of the latency of a round against the best round so far. Between them nothing changes.
_STILL_IDLE = 1.5
_SATURATED = 3.0
# The best is forgotten slowly: a store may become slower for everybody.
_FORGET = 1.02


class Pace:
    def __init__(self, most: int, first: int = _FIRST) -> None:
        self.most = max(1, most)
        self.target = min(self.most, first)
        self._best_s: float | None = None
        self._round_s = 0.0  # sum of the latencies of this round
        self._round = 0
        self._bytes_per_s = 0.0
        self._since_s: float | None = None
        self._round_bytes = 0

    @property
    def latency_s(self) -> float:
        """What a request takes at best."""
        return self._best_s or 0.0

    @property
    def bytes_per_s(self) -> float:
        """What came in lately."""
        return self._bytes_per_s

    def note(self, took_s: float, length: int, now_s: float) -> None:
        """A request has ended well. After a round (as many as are in flight) it decides."""
        if self._since_s is None:
            self._since_s = now_s - took_s
        self._round_s += took_s
        self._round_bytes += length
        self._round += 1
        if self._round < self.target:
            return
        mean_s = self._round_s / self._round
        if now_s > self._since_s:
            self._bytes_per_s = self._round_bytes / (now_s - self._since_s)
        self._best_s = mean_s if self._best_s is None else min(mean_s, self._best_s * _FORGET)
        if mean_s <= self._best_s * _STILL_IDLE:
            self.target = min(self.most, int(self.target * _GROW) + 1)
        elif mean_s > self._best_s * _SATURATED:
            self.target = max(min(LEAST, self.most), int(self.target * _SHRINK))
        self._begin_round(now_s)

    def throttled(self, now_s: float) -> None:
        """Storage said that these are too many."""
        self.target = max(min(LEAST, self.most), self.target // 2)
        self._begin_round(now_s)

    def _begin_round(self, now_s: float) -> None:
        self._round_s, self._round, self._round_bytes = 0.0, 0, 0
        self._since_s = now_s
