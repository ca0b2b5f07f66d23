"""A predicted run: what a cache hits, its epochs, and the least that keeps it busy."""

import heapq
import math
import random
from dataclasses import replace

import pytest

from penstock.warm.prefetcher import MOST_IN_FLIGHT
from penstock.warm.simulate import (
    Batch,
    Dataset,
    Rates,
    Rig,
    Shuffles,
    Strategy,
    feed_planned,
    feed_unplanned,
    find_minimums,
    lru_hit_chance,
    lru_hit_share,
    predict,
    predict_warm_up,
    run_epochs,
)

KIB = 1024
IMAGENET = Dataset(1_281_167, 1_281_167 * 110 * KIB)
H100 = Rates(samples_per_s=1786, latency_s=0.03, bandwidth_bytes_per_s=1.25e9)


def rig(cache: float, dataset: Dataset = IMAGENET, rates: Rates = H100, **more: object) -> Rig:
    return replace(Rig(rates, cache_bytes=cache * dataset.size_bytes), **more)


def test_a_first_epoch_waits_for_latency_without_a_plan_and_not_with_one() -> None:
    (unplanned,) = predict(IMAGENET, rig(1), Strategy.UNPLANNED, epochs=1)
    (planned,) = predict(IMAGENET, rig(1), Strategy.PLANNED, epochs=1)
    assert H100.concurrency == MOST_IN_FLIGHT, "as in the prefetcher"
    assert unplanned.samples_per_s == pytest.approx(8 / 0.03, rel=0.01)
    assert unplanned.busy == pytest.approx(8 / 0.03 / 1786, rel=0.01)
    assert planned.busy > 0.999
    assert planned.stall_s == pytest.approx(planned.first_batch_s)


@pytest.mark.parametrize("way", Strategy)
def test_half_a_keep_cache_misses_half_in_later_epochs(way: Strategy) -> None:
    first, second = predict(IMAGENET, rig(0.5), way)
    assert second.gets == pytest.approx(IMAGENET.files / 2, abs=1)
    assert second.store_bytes == pytest.approx(IMAGENET.size_bytes / 2, rel=1e-3)
    assert second.hit_share == pytest.approx(0.5, abs=1e-6)
    assert first.hit_share == (pytest.approx(0.5, abs=1e-6) if way is Strategy.WARMED else 0)


def test_the_page_cache_keeps_three_quarters_with_a_plan_and_the_latest_files_without() -> None:
    for share, planned, unplanned in ((0.5, 0.375, 0.153), (4 / 3, 1, 1)):
        with_memory = rig(0, page_cache_bytes=share * IMAGENET.size_bytes)
        hits = [predict(IMAGENET, with_memory, way)[1].hit_share for way in Strategy]
        assert hits == pytest.approx([unplanned, planned, unplanned], abs=0.001)


def test_a_warm_up_lasts_as_long_as_bandwidth_or_requests_in_flight_require() -> None:
    loading = predict_warm_up(IMAGENET, rig(0.5, rates=replace(H100, concurrency=4096)))
    assert loading.whole_s == pytest.approx(0.03 + IMAGENET.size_bytes / 2 / 1.25e9)
    endless = replace(H100, bandwidth_bytes_per_s=math.inf, concurrency=64)
    assert predict_warm_up(IMAGENET, rig(1, rates=endless)).whole_s == pytest.approx(
        IMAGENET.files * 0.03 / 64
    )
    assert predict_warm_up(IMAGENET, rig(0)).gets == 0


def test_files_cost_a_get_for_each_block_and_sampled_sizes_keep_their_sum() -> None:
    for dataset, gets in (
        (Dataset(100_000, 100_000 * 5000, [1, 10, 100, 1000, 100_000]), 100_000),
        (Dataset(4, (28 << 20) + 1, [20 << 20, 8 << 20, 0, 1]), 3 + 1 + 0 + 1),
        (Dataset(10, 0, [0] * 10), 0),
    ):
        (epoch,) = predict(dataset, rig(0, dataset), Strategy.PLANNED, epochs=1)
        assert epoch.gets == gets
        assert epoch.store_bytes == pytest.approx(dataset.size_bytes)


def test_an_epoch_of_very_many_batches_is_scaled() -> None:
    small = Dataset(1_600_000, 1_600_000 * 1000)  # as many batches as are simulated
    large = Dataset(small.files * 1000, small.size_bytes * 1000)
    for way in Strategy:
        (one,) = predict(small, rig(0.5, small), way, epochs=1)
        (other,) = predict(large, rig(0.5, large), way, epochs=1)
        assert other.first_batch_s == one.first_batch_s
        assert other.whole_s == pytest.approx(1000 * one.whole_s, rel=0.01)
        assert other.gets == pytest.approx(1000 * one.gets)


def test_the_computed_minimum_is_enough_and_slightly_less_is_not() -> None:
    shuffles, asked = Shuffles(IMAGENET, 400), rig(0.5)
    found = find_minimums(shuffles, asked)
    demand = 1786 * IMAGENET.mean_bytes
    assert found.bandwidth_bytes_per_s == pytest.approx(0.95 * demand, rel=0.02)
    assert found.concurrency == pytest.approx(0.95 * 1786 * 0.03, abs=2)
    assert found.cache_share_planned == 0

    def busy(way: Strategy, epoch: int, cache: float = 0.5, **changes: float) -> float:
        changed = rig(cache, rates=replace(H100, **changes))
        return run_epochs(shuffles, changed, way, [epoch])[0].busy

    assert busy(Strategy.PLANNED, 1, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s) >= 0.95
    assert (
        busy(Strategy.PLANNED, 1, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s / 1.02) < 0.95
    )
    assert busy(Strategy.PLANNED, 1, concurrency=found.concurrency) >= 0.95
    assert busy(Strategy.PLANNED, 1, concurrency=found.concurrency - 1) < 0.95
    assert busy(Strategy.UNPLANNED, 1, workers=found.workers) >= 0.95
    assert busy(Strategy.UNPLANNED, 1, workers=found.workers - 1) < 0.95
    assert busy(Strategy.UNPLANNED, 2, found.cache_share) >= 0.95
    assert busy(Strategy.UNPLANNED, 2, found.cache_share - 0.01) < 0.95


def test_nothing_is_suggested_where_no_single_change_suffices() -> None:
    slow_loader = replace(H100, sample_s=0.01)  # 8 workers make 800 samples/s of what is at hand
    found = find_minimums(Shuffles(IMAGENET, 400), rig(0.5, rates=slow_loader))
    assert (found.bandwidth_bytes_per_s, found.concurrency) == (None, None)
    assert (found.cache_share, found.cache_share_planned) == (None, None)
    assert found.workers is not None
    # But a cache makes up for a narrow network.
    tenth = Dataset(IMAGENET.files // 10, IMAGENET.size_bytes // 10)
    narrow = replace(H100, bandwidth_bytes_per_s=0.5 * 1786 * tenth.mean_bytes)
    found = find_minimums(Shuffles(tenth, 400), rig(0, tenth, rates=narrow))
    assert found.cache_share_planned == pytest.approx(1 - 0.5 / 0.95, abs=0.02)
    assert found.concurrency is None
    assert found.workers is None


@pytest.mark.parametrize(
    ("share", "hits"),
    [(0.25, 0.03), (0.5, 0.15), (0.75, 0.40), (0.9, 0.67), (1, 1), (2, 1), (0, 0)],
)
def test_lru_hits_little_in_a_shuffled_epoch(share: float, hits: float) -> None:
    assert lru_hit_share(share) == pytest.approx(hits, abs=0.005)
    mean = sum(lru_hit_chance(share, (at + 0.5) / 1000) for at in range(1000)) / 1000
    assert mean == pytest.approx(hits, abs=0.005), "over all positions"
    assert share >= 1 or lru_hit_chance(share, share) == 0, "behind its share nothing is held"


# Batches on their way to an accelerator: closed cases by hand, others GET by GET.
SIZE = 112_640
AT_ONCE = 1e12  # samples/s of an accelerator that never holds anybody up
NEVER_FULL = math.inf


def rates(samples_per_s: float = AT_ONCE, bandwidth: float = NEVER_FULL, **more: float) -> Rates:
    return replace(Rates(samples_per_s, 0.03, bandwidth), **more)


def cold(batches: int, samples: int = 400) -> list[Batch]:
    return [Batch(samples, samples, samples * SIZE, samples)] * batches


def test_without_a_plan_eight_workers_at_30_ms_make_267_samples_a_second() -> None:
    timing = feed_unplanned(cold(80), rates())
    assert timing.whole_s == pytest.approx(80 * 400 / (8 / 0.03))
    assert timing.first_batch_s == pytest.approx(400 * 0.03)
    bound = feed_unplanned(cold(80), rates(concurrency=4))
    assert bound.whole_s == pytest.approx(80 * 400 / (4 / 0.03)), "so many GETs may be in flight"
    # Files of many blocks take as many GETs.
    large = [Batch(10, 10, 10 * SIZE, 120)] * 8
    assert feed_unplanned(large, rates()).whole_s == pytest.approx(10 * 0.03)
    (timing,) = feed_planned([large], rates(concurrency=4))
    assert timing.whole_s == pytest.approx(8 * 120 / (4 / 0.03))
    # What is at hand takes the workers' own time.
    warm, own = [Batch(400, 0, 0.0, 0)] * 80, rates(sample_s=0.01)
    for timing in (feed_unplanned(warm, own), feed_planned([warm], own)[0]):
        assert timing.whole_s == pytest.approx(80 * 400 * 0.01 / 8)


def test_a_planned_epoch_takes_one_latency_and_its_transfer_and_crosses_into_the_next() -> None:
    (timing,) = feed_planned([cold(80)], rates(bandwidth=1000 * SIZE))
    assert timing.first_batch_s == pytest.approx(0.03 + 400 / 1000)
    assert timing.whole_s == pytest.approx(0.03 + 80 * 400 / 1000)
    first, second = feed_planned([cold(80), cold(80)], rates(1786, bandwidth=1.3 * 1786 * SIZE))
    assert first.first_batch_s > 0.03
    assert first.whole_s == pytest.approx(first.first_batch_s + 80 * 400 / 1786)
    assert second.first_batch_s == pytest.approx(0)
    # With no room ahead it still fetches what the workers wait for.
    tight = rates(1786, bandwidth=1.05 * 1786 * SIZE)
    first, second = feed_planned([cold(80), cold(80)], tight, ahead_bytes=0)
    assert first.whole_s == pytest.approx(first.first_batch_s + 80 * 400 / 1786)
    # Its first batch was asked for while the last step of the epoch before it was made.
    assert second.first_batch_s == pytest.approx(0.03 + 400 / 1786 / 1.05 - 400 / 1786)


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
def test_unplanned_epochs_match_a_simulation_of_each_get(rate: int, hits: float) -> None:
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
    reported = feed_unplanned(batches, rates(bandwidth=rate * SIZE, queued=8))
    assert reported.whole_s == pytest.approx(played_s, rel=0.05)
