"""Keeps a plan in step with the epochs of one loader.

The next epoch is published before it begins; if it then turns out to be different, it is replaced.
Threading: one thread at a time, the one that draws from the sampler.
"""

import os
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.errors import PlanError
from penstock.integrations import quiet_open
from penstock.integrations.plans import Plan, open_plan


class Publisher:
    def __init__(self, files: Sequence[str]) -> None:
        """Open a plan; raise PlanError if the files are on no mount, or no mount takes the plan."""
        self.length = len(files)
        self.process = os.getpid()  # a forked child has no plan
        self._plan: Plan = open_plan(files, label=_label())
        quiet_open.add_roots(self._plan.roots)
        self._handed_out = self._done = 0
        self._left = 0  # positions of this epoch that are published and not handed out
        self._ahead: array[int] | None = None  # the order of the next epoch, if published
        self._reported: set[str] = set()

    @property
    def has_next(self) -> bool:
        """Whether the next epoch is published."""
        return self._ahead is not None

    @property
    def under_way(self) -> bool:
        """Whether an epoch has begun and is not fully handed out."""
        return self._left > 0

    def begin(self, parts: Iterable["array[int]"]) -> bool:
        """Begin an epoch whose order comes in parts, the first part at once.

        Return whether it had to be published: False if `announce` had published this order."""
        order = array("q")
        announced = self._ahead if self._left == 0 else None
        for part in parts:
            if announced is None:
                self._publish(part, replace=not order)
            order += part
        right = announced is not None and order == announced
        if announced is not None and not right:
            self._publish(order, replace=True)
        self._left, self._ahead = len(order), None
        return not right

    def extend(self, order: "array[int]") -> None:
        """Publish more of this epoch."""
        self._publish(order, replace=False)
        self._left += len(order)

    def announce(self, order: "array[int]") -> None:
        """Publish the probable order of the next epoch, after that of this one."""
        self._publish(order, replace=False)
        self._ahead = order

    def publish_next(self, order: "array[int]") -> None:
        """Publish the probable order of the next epoch between epochs, replacing any other."""
        if order != self._ahead:
            self._publish(order, replace=self._ahead is not None)
            self._ahead = order

    def hand_out(self, count: int, lag: int) -> None:
        """Move the cursor: `count` more were handed out, and the last `lag` may still be unread."""
        self._handed_out += count
        self._left -= count
        self._done = max(
            self._done, self._handed_out - lag
        )  # never back: a larger batch makes a larger lag
        self._plan.reached(self._handed_out, self._done)

    def withdraw(self) -> None:
        """Take back the published order: what comes next is unknown."""
        self._plan.restart(())
        self._left, self._ahead = 0, None

    def problem(self) -> str | None:
        """Return a problem that was not reported before, or None. Costs 3 us."""
        if (problem := self._plan.problems()) is None:
            return None
        kind = re.sub(r"[\d,]+", "", problem)  # a growing count is the same problem
        if kind in self._reported:
            return None
        self._reported.add(kind)
        return problem

    def close(self) -> None:
        self._plan.close()

    def _publish(self, order: "array[int]", *, replace: bool) -> None:
        if order and (min(order) < 0 or max(order) >= self.length):
            # Negative indices count from the end; beyond the end the script itself will fail.
            if min(order) < -self.length or max(order) >= self.length:
                raise PlanError(f"the sampler hands out indices beyond the {self.length:,} files")
            order = array("q", [index % self.length for index in order])
        if replace:
            self._plan.restart(order)
        else:
            self._plan.extend(order)


def _label() -> str:
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    rank = os.environ.get("RANK")
    return script if rank is None else f"{script} rank {rank}"
