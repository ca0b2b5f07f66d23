"""Fetches of blocks (penstock.cache.fetches) over a store and a tier that answer when they are let,
with a clock that the test moves."""

import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from typing_extensions import Buffer

from penstock.cache.fetch import FetchResult, PushBlock, Waiter
from penstock.cache.fetches import Fetches
from penstock.cache.identity import Block, CachedObject, identify
from penstock.cache.shared_tier import SharedTier
from penstock.cache.tier import Tiers
from penstock.cache.watchdog import Watchdog
from penstock.metrics import Counters
from penstock.store import Progress
from tests.support.waiting import PATIENCE_S, wait_until

LENGTH = 100
DATA = random.Random(4).randbytes(100 * LENGTH)
WHAT = identify("s3://b", "key", "v", len(DATA), LENGTH)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def block(number: int, length: int = LENGTH) -> Block:
    """One of many of a large object."""
    return Block(WHAT.digest, number, number * LENGTH, length, False)


def small(number: int) -> Block:
    """All of a small object."""
    return Block(f"small {number}".encode(), 0, 0, LENGTH, True)


def data_of(one: Block) -> bytes:
    return DATA[one.start : one.start + one.length]


class Store:
    """Answers while the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[int] = []
        self.error: Exception | None = None

    def get(self, start: int, length: int, progress: Progress | None = None) -> bytes:
        self.asked.append(start)
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return DATA[start : start + length]


class Shelf:
    """A tier in memory. Its disk answers while the gate is open."""

    name = "SSD"

    def __init__(self, room: int = 1000) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.room = room
        self.blocks: dict[Block, bytes] = {}
        self.writes = 0  # that have begun
        self.reads = 0

    def read(self, block: Block, start: int, stop: int) -> memoryview | None:
        self.reads += 1
        assert self.gate.wait(PATIENCE_S)
        found = self.blocks.get(block)
        return None if found is None else memoryview(found)[start:stop]

    def write(self, obj: CachedObject, block_bytes: int, block: Block, data: Buffer) -> bool:
        self.writes += 1
        assert self.gate.wait(PATIENCE_S)
        if len(self.blocks) >= self.room:
            return False
        self.blocks[block] = bytes(data)
        return True

    def has(self, block: Block) -> bool:
        return block in self.blocks

    def has_room(self, block: Block) -> bool:
        return True


class Unwatched(Watchdog):
    """Checks timeouts when the test does, and not by itself."""

    def _run(self) -> None:
        pass


class Rig:
    """In the end, all that was begun must end, and nothing be held."""

    def __init__(
        self,
        shelf: Shelf | None = None,
        *,
        blocks: int = 4,
        threads: int = 16,
        watchdog: type[Watchdog] = Unwatched,
        shared: SharedTier | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`blocks`: how many fit into memory."""
        self.clock = clock or Clock()
        self.store = Store()
        self.shelf = shelf
        self.counters = Counters()
        tiers = Tiers([] if shelf is None else [shelf], LENGTH, self.counters)
        self.fetches = Fetches(
            tiers,
            self.counters,
            budget_bytes=blocks * LENGTH,
            deadline_s=60.0,
            threads=threads,
            large_threads=threads,
            shared=shared,
            now=self.clock,
            watchdog=watchdog,
        )
        self._gates = [self.store.gate] if shelf is None else [self.store.gate, shelf.gate]

    def gate(self) -> threading.Event:
        """One that is open in the end, whatever happens."""
        self._gates.append(threading.Event())
        return self._gates[-1]

    def request(
        self, block: Block, get: Callable[[], Buffer] | None = None, *, tiers_checked: bool = True
    ) -> list[memoryview | Exception]:
        """Someone asks for a block; what he is told, and how often, is in the list."""
        reported: list[memoryview | Exception] = []
        self.fetches.request(
            block,
            WHAT,
            self.store.get if get is None else lambda *_: get(),
            Waiter(0, block.length, reported.append),
            tiers_checked=tiers_checked,
        )
        return reported

    def read(self, block: Block) -> memoryview | Exception:
        """The same, and waits for it to be stored."""
        answers = self.request(block)
        wait_until(lambda: answers)
        self.fetches.wait_until_stored()
        return answers[0]

    def prefetch(self, block: Block) -> bool:
        return self.fetches.prefetch(block, WHAT, self.store.get)

    def fetch_ahead(
        self, block: Block, place: PushBlock | None = None, missing_since_s: float = 0.0
    ) -> FetchResult:
        return self.fetches.fetch_ahead(block, WHAT, self.store.get, place, missing_since_s)

    def look_after(self, seconds: float) -> None:
        """Check timeouts so much later."""
        self.clock.now_s += seconds
        self.fetches.watchdog.check_timeouts()

    def count(self, name: str) -> int:
        return self.counters.total(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for gate in self._gates:
            gate.set()
        if error is None:
            wait_until(lambda: not self.fetches.in_flight)
            self.fetches.drop_idle()
            wait_until(lambda: self.fetches.held_bytes == 0, lambda: self.fetches.held_bytes)
        self.fetches.close(PATIENCE_S)
