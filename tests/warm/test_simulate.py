"""A predicted run: what a cache hits, its epochs, and the least that keeps it busy."""

import math
from dataclasses import replace

import pytest

from penstock.warm.feeding import Rates
from penstock.warm.hits import (
    lru_hit_chance,
    lru_hit_share,
)
from penstock.warm.prefetcher import MOST_IN_FLIGHT
from penstock.warm.simulate import Dataset, Rig, Shuffles, Way, predict, run_epochs, warm_up
from penstock.warm.smallest import find_smallest

KIB = 1024
IMAGENET = Dataset(1_281_167, 1_281_167 * 110 * KIB)
H100 = Rates(samples_per_s=1786, latency_s=0.03, bandwidth_bytes_per_s=1.25e9)


def rig(cache: float, dataset: Dataset = IMAGENET, rates: Rates = H100, **more: object) -> Rig:
    return replace(Rig(rates, cache_bytes=cache * dataset.size_bytes), **more)


def test_a_first_epoch_without_a_plan_waits_for_latency_and_with_one_for_nothing() -> None:
    (unplanned,) = predict(IMAGENET, rig(1), Way.UNPLANNED, epochs=1)
    (planned,) = predict(IMAGENET, rig(1), Way.PLANNED, epochs=1)
    assert unplanned.samples_per_s == pytest.approx(8 / 0.03, rel=0.01)
    assert unplanned.busy == pytest.approx(8 / 0.03 / 1786, rel=0.01)
    assert planned.busy > 0.999
    assert planned.stall_s == pytest.approx(planned.first_batch_s)


@pytest.mark.parametrize("way", Way)
def test_half_a_cache_that_keeps_asks_for_half_in_later_epochs(way: Way) -> None:
    first, second = predict(IMAGENET, rig(0.5), way)
    assert second.gets == pytest.approx(IMAGENET.files / 2, abs=1)
    assert second.store_bytes == pytest.approx(IMAGENET.size_bytes / 2, rel=1e-3)
    assert second.hit_share == pytest.approx(0.5, abs=1e-6)
    assert first.hit_share == (pytest.approx(0.5, abs=1e-6) if way is Way.WARMED else 0)


def test_the_page_cache_keeps_three_quarters_for_a_plan_and_what_was_last_without_one() -> None:
    for share, planned, unplanned in ((0.5, 0.375, 0.153), (4 / 3, 1, 1)):
        with_memory = rig(0, page_cache_bytes=share * IMAGENET.size_bytes)
        hits = [predict(IMAGENET, with_memory, way)[1].hit_share for way in Way]
        assert hits == pytest.approx([unplanned, planned, unplanned], abs=0.001)


def test_a_warm_up_takes_what_bandwidth_or_gets_in_flight_take() -> None:
    loading = warm_up(IMAGENET, rig(0.5, rates=replace(H100, concurrency=4096)))
    assert loading.whole_s == pytest.approx(0.03 + IMAGENET.size_bytes / 2 / 1.25e9)
    endless = replace(H100, bandwidth_bytes_per_s=math.inf, concurrency=64)
    assert warm_up(IMAGENET, rig(1, rates=endless)).whole_s == pytest.approx(
        IMAGENET.files * 0.03 / 64
    )
    assert warm_up(IMAGENET, rig(0)).gets == 0


def test_sizes_that_stand_for_more_files_keep_the_sum() -> None:
    dataset = Dataset(100_000, 100_000 * 5000, [1, 10, 100, 1000, 100_000])
    (epoch,) = predict(dataset, rig(0, dataset), Way.PLANNED, epochs=1)
    assert epoch.store_bytes == pytest.approx(dataset.size_bytes)
    assert epoch.gets == dataset.files


def test_a_large_file_takes_a_get_for_each_block_and_an_empty_one_none() -> None:
    for sizes, gets in (([20 << 20, 8 << 20, 0, 1], 3 + 1 + 0 + 1), ([0] * 10, 0)):
        dataset = Dataset(len(sizes), sum(sizes), sizes)
        (epoch,) = predict(dataset, rig(0, dataset), Way.PLANNED, epochs=1)
        assert epoch.gets == gets


def test_an_epoch_of_very_many_batches_is_stretched() -> None:
    small = Dataset(1_600_000, 1_600_000 * 1000)  # as many batches as are simulated
    large = Dataset(small.files * 1000, small.size_bytes * 1000)
    for way in Way:
        (one,) = predict(small, rig(0.5, small), way, epochs=1)
        (other,) = predict(large, rig(0.5, large), way, epochs=1)
        assert other.first_batch_s == one.first_batch_s
        assert other.whole_s == pytest.approx(1000 * one.whole_s, rel=0.01)
        assert other.gets == pytest.approx(1000 * one.gets)


def test_gets_in_flight_are_bounded_as_in_the_prefetcher() -> None:
    assert H100.concurrency == MOST_IN_FLIGHT


# -- the least --------------------------------------------------------------------------


def test_the_least_that_is_found_is_enough_and_a_little_less_is_not() -> None:
    shuffles, asked = Shuffles(IMAGENET, 400), rig(0.5)
    found = find_smallest(shuffles, asked)
    assert found.bandwidth_bytes_per_s is not None
    assert found.concurrency is not None
    assert found.workers is not None
    assert found.cache_share is not None
    demand = 1786 * IMAGENET.mean_bytes
    assert found.bandwidth_bytes_per_s == pytest.approx(0.95 * demand, rel=0.02)
    assert found.concurrency == pytest.approx(0.95 * 1786 * 0.03, abs=2)
    assert found.cache_share_planned == 0

    def busy(way: Way, epoch: int, cache: float = 0.5, **changes: float) -> float:
        changed = rig(cache, rates=replace(H100, **changes))
        return run_epochs(shuffles, changed, way, [epoch])[0].busy

    assert busy(Way.PLANNED, 1, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s) >= 0.95
    assert busy(Way.PLANNED, 1, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s / 1.02) < 0.95
    assert busy(Way.PLANNED, 1, concurrency=found.concurrency) >= 0.95
    assert busy(Way.PLANNED, 1, concurrency=found.concurrency - 1) < 0.95
    assert busy(Way.UNPLANNED, 1, workers=found.workers) >= 0.95
    assert busy(Way.UNPLANNED, 1, workers=found.workers - 1) < 0.95
    assert busy(Way.UNPLANNED, 2, found.cache_share) >= 0.95
    assert busy(Way.UNPLANNED, 2, found.cache_share - 0.01) < 0.95


def test_where_nothing_alone_is_enough_nothing_is_named() -> None:
    slow_loader = replace(H100, sample_s=0.01)  # 8 workers make 800 samples/s of what is at hand
    found = find_smallest(Shuffles(IMAGENET, 400), rig(0.5, rates=slow_loader))
    assert (found.bandwidth_bytes_per_s, found.concurrency) == (None, None)
    assert (found.cache_share, found.cache_share_planned) == (None, None)
    assert found.workers is not None


def test_a_cache_makes_up_for_a_narrow_network() -> None:
    tenth = Dataset(IMAGENET.files // 10, IMAGENET.size_bytes // 10)
    narrow = replace(H100, bandwidth_bytes_per_s=0.5 * 1786 * tenth.mean_bytes)
    found = find_smallest(Shuffles(tenth, 400), rig(0, tenth, rates=narrow))
    assert found.cache_share_planned == pytest.approx(1 - 0.5 / 0.95, abs=0.02)
    assert found.concurrency is None
    assert found.workers is None


# -- what a cache hits in a shuffled epoch ----------------------------------------------------


@pytest.mark.parametrize(
    ("share", "hits"),
    [(0.25, 0.03), (0.5, 0.15), (0.75, 0.40), (0.9, 0.67), (1, 1), (2, 1), (0, 0)],
)
def test_lru_hits_little_of_a_shuffled_epoch(share: float, hits: float) -> None:
    assert lru_hit_share(share) == pytest.approx(hits, abs=0.005)
    mean = sum(lru_hit_chance(share, (at + 0.5) / 1000) for at in range(1000)) / 1000
    assert mean == pytest.approx(hits, abs=0.005), "over all positions"
    assert share >= 1 or lru_hit_chance(share, share) == 0, "behind its share nothing is held"
