"""Train in a planned order and resume in mid-epoch: `python train.py FOLDER`."""

import argparse
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler

from penstock.integrations.torch import PenstockImageFolder, PlannedSampler

BATCH = 8


def pixels(image: Image.Image) -> torch.Tensor:
    small = numpy.asarray(image.resize((32, 32)), dtype=numpy.float32)
    return torch.from_numpy(small).flatten() / 255


def main(folder: Path, epochs: int, workers: int, state: Path, stop_after: int | None) -> None:
    images = PenstockImageFolder(folder, transform=pixels)
    sampler = PlannedSampler(RandomSampler(images), images, seed=0)
    seen: list[int] = []  # in this epoch: labels of the images trained on
    first = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        sampler.load_state_dict(saved["sampler"])
        first, seen = saved["epoch"], saved["seen"]
    loader = DataLoader(images, batch_size=BATCH, sampler=sampler, num_workers=workers)
    batches = 0
    for epoch in range(first, epochs):
        for _pixels, labels in loader:
            seen += labels.tolist()
            batches += 1
            if batches == stop_after:
                # Loader workers run ahead of the training: save the number of trained samples.
                position = sampler.state_dict(done=len(seen))
                torch.save({"sampler": position, "epoch": epoch, "seen": seen}, state)
                print(f"epoch {epoch}: stopped after {len(seen)} images")
                return
        print(f"epoch {epoch}: {len(seen)} images, labels {''.join(map(str, seen))}")
        seen = []


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", type=Path, default=Path("state.pt"))
    parser.add_argument("--stop-after", type=int, metavar="BATCHES")
    options = parser.parse_args()
    main(options.folder, options.epochs, options.workers, options.state, options.stop_after)
