"""`python train.py FOLDER SAMPLER WORKERS` trains two epochs on the files below a folder.

It prints `begun` when it has its first batch, and goes on after a line on stdin. It prints what it
has read, and ends after another line.
"""

import json
import os
import sys
from hashlib import sha256

from torch.utils.data import DataLoader, RandomSampler, Sampler
from torch.utils.data import DistributedSampler as Distributed

from penstock.integrations.torch import PenstockFiles, PlannedSampler


class Files(PenstockFiles):
    def __getitem__(self, index: int) -> tuple[str, str]:
        name = os.path.basename(self.files[index])
        return name, sha256(super().__getitem__(index)).hexdigest()

    def __getitems__(self, indices: list[int]) -> list[tuple[str, str]]:
        return [self[index] for index in indices]


def main(folder: str, kind: str, workers: int) -> None:
    dataset = Files(folder)
    sampler: Sampler = RandomSampler(dataset)
    if kind == "planned":
        sampler = PlannedSampler(sampler, dataset, seed=4, lag=16)
    if kind == "distributed":
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        sampler = Distributed(dataset, num_replicas=ranks, rank=rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers)
    drawn = iter(loader)
    epochs = [[next(drawn)], []]
    print("begun", flush=True)
    sys.stdin.readline()
    epochs[0] += drawn
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(1)
    epochs[1] += loader
    print(
        json.dumps(
            [
                {
                    n: digest
                    for names, digests in epoch
                    for n, digest in zip(names, digests, strict=True)
                }
                for epoch in epochs
            ]
        ),
        flush=True,
    )
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
