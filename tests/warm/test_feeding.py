"""Batches on their way to an accelerator: closed cases by hand, others GET by GET."""

import heapq
import math
import random
from dataclasses import replace

import pytest

from penstock.warm.feeding import Batch, Rates, feed_planned, feed_unplanned

SIZE = 112_640
AT_ONCE = 1e12  # samples/s of an accelerator that never holds anybody up
NEVER_FULL = math.inf


def rates(samples_per_s: float = AT_ONCE, bandwidth: float = NEVER_FULL, **more: float) -> Rates:
    return replace(Rates(samples_per_s, 0.03, bandwidth), **more)


def cold(batches: int, samples: int = 400) -> list[Batch]:
    return [Batch(samples, samples, samples * SIZE, samples)] * batches


# -- by hand ----------------------------------------------------------------------------


def test_eight_workers_at_30_ms_make_267_samples_a_second() -> None:
    timing = feed_unplanned(cold(80), rates())
    assert timing.whole_s == pytest.approx(80 * 400 / (8 / 0.03))
    assert timing.first_batch_s == pytest.approx(400 * 0.03)
    bound = feed_unplanned(cold(80), rates(concurrency=4))
    assert bound.whole_s == pytest.approx(80 * 400 / (4 / 0.03)), "so many GETs may be in flight"


def test_a_planned_epoch_takes_one_latency_and_its_transfer() -> None:
    (timing,) = feed_planned([cold(80)], rates(bandwidth=1000 * SIZE))
    assert timing.first_batch_s == pytest.approx(0.03 + 400 / 1000)
    assert timing.whole_s == pytest.approx(0.03 + 80 * 400 / 1000)


def test_a_plan_crosses_the_boundary_between_epochs() -> None:
    first, second = feed_planned([cold(80), cold(80)], rates(1786, bandwidth=1.3 * 1786 * SIZE))
    assert first.first_batch_s > 0.03
    assert first.whole_s == pytest.approx(first.first_batch_s + 80 * 400 / 1786)
    assert second.first_batch_s == pytest.approx(0)


def test_a_plan_with_no_room_ahead_still_fetches_what_the_workers_wait_for() -> None:
    tight = rates(1786, bandwidth=1.05 * 1786 * SIZE)
    first, second = feed_planned([cold(80), cold(80)], tight, ahead_bytes=0)
    assert first.whole_s == pytest.approx(first.first_batch_s + 80 * 400 / 1786)
    # Its first batch was asked for while the last step of the epoch before it was made.
    assert second.first_batch_s == pytest.approx(0.03 + 400 / 1786 / 1.05 - 400 / 1786)


def test_what_is_at_hand_takes_the_workers_own_time() -> None:
    warm = [Batch(400, 0, 0.0, 0)] * 80
    own = rates(sample_s=0.01)
    assert feed_unplanned(warm, own).whole_s == pytest.approx(80 * 400 * 0.01 / 8)
    assert feed_planned([warm], own)[0].whole_s == pytest.approx(80 * 400 * 0.01 / 8)


def test_files_of_many_blocks_take_as_many_gets() -> None:
    large = [Batch(10, 10, 10 * SIZE, 120)] * 8
    (timing,) = feed_planned([large], rates(concurrency=4))
    assert timing.whole_s == pytest.approx(8 * 120 / (4 / 0.03))
    assert feed_unplanned(large, rates()).whole_s == pytest.approx(10 * 0.03)


# -- GET by GET -------------------------------------------------------------------------


def play(queues: list[list[float]], latency_s: float, bandwidth: float) -> float:
    """When the last GET is done. Each queue sends one after the other (its sizes in bytes; 0 is a
    hit); bodies on their way share the bandwidth evenly."""
    waiting: list[tuple[float, int, float]] = []  # (its body begins, queue, size)
    moving: dict[int, float] = {}  # bytes left, by queue
    rest = [iter(queue) for queue in queues]
    now = 0.0

    def send(number: int) -> None:
        for size in rest[number]:
            if size:
                heapq.heappush(waiting, (now + latency_s, number, size))
                return

    for number in range(len(queues)):
        send(number)
    while waiting or moving:
        share = bandwidth / len(moving) if moving else 0.0
        done_s = now + min(moving.values()) / share if moving else math.inf
        next_s = min(done_s, waiting[0][0] if waiting else math.inf)
        moving = {number: left - (next_s - now) * share for number, left in moving.items()}
        now = next_s
        while waiting and waiting[0][0] <= now:
            _, number, size = heapq.heappop(waiting)
            moving[number] = size
        for number in [number for number, left in moving.items() if left <= 1e-6]:
            del moving[number]
            send(number)
    return now


# Bodies a second; 8 workers ask for 267.
@pytest.mark.parametrize(("rate", "hits"), [(40, 0.0), (150, 0.5), (250, 0.9), (1000, 0.0)])
def test_unplanned_epochs_last_as_long_as_when_each_get_is_played(rate: int, hits: float) -> None:
    rng = random.Random(rate)
    drawn = [
        [0.0 if rng.random() < hits else rng.uniform(0.2, 1.8) * SIZE for _ in range(50)]
        for _ in range(64)
    ]
    misses = [sum(map(bool, sizes)) for sizes in drawn]
    batches = [
        Batch(50, count, sum(sizes), count) for sizes, count in zip(drawn, misses, strict=True)
    ]
    queues = [[size for sizes in drawn[worker::8] for size in sizes] for worker in range(8)]
    played_s = play(queues, 0.03, rate * SIZE)
    # Every batch is handed out at once: what is compared is only how GETs share the network.
    told = feed_unplanned(batches, rates(bandwidth=rate * SIZE, queued=8))
    assert told.whole_s == pytest.approx(played_s, rel=0.05)
