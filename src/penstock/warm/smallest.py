"""The least that keeps an accelerator busy: bandwidth, GETs in flight, cache, workers. Pure.

Each is searched alone, everything else staying as it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.warm.simulate import Rig, Shuffles, Way, run_epochs

BUSY_ENOUGH = 0.95
_MOST_AT_ONCE = 4096  # workers, GETs in flight, or times the demand: nobody has more
_PRECISION = 0.01


@dataclass(frozen=True, slots=True)
class Smallest:
    """None where no amount of this alone is enough."""

    bandwidth_bytes_per_s: float | None  # first epoch, with a plan
    concurrency: int | None  # first epoch, with a plan
    workers: int | None  # first epoch, without a plan
    cache_share: float | None  # later epochs, without a plan
    cache_share_planned: float | None  # later epochs, with a plan


def find_smallest(shuffles: Shuffles, rig: Rig) -> Smallest:
    def busy(changed: Rig, way: Way, epoch: int) -> bool:
        return run_epochs(shuffles, changed, way, [epoch])[0].busy >= BUSY_ENOUGH

    def rated(**changes: float) -> Rig:
        return replace(rig, rates=replace(rig.rates, **changes))

    def cached(share: float) -> Rig:
        return replace(rig, cache_bytes=share * shuffles.dataset.size_bytes)

    demand = rig.rates.samples_per_s * max(1.0, shuffles.dataset.mean_bytes)
    return Smallest(
        bandwidth_bytes_per_s=_least_rate(
            lambda rate: busy(rated(bandwidth_bytes_per_s=rate), Way.PLANNED, 1), demand
        ),
        concurrency=_least_count(lambda count: busy(rated(concurrency=count), Way.PLANNED, 1)),
        # Readers bring their own GETs: what a mount allows at once is an option of its own.
        workers=_least_count(
            lambda count: busy(
                rated(workers=count, concurrency=max(count, rig.rates.concurrency)),
                Way.UNPLANNED,
                1,
            )
        ),
        cache_share=_least_share(lambda share: busy(cached(share), Way.UNPLANNED, 2)),
        cache_share_planned=_least_share(lambda share: busy(cached(share), Way.PLANNED, 2)),
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
