"""What another process fetches into a tier: its room, its row, and who waits for it."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache import files
from penstock.cache.build import build_cache
from penstock.cache.errands import Errand
from penstock.cache.identity import CachedObject, identify
from penstock.cache.integrity import checksums
from penstock.cache.striped import StripedTier
from penstock.cache.tier import TierSpec
from penstock.cache.tiered import Brought, Cache
from penstock.metrics import Counters
from tests.support.waiting import wait_until

BLOCK = 256 * 1024
QUOTA = 1 << 20
DATA = random.Random(7).randbytes(200_000)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    built = build_cache(
        [TierSpec("SSD", (tmp_path / "ssd",), QUOTA, high=1.0)], policy="keep", block_bytes=BLOCK,
        buffer_bytes=1 << 22, fetchers=2, counters=Counters(),
    )  # fmt: skip
    yield built
    built.close()


def what(number: int = 0, size: int = len(DATA)) -> CachedObject:
    return identify("s3://b", f"key{number}", "v1", size, BLOCK)


def never(_start: int, _length: int) -> bytes:
    raise AssertionError("it is another process that fetches it")


def begun(cache: Cache, number: int = 0) -> Errand:
    errand = cache.errands.begin(what(number), never, 0)
    assert errand is not None
    return errand


def write(errand: Errand) -> bytes:
    """What the other process does."""
    files.write_file(errand.room.path, len(DATA), 0, memoryview(DATA))
    return checksums(DATA)


def used(cache: Cache) -> int:
    cache.flush()  # while a row is being written, it is counted twice
    (tier,) = cache.tiers
    assert isinstance(tier, StripedTier)
    return tier.describe()["used_bytes"]


def in_a_thread(cache: Cache, answers: list[bytes]) -> threading.Thread:
    thread = threading.Thread(
        target=lambda: answers.append(b"".join(cache.read(what(), never, 0, len(DATA))))
    )
    thread.start()
    return thread


def test_room_is_kept_for_it_until_its_row_is_noted(cache: Cache) -> None:
    errand = begun(cache)
    assert (used(cache), cache.buffered_bytes, cache.fetching) == (len(DATA), len(DATA), 1)
    assert cache.note_stored(errand, write(errand), 0.1)
    assert (used(cache), cache.buffered_bytes, cache.fetching) == (len(DATA), 0, 0)
    assert cache.cached_bytes(what()) == len(DATA)
    assert b"".join(cache.read(what(), never, 0, len(DATA))) == DATA


def test_no_more_is_begun_than_there_is_room_for(cache: Cache) -> None:
    errands = [begun(cache, number) for number in range(QUOTA // len(DATA))]
    assert cache.errands.begin(what(99), never, 0) is None
    errands[0].room.give_back()
    assert cache.errands.begin(what(99), never, 0) is not None


def test_what_is_on_its_way_or_there_or_large_is_not_begun(cache: Cache) -> None:
    errand = begun(cache)
    assert cache.errands.begin(what(), never, 0) is None
    cache.note_stored(errand, write(errand), 0.1)
    assert cache.errands.begin(what(), never, 0) is None
    assert cache.errands.begin(what(1, 2 * BLOCK), never, 0) is None


def test_who_waits_gets_its_bytes_from_the_tier(cache: Cache) -> None:
    errand, answers = begun(cache), list[bytes]()
    waiting = in_a_thread(cache, answers)
    wait_until(lambda: errand.flight.awaited)
    assert cache.note_stored(errand, write(errand), 0.1)
    waiting.join()
    assert answers == [DATA]
    assert cache.buffered_bytes == 0


def test_who_joins_in_the_last_moment_finds_it_in_the_tier(cache: Cache) -> None:
    """He holds the flight already when nobody is seen to wait, and waits when it has ended."""
    errand, answers, ended = begun(cache), list[bytes](), threading.Event()
    then = errand.flight.then

    class Late(type(errand.flight)):
        __slots__ = ()

        def then(self, callback: object) -> None:
            assert cache.note_stored(errand, write(errand), 0.1)
            ended.set()
            then(callback)  # type: ignore[arg-type]

    errand.flight.__class__ = Late
    waiting = in_a_thread(cache, answers)
    waiting.join()
    assert ended.is_set()
    assert answers == [DATA]


def test_what_is_not_there_after_all_is_fetched_by_whoever_had_it_fetched(cache: Cache) -> None:
    fetched = list[tuple[int, int]]()

    def fetch(start: int, length: int) -> bytes:
        fetched.append((start, length))
        return DATA[start : start + length]

    errand, answers = cache.errands.begin(what(), fetch, 0), list[bytes]()
    assert errand is not None
    waiting = in_a_thread(cache, answers)
    wait_until(lambda: errand.flight.awaited)
    assert not cache.note_stored(errand, checksums(DATA), 0.1)  # its file is missing
    assert cache.carry_on(errand.flight, None).how is Brought.FETCHED
    waiting.join()
    assert (answers, fetched) == ([DATA], [(0, len(DATA))])
    cache.settle()
    assert (used(cache), cache.buffered_bytes, cache.fetching) == (len(DATA), 0, 0)


def test_what_is_given_back_is_carried_on_with_room_of_its_own(cache: Cache) -> None:
    errand = cache.errands.begin(what(), lambda start, length: DATA[start : start + length], 0)
    assert errand is not None
    errand.room.give_back()
    assert used(cache) == 0
    assert cache.carry_on(errand.flight, None).how is Brought.FETCHED
    cache.settle()
    assert (used(cache), cache.buffered_bytes) == (len(DATA), 0)


def test_what_another_process_took_of_its_time_is_given_back_too(cache: Cache) -> None:
    asked_s = list[float]()

    def fetch(start: int, length: int) -> bytes:
        asked_s.append(errand.flight.asked_s)
        return DATA[start : start + length]

    errand = cache.errands.begin(what(), fetch, 0)
    assert errand is not None
    errand.flight.asked_s -= 59  # of the 60 s until it is given up
    errand.room.give_back()
    given_back_s = time.monotonic()
    assert cache.carry_on(errand.flight, None).how is Brought.FETCHED
    assert asked_s[0] >= given_back_s
