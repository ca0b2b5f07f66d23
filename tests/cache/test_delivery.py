"""Reads answered by whoever lands their blocks: no thread held, no hang, bounded memory."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cache.build import build_tier
from penstock.cache.identity import CachedObject, identify
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Cache
from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store import Progress
from tests.support.fetches import Clock
from tests.support.waiting import wait_until

BLOCK = 256 * 1024
DATA = random.Random(5).randbytes(4 * BLOCK + 7)

Answer = list[memoryview] | Exception


class Answers:
    """Collects what readers are told."""

    def __init__(self) -> None:
        self.all: list[Answer] = []

    def __call__(self, answer: Answer) -> None:
        self.all.append(answer)

    @property
    def kinds(self) -> set[type]:
        return {type(answer) for answer in self.all}


class Gated:
    """A store that answers when the gate is open."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.gate = threading.Event()
        self.requests = 0

    def get(self, start: int, length: int, _progress: Progress | None = None) -> bytes:
        self.requests += 1
        self.gate.wait(30)
        return self.data[start : start + length]


def small(number: int) -> CachedObject:
    return identify("s3://b", f"small/{number}", "v", 1000, BLOCK)


LARGE = identify("s3://b", "large", "v", len(DATA), BLOCK)


@pytest.fixture
def store() -> Iterator[Gated]:
    store = Gated()
    yield store
    store.gate.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def build(now: Callable[[], float] = time.monotonic, buffer_bytes: int = 1 << 30) -> Cache:
    """A cache without tiers, with a deadline of 60 s and two threads for each size."""
    return Cache(
        [],
        counters=Counters(),
        block_bytes=BLOCK,
        buffer_bytes=buffer_bytes,
        large_threads=2,
        threads=2,
        now=now,
    )


def fetch_ahead(cache: Cache, store: Gated) -> threading.Thread:
    """A plan that waits for the first object."""
    plan = threading.Thread(target=cache.fetch_ahead, args=(small(0), store.get, 0, None, 0.0))
    plan.start()
    wait_until(lambda: store.requests == 1)
    return plan


def test_one_fetch_per_block_answers_many_more_readers_than_threads(
    store: Gated,
) -> None:
    cache, answers = build(), Answers()
    for _ in range(200):
        cache.deliver(small(0), store.get, 0, 1000, answers)
        cache.deliver(LARGE, store.get, BLOCK - 10, 20, answers)
    assert not answers.all
    cache.deliver(LARGE, store.get, len(DATA), 10, answers)
    assert answers.all == [[]], "behind the end there is nothing to wait for"
    answers.all.clear()
    store.gate.set()
    wait_until(lambda: len(answers.all) == 400)
    assert store.requests == 3
    texts = {b"".join(answer) for answer in answers.all if not isinstance(answer, Exception)}
    assert texts == {DATA[:1000], DATA[BLOCK - 10 : BLOCK + 10]}
    cache.close()


def test_readers_fail_at_their_deadline_when_every_thread_hangs(store: Gated, clock: Clock) -> None:
    cache, answers = build(clock), Answers()
    for number in range(200):
        cache.deliver(small(number), store.get, 0, 1000, answers)
    cache.deliver(LARGE, store.get, 0, len(DATA), answers)
    wait_until(lambda: store.requests == 4)
    clock.now_s += 60
    wait_until(lambda: len(answers.all) == 201)
    assert answers.kinds == {StoreError}
    assert store.requests == 4, "two threads for small objects, two for blocks: all of them hang"
    # A read ends with the first of its blocks: the others are given up in the next moment.
    wait_until(lambda: cache.fetching == 0)
    assert cache.buffered_bytes == 2 * 1000 + 2 * BLOCK, "counted until the store answers"
    store.gate.set()
    wait_until(lambda: cache.fetches._small._idle == cache.fetches._large._idle == 2)
    assert cache.buffered_bytes == 0
    assert store.requests == 4, "what nobody waits for any more is not fetched"
    assert len(answers.all) == 201
    cache.close()


def test_a_failed_block_fails_its_read_once() -> None:
    def get(start: int, length: int, _progress: Progress | None = None) -> bytes:
        if start == BLOCK:
            raise StoreError("down")
        return DATA[start : start + length]

    cache, answers = build(), Answers()
    for _ in range(10):
        cache.deliver(LARGE, get, 0, len(DATA), answers)
    wait_until(lambda: len(answers.all) == 10)
    cache.close()
    assert answers.kinds == {StoreError}
    assert len(answers.all) == 10


def test_memory_is_bounded_while_the_disk_is_slower_than_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Gated, clock: Clock
) -> None:
    """What waits to be stored is held: without a bound, as many as there are threads."""
    tier = build_tier(TierSpec("SSD", (tmp_path,), 1 << 30), "keep", Counters())
    disk, write = threading.Event(), tier.write
    monkeypatch.setattr(tier, "write", lambda *obj: disk.wait(30) and write(*obj))
    cache = Cache(
        [tier],
        block_bytes=BLOCK,
        buffer_bytes=4 * BLOCK,
        large_threads=2,
        threads=8,
        counters=Counters(),
        now=clock,
    )
    answers = Answers()
    store.gate.set()
    for number in range(50):
        obj = identify("s3://b", f"{number}", "v", BLOCK, BLOCK)
        cache.deliver(obj, store.get, 0, BLOCK, answers)
    wait_until(lambda: len(answers.all) == 4)
    assert cache.buffered_bytes == 4 * BLOCK
    disk.set()
    wait_until(lambda: len(answers.all) == 50)
    assert answers.kinds == {list}
    wait_until(lambda: cache.buffered_bytes == 0)
    cache.close()
    assert store.requests == 50


@pytest.mark.parametrize("in_time", [True, False])
def test_a_reader_that_joins_a_planned_fetch_has_its_own_deadline(
    store: Gated, clock: Clock, in_time: bool
) -> None:
    """A read must not fail because a plan has waited long for a store that is away."""
    cache, answers = build(clock), Answers()
    plan = fetch_ahead(cache, store)
    clock.now_s += 30
    cache.deliver(small(0), store.get, 0, 1000, answers)
    clock.now_s += 30
    wait_until(lambda: store.requests == 2)  # the plan has given up
    clock.now_s += 29.9
    cache.fetches.watchdog.check_timeouts()
    assert answers.all == []
    if in_time:
        store.gate.set()
    else:
        clock.now_s += 0.1
    wait_until(lambda: bool(answers.all))
    assert answers.all == [[DATA[:1000]]] if in_time else answers.kinds == {StoreError}
    store.gate.set()
    plan.join()
    cache.close()


def test_a_block_that_a_plan_failed_to_fetch_is_fetched_again_at_once(
    store: Gated, clock: Clock
) -> None:
    cache, answers = build(clock), Answers()
    plan = fetch_ahead(cache, store)
    clock.now_s += 60
    wait_until(lambda: cache.fetching == 0)
    store.gate.set()
    cache.deliver(small(0), store.get, 0, 1000, answers)
    wait_until(lambda: bool(answers.all))
    assert answers.all == [[DATA[:1000]]]
    plan.join()
    cache.close()


def test_a_push_that_waits_for_a_reader_does_not_block_its_next_block(store: Gated) -> None:
    """The kernel has locked pages of two blocks for one read; the push of the first waits for
    them, and holds all the memory there is."""
    cache, answers = build(buffer_bytes=BLOCK), Answers()
    store.gate.set()
    placing, answered = threading.Event(), threading.Event()

    def place(_data: memoryview) -> bool:
        placing.set()
        return answered.wait(60)

    def done(answer: Answer) -> None:
        answers(answer)
        answered.set()

    plan = threading.Thread(target=cache.fetch_ahead, args=(LARGE, store.get, 0, place, 0.0))
    plan.start()
    assert placing.wait(10)
    cache.deliver(LARGE, store.get, BLOCK - 10, 20, done)
    assert answered.wait(30)
    assert answers.all == [[DATA[BLOCK - 10 : BLOCK], DATA[BLOCK : BLOCK + 10]]]
    plan.join()
    cache.close()


def test_a_block_is_prefetched_once_and_only_if_there_is_room(store: Gated) -> None:
    cache = build(buffer_bytes=BLOCK)
    assert cache.prefetch(LARGE, store.get, 0)
    assert cache.prefetch(LARGE, store.get, 0), "it is on its way"
    assert not cache.prefetch(LARGE, store.get, 1), "it has all the memory there is"
    store.gate.set()
    assert wait_until(lambda: cache.read_now(LARGE, 0, 1000)) == [DATA[:1000]]
    assert store.requests == 1
    cache.close()
