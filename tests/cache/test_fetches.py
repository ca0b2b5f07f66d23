"""One fetch for many: who is called back, what is held and for how long, and what is given up."""

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from penstock.cache.fetch import FetchJob, FetchOutcome, StartedFetch, State, Waiter
from penstock.cache.guarded import HUNG_S
from penstock.cache.identity import Block
from penstock.errors import PenstockError, StoreError
from penstock.store import Progress
from tests.support.fetches import DATA, LENGTH, WHAT, Rig, Shelf, block, data_of, small
from tests.support.waiting import PATIENCE_S, wait_until

Answers = list[memoryview | Exception]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


# -- while it arrives -----------------------------------------------------------------------


class Trickle:
    """A store whose body stops in the middle, until the gate is opened."""

    def __init__(self, rig: Rig, *pieces: int, error: Exception | None = None) -> None:
        self.gate = rig.gate()
        self.asked = 0
        self._pieces = pieces  # how much has arrived each time
        self._error = error

    def get(self, start: int, length: int, progress: Progress | None) -> bytes:
        self.asked += 1
        assert progress is not None
        for piece in self._pieces:
            progress(memoryview(DATA)[start : start + piece])
        self.gate.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return DATA[start : start + length]


def want_part(rig: Rig, store: Trickle, start: int, stop: int) -> Answers:
    answers = Answers()
    rig.fetches.request(
        block(0), WHAT, store.get, Waiter(start, stop, answers.append), tiers_checked=True
    )
    return answers


def test_a_reader_of_the_start_of_a_block_does_not_wait_for_its_end(rig: Rig) -> None:
    store = Trickle(rig, 10, 50)
    beginning, end = want_part(rig, store, 0, 50), want_part(rig, store, 50, LENGTH)
    wait_until(lambda: beginning)
    assert (beginning, end) == ([DATA[:50]], [])
    assert want_part(rig, store, 5, 20) == [DATA[5:20]], "who asks now is answered at once"
    fetch = rig.fetches.find(block(0))
    assert fetch is not None
    assert (rig.fetches.part_of(fetch, 0, 50), rig.fetches.part_of(fetch, 0, 51)) == (
        DATA[:50],
        None,
    )
    store.gate.set()
    wait_until(lambda: end)
    assert (beginning, end) == ([DATA[:50]], [DATA[50:LENGTH]]), "each once"
    assert store.asked == 1


def test_a_block_that_fails_midway_fails_only_readers_of_the_rest(rig: Rig) -> None:
    store = Trickle(rig, 50, error=StoreError("reset"))
    beginning, end = want_part(rig, store, 0, 50), want_part(rig, store, 20, 51)
    wait_until(lambda: beginning)
    fetch = rig.fetches.find(block(0))
    assert fetch is not None
    store.gate.set()
    wait_until(lambda: end)
    assert [str(one) for one in end] == ["reset"]
    assert beginning == [DATA[:50]]
    assert not fetch.arrived, "a failure holds no bytes"


def test_a_second_attempt_keeps_the_bytes_that_have_arrived(rig: Rig) -> None:
    store = Trickle(rig, 50, 10)
    end = want_part(rig, store, 60, 70)
    wait_until(lambda: store.asked)
    wait_until(lambda: want_part(rig, store, 0, 50))
    store.gate.set()
    wait_until(lambda: end)
    assert end == [DATA[60:70]]


def test_missing_bytes_are_an_error_for_readers_that_need_them(rig: Rig) -> None:
    answers = rig.request(block(0), lambda: DATA[:50])
    wait_until(lambda: answers)
    assert [str(one) for one in answers] == ["key: received 50 of 100 bytes"]


def test_a_whole_object_is_not_delivered_before_it_is_verified(rig: Rig) -> None:
    progress: list[object] = []
    answers = Answers()

    def get(_start: int, length: int, asked: Progress | None) -> bytes:
        progress.append(asked)
        return DATA[:length]

    rig.fetches.request(small(0), WHAT, get, Waiter(0, LENGTH, answers.append), tiers_checked=True)
    wait_until(lambda: answers)
    assert progress == [None]


# -- joining --------------------------------------------------------------------------------


def test_one_fetch_answers_each_reader_once_and_the_first_result_counts(rig: Rig) -> None:
    rig.store.gate.clear()
    answers = [rig.request(block(0)) for _ in range(20)]
    rig.store.gate.set()
    wait_until(lambda: all(answers))
    wait_until(lambda: not rig.fetches.in_flight)
    fetch = rig.fetches.find(block(0))
    assert fetch is not None
    rig.fetches.fail(fetch, StoreError("late"))
    answers.append(rig.request(block(0)))
    assert rig.store.asked == [0]
    assert answers == [[DATA[:LENGTH]]] * 21
    assert fetch.error is None


def test_bytes_that_arrive_after_the_deadline_are_dropped(rig: Rig) -> None:
    rig.store.gate.clear()
    answers = [rig.request(block(0)) for _ in range(3)]
    wait_until(lambda: rig.store.asked)
    rig.look_after(59.9)
    assert not any(answers)
    rig.look_after(0.1)
    (error,) = answers[0]
    assert answers == [[error]] * 3, "by the look at the clock, though the request still hangs"
    assert isinstance(error, StoreError)
    assert error.kind == "timeout"
    assert rig.fetches.held_bytes == LENGTH, "counted until the request ends"
    rig.store.gate.set()
    wait_until(lambda: rig.fetches.held_bytes == 0)
    assert answers == [[error]] * 3
    assert rig.fetches.find(block(0)) is None


def test_a_reader_that_comes_after_a_failure_starts_a_new_fetch(rig: Rig) -> None:
    rig.store.error = StoreError("down")
    answers = rig.request(block(0))
    wait_until(lambda: answers)
    assert answers == [rig.store.error]
    wait_until(lambda: rig.fetches.held_bytes == 0)
    rig.store.error = None
    assert rig.read(block(0)) == DATA[:LENGTH]


def test_a_reader_that_waited_a_whole_deadline_does_not_wait_another(rig: Rig) -> None:
    """The kernel asks again, page by page, for what its readahead did not get."""
    rig.store.gate.clear()
    answers = rig.request(block(0))
    rig.look_after(60)
    rig.clock.now_s += 0.9
    assert rig.request(block(0)) == answers
    other = rig.request(block(1))
    assert not other, "another block is asked for"
    rig.clock.now_s += 0.1
    again = rig.request(block(0))
    assert not again
    rig.clock.now_s += 29.9
    for fetch in list(rig.fetches._active.values()):
        rig.fetches.fail(fetch, StoreError("the next attempt would come too late"))
    assert again
    assert other
    assert not rig.request(block(0)), "a failure long before the deadline is not remembered"
    assert rig.request(block(1)) == other, "one that was near it is"


def test_a_remembered_failure_holds_no_bytes(rig: Rig) -> None:
    alive: list[weakref.ref[Bytes]] = []

    def get() -> bytes:
        body = Bytes(LENGTH)
        alive.append(weakref.ref(body))
        rig.clock.now_s += 60
        raise StoreError(f"{len(body)} bytes that do not match")

    answers = rig.request(block(0), get)
    wait_until(lambda: answers)
    assert rig.request(block(0)) == answers
    wait_until(lambda: alive[0]() is None)


def test_the_memory_of_ended_fetches_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cache.recent._ENDED_REMEMBERED", 3)
    monkeypatch.setattr("penstock.cache.recent._FAILED_REMEMBERED", 2)
    rig.store.gate.clear()
    for number in range(10):
        rig.request(block(number))
        rig.look_after(60)
    assert [one.number for one in rig.fetches.recent.ended] == [7, 8, 9], "the newest"
    assert [one.number for one in rig.fetches.recent.failed] == [8, 9]


@pytest.mark.parametrize("tiers_checked", [True, False])
def test_a_block_stored_since_the_reader_looked_is_read_from_the_tier(tiers_checked: bool) -> None:
    """He saw a miss, and asks when the fetch that he could have joined is over."""
    with Rig(Shelf()) as rig:
        rig.read(small(0))
        assert rig.fetches.find(small(0)) is None
        answers = rig.request(small(0), tiers_checked=tiers_checked)
        wait_until(lambda: answers)
        assert answers[0] == DATA[:LENGTH]
        rig.fetches.wait_until_stored()
        assert rig.store.asked == [0]
        assert (rig.shelf.writes, rig.count("hit_bytes")) == (1, LENGTH), "not stored again"


def test_each_reader_looks_in_a_tier_at_most_once() -> None:
    with Rig(Shelf()) as rig:
        rig.shelf.blocks[block(0)] = rig.shelf.blocks[block(1)] = b"stored".ljust(LENGTH)
        answers = rig.request(block(0), tiers_checked=False)
        wait_until(lambda: answers)
        assert (answers[0], rig.store.asked) == (b"stored".ljust(LENGTH), [])
        assert rig.read(block(1)) == DATA[LENGTH : 2 * LENGTH]
        assert rig.shelf.reads == 1


def test_a_fetch_runs_in_the_callers_thread_or_in_a_pool_thread(rig: Rig) -> None:
    threads: list[threading.Thread] = []

    def get(*_: object) -> bytes:
        threads.append(threading.current_thread())
        return DATA[:LENGTH]

    def want(one: Block, answers: Answers) -> FetchJob | None:
        waiter = Waiter(0, LENGTH, answers.append)
        return rig.fetches.request(one, WHAT, get, waiter, tiers_checked=True, return_job=True)

    first, joined, second = Answers(), Answers(), Answers()
    job = want(small(0), first)
    assert job is not None
    assert want(small(0), joined) is None, "someone does it"
    assert (first, threads) == ([], [])
    job()
    assert first == joined
    assert threads == [threading.current_thread()]
    job = want(small(1), second)
    assert job is not None
    rig.fetches.submit(job)
    wait_until(lambda: second)
    assert threads[1] is not threads[0]


class Asked:
    """An object that was asked for, and comes when the test says so (see Pending)."""

    def __init__(self, *answers: bytes | PenstockError) -> None:
        self.answers = list(answers)
        self.has_come = False
        self.threads: list[threading.Thread] = []

    def fileno(self) -> int:
        return 7

    def advance(self) -> bool:
        return self.has_come

    def result(self) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def retry(self, _error: Exception, /) -> bytes:
        self.threads.append(threading.current_thread())
        return self.result()


def begin(rig: Rig, one: Block, asked: Asked) -> tuple[Answers, StartedFetch | None, list[str]]:
    answers, calls = Answers(), list[str]()
    waiter = Waiter(0, LENGTH, answers.append)
    job = rig.fetches.request(
        one, WHAT, rig.store.get, waiter, tiers_checked=True, return_job=True, begin=lambda: asked
    )
    assert job is not None
    job.on_start, job.on_end = partial(calls.append, "start"), partial(calls.append, "end")
    return answers, job.begin(), calls


def test_a_started_fetch_is_answered_first_and_stored_later() -> None:
    with Rig(Shelf()) as rig:
        asked = Asked(DATA[:LENGTH])
        reported, begun, calls = begin(rig, small(0), asked)
        assert begun is not None
        assert begun.fileno() == 7
        assert not begun.advance()
        assert (reported, calls, rig.fetches.held_bytes) == ([], ["start"], LENGTH)
        asked.has_come = True
        assert begun.advance()
        assert reported[0] == DATA[:LENGTH]
        assert (rig.shelf.writes, calls) == (0, ["start"])
        begun.write_to_cache()
        assert rig.shelf.blocks == {small(0): DATA[:LENGTH]}
        assert (calls, rig.fetches.held_bytes) == (["start", "end"], 0)


def test_a_started_fetch_that_fails_is_retried_by_another_thread(rig: Rig) -> None:
    for then, error in ((DATA[:LENGTH], None), (StoreError("gone"), "gone")):
        asked = Asked(StoreError("reset"), then)
        asked.has_come = True
        reported, begun, calls = begin(rig, small(1 if error is None else 2), asked)
        assert begun is not None
        assert begun.advance()
        begun.write_to_cache()  # there is nothing to put away
        wait_until(lambda calls=calls: calls == ["start", "end"])
        assert asked.threads != [threading.current_thread()]
        assert (str(reported[0]) if error else reported[0]) == (error or then)


def test_a_fetch_that_must_wait_for_memory_is_not_started_inline(rig: Rig) -> None:
    gate = rig.gate()
    answers = [
        rig.request(small(number), lambda: gate.wait(PATIENCE_S) and DATA[:LENGTH])
        for number in range(4)
    ]
    wait_until(lambda: rig.fetches.held_bytes == 4 * LENGTH)
    late = Answers()
    waiter = Waiter(0, LENGTH, late.append)
    job = rig.fetches.request(
        small(9),
        WHAT,
        rig.store.get,
        waiter,
        tiers_checked=True,
        return_job=True,
        begin=lambda: Asked(),
    )
    assert job is not None
    assert job.begin() is None
    rig.fetches.submit(job)
    gate.set()
    wait_until(lambda: all(answers) and late)


def test_a_fetch_that_cannot_be_started_is_left_to_a_thread_and_holds_nothing(rig: Rig) -> None:
    def fails() -> Asked:
        raise StoreError("no credentials")

    def too_large(one: Block) -> Block:
        return one._replace(length=(1 << 20) + 1)

    for one, begin_it in (
        (small(0), fails),
        (too_large(small(1)), Asked),
        (small(2), lambda: None),
    ):
        answers = Answers()
        waiter = Waiter(0, LENGTH, answers.append)
        job = rig.fetches.request(
            one, WHAT, rig.store.get, waiter, tiers_checked=True, return_job=True, begin=begin_it
        )
        assert job is not None
        assert job.begin() is None
        assert rig.fetches.held_bytes == 0
        job()
        assert answers


def test_another_thread_makes_room_in_a_full_tier() -> None:
    with Rig(Shelf()) as rig:
        rig.shelf.has_room = lambda _block: False  # type: ignore[method-assign]
        asked = Asked(DATA[:LENGTH])
        asked.has_come = True
        _, begun, calls = begin(rig, small(0), asked)
        assert begun is not None
        assert begun.advance()
        rig.shelf.gate.clear()
        begun.write_to_cache()
        assert calls == ["start"]
        rig.shelf.gate.set()
        wait_until(lambda: calls == ["start", "end"])
        assert small(0) in rig.shelf.blocks


def test_close_waits_for_what_other_threads_store() -> None:
    with Rig(Shelf()) as rig:
        asked = Asked(DATA[:LENGTH])
        asked.has_come = True
        _, begun, _ = begin(rig, small(0), asked)
        assert begun is not None
        assert begun.advance()
        closing = threading.Thread(target=rig.fetches.close, args=(PATIENCE_S,))
        closing.start()
        wait_until(lambda: rig.fetches._settling)
        begun.write_to_cache()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


# -- memory ---------------------------------------------------------------------------------


def test_demand_fetches_wait_for_memory_and_never_exceed_the_budget(rig: Rig) -> None:
    gate, lock, most = rig.gate(), threading.Lock(), 0

    def get() -> bytes:
        nonlocal most
        with lock:
            most = max(most, rig.fetches.held_bytes)
        gate.wait(PATIENCE_S)
        return DATA[:LENGTH]

    answers = [rig.request(small(number), get) for number in range(40)]
    wait_until(lambda: len(rig.fetches._queue) == 12)  # of 16 threads
    assert most == 4 * LENGTH
    gate.set()
    wait_until(lambda: all(answers))
    assert most == 4 * LENGTH
    assert all(part == DATA[:LENGTH] for (part,) in answers)
    wait_until(lambda: rig.fetches.held_bytes == 0)


def test_a_block_larger_than_the_memory_budget_is_fetched_when_nothing_else_is_held(
    rig: Rig,
) -> None:
    assert not rig.prefetch(block(9, 5 * LENGTH)), "not before anyone asks for it"
    rig.store.gate.clear()
    first, large = rig.request(block(0)), rig.request(block(1, 5 * LENGTH))
    wait_until(lambda: rig.fetches._queue)
    assert rig.store.asked == [0]
    rig.store.gate.set()
    wait_until(lambda: large)
    assert large[0] == DATA[LENGTH : 6 * LENGTH]
    assert first[0] == DATA[:LENGTH]
    rig.fetches.wait_until_stored()
    assert rig.fetches.held_bytes == 0, "and not kept: it would be more than may be"


def test_kept_blocks_are_evicted_oldest_first(rig: Rig) -> None:
    for number in range(10):
        rig.read(block(number))
        assert rig.fetches.held_bytes == min(4, number + 1) * LENGTH
    assert [rig.fetches.find(block(number)) is not None for number in range(10)] == (
        [False] * 6 + [True] * 4
    )


class Bytes(bytearray):
    """Bytes that can be watched."""


def test_bytes_are_freed_with_their_last_user_and_not_by_the_garbage_collector(rig: Rig) -> None:
    reported: list[type] = []
    gc.collect()
    gc.disable()
    try:
        data = Bytes(LENGTH)
        alive = weakref.ref(data)
        arriving = [data]
        del data
        rig.fetches.request(
            small(0),
            WHAT,
            lambda *_: arriving.pop(),
            Waiter(0, LENGTH, lambda part: reported.append(type(part))),
            tiers_checked=True,
        )
        wait_until(lambda: reported)
        wait_until(lambda: alive() is None)
        assert reported == [memoryview]
    finally:
        gc.enable()


def test_small_blocks_do_not_starve_a_large_one(rig: Rig) -> None:
    rig.store.gate.clear()
    rig.request(block(0))
    wait_until(lambda: rig.store.asked)
    large = rig.request(block(1, 4 * LENGTH))
    wait_until(lambda: rig.fetches._queue)
    rig.request(block(5))
    wait_until(lambda: len(rig.fetches._queue) == 2)
    assert not rig.prefetch(block(6)), "who is ahead of his reader does not jump the queue"
    assert rig.store.asked == [0], "there is room for the small one, but not its turn"
    rig.store.gate.set()
    wait_until(lambda: len(rig.store.asked) == 3)
    assert rig.store.asked == [0, LENGTH, 5 * LENGTH]
    assert large[0] == DATA[LENGTH : 5 * LENGTH]


def test_a_reader_that_waits_for_memory_past_its_deadline_leaves_the_queue(rig: Rig) -> None:
    rig.store.gate.clear()
    for number in range(4):
        rig.request(block(number))
    wait_until(lambda: len(rig.store.asked) == 4)
    late = rig.request(block(9))
    wait_until(lambda: rig.fetches._queue)
    rig.look_after(60)
    assert isinstance(late[0], StoreError)
    wait_until(lambda: not rig.fetches._queue)
    assert rig.fetches.held_bytes == 4 * LENGTH
    assert len(rig.store.asked) == 4, "what nobody waits for any more is not fetched"


@pytest.mark.parametrize("fails", ["store", "deadline", "before it began"])
def test_memory_of_a_failed_fetch_goes_to_waiting_readers(fails: str) -> None:
    with Rig(blocks=2, threads=1) as rig:
        rig.store.gate.clear()
        other = Block(b"other", 0, 0, 2 * LENGTH, True)  # for another thread, and all the memory
        rig.prefetch(block(0)) if fails == "before it began" else rig.request(block(0))
        wait_until(lambda: rig.store.asked)
        if fails == "before it began":
            assert rig.prefetch(block(1))
        if fails != "store":
            rig.look_after(60)
        answers = rig.request(other, lambda: DATA[: 2 * LENGTH])
        wait_until(lambda: rig.fetches._queue)
        rig.store.error = StoreError("down") if fails == "store" else None
        rig.store.gate.set()
        wait_until(lambda: answers)
        assert answers[0] == DATA[: 2 * LENGTH]


def test_a_fetch_without_waiters_starts_only_if_there_is_room(rig: Rig) -> None:
    rig.store.gate.clear()
    assert [rig.prefetch(block(number)) for number in range(6)] == [True] * 4 + [False] * 2
    assert rig.prefetch(block(0)), "it is on its way"
    assert rig.fetches.held_bytes == 4 * LENGTH
    assert rig.fetch_ahead(block(5)).outcome is FetchOutcome.NO_ROOM
    assert rig.fetch_ahead(block(0)).outcome is FetchOutcome.JOINED
    rig.store.gate.set()
    wait_until(lambda: not rig.fetches.in_flight)
    assert rig.prefetch(block(5)), "what is kept makes way"
    assert rig.count("prefetched_blocks") == 5


def test_a_fetch_ahead_that_waited_too_long_for_a_thread_is_skipped() -> None:
    with Rig(threads=1) as rig:
        rig.store.gate.clear()
        assert rig.prefetch(block(0))
        assert rig.prefetch(block(1))
        wait_until(lambda: rig.store.asked)
        rig.look_after(60)
        assert rig.fetches.held_bytes == 2 * LENGTH
        rig.store.gate.set()
        wait_until(lambda: rig.fetches.held_bytes == 0)
        assert rig.store.asked == [0]


# -- what is held on to, and let go of ----------------------------------------------------------


def test_a_block_is_kept_until_read_to_its_end_and_a_small_object_not_at_all(
    rig: Rig,
) -> None:
    rig.read(block(0))
    fetch = rig.fetches.find(block(0))
    assert fetch is not None
    assert fetch.state is State.KEPT
    assert rig.fetches.part_of(fetch, 10, LENGTH - 1) == DATA[10 : LENGTH - 1]
    assert rig.fetches.find(block(0)) is fetch
    assert rig.fetches.part_of(fetch, 50, LENGTH) == DATA[50:LENGTH]
    assert rig.fetches.find(block(0)) is None
    assert fetch.state is State.RELEASED
    rig.read(small(0))
    assert rig.fetches.find(small(0)) is None
    assert rig.fetches.held_bytes == 0


@pytest.mark.parametrize(
    ("shelf", "placed", "read", "kept"),
    [(None, False, False, True), (None, True, False, False), (None, False, True, False),
     (Shelf(), False, False, False), (Shelf(room=0), False, False, True)],
    ids=["nowhere", "placed", "read", "stored", "declined"],
)  # fmt: skip
def test_a_prefetched_small_object_is_kept_only_if_unread_and_stored_nowhere_else(
    shelf: Shelf | None, placed: bool, read: bool, kept: bool
) -> None:
    with Rig(shelf) as rig:
        reported: list[object] = []

        def place(_data: memoryview) -> bool:
            if read:
                reported.extend(rig.request(small(0)))
            return placed

        arrival = rig.fetch_ahead(small(0), place)
        assert (arrival.outcome, arrival.length, arrival.took_s) == (
            FetchOutcome.FETCHED,
            LENGTH,
            0,
        )
        assert (rig.fetches.find(small(0)) is not None) == kept
        assert rig.fetches.held_bytes == LENGTH * kept
        assert len(reported) == read
        assert rig.fetches.declined_blocks == (shelf is None or not shelf.blocks)


def test_release_frees_only_the_named_objects(rig: Rig) -> None:
    other = Block(b"other", 1, LENGTH, LENGTH, False)
    for one in (block(0), block(1), other):
        rig.read(one)
    rig.fetches.release(block(7))
    rig.fetches.release(block(1))
    assert [rig.fetches.find(one) is None for one in (block(0), block(1), other)] == [
        False,
        True,
        False,
    ]
    rig.read(block(1))
    rig.fetches.release_objects([WHAT.digest, b"unknown"])
    assert rig.fetches.find(block(0)) is rig.fetches.find(block(1)) is None
    assert rig.fetches.find(other) is not None
    assert rig.fetches.held_bytes == LENGTH
    rig.fetches.drop_idle()
    assert (rig.fetches.find(other), rig.fetches.held_bytes) == (None, 0)


def test_settling_waits_until_received_blocks_are_stored_and_for_nothing_else() -> None:
    with Rig(Shelf()) as rig, ThreadPoolExecutor(3) as threads:
        rig.shelf.gate.clear()
        stored = rig.request(small(0))
        wait_until(lambda: rig.shelf.writes)
        assert stored, "its reader has it before it is stored"
        rig.store.gate.clear()
        rig.request(small(1))  # it is being fetched
        settling = [
            threads.submit(rig.fetches.wait_until_stored, digest)
            for digest in (None, small(0).digest)
        ]
        rig.fetches.wait_until_stored(small(1).digest)
        wait_until(lambda: rig.fetches._settling == 2)
        assert not any(future.done() for future in settling)
        rig.shelf.gate.set()
        for future in settling:
            future.result(PATIENCE_S)
        assert small(0) in rig.shelf.blocks
        assert not rig.store.gate.is_set()


def test_settling_does_not_wait_for_a_push_to_the_kernel() -> None:
    """That may wait for an answer of the one who asks."""
    with Rig(Shelf()) as rig, ThreadPoolExecutor(1) as threads:
        pushing, pushed = rig.gate(), rig.gate()

        def place(_data: memoryview) -> bool:
            pushing.set()
            return pushed.wait(PATIENCE_S)

        bringing = threads.submit(rig.fetch_ahead, small(0), place)
        assert pushing.wait(PATIENCE_S)
        rig.fetches.wait_until_stored()
        assert rig.fetches.in_flight == 1
        pushed.set()
        assert bringing.result(PATIENCE_S).outcome is FetchOutcome.FETCHED


# -- ahead of readers -------------------------------------------------------------------------


def test_a_held_block_is_pushed_and_stored_again_in_a_tier_that_lost_it() -> None:
    with Rig(Shelf()) as rig:
        placed: list[bytes] = []

        def place(data: memoryview) -> bool:
            placed.append(bytes(data))
            return True

        rig.read(block(0))
        rig.clock.now_s += 1
        rig.shelf.blocks.clear()
        assert rig.fetch_ahead(block(0), place, rig.clock.now_s).outcome is FetchOutcome.CACHED
        assert rig.fetch_ahead(block(0), None, rig.clock.now_s).outcome is FetchOutcome.CACHED
        assert rig.shelf.blocks == {block(0): DATA[:LENGTH]}
        assert rig.shelf.writes == 2
        rig.fetches.drop_idle()
        assert rig.fetch_ahead(block(0), place, rig.clock.now_s).outcome is FetchOutcome.CACHED
        assert rig.fetch_ahead(block(0), None, rig.clock.now_s).outcome is FetchOutcome.CACHED
        assert placed == [DATA[:LENGTH]] * 2
        assert rig.prefetch(block(0))
        assert (rig.store.asked, rig.shelf.writes) == ([0], 2)


def test_a_block_that_its_reader_got_since_the_plan_looked_is_not_fetched_again(rig: Rig) -> None:
    rig.clock.now_s += 1
    rig.read(small(0))
    assert rig.fetch_ahead(small(0), None, rig.clock.now_s - 1).outcome is FetchOutcome.JOINED
    assert rig.fetch_ahead(small(0), None, rig.clock.now_s).outcome is FetchOutcome.JOINED
    assert rig.fetch_ahead(small(0), None, rig.clock.now_s + 1).outcome is FetchOutcome.FETCHED
    assert rig.store.asked == [0, 0]


def test_a_failed_fetch_ahead_has_a_reason_and_a_failed_push_costs_no_copy() -> None:
    def fail(_data: memoryview) -> bool:
        raise ValueError("a bug")

    with Rig(Shelf()) as rig:
        rig.store.error = StoreError("down")
        arrival = rig.fetch_ahead(small(0))
        assert (arrival.outcome, arrival.error) == (FetchOutcome.FAILED, rig.store.error)
        assert rig.fetches.held_bytes == 0
        rig.store.error = None
        with pytest.raises(ValueError, match="a bug"):
            rig.fetch_ahead(small(1), fail)
        assert rig.shelf.blocks == {small(1): data_of(small(1))}
        assert rig.fetches.held_bytes == 0


def test_readers_waiting_for_memory_are_admitted_during_a_push_one_at_a_time() -> None:
    """A push waits for pages that a reader has locked, who may wait for memory himself."""
    with Rig(blocks=1) as rig, ThreadPoolExecutor(1) as threads:
        pushed, second = rig.gate(), rig.gate()
        rig.store.gate.clear()
        bringing = threads.submit(rig.fetch_ahead, block(0), lambda _data: pushed.wait(PATIENCE_S))
        wait_until(lambda: rig.store.asked)
        answers = [rig.request(block(1), lambda: bytes(second.wait(PATIENCE_S) * LENGTH))]
        wait_until(lambda: rig.fetches._queue)
        answers.append(rig.request(block(2)))
        wait_until(lambda: len(rig.fetches._queue) == 2)
        rig.store.gate.set()
        wait_until(lambda: len(rig.fetches._queue) == 1)
        assert rig.fetches.held_bytes == 2 * LENGTH
        assert not rig.prefetch(block(3))
        second.set()
        wait_until(lambda: all(answers))
        assert not bringing.done()
        pushed.set()
        bringing.result(PATIENCE_S)
        rig.store.gate.clear()
        rig.request(block(4))
        rig.request(block(5))
        wait_until(lambda: rig.fetches._queue)
        assert rig.fetches.held_bytes == LENGTH, "what was pushed lets nobody in any more"


# -- disks that hang --------------------------------------------------------------------------


def test_a_hanging_store_write_is_given_up_and_frees_its_memory_and_thread() -> None:
    with Rig(Shelf(), blocks=1, threads=1) as rig:
        rig.shelf.gate.clear()
        first, second = rig.request(block(0)), rig.request(block(1))
        wait_until(lambda: rig.shelf.writes)
        hanging = rig.fetches.find(block(0))
        assert hanging is not None
        rig.look_after(HUNG_S)
        assert (rig.fetches.held_bytes, rig.store.asked) == (LENGTH, [0]), "a busy one needs that"
        rig.look_after(0.1)
        wait_until(lambda: second)
        assert hanging.state is State.RELEASED
        assert [part for (part,) in (first, second)] == [DATA[:LENGTH], DATA[LENGTH:200]]
        assert rig.fetches.held_bytes == LENGTH, "the second is being stored"
        rig.shelf.gate.set()
        wait_until(lambda: len(rig.shelf.blocks) == 2)
        rig.fetches.wait_until_stored()
        assert rig.fetches.held_bytes == LENGTH, "what is over is not given back twice"
        assert rig.fetches.find(block(0)) is None
        assert rig.fetches.find(block(1)) is not None


def test_settling_ends_when_a_hanging_store_write_is_given_up() -> None:
    with Rig(Shelf()) as rig, ThreadPoolExecutor(1) as threads:
        rig.shelf.gate.clear()
        rig.request(small(0))
        wait_until(lambda: rig.shelf.writes)
        settling = threads.submit(rig.fetches.wait_until_stored)
        wait_until(lambda: rig.fetches._settling)
        rig.look_after(HUNG_S + 0.1)
        settling.result(PATIENCE_S)
        assert (rig.fetches.held_bytes, rig.fetches.in_flight) == (0, 0)
        rig.look_after(HUNG_S + 0.1)
        assert rig.fetches._small._replaced == 1, "it is given up once"


def test_a_long_push_does_not_use_up_the_time_limit_of_the_store_write() -> None:
    with Rig(Shelf()) as rig, ThreadPoolExecutor(1) as threads:
        pushing, pushed = rig.gate(), rig.gate()

        def place(_data: memoryview) -> bool:
            pushing.set()
            return pushed.wait(PATIENCE_S)

        bringing = threads.submit(rig.fetch_ahead, small(0), place)
        assert pushing.wait(PATIENCE_S)
        rig.shelf.gate.clear()
        rig.look_after(100)
        assert rig.fetches.held_bytes == LENGTH
        pushed.set()
        wait_until(lambda: rig.shelf.writes)
        rig.look_after(HUNG_S)
        assert rig.fetches.in_flight == 1
        rig.look_after(0.1)
        assert (rig.fetches.in_flight, rig.fetches.held_bytes) == (0, 0)
        rig.shelf.gate.set()
        assert bringing.result(PATIENCE_S).outcome is FetchOutcome.FETCHED
