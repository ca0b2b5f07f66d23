"""What a plan asks of its figures, and whether the run met it. Pure.

A goal that the run cannot judge (an arm without a valid result, a machine with other cores, a
passthrough mount that fell back) has no verdict: nothing is guessed.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from penstock.bench.plans.model import GoalPlan
from penstock.bench.reporting.results import BARE, Run, number
from penstock.bench.reporting.rows import Row

_MEANINGS = {
    "busy": "busy share of the",
    "fetched": "bytes fetched over bytes read,",
    "first-batch-round-trips": "round trips to the first batch, beyond native's and its transfer,",
    "hits": "share from the local cache,",
    "files-per-s": "samples/s,",
    "ready-s": "seconds until ready",
    "memory-mb": "MB of memory",
}
_NO_PEERS = ("native", "ceiling", BARE, "penstock")


@dataclass(frozen=True, slots=True)
class Judged:
    """One goal at one figure."""

    what: str
    goal: str
    figure: str
    met: bool


def judge_goals(run: Run, rows: Sequence[Row]) -> list[Judged]:
    """Return a verdict for each goal of the plan that the results can show."""
    cores = number(run.environment.get("cores")) or 0
    found: list[Judged] = []
    for goal in filter(None, map(_goal, run.goals)):
        if cores < goal.least_cores or (goal.most_cores is not None and cores > goal.most_cores):
            continue
        for row in rows:
            if _is_about(goal, row, rows) and (judged := _judge(goal, row, rows)) is not None:
                found.append(judged)
        found += _of_figures(goal, run)
    return found


def _goal(found: Mapping[str, Any]) -> GoalPlan | None:
    try:
        return GoalPlan.model_validate(found)
    except ValidationError:
        return None


def _is_about(goal: GoalPlan, row: Row, rows: Sequence[Row]) -> bool:
    workload, dataset = row.setting.workload.name, row.setting.dataset
    if row.arm.name != goal.arm or not row.counted:
        return False
    if goal.workload not in (None, workload) or goal.dataset not in (None, dataset):
        return False
    if row.is_first is not None:
        return row.is_first == (goal.epoch == "first")
    if goal.measure != "files-per-s":
        return False
    most = max(one.readers for one in rows if one.setting.key == row.setting.key)
    readers = most if goal.readers == "most" else goal.readers
    if goal.state not in (None, row.state) or readers not in (None, row.readers):
        return False
    # One that fell back cannot show the row.
    asked = "mode=passthrough" in row.arm.options
    return not asked or row.modes == frozenset(["passthrough"])


def _judge(goal: GoalPlan, row: Row, rows: Sequence[Row]) -> Judged | None:
    beside = [
        one
        for one in rows
        if one.counted
        and (one.setting.key, one.is_first, one.readers)
        == (row.setting.key, row.is_first, row.readers)
        and (row.is_first is not None or one.state == row.state)
    ]
    if goal.measure == "files-per-s":
        return _speed(goal, row, beside)
    if goal.measure == "first-batch-round-trips":
        figure = _round_trips(row, beside)
    elif goal.measure in ("busy", "fetched", "hits"):
        found = row.figure(goal.measure)
        figure = None if found is None else found.mean
    else:
        return None
    return None if figure is None else _judged(goal, _title(goal, row), figure)


def _speed(goal: GoalPlan, row: Row, beside: Sequence[Row]) -> Judged | None:
    title, ours = _title(goal, row), row.figure("samples_per_s")
    assert ours is not None
    if goal.of is None:
        return _judged(goal, title, ours.mean, "files/s" if row.is_first is None else "samples/s")
    neighbours = {"native": ("native_ratio", "native"), "client": ("bare_ratio", "the bare client")}
    if goal.of in neighbours and row.is_first is None:
        name, whom = neighbours[goal.of]
        found = row.figure(name)
        return None if found is None else _judged(goal, title, found.mean, f"of {whom}")
    if goal.of == "peers":
        others = [one for one in beside if one.arm.system not in _NO_PEERS]
    else:
        others = [one for one in beside if goal.of in (one.arm.name, one.arm.system)]
    speeds = [(found.mean, one) for one in others if (found := one.figure("samples_per_s"))]
    if not speeds:
        return None
    theirs, other = max(speeds, key=lambda pair: pair[0])
    unit = f"times {other.label}" if row.is_first is None else f"of {other.arm.spoken}"
    return _judged(goal, title, ours.mean / theirs, unit)


def _round_trips(row: Row, beside: Sequence[Row]) -> float | None:
    """Starting the loader's workers is in the time of native files too; no storage helps."""
    shape, workload = row.setting.shape, row.setting.workload
    native = next((one for one in beside if one.arm.system == "native"), None)
    ours = row.figure("first_batch_s")
    theirs = None if native is None else native.figure("first_batch_s")
    if ours is None or theirs is None or not shape.latency_s:
        return None
    transfer_s = 0.0
    if shape.bytes_per_s and workload.batch and workload.sample_bytes:
        transfer_s = workload.batch * workload.sample_bytes / shape.bytes_per_s
    return max(0.0, (ours.mean - theirs.mean - transfer_s) / shape.latency_s)


def _of_figures(goal: GoalPlan, run: Run) -> Iterable[Judged]:
    name = {"ready-s": "ready_s", "memory-mb": "memory_mb"}.get(goal.measure)
    groups: dict[str, list[float]] = {}
    for one in run.counted:
        about = one.arm.name == goal.arm and goal.workload in (None, one.workload.name)
        if name is not None and about and name in one.figures:
            groups.setdefault(one.workload.name, []).append(one.figures[name])
    for workload, values in groups.items():
        title = f"{workload}: {_MEANINGS[goal.measure]}"
        yield _judged(goal, title, statistics.median(values))


def _title(goal: GoalPlan, row: Row) -> str:
    if row.is_first is None:
        readers = "1 reader" if row.readers == 1 else f"{row.readers} readers"
        dataset = f" {row.setting.dataset}" if row.setting.dataset else ""
        return f"{row.label}: {row.state}{dataset} files, {readers}"
    epoch = "later epochs" if goal.epoch == "later" else "first epoch"
    return f"{row.arm.spoken}: {_MEANINGS[goal.measure]} {epoch}"


def _judged(goal: GoalPlan, what: str, figure: float, unit: str = "") -> Judged:
    unit = f" {unit}" if unit else ""
    if goal.at_least is not None:
        asked, met = f"{goal.at_least:,g}{unit} or more", figure >= goal.at_least
    else:
        assert goal.at_most is not None
        asked, met = f"{goal.at_most:,g}{unit} or less", figure <= goal.at_most
    return Judged(what, asked, _figure(figure), met)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"
