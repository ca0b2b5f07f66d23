"""Predict how a training will run before it is run: epochs, stalls, traffic, and what would be
enough. Reads nothing and asks no store; a mount is asked for its file sizes only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cache.policy import POLICIES
from penstock.cache.tier import DEFAULT_HIGH
from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import find_served, resolve_mountpoint
from penstock.units import format_bit_rate
from penstock.warm.simulate import (
    BUSY_ENOUGH,
    MOST_SIZES,
    Dataset,
    Epoch,
    Minimums,
    Rates,
    Rig,
    Shuffles,
    Strategy,
    find_minimums,
    predict_warm_up,
    run_epochs,
)

__all__ = ["POLICIES", "Dataset", "Rates", "Rig", "Training", "dataset_of_mount", "predict"]

# All epochs from the third on are alike: what the cache holds does not change any more.
_DIFFERENT_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Training:
    dataset: Dataset
    rig: Rig
    epochs: int
    seed: int


def predict(training: Training) -> dict[str, Any]:
    """Return the figures that `penstock plan -o json` prints, and sentences of advice."""
    dataset, rig = training.dataset, training.rig
    shuffles = Shuffles(dataset, rig.batch, training.seed)
    numbers = range(1, min(training.epochs, _DIFFERENT_EPOCHS) + 1)
    runs = {one: run_epochs(shuffles, rig, one, numbers) for one in Strategy}
    minimums = find_minimums(shuffles, rig)
    return {
        "files": dataset.files,
        "bytes": dataset.size_bytes,
        "demand_bytes_per_s": rig.rates.samples_per_s * dataset.mean_bytes,
        "cache_bytes": rig.cache_bytes,
        "ways": [_strategy(one, runs[one], training) for one in Strategy],
        "smallest": {
            "busy": BUSY_ENOUGH,
            "bandwidth_bytes_per_s": minimums.bandwidth_bytes_per_s,
            "concurrency": minimums.concurrency,
            "workers": minimums.workers,
            "cache_share": minimums.cache_share,
            "cache_share_planned": minimums.cache_share_planned,
        },
        "advice": [
            _with_a_plan(runs[Strategy.PLANNED][0], minimums),
            _without(runs[Strategy.UNPLANNED][0], minimums, rig),
            *_too_few_workers(rig),
        ],
    }


def _strategy(strategy: Strategy, epochs: tuple[Epoch, ...], training: Training) -> dict[str, Any]:
    later = training.epochs - len(epochs)
    found: dict[str, Any] = {
        "way": strategy.value,
        "storage_is_told_the_order": strategy is Strategy.PLANNED,
    }
    whole_s = sum(epoch.whole_s for epoch in epochs) + later * epochs[-1].whole_s
    if strategy is Strategy.WARMED:
        loading = predict_warm_up(training.dataset, training.rig)
        whole_s += loading.whole_s
        found["warm_up"] = {
            "whole_s": loading.whole_s,
            "store_bytes": round(loading.store_bytes),
            "gets": loading.gets,
        }
    found["whole_s"] = whole_s
    found["epochs"] = [
        {
            "number": epoch.number,
            "until": training.epochs if epoch is epochs[-1] else epoch.number,
            "busy": epoch.busy,
            "busy_after_first_batch": epoch.busy_after_first_batch,
            "stall_s": epoch.stall_s,
            "whole_s": epoch.whole_s,
            "samples_per_s": epoch.samples_per_s,
            "first_batch_s": epoch.first_batch_s,
            "store_bytes": round(epoch.store_bytes),
            "gets": epoch.gets,
            "hit_share": epoch.hit_share,
        }
        for epoch in epochs
    ]
    return found


def _with_a_plan(first: Epoch, minimums: Minimums) -> str:
    text = f"With a plan the accelerator is busy {first.busy:.0%} of the first epoch"
    rate, gets = minimums.bandwidth_bytes_per_s, minimums.concurrency
    needed = " or ".join(
        ([] if rate is None else [format_bit_rate(rate)])
        + ([] if gets is None else [f"{gets:,} GET{'s' * (gets > 1)} in flight"])
    )
    if first.busy >= BUSY_ENOUGH:
        return f"{text}; {needed} would be enough for {BUSY_ENOUGH:.0%}."
    if needed:
        text += f"; it takes {needed} for {BUSY_ENOUGH:.0%}"
    else:
        text += f"; neither bandwidth nor GETs in flight alone make it {BUSY_ENOUGH:.0%}"
    return text + _later(minimums.cache_share_planned, bool(needed))


def _without(first: Epoch, minimums: Minimums, rig: Rig) -> str:
    text = f"Without a plan it is busy {first.busy:.0%} of the first epoch"
    if first.busy >= BUSY_ENOUGH:
        return f"{text}: {rig.rates.workers:,} workers are enough to hide the latency."
    if minimums.workers is None:
        text += f"; no number of workers makes it {BUSY_ENOUGH:.0%}"
    else:
        text += f"; it takes {minimums.workers:,} workers for {BUSY_ENOUGH:.0%}"
    return text + _later(minimums.cache_share, minimums.workers is not None)


def _later(cache_share: float | None, first_can_improve: bool) -> str:
    """The end of a sentence about the first epoch: what a cache does from the second one on."""
    if cache_share is None:
        return "."
    if cache_share == 0:
        return "; from epoch 2 on it is busy without a cache."
    if first_can_improve:
        return f", or from epoch 2 on a cache of {cache_share:.0%}."
    return f"; from epoch 2 on a cache of {cache_share:.0%} does."


def _too_few_workers(rig: Rig) -> list[str]:
    """Warn of a loader whose workers are too few, whatever the store and the cache do."""
    rates = rig.rates
    if rates.sample_s * rates.samples_per_s <= rates.workers:
        return []
    most = rates.workers / rates.sample_s
    return [
        f"The loader itself is too slow: {rates.workers:,} workers that work "
        f"{rates.sample_s * 1000:g} ms on a sample make {most:,.0f} samples/s."
    ]


def dataset_of_mount(mountpoint: str) -> tuple[Dataset, float]:
    """The files of a mount, and how many bytes its cache holds; a data set of 0 files if empty."""
    stats = ask(find_served(resolve_mountpoint(mountpoint)).socket_path, "stats")
    dataset = Dataset(stats["files"], stats["bytes"], _read_sizes(stats))
    return dataset, sum(tier["quota_bytes"] * DEFAULT_HIGH for tier in stats["tiers"])


def _read_sizes(stats: dict[str, Any]) -> list[int]:
    """Empty with a server older than this program: then all files count as equally large."""
    if "catalog" not in stats:
        return []
    from penstock.catalog.file_set import read_sizes

    return list(read_sizes(Path(stats["catalog"]), MOST_SIZES))
