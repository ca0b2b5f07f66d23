"""Predict a training run: epochs, stalls, bytes, requests. Pure.

A GET takes latency and its share of the bandwidth. Without a plan each worker of the loader waits
for one GET after the other; with one, GETs run ahead of the readers; after a warm-up the cache is
full before the first epoch. Cache and policy determine which samples come from the store.

Not modelled: the processor time of GETs, a store that slows down or fails, the ramp-up of GETs in
flight, files that change. Each epoch is shuffled again and reads every file once. Everything is
drawn from the seed: the same question has the same answer.
"""

import heapq
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import cycle, islice
from typing import NamedTuple

from penstock.blocks import DEFAULT_BLOCK_BYTES
from penstock.errors import OptionError
from penstock.warm.pace import window_bytes
from penstock.warm.page_cache import PageBudget

# How much of a shuffled epoch a cache answers.
#
# An epoch reads every sample once, in an order that is new each time. The hits of a cache then
# depend on its policy, on its share of the data, and for LRU on the position in the epoch.

# probability of a miss, by the share of the epoch that has been read (0 to 1)
Chance = Callable[[float], float]


def lru_hit_chance(share: float, position: float) -> float:
    """Return the hit probability of the sample at `position` of a shuffled epoch, for an LRU cache
    that holds `share` of the data.

    Its last read was at a position v of the previous epoch, with any v equally likely. Since then 1
    - v * (1 - position) of the data was read, counting each sample once. It is still cached if that
    is less than the share.
    """
    if share >= 1:
        return 1.0
    left = 1 - position
    return max(0.0, 1 - (1 - share) / left) if left > 0 else 0.0


def lru_hit_share(share: float) -> float:
    """Return the hit share of a whole epoch: 3% at a quarter of the data, 15% at half, 40% at
    75%."""
    return 1.0 if share >= 1 else share + (1 - share) * math.log(1 - share)


def miss_chance(policy: str, cache_share: float, memory_share: float) -> Chance:
    """Return the miss probability in an epoch without a plan that follows another epoch, or a
    warm-up. `memory_share` is the page cache's share of the data; the kernel keeps there what was
    read last, whatever the policy."""
    if policy == "lru":
        held = max(cache_share, memory_share)  # the smaller one's samples are in the larger one too
        return lambda position: 1 - lru_hit_chance(held, position)
    missed = 1 - min(1.0, cache_share)
    return lambda position: missed * (1 - lru_hit_chance(memory_share, position))


def planned_miss_chance(policy: str, cache_share: float, kept_share: float) -> Chance:
    """Return the miss probability with a plan, which keeps the pages of the first files as far as
    there is room, and drops the others behind its cursor."""
    if policy == "lru":
        rest = 1 - min(1.0, kept_share)
        return lambda position: rest * (1 - lru_hit_chance(cache_share, position))
    missed = 1 - min(1.0, max(cache_share, kept_share))  # both keep what came first
    return lambda _: missed


def draw_misses(batches: Sequence[int], chance: Chance, rng: random.Random) -> list[int]:
    """Draw how many samples of each batch (given by their sizes) are missing.

    Drawn around the expected course, so that single batches vary as they do in a shuffled epoch,
    and the whole epoch has exactly the expected number.
    """
    samples = sum(batches)
    read = drawn = 0
    expected = 0.0
    found: list[int] = []
    for size in batches:
        missing = chance((read + size / 2) / samples)
        read += size
        expected += size * missing
        # A batch is the difference of two draws: each has half the variance of a binomial one.
        spread = math.sqrt(size * missing * (1 - missing) / 2) if read < samples else 0.0
        wanted = round(rng.gauss(expected, spread)) - drawn
        found.append(max(0, min(size, wanted)))
        drawn += found[-1]
    return found


# Flows whose transfer shares differ by less than one step are treated alike.
_STEPS = 1000


class Sharing:
    """How much slower transfers are that share one bandwidth.

    A flow alternates between waiting (latency, or its own work) and transferring, for ever. Where n
    such flows share a bandwidth evenly, mean value analysis gives their rate exactly, whatever the
    distribution of the times: the recursion adds one flow after the other, and each new flow meets
    the queue that the earlier ones make. The plain bound, the minimum of n times one flow's rate
    and of the whole bandwidth, is 16% too high where both are about the same.

    It caches its results, and is not thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[float]] = {}
        self._queues: dict[int, float] = {}

    def slowdown(self, transfer_share: float, flows: int) -> float:
        """Return how many times as long each of `flows` takes as it would alone; `transfer_share`
        is the share of its time alone that it transfers."""
        step = round(min(1.0, transfer_share) * _STEPS)
        known = self._known.setdefault(step, [1.0])
        share = step / _STEPS
        queue = self._queues.get(step, 0.0)
        while len(known) <= flows:
            transfer = share * (1 + queue)
            queue = len(known) * transfer / (1 - share + transfer)
            known.append(1 - share + transfer)
        self._queues[step] = queue
        return known[flows]


# How batches reach an accelerator: a DataLoader's workers, the store, and time.
#
# The loader is PyTorch's: batch i belongs to worker i % workers; each worker has `queued` batches
# to make and makes one after the other; when a batch is taken, the next one is handed out; batches
# are taken in order. A new epoch begins with nothing handed out.
#
# Time advances in batches, not in single GETs: an epoch of a million files takes milliseconds.


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of all stages between the store and the accelerator."""

    samples_per_s: float  # the accelerator's rate
    latency_s: float  # of one GET, without its bytes
    bandwidth_bytes_per_s: float  # of all GETs together; math.inf: no limit
    workers: int = 8
    concurrency: int = 256  # GETs in flight, at most; the prefetcher's own bound
    sample_s: float = 0.0  # a worker's time for each sample that is cached: read, decode
    queued: int = 2  # batches handed to each worker; DataLoader's prefetch_factor


class Batch(NamedTuple):
    samples: int
    misses: int  # samples that must come from the store
    miss_bytes: float
    gets: float  # for the misses; more than `misses` where files are larger than a block


class Timing(NamedTuple):
    first_batch_s: float
    whole_s: float


def feed_unplanned(batches: Sequence[Batch], rates: Rates) -> Timing:
    """Time one epoch in which each worker requests one sample after the other, and waits for the
    first block of each: later blocks come from readahead.

    Workers that fetch share bandwidth and GETs in flight, and slow each other equally. So
    `progress`, the seconds that a worker would have needed alone, is one clock for all of them, and
    a worker's batch ends at a point on it that is known when it starts.
    """
    flows = [_Flow.of(batch, rates) for batch in batches]
    slots = rates.queued * rates.workers
    handed = min(slots, len(batches))
    started = [False] * rates.workers
    waiting = list(range(min(rates.workers, handed)))
    ready_s: list[float | None] = [None] * len(batches)
    running: list[tuple[float, int]] = []  # (its end on the clock `progress`, batch)
    now = progress = free_s = first_s = 0.0
    bytes_per_s = gets_in_flight = 0.0  # if no worker slowed another
    sharing = Sharing()
    taken = 0
    while taken < len(batches):
        for number in waiting:
            started[number % rates.workers] = True
            flow = flows[number]
            heapq.heappush(running, (progress + flow.alone_s, number))
            bytes_per_s += flow.bytes_per_s
            gets_in_flight += flow.gets_in_flight
        waiting = []
        speed = 1.0
        if running:
            transfer_share = bytes_per_s / rates.bandwidth_bytes_per_s / len(running)
            speed /= sharing.slowdown(transfer_share, min(len(running), rates.concurrency))
            speed *= min(1.0, rates.concurrency / max(gets_in_flight, 1.0))
        made_s = now + (running[0][0] - progress) / speed if running else math.inf
        ready = ready_s[taken]
        take_s = max(ready, free_s) if ready is not None else math.inf
        if take_s <= made_s:
            progress += (take_s - now) * speed
            now = take_s
            free_s = now + batches[taken].samples / rates.samples_per_s
            first_s = now if taken == 0 else first_s
            taken += 1
            if handed < len(batches):
                if not started[handed % rates.workers]:
                    waiting.append(handed)
                handed += 1
        else:
            progress, number = heapq.heappop(running)
            now = ready_s[number] = made_s
            flow = flows[number]
            bytes_per_s = max(0.0, bytes_per_s - flow.bytes_per_s)
            gets_in_flight = max(0.0, gets_in_flight - flow.gets_in_flight)
            started[number % rates.workers] = False
            if number + rates.workers < handed:
                waiting.append(number + rates.workers)
    return Timing(first_s, free_s)


def feed_planned(
    epochs: Sequence[Sequence[Batch]], rates: Rates, ahead_bytes: float = math.inf
) -> list[Timing]:
    """Time consecutive epochs, fetched in their order, up to `ahead_bytes` ahead of what was taken,
    across epoch boundaries.

    Two queues bound the fetching: the bandwidth, and the GETs in flight, each of which takes
    latency and transfer. As many as may be in flight start at once.
    """
    sharing = Sharing()
    inverse_bandwidth = 1 / rates.bandwidth_bytes_per_s
    slots = rates.queued * rates.workers
    taken_s: list[float] = []  # when each batch of all epochs was taken
    taken_bytes = [0.0]  # fetched bytes in the batches before that index
    gone = 0  # batches that must be taken before the next one fits into the window
    sent_s = moved_s = free_s = asked_bytes = 0.0
    found: list[Timing] = []
    for batches in epochs:
        began_s, first = free_s, len(taken_s)
        made_s: list[float] = []
        for place, batch in enumerate(batches):
            handed_s = began_s if place < slots else taken_s[first + place - slots]
            start_s = max(
                handed_s, made_s[place - rates.workers] if place >= rates.workers else 0.0
            )
            done_s = start_s + batch.samples * rates.sample_s
            asked_bytes += batch.miss_bytes
            if batch.gets:
                while gone < len(taken_s) and asked_bytes - taken_bytes[gone] > ahead_bytes:
                    gone += 1
                # A batch that was handed to a worker is fetched even outside the window.
                gate_s = min(taken_s[gone - 1] if gone else 0.0, handed_s)
                get_s = rates.latency_s + batch.miss_bytes / batch.gets * inverse_bandwidth
                transfer_share = 1 - rates.latency_s / get_s if get_s else 0.0
                slowdown = sharing.slowdown(transfer_share, rates.concurrency)
                sent_s = max(sent_s, gate_s)
                sent_s += batch.gets * get_s * slowdown / rates.concurrency
                moved_s = max(moved_s, gate_s + rates.latency_s)
                moved_s += batch.miss_bytes * inverse_bandwidth
                done_s = max(done_s, max(sent_s, moved_s, gate_s + get_s) + rates.sample_s)
            made_s.append(done_s)
            taken_s.append(max(done_s, free_s))
            taken_bytes.append(asked_bytes)
            free_s = taken_s[-1] + batch.samples / rates.samples_per_s
        found.append(Timing(taken_s[first] - began_s, free_s - began_s))
    return found


class _Flow(NamedTuple):
    """A worker that makes a batch, as if it were alone."""

    alone_s: float
    bytes_per_s: float
    gets_in_flight: float

    @classmethod
    def of(cls, batch: Batch, rates: Rates) -> "_Flow":
        fetching_s = batch.misses * rates.latency_s + batch.miss_bytes / rates.bandwidth_bytes_per_s
        alone_s = fetching_s + batch.samples * rates.sample_s
        if alone_s <= 0:
            return cls(0.0, 0.0, 0.0)
        return cls(alone_s, batch.miss_bytes / alone_s, fetching_s / alone_s)


# Longer epochs are simulated with this many batches and scaled: 1.28 million files in batches of
# 400 are 3,204 batches. More would change no printed figure.
_MOST_BATCHES = 4000
# A sample of this many sizes represents all: to shuffle these takes 30 ms, and 1.28 million 0.7 s.
MOST_SIZES = 1 << 16


class Strategy(StrEnum):
    UNPLANNED = "no plan"
    PLANNED = "plan"
    WARMED = "warm-up"  # a warm-up up to the size of the cache, then epochs without a plan


@dataclass(frozen=True)
class Dataset:
    """The number of files and their sizes. `sizes` may be a sample of them; without any, all files
    have the mean size."""

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
        """The mean number of GETs for a file: a large file is fetched in blocks, an empty one not
        at all."""
        sizes = self.sizes or (self.mean_bytes,)
        return sum(-(-size // DEFAULT_BLOCK_BYTES) for size in sizes) / len(sizes)


@dataclass(frozen=True, slots=True)
class Rig:
    """The machine, cache and loader that read the data set."""

    rates: Rates
    batch: int = 400
    cache_bytes: float = 0  # its capacity: 99% of a tier's quota, the high watermark
    page_cache_bytes: float = 0  # memory for pages; 0: no pages stay from one epoch to the next
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
        """The share of the time in which the accelerator works, counting the wait for the first
        batch."""
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
    """The bytes of each batch of each epoch, for one data set, batch size and seed; drawn once and
    shared by all predictions. Not thread-safe."""

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
    dataset: Dataset, rig: Rig, way: Strategy, *, epochs: int = 2, seed: int = 0
) -> tuple[Epoch, ...]:
    """Predict the first epoch with empty caches (after a warm-up: with a full one), and the epochs
    after it."""
    return run_epochs(Shuffles(dataset, rig.batch, seed), rig, way, range(1, epochs + 1))


def run_epochs(
    shuffles: Shuffles, rig: Rig, way: Strategy, numbers: Sequence[int]
) -> tuple[Epoch, ...]:
    """Predict only these epochs of a run; 1 is the first."""
    drawn = [_draw_batches(shuffles, rig, way, number) for number in numbers]
    if way is Strategy.PLANNED:
        timings = feed_planned(drawn, rig.rates, _ahead_bytes(shuffles.dataset, rig))
    else:
        timings = [feed_unplanned(batches, rig.rates) for batches in drawn]
    return tuple(
        _scale(shuffles.dataset, rig, number, batches, timing)
        for number, batches, timing in zip(numbers, drawn, timings, strict=True)
    )


def predict_warm_up(dataset: Dataset, rig: Rig) -> WarmUp:
    """Predict the load of as much as the cache holds, with as many GETs at once as allowed."""
    rates, share = rig.rates, min(1.0, _share(rig.cache_bytes, dataset))
    size, gets = dataset.size_bytes * share, dataset.files * dataset.gets_a_file * share
    if not gets:
        return WarmUp(0.0, 0.0, 0)
    transfer_s = size / rates.bandwidth_bytes_per_s
    waiting_s = (gets * rates.latency_s + transfer_s) / rates.concurrency
    return WarmUp(max(rates.latency_s + transfer_s, waiting_s), size, round(gets))


def _draw_batches(shuffles: Shuffles, rig: Rig, way: Strategy, number: int) -> list[Batch]:
    batches, sizes = shuffles.batches, shuffles.sizes(number)
    gets_a_file = shuffles.dataset.gets_a_file
    if number == 1 and way is not Strategy.WARMED:
        misses = batches
    else:
        misses = draw_misses(
            batches, _chance(shuffles.dataset, rig, way, number), shuffles.rng(number, "misses")
        )
    return [
        Batch(samples, missing, size * missing / samples, missing * gets_a_file)
        for samples, missing, size in zip(batches, misses, sizes, strict=True)
    ]


def _chance(dataset: Dataset, rig: Rig, way: Strategy, number: int) -> Chance:
    cache = _share(rig.cache_bytes, dataset)
    if way is Strategy.PLANNED:
        pages = PageBudget(int(rig.page_cache_bytes))
        kept = pages.budget_bytes - pages.passing_bytes
        return planned_miss_chance(rig.policy, cache, _share(kept, dataset))
    # A warm-up fills the cache, not the page cache.
    pages_held = _share(rig.page_cache_bytes, dataset) if number > 1 else 0.0
    return miss_chance(rig.policy, cache, pages_held)


def _ahead_bytes(dataset: Dataset, rig: Rig) -> float:
    """Return the window of the real prefetcher, once it has measured these rates."""
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


def _scale(
    dataset: Dataset, rig: Rig, number: int, batches: Sequence[Batch], timing: Timing
) -> Epoch:
    """Scale the simulated batches to all batches; there is only one first batch."""
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


# The minimums that keep an accelerator busy: bandwidth, GETs in flight, cache, workers.
#
# Each is searched alone, while everything else stays as it is.

BUSY_ENOUGH = 0.95
_MOST_AT_ONCE = 4096  # an upper limit of workers, GETs in flight, or times the demand
_PRECISION = 0.01


@dataclass(frozen=True, slots=True)
class Minimums:
    """The minimum of each resource; None where no amount of it alone is enough."""

    bandwidth_bytes_per_s: float | None  # first epoch, with a plan
    concurrency: int | None  # first epoch, with a plan
    workers: int | None  # first epoch, without a plan
    cache_share: float | None  # later epochs, without a plan
    cache_share_planned: float | None  # later epochs, with a plan


def find_minimums(shuffles: Shuffles, rig: Rig) -> Minimums:
    def busy(changed: Rig, way: Strategy, epoch: int) -> bool:
        return run_epochs(shuffles, changed, way, [epoch])[0].busy >= BUSY_ENOUGH

    def rated(**changes: float) -> Rig:
        return replace(rig, rates=replace(rig.rates, **changes))

    def cached(share: float) -> Rig:
        return replace(rig, cache_bytes=share * shuffles.dataset.size_bytes)

    demand = rig.rates.samples_per_s * max(1.0, shuffles.dataset.mean_bytes)
    return Minimums(
        bandwidth_bytes_per_s=_least_rate(
            lambda rate: busy(rated(bandwidth_bytes_per_s=rate), Strategy.PLANNED, 1), demand
        ),
        concurrency=_least_count(lambda count: busy(rated(concurrency=count), Strategy.PLANNED, 1)),
        # Readers send their own GETs: the mount's limit is an option of its own.
        workers=_least_count(
            lambda count: busy(
                rated(workers=count, concurrency=max(count, rig.rates.concurrency)),
                Strategy.UNPLANNED,
                1,
            )
        ),
        cache_share=_least_share(lambda share: busy(cached(share), Strategy.UNPLANNED, 2)),
        cache_share_planned=_least_share(lambda share: busy(cached(share), Strategy.PLANNED, 2)),
    )


def _least_rate(enough: Callable[[float], bool], about: float) -> float | None:
    if not enough(math.inf):
        return None
    low, high = about / 2, about
    while not enough(high):
        low, high = high, high * 2
        if high > about * _MOST_AT_ONCE:
            return None
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least_count(enough: Callable[[int], bool]) -> int | None:
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST_AT_ONCE:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least_share(enough: Callable[[float], bool]) -> float | None:
    if enough(0.0):
        return 0.0
    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    while high - low > _PRECISION / 2:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
