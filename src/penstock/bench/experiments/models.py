"""The accelerators that are emulated: what MLPerf Storage publishes of each, and where.

A row is one workload file of the repository mlcommons/storage: batch, seconds of computing for it,
size of a sample, threads that read, and the least busy share that counts there. `source` names
file and version. What no version of it has (RetinaNet on a V100, say) is not here: it is refused,
never guessed. A real GPU is not needed and not claimed: what comes of these figures is an
emulation and no MLPerf result.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass

from penstock.bench.accelerator import Accelerator
from penstock.errors import UsageError

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
    """The row for a model on an accelerator; one that was never published is an error."""
    if (row := PUBLISHED.get((model or "", accelerator or ""))) is not None:
        return row
    known = sorted(known for name, known in PUBLISHED if name == model)
    raise UsageError(
        f"{model} on {accelerator}: MLPerf Storage has published no figures for it",
        hint=f"{model} has figures for {', '.join(known)}"
        if known
        else f"models with figures: {', '.join(sorted({name for name, _ in PUBLISHED}))}",
    )
