"""What a training run will be like before it is run: epochs, stalls, bytes, requests. Pure.

A GET takes latency and its share of the bandwidth. Without a plan each worker of the loader waits
for one GET after the other; with one, GETs run ahead of the readers; after a warm-up the cache is
full before the first epoch. Which samples come from the store follows from cache and policy.

Not modelled: the processor time of GETs, a store that slows down or fails, the ramp with which
GETs in flight grow, files that change. Each epoch is shuffled anew and reads every file once.
Everything is drawn from the seed: the same question has the same answer.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import cycle, islice

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.errors import OptionError
from penstock.warm.feeding import Batch, Rates, Timing, feed_planned, feed_unplanned
from penstock.warm.hits import Chance, draw_misses, miss_chance, planned_miss_chance
from penstock.warm.memory import PageBudget
from penstock.warm.window import window_bytes

# Epochs of more batches are simulated by so many and stretched: 1.28 million files in batches of
# 400 are 3,204. More would change no figure that is printed.
_MOST_BATCHES = 4000
# So many sizes stand for all: a shuffle of these takes 30 ms, one of 1.28 million 0.7 s.
MOST_SIZES = 1 << 16


class Way(StrEnum):
    UNPLANNED = "no plan"
    PLANNED = "plan"
    WARMED = "warm-up"  # a warm-up as far as the cache goes, then epochs without a plan


@dataclass(frozen=True)
class Dataset:
    """How many files of which sizes. `sizes` may be a sample of them; none: all are alike."""

    files: int
    size_bytes: int
    sizes: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.files < 1 or self.size_bytes < 0:
            raise OptionError(
                "a data set without files cannot be simulated",
                hint="give a mount that has some, or files=1281167,mean=110KiB",
            )

    @property
    def mean_bytes(self) -> float:
        return self.size_bytes / self.files

    @cached_property
    def gets_a_file(self) -> float:
        """A large file is fetched in blocks, an empty one not at all."""
        sizes = self.sizes or (self.mean_bytes,)
        return sum(-(-size // DEFAULT_BLOCK_BYTES) for size in sizes) / len(sizes)


@dataclass(frozen=True, slots=True)
class Rig:
    """What the data set is read with."""

    rates: Rates
    batch: int = 400
    cache_bytes: float = 0  # what it can hold: of a tier's quota 99%, its high watermark
    page_cache_bytes: float = 0  # memory for pages; 0: none stay from one epoch to the next
    policy: str = "keep"


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    samples: int
    whole_s: float
    busy_s: float  # of the accelerator
    first_batch_s: float
    store_bytes: float
    gets: int
    hit_share: float  # of samples, in the cache or the page cache

    @property
    def busy(self) -> float:
        """The share of the time in which the accelerator works, the first batch's wait included."""
        return self.busy_s / self.whole_s

    @property
    def busy_after_first_batch(self) -> float:
        return self.busy_s / (self.whole_s - self.first_batch_s)

    @property
    def stall_s(self) -> float:
        return self.whole_s - self.busy_s

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.whole_s


@dataclass(frozen=True, slots=True)
class WarmUp:
    whole_s: float
    store_bytes: float
    gets: int


@dataclass(slots=True)
class Shuffles:
    """The bytes of each batch of each epoch, for one data set, batch size and seed; drawn once
    for all that is asked about them. Not for several threads."""

    dataset: Dataset
    batch: int
    seed: int = 0
    _drawn: dict[int, list[float]] = field(default_factory=dict[int, list[float]])

    @property
    def batches(self) -> list[int]:
        """The samples of each batch."""
        whole, rest = divmod(self.dataset.files, self.batch)
        if whole >= _MOST_BATCHES:
            return [self.batch] * _MOST_BATCHES
        return [self.batch] * whole + [rest] * bool(rest)

    def sizes(self, epoch: int) -> list[float]:
        if epoch not in self._drawn:
            self._drawn[epoch] = self._draw(epoch)
        return self._drawn[epoch]

    def rng(self, epoch: int, what: str) -> random.Random:
        return random.Random(f"{self.seed}/{epoch}/{what}")

    def _draw(self, epoch: int) -> list[float]:
        batches, mean = self.batches, self.dataset.mean_bytes
        if not any(self.dataset.sizes):
            return [samples * mean for samples in batches]
        order = list(self.dataset.sizes)
        self.rng(epoch, "order").shuffle(order)
        again = cycle(order)
        sums = [sum(islice(again, samples)) for samples in batches]
        scale = sum(batches) * mean / sum(sums)
        return [size * scale for size in sums]


def predict(
    dataset: Dataset, rig: Rig, way: Way, *, epochs: int = 2, seed: int = 0
) -> tuple[Epoch, ...]:
    """The first epoch from empty caches (after a warm-up: from a full one), and those after it."""
    return run_epochs(Shuffles(dataset, rig.batch, seed), rig, way, range(1, epochs + 1))


def run_epochs(shuffles: Shuffles, rig: Rig, way: Way, numbers: Sequence[int]) -> tuple[Epoch, ...]:
    """Only these epochs of a run; 1 is the first."""
    drawn = [_draw_batches(shuffles, rig, way, number) for number in numbers]
    if way is Way.PLANNED:
        timings = feed_planned(drawn, rig.rates, _ahead_bytes(shuffles.dataset, rig))
    else:
        timings = [feed_unplanned(batches, rig.rates) for batches in drawn]
    return tuple(
        _stretch(shuffles.dataset, rig, number, batches, timing)
        for number, batches, timing in zip(numbers, drawn, timings, strict=True)
    )


def warm_up(dataset: Dataset, rig: Rig) -> WarmUp:
    """Loads as much as the cache holds, as many GETs at once as may be."""
    rates, share = rig.rates, min(1.0, _share(rig.cache_bytes, dataset))
    size, gets = dataset.size_bytes * share, dataset.files * dataset.gets_a_file * share
    if not gets:
        return WarmUp(0.0, 0.0, 0)
    transfer_s = size / rates.bandwidth_bytes_per_s
    waiting_s = (gets * rates.latency_s + transfer_s) / rates.concurrency
    return WarmUp(max(rates.latency_s + transfer_s, waiting_s), size, round(gets))


def _draw_batches(shuffles: Shuffles, rig: Rig, way: Way, number: int) -> list[Batch]:
    batches, sizes = shuffles.batches, shuffles.sizes(number)
    gets_a_file = shuffles.dataset.gets_a_file
    if number == 1 and way is not Way.WARMED:
        misses = batches
    else:
        misses = draw_misses(
            batches, _chance(shuffles.dataset, rig, way, number), shuffles.rng(number, "misses")
        )
    return [
        Batch(samples, missing, size * missing / samples, missing * gets_a_file)
        for samples, missing, size in zip(batches, misses, sizes, strict=True)
    ]


def _chance(dataset: Dataset, rig: Rig, way: Way, number: int) -> Chance:
    cache = _share(rig.cache_bytes, dataset)
    if way is Way.PLANNED:
        pages = PageBudget(int(rig.page_cache_bytes))
        kept = pages.budget_bytes - pages.passing_bytes
        return planned_miss_chance(rig.policy, cache, _share(kept, dataset))
    # A warm-up fills the cache, not the page cache.
    pages_held = _share(rig.page_cache_bytes, dataset) if number > 1 else 0.0
    return miss_chance(rig.policy, cache, pages_held)


def _ahead_bytes(dataset: Dataset, rig: Rig) -> float:
    """The window of the real prefetcher, once it has measured these rates."""
    rates = rig.rates
    get_bytes = dataset.mean_bytes / max(1.0, dataset.gets_a_file)
    get_s = rates.latency_s + get_bytes / rates.bandwidth_bytes_per_s
    most = rates.concurrency * get_bytes / get_s if get_s else 0.0
    budget = int(rig.page_cache_bytes)
    return window_bytes(
        latency_s=rates.latency_s,
        bytes_per_s=min(rates.bandwidth_bytes_per_s, most),
        demand_bytes_per_s=rates.samples_per_s * dataset.mean_bytes,
        budget_bytes=PageBudget(budget).passing_bytes if budget else sys.maxsize,
    )


def _share(held_bytes: float, dataset: Dataset) -> float:
    return held_bytes / dataset.size_bytes if dataset.size_bytes else 1.0


def _stretch(
    dataset: Dataset, rig: Rig, number: int, batches: Sequence[Batch], timing: Timing
) -> Epoch:
    """From the batches that were simulated to all; there is only one first batch."""
    simulated = sum(batch.samples for batch in batches)
    factor = dataset.files / simulated
    misses = sum(batch.misses for batch in batches)
    gets = sum(batch.gets for batch in batches)
    return Epoch(
        number=number,
        samples=dataset.files,
        whole_s=timing.first_batch_s + (timing.whole_s - timing.first_batch_s) * factor,
        busy_s=dataset.files / rig.rates.samples_per_s,
        first_batch_s=timing.first_batch_s,
        store_bytes=sum(batch.miss_bytes for batch in batches) * factor,
        gets=round(gets * factor),
        hit_share=1 - misses / simulated,
    )
