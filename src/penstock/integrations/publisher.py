"""Keeps a plan in step with the epochs of one loader.

What was published of the next epoch stays if it turns out right, and is taken back if not.
Threading: one thread at a time, that which draws from the sampler.
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
        """Raises PlanError: no mount has them, or none takes the plan."""
        self.length = len(files)
        self.process = os.getpid()  # a forked child of it has no plan
        self._plan: Plan = open_plan(files, label=_label())
        quiet_open.learn(self._plan.roots)
        self._handed_out = self._done = 0
        self._left = 0  # of this epoch's order, as published
        self._ahead: array[int] | None = None  # the next epoch's, published already
        self._told: set[str] = set()

    @property
    def has_next(self) -> bool:
        """Whether an epoch was announced that has not begun."""
        return self._ahead is not None

    @property
    def under_way(self) -> bool:
        """Whether an epoch has begun and some of it was not handed out."""
        return self._left > 0

    def begin(self, parts: Iterable["array[int]"]) -> bool:
        """An epoch begins; its order comes in parts, the first of them at once. Says whether it
        had to be published: False if it was, when it was announced."""
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
        """This epoch goes on."""
        self._publish(order, replace=False)
        self._left += len(order)

    def announce(self, order: "array[int]") -> None:
        """This will probably be the next epoch."""
        self._publish(order, replace=False)
        self._ahead = order

    def foretell(self, order: "array[int]") -> None:
        """Between epochs: the next one will probably be this, and not what was announced."""
        if order != self._ahead:
            self._publish(order, replace=self._ahead is not None)
            self._ahead = order

    def hand_out(self, count: int, lag: int) -> None:
        """`count` more are on their way to readers; the last `lag` may still be unread."""
        self._handed_out += count
        self._left -= count
        self._done = max(self._done, self._handed_out - lag)  # a larger batch makes a larger lag
        self._plan.reached(self._handed_out, self._done)

    def withdraw(self) -> None:
        """Nobody knows what comes next."""
        self._plan.restart(())
        self._left, self._ahead = 0, None

    def problem(self) -> str | None:
        """What the user should know and has not been told. Costs 3 us."""
        if (problem := self._plan.problems()) is None:
            return None
        kind = re.sub(r"[\d,]+", "", problem)  # a growing count is no news
        if kind in self._told:
            return None
        self._told.add(kind)
        return problem

    def close(self) -> None:
        self._plan.close()

    def _publish(self, order: "array[int]", *, replace: bool) -> None:
        if order and (min(order) < 0 or max(order) >= self.length):
            # As Python counts: from the end. What is beyond, the script itself will stumble over.
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
