"""What the ends of a mount's servers tell: how soon to start the next, and what is to blame.

One that was killed from outside once it was ready tells nothing: the next one is started at once,
however often. One that ended sooner will most likely do so again. Used by one thread.
"""

import time

from penstock.daemon.child import Child

_QUICK_END_S = 60.0
_FREE_RESTARTS = 3
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0


class Ends:
    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None  # when and how
        # Quick ends in a row of servers that had taken requests: perhaps it was one of those.
        self.quick_at_work = 0
        self._quick = 0

    def add(self, child: Child) -> float:
        """How many seconds to wait before the next start; 0.0: none."""
        lived_s = time.monotonic() - child.ready_s
        quick = not child.ready or (child.crashed and lived_s < _QUICK_END_S)
        if child.at_work:
            self.quick_at_work = self.quick_at_work + 1 if quick else 0
        return self._add(child.how_it_ended, quick=quick)

    def add_failed_start(self, why: str) -> float:
        return self._add(why, quick=True)

    def _add(self, how: str, *, quick: bool) -> float:
        self.count += 1
        self.last = f"{time.strftime('%F %T')} {how}"
        self._quick = self._quick + 1 if quick else 0
        if self._quick <= _FREE_RESTARTS:
            return 0.0
        doublings = min(10, self._quick - _FREE_RESTARTS - 1)
        return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**doublings)
