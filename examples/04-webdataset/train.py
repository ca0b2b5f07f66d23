"""WebDataset's pipeline over tar shards on a mount: `python train.py FOLDER`."""

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

from penstock.integrations.ordered import announce


def planned(shards: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Announce the shards of this worker to the mount, in order. The only stage Penstock adds."""
    return announce(shards, lambda shard: shard["url"], label="webdataset")


def samples(folder: Path, seed: int) -> wds.DataPipeline:
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    return wds.DataPipeline(
        wds.SimpleShardList(shards, seed=seed),  # shuffled by the seed
        wds.split_by_worker,  # with several nodes: wds.split_by_node before it
        planned,  # after the split: each worker announces its own shards
        wds.tarfile_to_samples(),
        wds.shuffle(16, seed=seed),
        wds.to_tuple("jpg", "cls"),
    )


def main(folder: Path, epochs: int, workers: int) -> None:
    for epoch in range(epochs):
        loader = DataLoader(samples(folder, seed=epoch), batch_size=None, num_workers=workers)
        found = sorted(hashlib.sha256(image + label).digest() for image, label in loader)
        digest = hashlib.sha256(b"".join(found)).hexdigest()[:12]
        print(f"epoch {epoch}: {len(found)} samples, {digest}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    main(options.folder, options.epochs, options.workers)
