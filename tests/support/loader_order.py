"""`python loader_order.py [[WORKERS, "fork"|"spawn", [CASE...]], ...]` runs these turns. For each
it prints in which order DataLoaders read their data, what random numbers came in between, and what
plans were told of it, if there were any; and on stderr a line where the turn ends.

Several turns, since the import of torch takes longer than any of them.
"""

import gc
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler
from torch.utils.data import DistributedSampler as Distributed

FILES, EPOCHS = 40, 3
TURN_ENDS = "-- the turn ends"


class Files(Dataset[int]):
    def __init__(self) -> None:
        self.paths = [f"/data/{number}" for number in range(FILES)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return index


class ShufflesItsList(Sampler[int]):
    """Each epoch shuffles what the last one left."""

    def __init__(self) -> None:
        self.order = list(range(FILES))

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        return iter(self.order)

    def __len__(self) -> int:
        return FILES


class HasItsOwnGenerator(Sampler[int]):
    def __init__(self) -> None:
        self.numbers = np.random.default_rng(5)

    def __iter__(self) -> Iterator[int]:
        yield from self.numbers.permutation(FILES).tolist()


class Endless(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        numbers = torch.Generator().manual_seed(random.randrange(1000))
        while True:
            yield torch.randperm(FILES, generator=numbers)[:4].tolist()


class DrawsAsItGoes(Sampler[int]):
    """From the numbers that training draws from, too: nobody can foresee it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(FILES):
            yield random.randrange(FILES)


class CallsItsDataset(Sampler[int]):
    def __init__(self, dataset: Files) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.dataset.paths)
        return iter([self.dataset[index] for index in range(FILES)])


class HoldsALock(Sampler[int]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        yield from range(FILES)


class Deadly(Files):
    """A process that reads it dies."""

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


class DrawsWhenPickled(Files):
    """A start of workers that changes what the sampler will hand out."""

    def __getstate__(self) -> dict[str, Any]:
        torch.rand(())
        return self.__dict__


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


# What each case gives its loader beside the data set.
Options = Callable[[Files], dict[str, Any]]
CASES: dict[str, Options] = {
    "in order": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "with a generator": lambda _: {"shuffle": True, "generator": seeded()},
    "a sampler with a generator": lambda files: {
        "sampler": RandomSampler(files, generator=seeded())
    },
    "without batches": lambda _: {"batch_size": None, "sampler": ShufflesItsList()},
    "distributed": lambda files: {"sampler": Distributed(files, num_replicas=3, rank=1, seed=2)},
    "longer than the set": lambda files: {
        "sampler": RandomSampler(files, replacement=True, num_samples=5 * FILES)
    },
    "shuffled twice": lambda _: {"sampler": ShufflesItsList()},
    "its own generator": lambda _: {"sampler": HasItsOwnGenerator()},
    "batch sampler": lambda files: {
        "batch_sampler": BatchSampler(RandomSampler(files), 7, drop_last=True)
    },
    "endless": lambda _: {"batch_sampler": Endless()},
    "a list of batches": lambda _: {"batch_sampler": [[3, 1], [-1, 4], [1, 5]]},
    "torchdata's": lambda _: {"shuffle": True},
}  # fmt: skip
NOT_FORESEEN: dict[str, Options] = {
    "draws as it goes": lambda _: {"sampler": DrawsAsItGoes()},
    "calls its data set": lambda files: {"sampler": CallsItsDataset(files)},
    "holds a lock": lambda _: {"sampler": HoldsALock()},
}
DEADLY, CHANGING = "a worker dies", "draws when pickled"


def loader_of(case: str, **how: Any) -> Any:
    kind: Any = DataLoader
    if case == "torchdata's":
        from torchdata.stateful_dataloader import StatefulDataLoader as kind
    files = {DEADLY: Deadly, CHANGING: DrawsWhenPickled}.get(case, Files)()
    options = {**CASES, **NOT_FORESEEN}.get(case, CASES["shuffled"])(files)
    batches = {} if "batch_sampler" in options else {"batch_size": 4}
    return kind(files, **batches | options, **how)


def read(case: str, workers: int, start_method: str | None) -> dict[str, Any]:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    loader = loader_of(
        case,
        num_workers=workers,
        multiprocessing_context=start_method if workers else None,
        persistent_workers=start_method == "spawn",  # or each epoch imports torch anew
    )
    if case == DEADLY:
        try:
            next(iter(loader))
        except RuntimeError as error:
            return {"error": str(error).split("(pid")[0]}
    epochs: list[list[int]] = []
    numbers: list[float] = []
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        seen: list[int] = []
        for step, batch in enumerate(loader):
            seen += np.atleast_1d(batch).tolist()
            numbers += [torch.rand(()).item(), random.random(), float(np.random.rand())]
            if step == 25:  # of the endless one, and what is abandoned in the middle
                break
        epochs.append(seen)
    return {"epochs": epochs, "numbers": numbers, "files": loader.dataset.paths}


def take_turn(
    plans: list[Any], workers: int, start_method: str, cases: Sequence[str]
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for case in cases:
        before = len(plans)
        results[case] = {"read": read(case, workers, start_method)}
        gc.collect()  # the loader is gone, and with it the plan
        fields = ("restarts", "crossed", "closed", "done", "before_workers")
        results[case]["plans"] = [
            {
                "order": plan.order[: plan.handed_out],
                **{one: getattr(plan, one) for one in fields},
            }
            for plan in plans[before:]
        ]
    return results


def main(turns: Sequence[tuple[int, str, Sequence[str]]]) -> None:
    plans: list[Any] = []
    printed: set[str] = set()
    if "penstock.integrations.loader_hook" in sys.modules:  # `penstock run` has put it there
        from recorded import record

        from penstock.integrations import loader_hook

        plans, printed = record(), loader_hook._printed
    results: list[dict[str, Any]] = []
    for turn in turns:
        results.append(take_turn(plans, *turn))
        print(TURN_ENDS, file=sys.stderr, flush=True)
        printed.clear()  # what is said once is said again in the next turn
    print(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
