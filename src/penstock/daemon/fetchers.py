"""The fetcher processes of one server: when there are any, who gets what, and when they end.

    none ── more than a few small files are wanted ──▶ some ── none for a while ──▶ none
                                                       │  ▲
                     one ends, hangs, or is of no use  └──┘  another is started

Whatever becomes of one, the server does by itself what it had taken: a fetcher is never needed.

Threading: `take` by the prefetcher's thread; one thread starts, watches and ends processes, and
lives as long as they do, since the kernel kills them with the thread that made them.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.daemon.fetcher_process import FetcherProcess
from penstock.daemon.settings import MountSettings
from penstock.daemon.settings_codec import encode
from penstock.metrics import Counters
from penstock.warm.carried import Booking, Carried
from penstock.warm.prefetcher import Wanted

log = logging.getLogger(__name__)

_LEAST_CORES = 4
_CORES_A_FETCHER = 4
_MOST_BY_ITSELF = 4
# Starting one takes 0.3 s of a core: not for a handful of files.
_WORTH_IT = 64
# One message: few enough to be spread, many enough to be worth a wake-up; and its text, which may
# be six times as long when it is written down, has to fit into 128 KiB.
_A_MESSAGE = 16
_TEXT_A_MESSAGE = 16_000
_IDLE_S = 30.0
_LOOK_S = 0.5
# For all of them together. One that cannot stay is not started for ever.
_STARTS_A_MINUTE_EACH = 3
# One answers in the time of a request. What takes so much longer is fetched here.
_PATIENCE_S = 10.0

NO_FETCHERS: Mapping[str, Any] = {
    "most": 0, "pids": [], "in_flight": 0, "brought": 0, "given_back": 0,
}  # fmt: skip


def fetchers_of(settings: MountSettings) -> int:
    """How many a mount may have."""
    if not settings.tiers:
        return 0  # they hand over what they fetch as files of the cache
    if settings.fetchers is not None:
        return settings.fetchers
    cores = len(os.sched_getaffinity(0))
    return 0 if cores < _LEAST_CORES else min(_MOST_BY_ITSELF, cores // _CORES_A_FETCHER)


class Fetchers:
    def __init__(
        self, settings: MountSettings, fuse: int | None, booking: Booking, counters: Counters
    ) -> None:
        """`fuse`: the mount's descriptor, if they may push."""
        self._settings = settings
        self._most = fetchers_of(settings)
        self._patience_s = min(_PATIENCE_S, settings.deadline_s / 2)
        self._fuse = fuse
        self._booking = booking
        self._counters = counters
        self._lock = threading.Lock()
        self._processes: list[FetcherProcess] = []
        self._ended: list[FetcherProcess] = []  # killed, and perhaps not yet gone
        self._starts: deque[float] = deque()
        self._asked = 0  # wanted while there were none
        self._used_s = 0.0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._brought = self._given_back = 0  # by those that are gone

    # -- the prefetcher ------------------------------------------------------------------

    def take(self, wanted: list[Wanted]) -> list[Wanted]:
        """See Carrier."""
        ready = [one for one in self._processes if one.ready and not one.is_over]
        if not ready:
            self._asked += len(wanted)
            if self._asked >= _WORTH_IT:
                self._care()
            return wanted
        left: list[Wanted] = []
        some: list[Carried] = []
        for one in wanted:
            carried = self._booking.begin(one)
            if carried is None:
                left.append(one)
            else:
                some.append(carried)
        for message in _messages(some, len(ready)):
            self._booking.give_back(min(ready, key=_in_flight).send(message))
        if some:
            self._used_s = time.monotonic()
        return left

    def describe(self) -> dict[str, Any]:
        """For `penstock stats`."""
        with self._lock:
            processes = self._processes.copy()
            brought, given_back = self._brought, self._given_back
        return {
            "most": self._most,
            "pids": [one.pid for one in processes if one.ready and not one.is_over],
            "in_flight": sum(one.in_flight for one in processes),
            "brought": brought + sum(one.brought for one in processes),
            "given_back": given_back + sum(one.given_back for one in processes),
        }

    def close(self) -> None:
        """The mount is over: they end, and nobody wants what they have."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    # -- the thread that cares -----------------------------------------------------------

    def _care(self) -> None:
        with self._lock:
            if self._thread is not None or self._closing.is_set():
                return
            self._used_s = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="fetchers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set() and not self._is_idle():
            self._start_missing()
            self._closing.wait(_LOOK_S)
            self._look()
        for one in self._processes.copy():
            self._put_away(one, give_back=not self._closing.is_set())
        for one in self._ended:
            one.reap()
        with self._lock:
            self._asked, self._thread = 0, None

    def _is_idle(self) -> bool:
        busy = any(one.in_flight for one in self._processes)
        return not busy and time.monotonic() - self._used_s > _IDLE_S

    def _start_missing(self) -> None:
        now = time.monotonic()
        while self._starts and now - self._starts[0] > 60:
            self._starts.popleft()
        while len(self._processes) < self._most:
            if len(self._starts) >= self._most * _STARTS_A_MINUTE_EACH:
                return  # the server does it all by itself for now
            self._starts.append(now)
            try:
                one = FetcherProcess(
                    self._settings.mountpoint, self._fuse, encode(self._settings), self._booking,
                    self._counters, lambda: not self._closing.is_set(),
                )  # fmt: skip
            except OSError as error:
                log.warning("no fetcher could be started: %s", error)
                return
            with self._lock:
                self._processes.append(one)

    def _look(self) -> None:
        before_s = time.monotonic() - self._patience_s
        for one in self._processes.copy():
            late = one.give_back_overdue(before_s)
            if late:
                log.warning("fetcher %d: %d files took too long; fetched here", one.pid, late)
            silent = late and one.heard_s < before_s
            if one.is_over or silent or one.useless:
                log.warning("fetcher %d has ended, or is of no use", one.pid)
                self._put_away(one, give_back=True)
        self._ended = [one for one in self._ended if not one.is_gone()]

    def _put_away(self, one: FetcherProcess, *, give_back: bool) -> None:
        one.end(give_back=give_back)
        with self._lock:
            self._processes.remove(one)
            self._brought += one.brought
            self._given_back += one.given_back
        self._ended.append(one)


def _in_flight(one: FetcherProcess) -> int:
    return one.in_flight


def _messages(some: list[Carried], fetchers: int) -> Iterator[list[Carried]]:
    """What is sent together: in equal shares, if there is little."""
    most = min(_A_MESSAGE, -(-len(some) // fetchers))
    message: list[Carried] = []
    text = 0
    for one in some:
        length = sum(len(word) for word in one.told if isinstance(word, str))
        if message and (len(message) >= most or text + length > _TEXT_A_MESSAGE):
            yield message
            message, text = [], 0
        message.append(one)
        text += length
    if message:
        yield message
