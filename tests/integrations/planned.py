"""`python planned.py WORKERS fork|spawn` prints the epochs of a loader over a PlannedSampler."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from order import Files
from recorded import record
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from penstock.integrations.torch import PlannedSampler


def epochs_of(workers: int, method: str, *, batches: bool) -> list[list[int]]:
    dataset = Files()
    sampler: Sampler = RandomSampler(dataset)
    options = {"num_workers": workers, "persistent_workers": workers > 0 and method == "spawn"}
    if workers:
        options["multiprocessing_context"] = method
    if batches:
        planned = PlannedSampler(BatchSampler(sampler, 4, drop_last=False), dataset, seed=8)
        loader = DataLoader(dataset, batch_sampler=planned, **options)
    else:
        planned = PlannedSampler(sampler, dataset, seed=8)
        loader = DataLoader(dataset, batch_size=4, sampler=planned, **options)
    return [[int(index) for batch in loader for index in batch] for _ in range(2)]


def main(workers: int, method: str) -> None:
    plans = record()
    by_samples, by_batches = (epochs_of(workers, method, batches=kind) for kind in (False, True))
    print(json.dumps({
        "samples": by_samples, "batches": by_batches,
        "published": [plan.order[: plan.handed_out] for plan in plans],
        "restarts": [plan.restarts for plan in plans],
    }))  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
