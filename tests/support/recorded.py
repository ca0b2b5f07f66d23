"""A plan that goes nowhere and remembers what it was told, for tests of what was foretold."""

import multiprocessing
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.integrations import publisher

PLANS: list["RecordedPlan"] = []


class RecordedPlan:
    roots = ("/data",)

    def __init__(self, paths: Sequence[str], label: str) -> None:
        self.paths, self.label = list(paths), label
        self.order: list[int] = []
        self.handed_out = self.done = 0
        self.restarts = 0  # how often something published was wrong
        self.crossed = 0  # how much was published beyond what was handed out
        self.closed = False
        self.before_workers = False  # whether something was published when there were no workers
        PLANS.append(self)

    def extend(self, indices: Iterable[int]) -> None:
        self.order.extend(indices)
        self.before_workers |= bool(self.order) and not multiprocessing.active_children()
        assert all(0 <= index < len(self.paths) for index in self.order)

    def restart(self, indices: Iterable[int]) -> None:
        self.restarts += len(self.order) > self.handed_out
        self.crossed = max(self.crossed, len(self.order) - self.handed_out)
        del self.order[self.handed_out :]
        self.extend(indices)

    def reached(self, handed_out: int, done: int) -> None:
        assert self.handed_out <= handed_out <= len(self.order)
        assert self.done <= done <= handed_out
        self.handed_out, self.done = handed_out, done

    def problems(self) -> str | None:
        return None

    def close(self) -> None:
        self.crossed = max(self.crossed, len(self.order) - self.handed_out)
        self.closed = True


def open_plan(paths: Sequence[str], *, label: str = "", **_: Any) -> RecordedPlan:
    return RecordedPlan(paths, label)


def record() -> list[RecordedPlan]:
    """From now on plans are recorded in this process."""
    publisher.open_plan = open_plan  # type: ignore[assignment]
    return PLANS
