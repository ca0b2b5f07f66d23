"""A plan that goes nowhere and remembers all it was told, for scripts that ask what was foretold."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from penstock.integrations import publisher

PLANS: list["RecordedPlan"] = []


class RecordedPlan:
    def __init__(self, paths: Sequence[str], label: str) -> None:
        self.paths, self.label = list(paths), label
        self.order: list[int] = []
        self.handed_out = self.done = 0
        self.most_ahead = 0
        self.restarts = 0
        self.closed = False
        PLANS.append(self)

    def extend(self, indices: Iterable[int]) -> None:
        self.order.extend(indices)
        assert all(0 <= index < len(self.paths) for index in self.order)

    def restart(self, indices: Iterable[int]) -> None:
        self.restarts += len(self.order) > self.handed_out
        del self.order[self.handed_out :]
        self.extend(indices)

    def reached(self, handed_out: int, done: int) -> None:
        assert self.handed_out <= handed_out <= len(self.order)
        self.most_ahead = max(self.most_ahead, len(self.order) - handed_out)
        assert self.done <= done <= handed_out
        self.handed_out, self.done = handed_out, done

    def problems(self) -> str | None:
        return None

    def close(self) -> None:
        self.closed = True


def open_plan(paths: Sequence[str], *, label: str = "", **_: Any) -> RecordedPlan:
    return RecordedPlan(paths, label)


def record() -> list[RecordedPlan]:
    """From now on plans are recorded in this process."""
    publisher.open_plan = open_plan  # type: ignore[assignment]
    return PLANS
