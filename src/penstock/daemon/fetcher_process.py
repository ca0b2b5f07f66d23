"""One fetcher process, as its server sees it: what it carries, and what it says.

Threading: `send` by one thread, a thread of its own listens, a third may end it; what it carries is
taken out once, by whichever of them is first, and that one ends it.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.daemon.fetcher import CHANGED, DENIED, DISK, FULL
from penstock.daemon.link import Link, Message, send_start
from penstock.metrics import Counters
from penstock.warm.carried import Booking, Carried

log = logging.getLogger(__name__)

# Fetches that failed, and none that did not in between: rotated keys, most likely.
_USELESS_AFTER = 16
_DIES_WITHIN_S = 1.0
# Those that say something of a file, or of this machine, and not of the store.
_NO_RETRIES = (CHANGED, DENIED, DISK, FULL)


class FetcherProcess:
    def __init__(
        self, mountpoint: Path, fuse: int | None, settings: Message, booking: Booking,
        counters: Counters, gives_back: Callable[[], bool],
    ) -> None:  # fmt: skip
        """To be made by a thread that lives as long as it should. `fuse`: for pushes.
        `gives_back`: whether there is anyone left to whom."""
        self._booking = booking
        self._counters = counters
        self._gives_back = gives_back
        self._lock = threading.Lock()
        self._carried: dict[int, Carried] = {}
        self._pushing: dict[int, Carried] = {}  # stored by now
        self._count = 0
        self._over = False
        self._failures = 0  # in a row
        self.ready = False
        self.useless = False
        self.heard_s = time.monotonic()
        self.brought = 0
        self.given_back = 0
        self._link, theirs = Link.pair()
        passed = [theirs.fileno(), *([] if fuse is None else [fuse])]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-Pm", "penstock.daemon.fetcher", str(mountpoint),
                     *map(str, passed)],
                    pass_fds=passed, stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
        except OSError:
            self._link.close()
            raise
        self.pid = self._process.pid
        send_start(self._link, {"settings": settings})
        threading.Thread(target=self._listen, name="fetcher", daemon=True).start()

    @property
    def in_flight(self) -> int:
        return len(self._carried) + len(self._pushing)

    def send(self, some: list[Carried]) -> list[Carried]:
        """Returns those that are still the caller's: all of them, if it cannot be told. Never
        waits: one that is stopped reads nothing."""
        with self._lock:
            if self._over:
                return some
            numbers = range(self._count, self._count + len(some))
            self._count += len(some)
            self._carried.update(zip(numbers, some, strict=True))
        told = [(number, *one.told) for number, one in zip(numbers, some, strict=True)]
        with suppress(OSError):  # no memory for it: as if nobody read it
            if self._link.try_send({"fetch": told}):
                return []
        # Not a part of a message was sent. But its listener may have seen its end meanwhile.
        return [one for number in numbers if (one := self._take(self._carried, number)) is not None]

    def give_back_overdue(self, before_s: float) -> int:
        """What it has had since before then; returns how many that were. Who waits for a page to
        push it is not waited for any longer."""
        late = self._since(self._carried, before_s)
        self._give_back(late)
        if stuck := self._since(self._pushing, before_s):
            self._booking.end(stuck)
        return len(late)

    def _since(self, table: dict[int, Carried], before_s: float) -> list[Carried]:
        return [
            one
            for number, one in list(table.items())
            if one.since_s < before_s and self._take(table, number) is not None
        ]

    def end(self, *, give_back: bool = True) -> None:
        """At once. From any thread, any number of times."""
        with self._lock:
            self._over = True
            carried, pushing = list(self._carried.values()), list(self._pushing.values())
            self._carried.clear()
            self._pushing.clear()
        self._process.kill()
        if give_back:
            self._give_back(carried)
            self._booking.end(pushing)

    @property
    def is_over(self) -> bool:
        return self._over

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def reap(self) -> None:
        """One that waits for a page that someone reads dies when he was answered: it is not waited
        for long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DIES_WITHIN_S)

    # -- what it says --------------------------------------------------------------------

    def _listen(self) -> None:
        while (received := self._link.receive()) is not None:
            message, descriptors = received
            for descriptor in descriptors:
                os.close(descriptor)
            self.heard_s = time.monotonic()
            self._heed(message)
        self.end(give_back=self._gives_back())
        self._link.close()

    def _heed(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.ready = True
        for name, label, amount in message.get("counts", ()):
            self._counters.add(name, amount, label)
        ended = self._stored(message.get("stored", ()))
        ended += self._pushed(message.get("pushed", ()))
        if ended:
            self._booking.end(ended)
        self._failed(message.get("failed", ()))

    def _stored(self, news: list[tuple[int, float, str]]) -> list[Carried]:
        """Returns those that have ended with it."""
        if not news:
            return []
        self._failures = 0
        taken = [(number, self._take(self._carried, number)) for number, *_ in news]
        stored = self._booking.stored(
            (number, one, took_s, bytes.fromhex(sums))
            for (number, one), (_, took_s, sums) in zip(taken, news, strict=True)
            if one is not None
        )
        self.brought += len(stored)
        with self._lock:
            if not self._over:
                self._pushing.update((number, one) for number, one in stored if one.is_pushed)
                stored = [(number, one) for number, one in stored if not one.is_pushed]
        return [one for _, one in stored]

    def _pushed(self, news: list[tuple[int, bool]]) -> list[Carried]:
        ended: list[Carried] = []
        for number, placed in news:
            if (one := self._take(self._pushing, number)) is not None:
                ended.append(one)
                if placed:
                    self._counters.add("pushed_bytes", one.length)
        return ended

    def _failed(self, news: list[tuple[int, str]]) -> None:
        for number, what in news:
            if (one := self._take(self._carried, number)) is None:
                continue
            if what not in _NO_RETRIES:
                self._counters.add("store_retries", label=what)
            self._failures += what != CHANGED
            self.useless = self._failures >= _USELESS_AFTER
            self._give_back([one], full=what == FULL)

    def _give_back(self, lost: list[Carried], *, full: bool = False) -> None:
        self.given_back += len(lost)
        self._booking.give_back(lost, full=full)

    def _take(self, table: dict[int, Carried], number: int) -> Carried | None:
        with self._lock:
            return table.pop(number, None)
