"""A training script as people write it: files below a folder, a shuffling DataLoader, epochs.

    python -m penstock.bench.experiments.loading CONFIG.json

It knows nothing of Penstock (but for PlannedSampler, the one line that a user would add), so that
it runs the same over every file system. The workers open and read each file whole; nothing is
decoded, because the question is whether storage keeps up. The accelerator is emulated.

Like the program of `feeding` it writes the figures of an epoch to OUTPUT/epoch-N-rank-0.json,
prints a line, and reads a FIFO before the next epoch, so that counters can be read meanwhile.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from penstock.bench import measure
from penstock.bench.accelerators import Accelerator, Batch
from penstock.bench.experiments.feeding import (
    Log,
    ReaderConfig,
    reader_config_from_json,
    series_of,
)


class Files(Dataset[int]):
    """Every file below a folder. A sample is its size: its bytes have been read, and stay behind.

    Passing them on to the trainer would cost the same over every file system, and CPU that a
    small machine needs for the store and the mount.
    """

    def __init__(self, root: str) -> None:
        self.paths = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(root)
            for name in names
            if not name.startswith(".")  # JuiceFS shows control files in its root
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return len(file.read())


class _Recorded:
    """The batches of a loader, with a log of when each was there."""

    def __init__(self, loader: Iterable[Batch]) -> None:
        self._loader = loader
        self.log = Log()

    def __iter__(self) -> Iterator[Batch]:
        return self._batches(iter(self._loader))  # starts the workers now, as the loader does

    def _batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            now_s = time.monotonic()
            for size_bytes in _shares(batch):
                self.log.add(now_s, now_s, size_bytes)
            yield batch


def _shares(batch: Batch) -> list[int]:
    """Return its bytes shared out over its samples."""
    share, rest = divmod(batch.size_bytes, batch.samples)
    return [share + rest, *[share] * (batch.samples - 1)]


def collate(sizes: list[int]) -> Batch:
    return Batch(len(sizes), sum(sizes))


def make_loader(config: ReaderConfig) -> Iterable[Batch]:
    assert config.root is not None
    files = Files(config.root)
    generator = torch.Generator().manual_seed(config.seed)
    sampler: Sampler[int] = RandomSampler(files, generator=generator)
    if config.planned:
        from penstock.integrations.torch import PlannedSampler

        sampler = PlannedSampler(sampler, files, seed=config.seed)
    return DataLoader(
        files,
        batch_size=config.batch,
        sampler=sampler,
        num_workers=config.threads,
        persistent_workers=True,
        collate_fn=collate,
    )


def run(config: ReaderConfig) -> None:
    loader = make_loader(config)
    accelerator = Accelerator(config.batch, config.step_s)
    for epoch in range(config.epochs):
        if epoch:
            Path(config.gate).read_bytes()
        recorded = _Recorded(loader)
        cpu_before, start_s = _cpu_s(), time.monotonic()
        figures = accelerator.train(recorded, epoch=epoch)
        found = {
            "start_s": 0.0,
            "end_s": figures.seconds,
            "samples": figures.samples,
            "bytes": figures.size_bytes,
            "cpu_s": _cpu_s() - cpu_before,
            "figures": asdict(figures),
            "seconds": [],
            **series_of(recorded.log, start_s),
        }
        Path(config.output, f"epoch-{epoch}-rank-0.json").write_text(json.dumps(found))
        print(json.dumps({"epoch": epoch}), flush=True)


def _cpu_s() -> float:
    """Return the CPU time of this process and its workers, which live as long as the loader."""
    return measure.usage(measure.with_descendants([os.getpid()])).cpu_s


if __name__ == "__main__":
    run(reader_config_from_json(json.loads(Path(sys.argv[1]).read_text())))
