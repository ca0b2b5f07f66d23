"""How many accelerators storage feeds: the most that stay busy 90% of the time. Pure.

With one count of accelerators, or from several:
- the largest count that is 90% busy is fed for certain;
- the next larger count waited for data, so what it was fed is what storage gives: count times busy
  share, and that over 90% is how many could be kept at 90%. It is measured with more readers than
  the answer has, so it does not flatter;
- if every count was 90% busy, storage gave all that was asked for: `at_least`.
A workload at a scale below 1 emulates accelerators that are so much less hungry; the answer is in
whole ones.
"""

from dataclasses import dataclass

from penstock.bench.reporting.intervals import Estimate, estimate
from penstock.bench.reporting.results import Result

GOAL = 0.90
METHOD = (
    "Accelerators fed at 90% or more busy: the largest number of accelerators that was 90% busy, "
    "or, where a larger number was measured too and waited for data, that number times its busy "
    "share over 0.9. Accelerators emulated at a scale below 1 count by that scale."
)


@dataclass(frozen=True, slots=True)
class Fed:
    count: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class FedEstimate:
    """Over repeats. `at_least`: in none of them storage was the limit."""

    estimate: Estimate
    at_least: bool


def fed(result: Result) -> Fed | None:
    if result.workload.accelerator is None:
        return None
    points = result.accelerator_runs or _own_point(result)
    if not points:
        return None
    found = _fed(points)
    return Fed(found.count * result.workload.scale, found.at_least)


def fed_estimate(results: list[Result]) -> FedEstimate | None:
    found = [one for one in map(fed, results) if one is not None]
    counted = estimate([one.count for one in found])
    if counted is None:
        return None
    return FedEstimate(counted, all(one.at_least for one in found))


def _fed(points: tuple[tuple[int, float], ...]) -> Fed:
    sure = 0
    for count, share in points:
        if share < GOAL:
            return Fed(max(float(sure), count * share / GOAL))
        sure = count
    return Fed(float(sure), at_least=True)


def _own_point(result: Result) -> tuple[tuple[int, float], ...]:
    """Of a workload with one count: its measured epochs."""
    epochs = [one for one in result.measured if one.busy_share is not None]
    if not epochs:
        return ()
    seconds = sum(one.seconds for one in epochs)
    busy_s = sum((one.busy_share or 0.0) * one.seconds for one in epochs)
    return ((result.workload.accelerators or 1, busy_s / seconds),)
