"""An emulated accelerator: takes batches as they come and is busy for a step on each.

The figures are those with which MLPerf Storage emulates ResNet-50 on one H100: a step of 0.224 s
on a batch of 400, which is 1,786 samples/s. A scale below 1 keeps the step and makes the batch
smaller, so that a small machine can serve it. A step is a sleep, as there: it costs no CPU.
What comes of this is no MLPerf result and is never called one.

Where a loader says when a batch was there, the device's time is kept apart from the host's: as on
a real one, a step can be queued while the last is computed, so a thread that a busy machine wakes
late (by less than a step) costs nothing. Without that, four of them with no I/O at all were busy
for 98.8% of the time on a machine with seven times more to do than it has cores; with it, for all.

Knows neither files nor loaders: anything that yields batches will do. No threads of its own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

RESNET50_BATCH = 400
RESNET50_STEP_S = 0.224


@dataclass(frozen=True, slots=True)
class Batch:
    """What the accelerator needs to know of a batch: the loader has read the bytes."""

    samples: int
    size_bytes: int
    came_s: float | None = None  # when its last byte was there; None: when it is handed over


@dataclass(frozen=True, slots=True)
class Step:
    """Where the time of one step went."""

    load_s: float  # until the batch was there
    compute_s: float
    barrier_s: float  # until the others had computed theirs too


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
    def stall_s(self) -> float:
        return self.seconds - self.busy_s

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.seconds

    @property
    def busy_share_after_first(self) -> float:
        """The same without the wait for the first batch."""
        return self.busy_s / (self.seconds - self.first_batch_s)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True)
class Accelerator:
    batch: int
    step_s: float = RESNET50_STEP_S

    @property
    def samples_per_s(self) -> float:
        """What it takes when it never waits."""
        return self.batch / self.step_s

    def train(
        self,
        batches: Iterable[Batch],
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        barrier: Callable[[float], float] | None = None,
        on_step: Callable[[Step], object] | None = None,
    ) -> EpochFigures:
        """An epoch. The last batch may be smaller, and then so is its step. `barrier` waits for
        the other accelerators after each step: it is told when this one was done, and says when
        all were."""
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
            met_s = done_s if barrier is None else barrier(done_s)
            if on_step is not None:
                on_step(Step(begin_s - free_s, done_s - begin_s, met_s - done_s))
            free_s = met_s
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


def scaled(scale: float) -> Accelerator:
    """ResNet-50 on `scale` of an H100."""
    return Accelerator(max(1, round(RESNET50_BATCH * scale)))
