"""`python planned.py WORKERS,fork|spawn,KIND...` prints for each of these the epochs of loaders
over a PlannedSampler, of the kinds `samples` and `batches`. One script, since the import of torch
takes longer than all of them."""

import json
import sys
from pathlib import Path
from typing import Any

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


def main(turns: list[str]) -> None:
    plans, told = record(), []
    for turn in turns:
        workers, method, *kinds = turn.split(",")
        results: dict[str, Any] = {}
        for kind in kinds:
            epochs = epochs_of(int(workers), method, batches=kind == "batches")
            (plan,) = plans
            published = plan.order[: plan.handed_out]
            results[kind] = {"epochs": epochs, "published": published, "restarts": plan.restarts}
            plans.clear()
        told.append(results)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
