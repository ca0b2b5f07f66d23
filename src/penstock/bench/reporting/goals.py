"""What a plan asks of its figures, held against the results of a run. Pure.

A goal that the run cannot judge (an arm without a valid result, a machine with other cores, a
passthrough mount that fell back) has no verdict: nothing is guessed.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.reporting.reading import number, text
from penstock.bench.reporting.results import Epoch, Result, Run
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


@dataclass(frozen=True, slots=True)
class _Goal:
    """A goal as plan.json has it."""

    arm: str
    measure: str
    at_least: float | None
    at_most: float | None
    of: str
    workload: str
    dataset: str
    state: str
    readers: int | str | None
    epoch: str
    least_cores: int
    most_cores: int | None

    def judged(self, what: str, figure: float, unit: str = "") -> Judged:
        unit = f" {unit}" if unit else ""
        if self.at_least is not None:
            met = figure >= self.at_least
            return Judged(what, f"{self.at_least:,g}{unit} or more", _figure(figure), met)
        assert self.at_most is not None
        met = figure <= self.at_most
        return Judged(what, f"{self.at_most:,g}{unit} or less", _figure(figure), met)

    def is_about(self, setting: Setting) -> bool:
        return self.workload in ("", setting.workload.name) and self.dataset in (
            "",
            setting.dataset,
        )


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


def _goal(found: Mapping[str, Any]) -> _Goal | None:
    readers, most_cores = found.get("readers"), number(found.get("most_cores"))
    goal = _Goal(
        arm=text(found.get("arm")),
        measure=text(found.get("measure")),
        at_least=number(found.get("at_least")),
        at_most=number(found.get("at_most")),
        of=text(found.get("of")),
        workload=text(found.get("workload")),
        dataset=text(found.get("dataset")),
        state=text(found.get("state")),
        readers=readers if isinstance(readers, int | str) else None,
        epoch=text(found.get("epoch")) or "first",
        least_cores=int(number(found.get("least_cores")) or 0),
        most_cores=None if most_cores is None else int(most_cores),
    )
    return None if goal.at_least is None and goal.at_most is None else goal


def _of_states(goal: _Goal, rows: Sequence[StateRow]) -> Iterable[Judged]:
    if goal.measure != "files-per-s":
        return
    for row in rows:
        if row.arm.name != goal.arm or not goal.is_about(row.setting):
            continue
        here = [one for one in rows if one.setting.key == row.setting.key]
        most = max(one.readers for one in here)
        wanted = most if goal.readers == "most" else goal.readers
        if goal.state not in ("", row.state) or wanted not in (None, row.readers):
            continue
        if "mode=passthrough" in row.arm.options and row.modes != frozenset(["passthrough"]):
            continue  # it fell back: this machine cannot show the row
        beside = [one for one in here if (one.state, one.readers) == (row.state, row.readers)]
        yield from _compared(goal, row, beside)


def _compared(goal: _Goal, row: StateRow, beside: Sequence[StateRow]) -> Iterable[Judged]:
    readers = "1 reader" if row.readers == 1 else f"{row.readers} readers"
    dataset = f" {row.setting.dataset}" if row.setting.dataset else ""
    what = f"{name_of(row.arm)}: {row.state}{dataset} files, {readers}"
    if not goal.of:
        yield goal.judged(what, row.files_per_s, "files/s")
    elif goal.of in ("native", "client"):
        ratio = row.native_ratio if goal.of == "native" else row.bare_ratio
        if ratio is not None:
            unit = "of native" if goal.of == "native" else "of the bare client"
            yield goal.judged(what, ratio, unit)
    else:
        others = [one for one in beside if one.arm.name == goal.of]
        if goal.of == "peers":
            others = [one for one in beside if one.arm.system not in _REFERENCES]
        if others:
            best = max(others, key=lambda one: one.files_per_s)
            unit = f"times {name_of(best.arm)}"
            yield goal.judged(what, row.files_per_s / best.files_per_s, unit)


def _of_training(goal: _Goal, rows: Sequence[Row]) -> Iterable[Judged]:
    for row in rows:
        if row.arm.name != goal.arm or not row.counted or not goal.is_about(row.setting):
            continue
        epochs = _epochs(row, goal.epoch)
        epoch = "later epochs" if goal.epoch == "later" else "first epoch"
        title = f"{row.arm.spoken}: {_MEANINGS[goal.measure]} {epoch}"
        if goal.measure == "files-per-s":
            beside = [one for one in rows if one.setting.key == row.setting.key]
            yield from _speed(goal, title, epochs, beside)
        elif (figure := _training_figure(goal, row, epochs, rows)) is not None:
            yield goal.judged(title, figure)


def _speed(
    goal: _Goal, title: str, epochs: Sequence[Epoch], beside: Sequence[Row]
) -> Iterable[Judged]:
    ours = _mean(epochs, lambda one: one.samples / one.seconds)
    if ours is None:
        return
    if not goal.of:
        yield goal.judged(title, ours, "samples/s")
        return
    for row in beside:
        if goal.of not in (row.arm.name, row.arm.system):
            continue
        theirs = _mean(_epochs(row, goal.epoch), lambda one: one.samples / one.seconds)
        if theirs:
            yield goal.judged(title, ours / theirs, f"of {row.arm.spoken}")
            return


def _training_figure(
    goal: _Goal, row: Row, epochs: Sequence[Epoch], rows: Sequence[Row]
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


def _of_figures(goal: _Goal, run: Run) -> Iterable[Judged]:
    name = {"ready-s": "ready_s", "memory-mb": "memory_mb"}.get(goal.measure)
    if name is None:
        return
    groups: dict[str, list[Result]] = {}
    for one in run.counted:
        if one.arm.name == goal.arm and goal.workload in ("", one.workload.name):
            groups.setdefault(one.workload.name, []).append(one)
    for workload, results in groups.items():
        values = [one.figures[name] for one in results if name in one.figures]
        if values:
            figure = statistics.median(values)
            yield goal.judged(f"{workload}: {_MEANINGS[goal.measure]}", figure)


def _epochs(row: Row, which: str) -> list[Epoch]:
    if which == "later":
        return [epoch for one in row.results for epoch in one.epochs[1:]]
    return [epoch for one in row.results for epoch in one.epochs[:1]]


def _mean(epochs: Sequence[Epoch], of: Callable[[Epoch], float | None]) -> float | None:
    values = [value for value in map(of, epochs) if value is not None]
    return statistics.fmean(values) if values else None


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"
