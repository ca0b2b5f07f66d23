"""Threads that take jobs: as many as there are jobs at once, and no more than allowed."""

import threading

import pytest

from penstock.cache.pool import Pool
from tests.support.waiting import wait_until


@pytest.mark.parametrize("most", [1, 3])
def test_a_job_waits_for_a_thread_only_while_all_are_busy(most: int) -> None:
    pool = Pool(most, "job")
    for _ in range(3):  # counts that drift would show in a later round
        gate, begun, ended = threading.Event(), list[int](), list[int]()

        def job(
            gate: threading.Event = gate, begun: list[int] = begun, ended: list[int] = ended
        ) -> None:
            begun.append(1)
            gate.wait(30)
            ended.append(1)

        for _ in range(most + 2):
            pool.submit(job)
        wait_until(lambda begun=begun: len(begun) == most)
        gate.set()
        wait_until(lambda ended=ended: len(ended) == most + 2)
        wait_until(lambda: pool._idle == most)
        assert (pool._unclaimed, len(pool._threads)) == (0, most)
    pool.close(10)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_idle_threads_are_used_before_new_ones_are_started() -> None:
    pool = Pool(8, "job")
    for number in range(20):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(30)
        wait_until(lambda: pool._idle == 1, f"after job {number}")
    assert len(pool._threads) == 1
    pool.close(10)


def test_a_failed_job_does_not_end_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    pool, done = Pool(1, "job"), threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    pool.submit(fail)
    pool.submit(done.set)
    assert done.wait(30)
    assert "a job failed" in caplog.text
    pool.close(10)


def test_existing_threads_run_the_job_when_no_more_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, gate, done = Pool(4, "job"), threading.Event(), threading.Event()
    pool.submit(lambda: gate.wait(30))

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pool.submit(done.set)
        with pytest.raises(RuntimeError):
            Pool(1, "none").submit(done.set)
    gate.set()
    assert done.wait(30)
    pool.close(10)


def test_jobs_that_have_not_started_are_dropped_at_close() -> None:
    pool, gate, done = Pool(1, "job"), threading.Event(), threading.Event()
    begun = threading.Event()
    pool.submit(lambda: (begun.set(), gate.wait(30)))
    assert begun.wait(30)
    pool.submit(done.set)
    pool.close(0)
    gate.set()
    pool._threads[0].join(30)
    assert not done.is_set()


def test_another_thread_runs_the_next_job_of_a_hung_thread() -> None:
    pool, gate, done = Pool(1, "job"), threading.Event(), list[int]()
    begun = threading.Event()
    pool.submit(lambda: (begun.set(), gate.wait(30)))
    assert begun.wait(30)
    pool.submit(lambda: done.append(1))
    pool.replace_hung_thread()
    wait_until(lambda: done == [1])
    wait_until(lambda: pool._idle == 1)
    pool.submit(lambda: done.append(2))
    wait_until(lambda: done == [1, 2])
    assert (len(pool._threads), pool._unclaimed) == (2, 0)
    gate.set()
    pool.close(10)


def test_a_hung_thread_is_replaced_even_while_the_queue_is_empty() -> None:
    pool, gate, done = Pool(1, "job"), threading.Event(), threading.Event()
    begun = threading.Event()
    pool.submit(lambda: (begun.set(), gate.wait(30)))
    assert begun.wait(30)
    pool.replace_hung_thread()
    assert len(pool._threads) == 1
    pool.submit(done.set)
    assert done.wait(30)
    gate.set()
    pool.close(10)
