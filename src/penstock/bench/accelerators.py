"""An emulated accelerator: takes batches as they come and is busy for a step on each.

PUBLISHED has what MLPerf Storage publishes of each model on each accelerator; a row is one workload
file of the repository mlcommons/storage, and `source` names file and version. A model that was
never published on an accelerator (RetinaNet on a V100, say) is rejected, never guessed. A scale
below 1 keeps the step and makes the batch smaller, so that a small machine can serve it. A step is
a sleep, as there: it costs no CPU. The result is an emulation, and no MLPerf result.

Where a loader reports when a batch arrived, the device's time is kept apart from the host's: as on
a real one, a step can be queued while the last is computed, so a thread that a busy machine wakes
late (by less than a step) costs nothing. Without that, four of them with no I/O at all were busy
for 98.8% of the time on a machine with seven times more to do than it has cores; with it, for all.

Knows neither files nor loaders: anything that yields batches will do. No threads of its own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the accelerator sees it: the loader has read the bytes."""

    samples: int
    size_bytes: int
    came_s: float | None = None  # when its last byte was there; None: when it is handed over


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch, from the request for its first batch to the end of its last step."""

    epoch: int
    samples: int
    size_bytes: int
    steps: int
    seconds: float
    busy_s: float
    loader_start_s: float  # the part of first_batch_s in which the loader starts its workers
    first_batch_s: float  # from the request for the first batch until it is there

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.seconds

    @property
    def busy_share_after_first(self) -> float:
        """Return the busy share without the wait for the first batch."""
        return self.busy_s / (self.seconds - self.first_batch_s)


@dataclass(frozen=True, slots=True)
class Accelerator:
    batch: int
    step_s: float

    @property
    def samples_per_s(self) -> float:
        """Return its demand: the samples/s of an accelerator that never waits."""
        return self.batch / self.step_s

    def train(
        self,
        batches: Iterable[Batch],
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        barrier: Callable[[float], float] | None = None,
    ) -> EpochFigures:
        """An epoch. The last batch may be smaller, and then so is its step. `barrier` waits for
        the other accelerators after each step: it takes the time at which this one was done, and
        returns the time at which all were."""
        samples = size_bytes = steps = 0
        start_s, first_batch_s = clock(), 0.0
        waiting = iter(batches)  # starts the loader's workers, and so is in the time
        loader_start_s = clock() - start_s
        free_s, is_queued = start_s, False
        for batch in waiting:
            loaded_s, step_s = clock(), self.step_s * batch.samples / self.batch
            begin_s, is_queued = loaded_s, batch.came_s is not None
            if batch.came_s is not None:
                begin_s = max(free_s, batch.came_s, loaded_s - self.step_s)
            if not steps:
                first_batch_s = begin_s - start_s
            sleep(max(0.0, begin_s + step_s - clock()) if is_queued else step_s)
            done_s = begin_s + step_s if is_queued else clock()
            free_s = done_s if barrier is None else barrier(done_s)
            samples += batch.samples
            size_bytes += batch.size_bytes
            steps += 1
        return EpochFigures(
            epoch=epoch,
            samples=samples,
            size_bytes=size_bytes,
            steps=steps,
            seconds=(free_s if is_queued else clock()) - start_s,
            busy_s=samples * self.step_s / self.batch,
            loader_start_s=loader_start_s,
            first_batch_s=first_batch_s,
        )


_RESNET50 = (114_660, 8)  # bytes of a sample, reader threads; the same in all versions
_UNET3D = (146_600_628, 4)
_COSMOFLOW = (2_828_486, 4)
_V2 = "v2.0-rc0, configs/dlio/workload/{}.yaml"
# Only in the development of v2.0, from May 2025 until they were taken out before its release;
# UNet3D's is also the one of v0.5 (storage-conf/workload/unet3d.yaml).
_BEFORE_V2 = "commit cb7fa48 (before v2.0), configs/dlio/workload/{}.yaml"
_V3 = "commit 11460d0 (v3.0), configs/dlio/workload/{}.yaml"


@dataclass(frozen=True, slots=True)
class Published:
    """One model on one accelerator."""

    model: str
    accelerator: str
    batch: int
    step_s: float
    sample_bytes: int  # in the mean
    read_threads: int
    least_busy: float  # the share below which a result does not count there
    source: str

    @property
    def samples_per_s(self) -> float:
        return self.batch / self.step_s

    def scaled(self, scale: float) -> Accelerator:
        """`scale` of it: the step stays and the batch shrinks, so that a small machine can serve
        it. Where a batch would be less than one sample, it is one and the step is longer."""
        wanted = self.batch * scale
        if wanted < 1:
            return Accelerator(1, self.step_s / wanted)
        return Accelerator(round(wanted), self.step_s)


def _row(
    model: str,
    accelerator: str,
    batch: int,
    step_s: float,
    sample: tuple[int, int],
    least_busy: float,
    source: str,
) -> Published:
    size_bytes, threads = sample
    name = f"{model}_{accelerator}"
    return Published(
        model, accelerator, batch, step_s, size_bytes, threads, least_busy, source.format(name)
    )


# The least busy share of a V100 stands in no file; it is that of the model (Submission_guidelines).
PUBLISHED = {
    (row.model, row.accelerator): row
    for row in (
        _row("resnet50", "v100", 64, 0.195, _RESNET50, 0.90, _BEFORE_V2),
        _row("resnet50", "a100", 400, 0.435, _RESNET50, 0.90, _V2),
        _row("resnet50", "h100", 400, 0.224, _RESNET50, 0.90, _V2),
        _row("unet3d", "v100", 4, 1.3604, _UNET3D, 0.90, _BEFORE_V2),
        _row("unet3d", "a100", 7, 0.636, _UNET3D, 0.90, _V2),
        _row("unet3d", "h100", 7, 0.323, _UNET3D, 0.90, _V2),
        _row("cosmoflow", "v100", 1, 0.00936, _COSMOFLOW, 0.70, _BEFORE_V2),
        _row("cosmoflow", "a100", 1, 0.00551, _COSMOFLOW, 0.70, _V2),
        _row("cosmoflow", "h100", 1, 0.00350, _COSMOFLOW, 0.70, _V2),
        _row("retinanet", "b200", 24, 0.04755, (322_957, 8), 0.85, _V3),
    )
}


def published(model: str | None, accelerator: str | None) -> Published:
    """Return the row of a model on an accelerator; one that was never published is an error."""
    if (row := PUBLISHED.get((model or "", accelerator or ""))) is not None:
        return row
    known = sorted(known for name, known in PUBLISHED if name == model)
    raise UsageError(
        f"{model} on {accelerator}: MLPerf Storage has published no figures for it",
        hint=f"{model} has figures for {', '.join(known)}"
        if known
        else f"models with figures: {', '.join(sorted({name for name, _ in PUBLISHED}))}",
    )
