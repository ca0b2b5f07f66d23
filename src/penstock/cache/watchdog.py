"""A watchdog over fetches in flight: deadlines, hung disks, and hedged requests.

One thread checks the clock. It fails a fetch at its deadline, so that the reader gets EIO even
though the request still hangs. It sends a second request (a hedge) beside a slow one. And it gives
up on storing a block when a disk hangs. It sleeps while nothing is in flight.

A fetch is slow once it has taken longer than 99 of 100 recent fetches of about its size. Hedging
must not double the load of a store that is slow for all requests, so it is bounded: at most
`MOST_AT_ONCE` hedges at a time, and at most 5 for each hundred fetches.

Threading: `Hedging.note` and `Watchdog.wake` from any thread; the rest from the watchdog's thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from typing_extensions import Buffer

from penstock.cache.fetch import Fetch, State
from penstock.cache.guarded import HUNG_S
from penstock.cache.pool import Pool
from penstock.errors import PenstockError, StoreError
from penstock.metrics import Counters
from penstock.store.buffers import BUFFERS
from penstock.units import format_duration

log = logging.getLogger(__name__)

# While something is in flight. 50 checks a second cost 0.2% of a core.
_TICK_S = 0.02
# How long it stays awake after the last fetch. The next one mostly starts at once, and then need
# not wake it.
_LINGER_S = 1.0

MOST_AT_ONCE = 4
_WINDOW = 1000
_LEAST_SAMPLES = 100
# Below this a second request costs more than it can save, and one busy moment of this machine
# would send many.
_FLOOR_S = 0.02
_SHARE = 0.05
_MOST_SAVED_UP = 8.0
_SAMPLES_BETWEEN_SORTS = 50


class WatchedFetches(Protocol):
    """What the watchdog needs of `Fetches`."""

    @property
    def in_flight(self) -> int: ...

    def active(self) -> list[Fetch]: ...

    def fail(self, fetch: Fetch, error: Exception) -> None: ...

    def receive(self, fetch: Fetch, data: Buffer) -> bool: ...

    def give_up_storing(self, fetch: Fetch) -> None: ...

    def replace_thread_of(self, fetch: Fetch) -> None: ...

    def try_reserve(self, length: int) -> bool: ...

    def free(self, length: int) -> None: ...


class Watchdog:
    def __init__(
        self,
        fetches: WatchedFetches,
        lock: threading.Lock,
        hedging: "Hedging",
        counters: Counters,
        *,
        deadline_s: float,
        now: Callable[[], float],
    ) -> None:
        """`lock`: the lock under which fetches are started."""
        self._fetches = fetches
        self._lock = lock
        self._hedging = hedging
        self._counters = counters
        self._deadline_s = deadline_s
        self._now = now
        self._pool = Pool(MOST_AT_ONCE, "hedge")
        self._hedge_slots = threading.Semaphore(MOST_AT_ONCE)
        self.is_awake = True
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Called under the lock, when a fetch starts and `is_awake` is False."""
        self.is_awake = True
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def close(self, within_s: float) -> None:
        """Wait for hedges in flight. Call `stop` first."""
        self._pool.close(within_s)

    def _run(self) -> None:
        seen_s = self._now()
        while not self._stopping.is_set():
            if self.check_timeouts():
                seen_s = self._now()
            elif self._now() - seen_s > _LINGER_S:
                self._sleep()
                seen_s = self._now()
            self._stopping.wait(min(_TICK_S, self._deadline_s / 20))

    def _sleep(self) -> None:
        with self._lock:
            if self._fetches.in_flight or self._stopping.is_set():
                return
            self._wake.clear()
            self.is_awake = False
        BUFFERS.trim()
        if not self._stopping.is_set():
            self._wake.wait()

    def check_timeouts(self) -> int:
        """Check all fetches in flight once; return how many there are."""
        active = self._fetches.active()
        now_s = self._now()
        for fetch in active:
            if fetch.state is State.RECEIVED:
                if fetch.push is None and now_s - fetch.received_s > HUNG_S:
                    log.warning("%s: a cache disk did not store it in time", fetch.obj.key)
                    self._fetches.give_up_storing(fetch)
            elif now_s - fetch.requested_s >= self._deadline_s:
                self._fetches.fail(fetch, self._overdue(fetch))
            elif fetch.reads_tier and not fetch.hedged and now_s - fetch.started_s > HUNG_S:
                # Its thread hangs in a disk: another thread asks the store instead.
                if self._hedge(fetch):
                    self._fetches.replace_thread_of(fetch)
            elif fetch.may_be_hedged:
                slow_s = self._hedging.slow_after_s(fetch.block.length)
                if slow_s is not None and now_s - fetch.started_s > slow_s:
                    self._hedge(fetch)
        return len(active)

    def _overdue(self, fetch: Fetch) -> StoreError:
        after = format_duration(self._deadline_s) if self._deadline_s >= 1 else "less than 1s"
        return StoreError(
            f"{fetch.obj.source}/{fetch.obj.key}: storage did not answer within {after}",
            hint="--deadline sets how long a read may wait",
            kind="timeout",
        )

    def _hedge(self, fetch: Fetch) -> bool:
        """False if a second request may not be sent now."""
        length = fetch.block.length
        if not self._hedge_slots.acquire(blocking=False):
            return False
        if not self._fetches.try_reserve(length):
            self._hedge_slots.release()
            return False
        if not self._hedging.spend():
            self._fetches.free(length)
            self._hedge_slots.release()
            return False
        fetch.hedged = True
        self._counters.add("hedges")
        self._pool.submit(partial(self._run_hedge, fetch))
        return True

    def _run_hedge(self, fetch: Fetch) -> None:
        """Send a second request for the same block. If it fails, the first may still succeed."""
        data: Buffer | None = None
        try:
            data = fetch.get(fetch.block.start, fetch.block.length, None)
        except PenstockError as error:
            log.debug("a second fetch failed: %s", error)
        finally:
            self._hedge_slots.release()
            if data is None:
                self._fetches.free(fetch.block.length)
            elif self._fetches.receive(fetch, data):
                self._counters.add("hedges_won")


class Hedging:
    """Decides when a fetch is slow, and whether a hedge may be sent. Sends nothing itself."""

    def __init__(self) -> None:
        self._classes: dict[int, _Window] = {}
        self._noted_before = 0
        self._allowance = 0.0

    def note(self, length: int, seconds: float) -> None:
        window = self._classes.get(_size_class(length))
        if window is None:
            window = self._classes.setdefault(_size_class(length), _Window())
        window.add(seconds)

    def slow_after_s(self, length: int) -> float | None:
        """None while there are too few samples."""
        window = self._classes.get(_size_class(length))
        return window.p99_s() if window is not None else None

    def spend(self) -> bool:
        """Whether one more hedge may be sent. Unspent allowance is saved, up to a few hedges."""
        noted = sum(window.count for window in list(self._classes.values()))
        earned = (noted - self._noted_before) * _SHARE
        self._noted_before = noted
        self._allowance = min(_MOST_SAVED_UP, self._allowance + earned)
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True


class _Window:
    """How long recent fetches took. Sorting 1,000 takes 60 us, so not every call sorts."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self._sorted_at = 0
        self._p99_s: float | None = None
        self.count = 0

    def add(self, seconds: float) -> None:
        self._samples.append(seconds)
        self.count += 1  # two threads at once may lose one: it only decides a share

    def p99_s(self) -> float | None:
        if self.count < _LEAST_SAMPLES:
            return None
        if self._p99_s is None or self.count - self._sorted_at >= _SAMPLES_BETWEEN_SORTS:
            self._sorted_at = self.count
            samples = sorted(self._samples.copy())
            self._p99_s = max(_FLOOR_S, samples[len(samples) * 99 // 100])
        return self._p99_s


def _size_class(length: int) -> int:
    """Powers of four: the time of a 110 KiB request says nothing about one of 8 MiB."""
    return length.bit_length() // 2
