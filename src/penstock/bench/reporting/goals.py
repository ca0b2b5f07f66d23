"""What a plan asks of its figures, held against the results of a run. Pure.

A goal that the run cannot judge (an arm without a valid result, a machine with other cores, a
passthrough mount that fell back) has no verdict: nothing is guessed.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from penstock.bench.plans.model import GoalPlan
from penstock.bench.reporting.results import Epoch, Result, Run, number
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.states import BARE, StateRow, name_of

_MEANINGS = {
    "busy": "busy share of the",
    "fetched": "bytes fetched over bytes read,",
    "first-batch-round-trips": "round trips to the first batch, beyond native's and its transfer,",
    "hits": "share from the local cache,",
    "files-per-s": "samples/s,",
    "ready-s": "seconds until ready",
    "memory-mb": "MB of memory",
}
_REFERENCES = ("native", BARE, "penstock")


@dataclass(frozen=True, slots=True)
class Judged:
    """One goal at one figure."""

    what: str
    goal: str
    figure: str
    met: bool


def _judged(goal: GoalPlan, what: str, figure: float, unit: str = "") -> Judged:
    unit = f" {unit}" if unit else ""
    if goal.at_least is not None:
        asked, met = f"{goal.at_least:,g}{unit} or more", figure >= goal.at_least
    else:
        assert goal.at_most is not None
        asked, met = f"{goal.at_most:,g}{unit} or less", figure <= goal.at_most
    return Judged(what, asked, _figure(figure), met)


def _is_about(goal: GoalPlan, setting: Setting) -> bool:
    workload, dataset = setting.workload.name, setting.dataset
    return goal.workload in (None, workload) and goal.dataset in (None, dataset)


def judge_goals(run: Run, rows: Sequence[Row], states: Sequence[StateRow]) -> list[Judged]:
    """Return a verdict for each goal of the plan that the results can show."""
    cores = number(run.environment.get("cores")) or 0
    found: list[Judged] = []
    for goal in filter(None, map(_goal, run.goals)):
        if cores < goal.least_cores or (goal.most_cores is not None and cores > goal.most_cores):
            continue
        found += _of_states(goal, states)
        found += _of_training(goal, rows)
        found += _of_figures(goal, run)
    return found


def _goal(found: Mapping[str, Any]) -> GoalPlan | None:
    try:
        return GoalPlan.model_validate(found)
    except ValidationError:
        return None


def _of_states(goal: GoalPlan, rows: Sequence[StateRow]) -> Iterable[Judged]:
    if goal.measure != "files-per-s":
        return
    for row in rows:
        if row.arm.name != goal.arm or not _is_about(goal, row.setting):
            continue
        here = [one for one in rows if one.setting.key == row.setting.key]
        most = max(one.readers for one in here)
        wanted = most if goal.readers == "most" else goal.readers
        if goal.state not in (None, row.state) or wanted not in (None, row.readers):
            continue
        if "mode=passthrough" in row.arm.options and row.modes != frozenset(["passthrough"]):
            continue  # it fell back: this machine cannot show the row
        beside = [one for one in here if (one.state, one.readers) == (row.state, row.readers)]
        yield from _compared(goal, row, beside)


def _compared(goal: GoalPlan, row: StateRow, beside: Sequence[StateRow]) -> Iterable[Judged]:
    readers = "1 reader" if row.readers == 1 else f"{row.readers} readers"
    dataset = f" {row.setting.dataset}" if row.setting.dataset else ""
    what = f"{name_of(row.arm)}: {row.state}{dataset} files, {readers}"
    if goal.of is None:
        yield _judged(goal, what, row.files_per_s, "files/s")
    elif goal.of in ("native", "client"):
        ratio = row.native_ratio if goal.of == "native" else row.bare_ratio
        if ratio is not None:
            unit = "of native" if goal.of == "native" else "of the bare client"
            yield _judged(goal, what, ratio, unit)
    else:
        others = [one for one in beside if one.arm.name == goal.of]
        if goal.of == "peers":
            others = [one for one in beside if one.arm.system not in _REFERENCES]
        if others:
            best = max(others, key=lambda one: one.files_per_s)
            unit = f"times {name_of(best.arm)}"
            yield _judged(goal, what, row.files_per_s / best.files_per_s, unit)


def _of_training(goal: GoalPlan, rows: Sequence[Row]) -> Iterable[Judged]:
    for row in rows:
        if row.arm.name != goal.arm or not row.counted or not _is_about(goal, row.setting):
            continue
        epochs = _epochs(row, goal.epoch)
        epoch = "later epochs" if goal.epoch == "later" else "first epoch"
        title = f"{row.arm.spoken}: {_MEANINGS[goal.measure]} {epoch}"
        if goal.measure == "files-per-s":
            beside = [one for one in rows if one.setting.key == row.setting.key]
            yield from _speed(goal, title, epochs, beside)
        elif (figure := _training_figure(goal, row, epochs, rows)) is not None:
            yield _judged(goal, title, figure)


def _speed(
    goal: GoalPlan, title: str, epochs: Sequence[Epoch], beside: Sequence[Row]
) -> Iterable[Judged]:
    ours = _mean(epochs, lambda one: one.samples / one.seconds)
    if ours is None:
        return
    if goal.of is None:
        yield _judged(goal, title, ours, "samples/s")
        return
    for row in beside:
        if goal.of not in (row.arm.name, row.arm.system):
            continue
        theirs = _mean(_epochs(row, goal.epoch), lambda one: one.samples / one.seconds)
        if theirs:
            yield _judged(goal, title, ours / theirs, f"of {row.arm.spoken}")
            return


def _training_figure(
    goal: GoalPlan, row: Row, epochs: Sequence[Epoch], rows: Sequence[Row]
) -> float | None:
    if goal.measure == "busy":
        return _mean(epochs, lambda one: one.busy_with_first_batch)
    if goal.measure == "fetched":
        return _mean(epochs, lambda one: one.fetched_share)
    if goal.measure == "hits":
        return _mean(epochs, lambda one: one.hit_share)
    if goal.measure == "first-batch-round-trips":
        return _round_trips(row, epochs, rows)
    return None


def _round_trips(row: Row, epochs: Sequence[Epoch], rows: Sequence[Row]) -> float | None:
    """Starting the loader's workers is in the time of native files too; no storage helps."""
    shape, workload = row.setting.shape, row.setting.workload
    native = next(
        (
            one
            for one in rows
            if one.setting.key == row.setting.key and one.arm.system == "native" and one.counted
        ),
        None,
    )
    ours = _mean(epochs, lambda one: one.first_batch_s)
    if native is None or ours is None or not shape.latency_s:
        return None
    theirs = _mean(_epochs(native, "first"), lambda one: one.first_batch_s)
    if theirs is None:
        return None
    transfer_s = 0.0
    if shape.bytes_per_s and workload.batch and workload.sample_bytes:
        transfer_s = workload.batch * workload.sample_bytes / shape.bytes_per_s
    return max(0.0, (ours - theirs - transfer_s) / shape.latency_s)


def _of_figures(goal: GoalPlan, run: Run) -> Iterable[Judged]:
    name = {"ready-s": "ready_s", "memory-mb": "memory_mb"}.get(goal.measure)
    if name is None:
        return
    groups: dict[str, list[Result]] = {}
    for one in run.counted:
        if one.arm.name == goal.arm and goal.workload in (None, one.workload.name):
            groups.setdefault(one.workload.name, []).append(one)
    for workload, results in groups.items():
        values = [one.figures[name] for one in results if name in one.figures]
        if values:
            figure = statistics.median(values)
            yield _judged(goal, f"{workload}: {_MEANINGS[goal.measure]}", figure)


def _epochs(row: Row, which: str) -> list[Epoch]:
    if which == "later":
        return [epoch for one in row.results for epoch in one.epochs[1:]]
    return [epoch for one in row.results for epoch in one.epochs[:1]]


def _mean(epochs: Sequence[Epoch], of: Callable[[Epoch], float | None]) -> float | None:
    values = [value for value in map(of, epochs) if value is not None]
    return statistics.fmean(values) if values else None


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"
