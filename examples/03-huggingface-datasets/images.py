"""Hugging Face's imagefolder over a mount, in a planned order: `python images.py FOLDER`."""

import argparse
import hashlib
from typing import Any

from datasets import Image, load_dataset
from torch.utils.data import DataLoader, RandomSampler

from penstock.integrations.torch import PlannedSampler


def main(folder: str, epochs: int, workers: int) -> None:
    # Builds an index of paths and labels, without reading any image.
    images = load_dataset("imagefolder", data_dir=folder, split="train")
    cells = images.cast_column("image", Image(decode=False))["image"]
    sampler = PlannedSampler(RandomSampler(images), paths=[cell["path"] for cell in cells])
    loader = DataLoader(
        images, batch_size=8, sampler=sampler, num_workers=workers, collate_fn=digests
    )
    for epoch in range(epochs):
        found = [one for batch in loader for one in batch]
        digest = hashlib.sha256("".join(sorted(found)).encode()).hexdigest()[:12]
        print(f"epoch {epoch}: {len(found)} images, {digest}")


def digests(rows: list[dict[str, Any]]) -> list[str]:
    """Stand in for decoding, cropping and collating."""
    return [hashlib.sha256(row["image"].tobytes()).hexdigest() for row in rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    main(options.folder, options.epochs, options.workers)
