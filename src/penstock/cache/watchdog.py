"""When a slow fetch gets a second one beside it. Decides; sends nothing, and fetches nothing.

A fetch is slow once it has taken longer than 99 of 100 lately took for blocks of about its size.
Hedging must not double the load of a store that is slow for everybody, so it is bounded: so many
at once, and so many for each hundred fetches.

Threading: `note` from any thread, all else from one.
"""

from collections import deque

MOST_AT_ONCE = 4
_WINDOW = 1000
_LEAST_SAMPLES = 100
# Below this a second request costs more than it can save, and one busy moment of this machine's
# own would send many.
_FLOOR_S = 0.02
_SHARE = 0.05
_MOST_SAVED_UP = 8.0
_SAMPLES_BETWEEN_SORTS = 50


class Hedging:
    def __init__(self) -> None:
        self._classes: dict[int, _Window] = {}
        self._spent = 0
        self._noted_before = 0
        self._allowance = 0.0

    def note(self, length: int, seconds: float) -> None:
        window = self._classes.get(_size_class(length))
        if window is None:
            window = self._classes.setdefault(_size_class(length), _Window())
        window.add(seconds)

    def slow_after_s(self, length: int) -> float | None:
        """None while too little is known."""
        window = self._classes.get(_size_class(length))
        return window.p99_s() if window is not None else None

    def spend(self) -> bool:
        """May one more be sent? What is not spent is saved up, but not for long."""
        noted = sum(window.count for window in list(self._classes.values()))
        earned = (noted - self._noted_before) * _SHARE
        self._noted_before = noted
        self._allowance = min(_MOST_SAVED_UP, self._allowance + earned)
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True


class _Window:
    """How long fetches took lately. Sorting 1,000 takes 60 us, so it is not done for each."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self._sorted_at = 0
        self._p99_s: float | None = None
        self.count = 0

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        self.count += 1  # two threads at once may lose one: it is a share, not an account

    def p99_s(self) -> float | None:
        if self.count < _LEAST_SAMPLES:
            return None
        if self._p99_s is None or self.count - self._sorted_at >= _SAMPLES_BETWEEN_SORTS:
            self._sorted_at = self.count
            samples = sorted(self._samples.copy())
            self._p99_s = max(_FLOOR_S, samples[len(samples) * 99 // 100])
        return self._p99_s


def _size_class(length: int) -> int:
    """Powers of four: what one request of 110 KiB takes says nothing of one of 8 MiB."""
    return length.bit_length() // 2
