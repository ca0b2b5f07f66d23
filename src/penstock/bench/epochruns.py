"""Runs of the training script over each system: two epochs, the first from empty caches.

A run is one process of `penstock.bench.train`, as a user starts it. Between the epochs it waits
at a gate (a FIFO) while the counters of the store and of the cache are read, so that what each
epoch cost is known exactly. How a system is told what will be read, if at all, is a `Way`.

What is asked of the figures is not known here. Main thread only.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.bench import measure
from penstock.bench.accelerators import Accelerator, EpochFigures
from penstock.bench.alluxio import Alluxio
from penstock.bench.arms import Arm, Native, Penstock, Rclone, Site
from penstock.bench.experiments.programs import GatedProgram
from penstock.bench.juicefs import JuiceFS
from penstock.bench.s3server import Counters, FarServer
from penstock.bench.workspace import BenchError

PART = "train"
EPOCHS = 2


class PenstockHalf(Penstock):
    """A tier for half of the data. Its marks are set so that the quota is filled to the brim."""

    name = "penstock-half"
    policy = "keep"

    def cache_options(self) -> list[str]:
        quota_bytes = self.site.dataset.size_bytes // 2
        tier = f"MEM:{self.cache}:{quota_bytes}B:high=1,low=0.99"
        return [f"--tier={tier}", f"--policy={self.policy}"]


class PenstockHalfLru(PenstockHalf):
    name = "penstock-half-lru"
    policy = "lru"


@dataclass(frozen=True, slots=True)
class Way:
    """A system, and what it is told before the first epoch."""

    name: str
    title: str
    arm: type[Arm]
    told: bool = False  # the order of the epoch: a hinted run
    planned: bool = False  # by the script's own sampler
    hooked: bool = False  # by `penstock run`, the script unchanged
    warmed: bool = False  # everything is fetched before, which counts as waiting
    drops_pages: bool = False  # between the epochs: the page cache would hide the local one


WAYS = {
    way.name: way
    for way in (
        Way("native", "native files", Native),
        Way("penstock", "Penstock, no plan", Penstock),
        Way("plan", "Penstock, PlannedSampler", Penstock, told=True, planned=True),
        Way("run", "Penstock, penstock run", Penstock, told=True, hooked=True),
        Way("warm", "Penstock, warmed before", Penstock, warmed=True),
        Way("rclone", "rclone mount", Rclone),
        Way("juicefs", "JuiceFS", JuiceFS),
        Way("alluxio", "Alluxio", Alluxio),
        Way("half-keep", "Penstock, cache of half, keep", PenstockHalf, drops_pages=True),
        Way("half-lru", "Penstock, cache of half, lru", PenstockHalfLru, drops_pages=True),
    )
}


@dataclass(frozen=True, slots=True)
class EpochSample:
    """One epoch of one way, with what it asked of the store."""

    way: str
    title: str
    told: bool
    figures: EpochFigures  # with the warm-up's time in it, where there was one
    warm_s: float
    gets: int
    get_bytes: int
    other_requests: int
    cpu_s: float  # of all processes of the system
    memory_bytes: int  # of all of them, at the end of the epoch
    hit_bytes: int | None  # served by the local cache, for a system that says so
    statistics: dict[str, Any] | None  # by its own statistics at the end of the epoch

    @property
    def has_small_cache(self) -> bool:
        return issubclass(WAYS[self.way].arm, PenstockHalf)

    @property
    def fetched_share(self) -> float:
        """Bytes fetched over bytes read."""
        return self.get_bytes / self.figures.size_bytes

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.figures.size_bytes * 1e9

    @property
    def hit_share(self) -> float | None:
        return None if self.hit_bytes is None else self.hit_bytes / self.figures.size_bytes


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the training script is started with; the same for every way."""

    accelerator: Accelerator
    workers: int
    seed: int


def run_way(way: Way, site: Site, far: FarServer, lesson: Lesson) -> Iterator[EpochSample]:
    """Mounts, trains two epochs, unmounts; the samples come as the epochs end."""
    if way.drops_pages and not measure.can_drop_pages():
        raise BenchError(f"{way.title}: pages cannot be dropped", hint="run it as root")
    arm = way.arm(site)
    try:
        arm.prepare()
        try:
            arm.start()
            yield from _epochs(way, arm, far, lesson)
        finally:
            arm.stop()
    finally:
        arm.finish()


def _epochs(way: Way, arm: Arm, far: FarServer, lesson: Lesson) -> Iterator[EpochSample]:
    before, statistics_before, used_before = far.counters(), _statistics(arm), arm.usage()
    warm_s = _warm(arm) if way.warmed else 0.0
    with _training(way, arm, lesson) as training:
        for epoch in range(EPOCHS):
            if epoch:
                training.go_on()
            figures = EpochFigures(**training.wait_for(epoch))
            if figures.samples != len(arm.site.dataset.entries):
                raise BenchError(f"{way.title}: {figures.samples} samples read, not all")
            used, after, statistics = arm.usage(), far.counters(), _statistics(arm)
            hit_bytes = None
            if statistics is not None and statistics_before is not None:
                hit_bytes = _hit_bytes(statistics) - _hit_bytes(statistics_before)
            yield _sample(
                way,
                figures,
                warm_s,
                after.since(before),
                used.since(used_before),
                hit_bytes,
                statistics,
            )
            before, statistics_before, warm_s = after, statistics, 0.0
            if way.drops_pages:
                measure.drop_pages()
            used_before = arm.usage()


def _training(way: Way, arm: Arm, lesson: Lesson) -> GatedProgram:
    return GatedProgram(
        arm.site.workspace,
        PART,
        lambda gate: _command(way, arm.root, lesson, gate),
        epochs=EPOCHS,
        extra=arm.reader_environment(),
    )


def _command(way: Way, root: Path, lesson: Lesson, gate: Path) -> list[str]:
    script = [
        *(sys.executable, "-m", "penstock.bench.train", str(root)),
        *("--batch", str(lesson.accelerator.batch), "--step", repr(lesson.accelerator.step_s)),
        *("--epochs", str(EPOCHS), "--workers", str(lesson.workers)),
        *("--seed", str(lesson.seed), "--gate", str(gate)),
    ]
    if way.planned:
        script.append("--planned")
    if way.hooked:
        return [sys.executable, "-m", "penstock", "run", "--", *script]
    return script


def _warm(arm: Arm) -> float:
    if not isinstance(arm, Penstock):
        raise BenchError(f"{arm.name}: has no warm-up here")
    start_s = time.monotonic()
    arm.warm()
    return time.monotonic() - start_s


def _sample(
    way: Way,
    figures: EpochFigures,
    warm_s: float,
    counted: Counters,
    used: measure.Usage,
    hit_bytes: int | None,
    statistics: dict[str, Any] | None,
) -> EpochSample:
    waited = replace(
        figures,
        seconds=figures.seconds + warm_s,
        first_batch_s=figures.first_batch_s + warm_s,
    )
    return EpochSample(
        way=way.name,
        title=way.title,
        told=way.told,
        figures=waited,
        warm_s=warm_s,
        gets=counted.gets,
        get_bytes=counted.get_bytes,
        other_requests=counted.other_requests,
        cpu_s=used.cpu_s,
        memory_bytes=used.memory_bytes,
        hit_bytes=hit_bytes,
        statistics=statistics,
    )


def _statistics(arm: Arm) -> dict[str, Any] | None:
    return arm.statistics() if isinstance(arm, Penstock) else None


def _hit_bytes(statistics: dict[str, Any]) -> int:
    return sum(statistics["hit_bytes"].values())
