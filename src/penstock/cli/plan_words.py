"""What `penstock plan` answers: figures for programs, and sentences made of them."""

from dataclasses import dataclass
from typing import Any

from penstock.units import format_bit_rate
from penstock.warm.simulate import Dataset, Epoch, Rig, Shuffles, Way, run_epochs, warm_up
from penstock.warm.smallest import BUSY_ENOUGH, Smallest, find_smallest

# From the third epoch on all are alike: what a cache holds does not change any more.
_DIFFERENT_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Question:
    dataset: Dataset
    rig: Rig
    epochs: int
    seed: int


def answer(question: Question) -> dict[str, Any]:
    dataset, rig = question.dataset, question.rig
    shuffles = Shuffles(dataset, rig.batch, question.seed)
    numbers = range(1, min(question.epochs, _DIFFERENT_EPOCHS) + 1)
    runs = {way: run_epochs(shuffles, rig, way, numbers) for way in Way}
    smallest = find_smallest(shuffles, rig)
    return {
        "files": dataset.files,
        "bytes": dataset.size_bytes,
        "demand_bytes_per_s": rig.rates.samples_per_s * dataset.mean_bytes,
        "cache_bytes": rig.cache_bytes,
        "ways": [_way(way, runs[way], question) for way in Way],
        "smallest": {
            "busy": BUSY_ENOUGH,
            "bandwidth_bytes_per_s": smallest.bandwidth_bytes_per_s,
            "concurrency": smallest.concurrency,
            "workers": smallest.workers,
            "cache_share": smallest.cache_share,
            "cache_share_planned": smallest.cache_share_planned,
        },
        "advice": [
            _with_a_plan(runs[Way.PLANNED][0], smallest),
            _without(runs[Way.UNPLANNED][0], smallest, rig),
            *_too_few_workers(rig),
        ],
    }


def _way(way: Way, epochs: tuple[Epoch, ...], question: Question) -> dict[str, Any]:
    later = question.epochs - len(epochs)
    found: dict[str, Any] = {"way": way.value, "storage_is_told_the_order": way is Way.PLANNED}
    whole_s = sum(epoch.whole_s for epoch in epochs) + later * epochs[-1].whole_s
    if way is Way.WARMED:
        loading = warm_up(question.dataset, question.rig)
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
            "until": question.epochs if epoch is epochs[-1] else epoch.number,
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


def _with_a_plan(first: Epoch, smallest: Smallest) -> str:
    said = f"With a plan the accelerator is busy {first.busy:.0%} of the first epoch"
    rate, gets = smallest.bandwidth_bytes_per_s, smallest.concurrency
    needed = " or ".join(
        ([] if rate is None else [format_bit_rate(rate)])
        + ([] if gets is None else [f"{gets:,} GET{'s' * (gets > 1)} in flight"])
    )
    if first.busy >= BUSY_ENOUGH:
        return f"{said}; {needed} would be enough for {BUSY_ENOUGH:.0%}."
    if needed:
        said += f"; it takes {needed} for {BUSY_ENOUGH:.0%}"
    else:
        said += f"; neither bandwidth nor GETs in flight alone make it {BUSY_ENOUGH:.0%}"
    return said + _later(smallest.cache_share_planned, bool(needed))


def _without(first: Epoch, smallest: Smallest, rig: Rig) -> str:
    said = f"Without a plan it is busy {first.busy:.0%} of the first epoch"
    if first.busy >= BUSY_ENOUGH:
        return f"{said}: {rig.rates.workers:,} workers are enough to hide the latency."
    if smallest.workers is None:
        said += f"; no number of workers makes it {BUSY_ENOUGH:.0%}"
    else:
        said += f"; it takes {smallest.workers:,} workers for {BUSY_ENOUGH:.0%}"
    return said + _later(smallest.cache_share, smallest.workers is not None)


def _later(cache_share: float | None, first_can_be_helped: bool) -> str:
    """The end of a sentence on the first epoch: what a cache does from the second one on."""
    if cache_share is None:
        return "."
    if cache_share == 0:
        return "; from epoch 2 on it is busy without a cache."
    if first_can_be_helped:
        return f", or from epoch 2 on a cache of {cache_share:.0%}."
    return f"; from epoch 2 on a cache of {cache_share:.0%} does."


def _too_few_workers(rig: Rig) -> list[str]:
    """No store and no cache can help a loader that is too slow by itself."""
    rates = rig.rates
    if rates.sample_s * rates.samples_per_s <= rates.workers:
        return []
    most = rates.workers / rates.sample_s
    return [
        f"The loader itself is too slow: {rates.workers:,} workers that work "
        f"{rates.sample_s * 1000:g} ms on a sample make {most:,.0f} samples/s."
    ]
