"""A training script as people write it: files below a folder, a shuffling DataLoader, epochs.

    python -m penstock.bench.train ROOT --batch 100 --workers 8 --epochs 2 --seed 0

It knows nothing of Penstock (but for --planned, the one line that a user would add), so that it
runs the same over every file system. The workers open and read each file whole; nothing is
decoded, because what is asked here is whether storage keeps up. The accelerator is emulated.
Prints one line of JSON for each epoch.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from penstock.bench.accelerators import RESNET50_STEP_S, Accelerator, Batch


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


def collate(sizes: list[int]) -> Batch:
    return Batch(len(sizes), sum(sizes))


def make_loader(
    files: Files, *, batch: int, workers: int, seed: int, planned: bool
) -> Sequence[Batch]:
    generator = torch.Generator().manual_seed(seed)
    sampler: Sampler[int] = RandomSampler(files, generator=generator)
    if planned:
        from penstock.integrations.torch import PlannedSampler

        sampler = PlannedSampler(sampler, files, seed=seed)
    loader = DataLoader(
        files,
        batch_size=batch,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate,
    )
    return cast("Sequence[Batch]", loader)  # torch types what a loader yields as Any


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    files = Files(str(given.root))
    if not files.paths:
        print(f"{given.root}: no files", file=sys.stderr)
        return 2
    loader = make_loader(
        files, batch=given.batch, workers=given.workers, seed=given.seed, planned=given.planned
    )
    accelerator = Accelerator(given.batch, given.step)
    for epoch in range(given.epochs):
        if epoch and given.gate is not None:
            given.gate.read_bytes()
        figures = accelerator.train(loader, epoch=epoch)
        print(json.dumps(asdict(figures)), flush=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.bench.train",
        description="Reads shuffled files in batches and feeds an emulated accelerator.",
        epilog="example: python -m penstock.bench.train /mnt/imagenet --batch 100 --workers 8",
    )
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("--batch", type=int, default=100, help="samples in a step (100)")
    parser.add_argument(
        "--step", type=float, default=RESNET50_STEP_S, help="seconds a step takes (0.224)"
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=8, help="the loader's (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (0)")
    parser.add_argument("--planned", action="store_true", help="wrap the sampler: PlannedSampler")
    parser.add_argument(
        "--gate", type=Path, metavar="FIFO", help="read before each epoch but the first: a pause"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
