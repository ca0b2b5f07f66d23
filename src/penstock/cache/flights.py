"""One fetch for many waiters, a little memory of what just landed, and a bound on all of it.

A block that is being fetched, waits to be stored, or has just been fetched and not been read to
its end, is held here. The second reader joins the first one's fetch; the second megabyte of a
block comes from memory. Nobody blocks to wait for a flight: whoever lands it, or fails it, calls
back all who joined. The first to land or fail it wins; what comes later is dropped.

Memory: each fetch asks to be admitted before it starts, and blocks its own thread until there is
room, in the order of asking. Why that cannot deadlock: who has been admitted never asks again; it
fetches (bounded by the store's deadline), calls back (which waits for nobody), stores or is kept.
What is kept is let go of as soon as another needs the room. So held bytes always come free
without anyone else being admitted, and once nothing is held the first in the queue is admitted,
whatever its size. One thing does wait: what is placed (pushed to the kernel) waits for pages that a
reader has locked, who may himself wait to be admitted for another block. So what is being placed
does not keep the first in the queue out.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from typing_extensions import Buffer

from penstock.cache.identity import Block, CachedObject
from penstock.errors import PenstockError

# A plan has 128 files looked at and 256 in flight, while others read.
_LATELY = 1024
# The kernel asks again, page by page, for what its readahead did not get. Who has waited a
# deadline for a block is not made to wait another one by that.
_FAILED_S = 1.0
_FAILED = 4096


# fetch(start, length) -> bytes of one object from its store
Fetch = Callable[[int, int], Buffer]


class Stored(Exception):
    """How a flight ends that nobody has waited for, when another process has put its bytes into a
    tier. Who has joined it in the last moment finds them there."""


class Flight:
    """A block on its way. It refers to nothing that refers to it: its bytes go when the last who
    needs them is done, and not when Python next looks for cycles."""

    __slots__ = (
        "_lock", "_then", "ahead", "asked_s", "begun_ahead", "block", "data", "error", "failed_s",
        "fetch", "fetching_s", "from_store", "hedged", "looked", "place", "placed", "reserved",
        "what",
    )  # fmt: skip

    def __init__(
        self, block: Block, what: CachedObject, fetch: Fetch, asked_s: float, *, looked: bool
    ) -> None:
        self.block = block
        self.what = what
        self.fetch = fetch
        self.asked_s = asked_s
        self.looked = looked  # who asked has just looked for it in the tiers
        self.fetching_s: float | None = None  # None: not yet admitted
        self.failed_s: float | None = None
        self.reserved = False  # admitted already when it was started
        self.from_store = True
        self.hedged = False
        # Puts it somewhere else as well; None once it has.
        self.place: Callable[[memoryview], bool] | None = None
        self.begun_ahead = False  # it was started before anyone asked
        self.ahead = False  # and nobody has asked since
        self.placed = False  # a reader finds its bytes elsewhere: in a tier, or with the kernel
        self.data: memoryview | None = None
        self.error: Exception | None = None
        self._then: list[Callable[[Flight], None]] = []
        self._lock = threading.Lock()

    @property
    def landed(self) -> bool:
        return self.data is not None

    @property
    def done(self) -> bool:
        return self.data is not None or self.error is not None

    @property
    def awaited(self) -> bool:
        return bool(self._then)

    @property
    def may_be_hedged(self) -> bool:
        """Once; and not what a plan brings, which has its own measure of how much is sent."""
        return not self.hedged and self.place is None

    def then(self, callback: Callable[["Flight"], None]) -> None:
        """Calls back once it has landed or failed: at once if it has, else from that thread."""
        self.ahead = False
        with self._lock:
            if self.data is None and self.error is None:
                self._then.append(callback)
                return
        callback(self)

    def land(self, data: Buffer) -> bool:
        """False if it has landed or failed before."""
        with self._lock:
            if self.done:
                return False
            self.data = memoryview(data)
            waiting, self._then = self._then, []
        for callback in waiting:
            callback(self)
        return True

    def fail(self, error: Exception) -> bool:
        with self._lock:
            if self.done:
                return False
            self.error = error
            waiting, self._then = self._then, []
        for callback in waiting:
            callback(self)
        return True


class Flights:
    """`get` brings a flight's bytes, from a tier that has them meanwhile or from the store;
    `put_away` is called once for each that lands, and calls `finish` when it has stored it."""

    def __init__(
        self, budget_bytes: int, deadline_s: float, *, get: Callable[[Flight], Buffer],
        put_away: Callable[[Flight], None], now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._budget_bytes = budget_bytes
        self._deadline_s = deadline_s
        self._get = get
        self._put_away = put_away
        self._now = now
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._finished = threading.Condition(self._lock)
        self._settling = 0  # how many wait for that
        self._queue: deque[Flight] = deque()  # who waits to be admitted
        self._flights: dict[Block, Flight] = {}
        self._landed: dict[Block, Flight] = {}  # in the order in which they landed
        self._failed: dict[Block, Flight] = {}
        self._held_bytes = 0
        self._placing_bytes = 0  # of these
        # Who looked before a flight landed, and asks after it was let go of, must look again.
        self._lately: dict[Block, float] = {}  # when it ended
        self._watched = True
        self._some = threading.Event()

    # -- who asks -----------------------------------------------------------------------

    def find(self, block: Block) -> Flight | None:
        return self._flights.get(block) or self._landed.get(block)

    def is_kept(self, block: Block) -> bool:
        """Has it been put away, and is it held for the next who ask?"""
        return block in self._landed

    def ended_lately(self, block: Block, since_s: float = 0.0) -> bool:
        return self._lately.get(block, -1.0) >= since_s

    def join_or_start(
        self, block: Block, what: CachedObject, fetch: Fetch, *, looked: bool
    ) -> tuple[Flight, bool]:
        """The flight for this block, and whether it is the caller's to carry out."""
        now_s = self._now()
        with self._lock:
            flight = self._flights.get(block) or self._landed.get(block)
            if flight is None and self._failed:
                flight = self._failed_lately(block, now_s)
            if flight is not None:
                return flight, False
            return self._start(Flight(block, what, fetch, now_s, looked=looked)), True

    def start_if_room(self, block: Block, what: CachedObject, fetch: Fetch) -> Flight | None:
        """A flight that nobody waits for yet; None if there is one, or no room for it."""
        with self._lock:
            if block in self._flights or block in self._landed or self._queue:
                return None
            if not self._make_room(block.length):
                return None
            self._held_bytes += block.length
            flight = Flight(block, what, fetch, self._now(), looked=True)
            flight.reserved = flight.begun_ahead = flight.ahead = True
            return self._start(flight)

    def _start(self, flight: Flight) -> Flight:
        self._flights[flight.block] = flight
        if not self._watched:
            self._watched = True
            self._some.set()
        return flight

    def _failed_lately(self, block: Block, now_s: float) -> Flight | None:
        flight = self._failed.get(block)
        if flight is None:
            return None
        if flight.failed_s is not None and now_s < flight.failed_s + _FAILED_S:
            return flight
        del self._failed[block]
        return None

    def release(self, block: Block) -> None:
        """The block was read to its end; what is asked of it again comes from a tier."""
        with self._lock:
            if block in self._landed:
                self._drop(block)

    def let_go(self) -> None:
        """Of all that has landed and is kept for the next read."""
        with self._lock:
            while self._landed:
                self._drop(next(iter(self._landed)))
            self._room.notify_all()

    def settle(self, digest: bytes | None = None) -> None:
        """Returns when all that has landed is put away, of one object or of all: its readers may
        have had their bytes before that. Not what the kernel is just being given, which may wait
        for an answer of the one who asks here."""
        with self._lock:
            landed = [
                flight
                for flight in self._flights.values()
                if flight.landed and flight.place is None and digest in (None, flight.block.digest)
            ]
            self._settling += 1
            for flight in landed:
                while self._flights.get(flight.block) is flight:
                    self._finished.wait()
            self._settling -= 1

    @property
    def in_the_air(self) -> int:
        """How many blocks are being fetched or stored."""
        return len(self._flights)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    # -- who fetches --------------------------------------------------------------------

    def carry_out(self, flight: Flight) -> float | None:
        """Fetches, lets the waiters go on, and has it put away, all in the caller's thread. Returns
        how many seconds the store took; None if it gave nothing."""
        if not self._admit(flight):
            return None  # too late already
        flight.fetching_s = started_s = self._now()
        try:
            data = self._get(flight)
        except Exception as error:  # noqa: BLE001 - whoever waits for it is told, and logs it
            self.fail(flight, error)
            self._free(flight.block.length)
            return None
        took_s = self._now() - started_s
        self._arrive(flight, data)
        return took_s if flight.from_store else None

    def carry_out_again(self, flight: Flight) -> bool:
        """A second fetch of the same block; True if it came first. One that fails changes nothing:
        the first may still come. Needs `reserve`."""
        try:
            data = flight.fetch(flight.block.start, flight.block.length)
        except BaseException:
            self._free(flight.block.length)
            raise
        return self._arrive(flight, data)

    def reserve(self, length: int) -> bool:
        with self._lock:
            if self._queue or not self._make_room(length):
                return False
            self._held_bytes += length
            return True

    def _admit(self, flight: Flight) -> bool:
        length = flight.block.length
        with self._lock:
            if not flight.reserved:
                if self._queue or not self._may_enter(length):
                    self._queue.append(flight)
                    while not flight.done and not (
                        self._queue[0] is flight and self._may_enter(length)
                    ):
                        self._room.wait()
                    self._queue.remove(flight)
                    self._room.notify_all()
                if flight.done:
                    return False
                self._held_bytes += length
                return True
        if flight.done:
            self._free(length)
            return False
        return True

    def _may_enter(self, length: int) -> bool:
        return self._make_room(length) or self._held_bytes <= self._placing_bytes

    def _make_room(self, length: int) -> bool:
        """What landed longest ago makes way."""
        while self._held_bytes + length > self._budget_bytes and self._landed:
            self._drop(next(iter(self._landed)))
        return self._held_bytes + length <= self._budget_bytes

    def _arrive(self, flight: Flight, data: Buffer) -> bool:
        if not flight.land(data):
            self._free(flight.block.length)
            return False
        self._put_away(flight)
        return True

    @contextmanager
    def placing(self, flight: Flight) -> Iterator[None]:
        """While its bytes are put somewhere else."""
        with self._lock:
            self._placing_bytes += flight.block.length
            if self._queue:
                self._room.notify_all()
        try:
            yield
        finally:
            flight.place = None
            with self._lock:
                self._placing_bytes -= flight.block.length

    def finish(self, flight: Flight, *, keep: bool) -> None:
        """It has been put away. Only now is it let go of: at no moment is a block neither here nor
        in a tier."""
        block = flight.block
        with self._lock:
            self._forget(flight)
            if keep and block not in self._landed:
                self._landed[block] = flight
                self._make_room(0)
            else:
                self._held_bytes -= block.length
            if self._queue:
                self._room.notify_all()
            if self._settling:
                self._finished.notify_all()

    def finish_stored(self, flight: Flight, load: Callable[[], Buffer | None]) -> bool:
        """Another process has fetched it, and it lies in a tier; `load` reads it there, and is
        called only if someone waits for it. False if it is not there after all: it has to be
        carried out then."""
        data: Buffer | None = None
        if flight.awaited and (data := load()) is None:
            return False
        # Before it ends: who is told that it is stored looks for it, and must not find it here.
        self.finish(flight, keep=False)
        if data is None:
            flight.fail(Stored())
        else:
            flight.land(data)
        return True

    def fail(self, flight: Flight, error: Exception) -> bool:
        """Who asks from now on starts anew. The bytes of its fetch stay counted until that ends."""
        if flight.done:
            return False
        if isinstance(error, PenstockError):
            # Its text says it all; the frames of its traceback would hold a body that did not
            # match for as long as the failure is remembered.
            error.__traceback__ = error.__cause__ = error.__context__ = None
        with self._lock:
            self._forget(flight)
            flight.failed_s = self._now()
            waited_s = flight.failed_s - flight.asked_s
            # Of what was begun ahead nobody has waited all that time.
            if waited_s >= self._deadline_s / 2 and not flight.begun_ahead:
                self._failed[flight.block] = flight
                if len(self._failed) > _FAILED:
                    del self._failed[next(iter(self._failed))]
        failed = flight.fail(error)
        with self._lock:
            self._room.notify_all()  # it may have waited to be admitted
        return failed

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.block) is flight:
            del self._flights[flight.block]
        self._lately.pop(flight.block, None)  # the newest last
        self._lately[flight.block] = self._now()
        if len(self._lately) > _LATELY:
            del self._lately[next(iter(self._lately))]

    def _drop(self, block: Block) -> None:
        self._held_bytes -= self._landed.pop(block).block.length
        if self._queue:
            self._room.notify_all()

    def _free(self, length: int) -> None:
        with self._lock:
            self._held_bytes -= length
            if self._queue:
                self._room.notify_all()

    # -- who watches --------------------------------------------------------------------

    def flying(self) -> list[Flight]:
        """Those that have neither landed nor failed."""
        with self._lock:
            return [flight for flight in self._flights.values() if not flight.done]

    def wait_for_some(self) -> None:
        """Returns when something flies. For one watcher, which must not look for nothing."""
        with self._lock:
            if self._flights:
                return
            self._some.clear()
            self._watched = False
        self._some.wait()

    def wake_watcher(self) -> None:
        self._some.set()
