"""Measures how long the loops of this process wait for their DataLoaders; for jobs with `--plan`.

The time inside `next(iterator)`: with workers it is the time until the next batch is there, and
without workers it includes reading and decoding. A script that draws batches in a thread of its own
is measured in that thread.

Threading: any thread; two that draw at the same moment may lose one batch of the count.
"""

import os
import time
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.integrations.loader_hook import inform
from penstock.jobs.loader_waits import VARIABLE, WaitRecord


def install(module: ModuleType) -> None:
    """Measure the iterators of torch.utils.data.dataloader, if a job wants to know."""
    base: Any = module._BaseDataLoaderIter
    folder = os.environ.get(VARIABLE)
    if folder is None or hasattr(base, "_penstock_timed"):
        return
    base._penstock_timed = True
    timing, step = _Timing(Path(folder)), base.__next__

    @wraps(step)
    def __next__(self: Any) -> Any:
        asked_ns = time.monotonic_ns()
        batch = step(self)  # may raise StopIteration: nobody waited for a batch
        timing.add(asked_ns)
        return batch

    base.__next__ = __next__
    os.register_at_fork(after_in_child=timing.forget)


class _Timing:
    """The record of this process, made when it gets its first batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record: WaitRecord | None = None
        self._failed = False

    def add(self, asked_ns: int) -> None:
        got_ns = time.monotonic_ns()
        if self._record is None:
            if self._failed:
                return
            try:
                self._record = WaitRecord(self._folder)
            except OSError as error:
                self._failed = True
                inform(f"how long this script waits for data is not recorded: {error}")
                return
        self._record.add(asked_ns, got_ns)

    def forget(self) -> None:
        """In a forked child, which has loops of its own."""
        self._record = None
