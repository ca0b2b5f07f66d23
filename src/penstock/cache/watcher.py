"""The one thread that looks at the clock: it fails what is overdue, and hedges what is slow.

A reader whose fetch hangs is told EIO by this thread at the deadline, though the fetch still hangs.
It sleeps without a sound while nothing flies.
"""

import logging
import threading
import time
from collections.abc import Callable

from penstock.cache.flights import Flight, Flights
from penstock.cache.hedging import MOST_AT_ONCE, Hedging
from penstock.cache.pool import Pool
from penstock.errors import PenstockError, StoreError
from penstock.metrics import Counters
from penstock.units import format_duration

log = logging.getLogger(__name__)

# While something flies. 50 looks a second cost 0.2% of a core.
_TICK_S = 0.02
# After the last one has landed: the next mostly starts at once, and starting need not wake us.
_LINGER_S = 1.0


class Watcher:
    def __init__(
        self, flights: Flights, hedging: Hedging, counters: Counters, deadline_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._flights = flights
        self._hedging = hedging
        self._counters = counters
        self._deadline_s = deadline_s
        self._now = now
        self._pool = Pool(MOST_AT_ONCE, "hedge")
        self._sent = threading.Semaphore(MOST_AT_ONCE)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        self._stopping.set()
        self._flights.wake_watcher()
        self._thread.join()
        self._pool.close(within_s)

    def _run(self) -> None:
        seen_s = self._now()
        while not self._stopping.is_set():
            if self.look():
                seen_s = self._now()
            elif self._now() - seen_s > _LINGER_S:
                self._flights.wait_for_some()
                seen_s = self._now()
            self._stopping.wait(min(_TICK_S, self._deadline_s / 20))

    def look(self) -> int:
        """One look at all that flies; returns how many do."""
        flying = self._flights.flying()
        now_s = self._now()
        for flight in flying:
            if now_s - flight.asked_s >= self._deadline_s:
                self._flights.fail(flight, self._overdue(flight))
            elif flight.fetching_s is not None and flight.awaited and flight.may_be_hedged:
                slow_s = self._hedging.slow_after_s(flight.block.length)
                if slow_s is not None and now_s - flight.fetching_s > slow_s:
                    self._hedge(flight)
        return len(flying)

    def _overdue(self, flight: Flight) -> StoreError:
        after = format_duration(self._deadline_s) if self._deadline_s >= 1 else "less than 1s"
        return StoreError(
            f"{flight.what.source}/{flight.what.key}: storage did not answer within {after}",
            hint="--deadline says how long a read may wait",
            kind="timeout",
        )

    def _hedge(self, flight: Flight) -> None:
        if not self._sent.acquire(blocking=False):
            return
        if not self._hedging.spend() or not self._flights.reserve(flight.block.length):
            self._sent.release()
            return
        flight.hedged = True
        self._counters.add("hedges")
        self._pool.put(lambda: self._send(flight))

    def _send(self, flight: Flight) -> None:
        try:
            if self._flights.carry_out_again(flight):
                self._counters.add("hedges_won")
        except PenstockError as error:
            log.debug("a second fetch failed: %s", error)
        finally:
            self._sent.release()
