"""How many GETs to keep in flight: more while that brings more, fewer when storage says so. Pure.

It climbs: a round (as many GETs as are in flight) with half as many more again, and if that brought
no more bytes in a second, back, and another try some rounds later. Rounds in which there was not
enough to fetch say nothing. A 503 halves it at once.

Threading: under the lock of whoever owns it.
"""

LEAST = 4
_FIRST = 64  # 1,786 samples/s at 30 ms are 54 in flight
_STEP = 1.5
_WORTH_IT = 1.1  # what a step must bring, at least
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
        """What a request takes at best."""
        return self._latency_s or 0.0

    @property
    def bytes_per_s(self) -> float:
        """What came in lately."""
        return self._bytes_per_s

    def note(self, took_s: float, length: int, now_s: float, *, full: bool) -> None:
        """A request has ended well. `full`: as many were in flight as might be."""
        if self._since_s is None:
            self._since_s = now_s - took_s
        self._round_s += took_s
        self._round_bytes += length
        self._round += 1
        self._is_full = self._is_full and full
        if self._round >= self.target:
            self._end_round(now_s, self._since_s)

    def throttled(self, now_s: float) -> None:
        """Storage said that these are too many."""
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
