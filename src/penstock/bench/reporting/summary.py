"""A run as one value: summary.json, the table at a glance, the tiles beside the verdict.

Pure, but for reading the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import Estimate
from penstock.bench.reporting.reading import read_run
from penstock.bench.reporting.results import Arm, Result, Run, number
from penstock.bench.reporting.rows import (
    DEFAULT_PRICE,
    HEAD,
    Price,
    Row,
    Setting,
    StateRow,
    rows_of,
    state_rows,
)
from penstock.bench.reporting.tables import Table
from penstock.bench.reporting.verdict import Judged, Verdict, difference, judge, judge_goals
from penstock.units import format_size

SCHEMA = 2
METHOD = (
    "Means over repeats with 95% intervals by Student's t; from one repeat no interval. "
    "The first epoch of cold and planned arms, all epochs of warm ones."
)
DISCLAIMER = "Nothing here is an MLPerf result."


@dataclass(frozen=True, slots=True)
class Summary:
    run: Run
    rows: tuple[Row, ...]
    verdict: Verdict
    price: Price
    states: tuple[StateRow, ...] = ()
    goals: tuple[Judged, ...] = ()

    @property
    def settings(self) -> list[Setting]:
        return list({row.setting.key: row.setting for row in self.rows}.values())

    def of(self, setting: Setting) -> list[Row]:
        return [row for row in self.rows if row.setting == setting]

    def state_settings(self) -> list[tuple[Setting, list[StateRow]]]:
        """Return the rows of the workload `states`, one list for each setting."""
        settings = {row.setting.key: row.setting for row in self.states}
        return [
            (setting, [row for row in self.states if row.setting.key == key])
            for key, setting in settings.items()
        ]

    def title_of(self, setting: Setting) -> str:
        """Return the heading of a table of states: `small: 1,000 files, 107.4 MiB; plain`."""
        dataset = self.run.datasets.get(setting.dataset, {})
        files, size_bytes = number(dataset.get("files")), number(dataset.get("size_bytes"))
        title = f"{setting.workload.name} · {setting.dataset}"
        if files is not None and size_bytes is not None:
            title += f": {files:,.0f} files, {format_size(size_bytes)}"
        return title if setting.shape.plain else f"{title}; {setting.shape.details}"

    def to_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "schema": SCHEMA,
            "run": run.name,
            "ended": run.ended,
            "state": run.state,
            "verdict": _verdict(self.verdict),
            "method": METHOD,
            "disclaimer": DISCLAIMER,
            "datasets": {name: dict(one) for name, one in run.datasets.items()},
            "environment": dict(run.environment),
            "price_of_1000_gets": asdict(self.price),
            "rows": [_row(row, self.price) for row in self.rows],
            "states": [_state_row(row) for row in self.states],
            "figures": [
                {"arm": one.arm.model_dump(), "workload": one.workload.name, **one.figures}
                for one in run.counted
                if one.figures
            ],
            "goals": [asdict(goal) for goal in self.goals],
            "left_out": [
                {"id": one.id, "why": one.why_not, "raw": one.raw} for one in run.left_out
            ],
            "unfinished": list(run.unfinished),
            "skipped": [{"id": step.name, "why": step.error} for step in run.skipped],
            "notes": list(run.notes),
        }


def summary_of(folder: Path, price: Price = DEFAULT_PRICE) -> Summary:
    run = read_run(folder)
    rows, states = rows_of(run), state_rows(run)
    return Summary(
        run,
        tuple(rows),
        judge(run, rows, states),
        price,
        tuple(states),
        tuple(judge_goals(run, rows, states)),
    )


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "sentence": verdict.sentence,
        "workload": verdict.setting.workload.name if verdict.setting else None,
        "shape": verdict.setting.shape.name if verdict.setting else None,
        "notes": list(verdict.notes),
        "others": [
            {"workload": setting.workload.name, "shape": setting.shape.name, "sentence": sentence}
            for setting, sentence in verdict.others
        ],
    }


_OF_STATE = (
    *("state", "readers", "samples", "files_per_s", "mb_per_s", "native_ratio", "bare_ratio"),
    *("cpu_s_per_gb", "memory_mb", "messages_per_epoch"),
)
_ESTIMATES = (
    *("bytes_per_s", "samples_per_s", "busy_share", "first_batch_s"),
    *("later_bytes_per_s", "later_busy_share"),
)


def _state_row(row: StateRow) -> dict[str, Any]:
    return {
        "arm": row.arm.model_dump(),
        "workload": row.setting.workload.name,
        "shape": row.setting.shape.name,
        "dataset": row.setting.dataset,
        **{name: getattr(row, name) for name in _OF_STATE},
        "modes": sorted(row.modes),
    }


def _row(row: Row, price: Price) -> dict[str, Any]:
    gets = row.gets.mean if row.gets else None
    return {
        "arm": row.arm.model_dump(),
        "workload": row.setting.workload.model_dump(),
        "shape": row.setting.shape.model_dump(),
        "dataset": row.setting.dataset,
        "repeats": len(row.results),
        **{name: _estimate(getattr(row, name)) for name in _ESTIMATES},
        "accelerators_fed": None
        if row.fed is None
        else _estimate(row.fed.estimate) | {"at_least": row.fed.at_least},
        "gets_per_epoch": _estimate(row.gets),
        "dollars_per_epoch": None if gets is None else price.of(gets),
        "dollars_per_90_epochs": None if row.training_gets is None else price.of(row.training_gets),
        "cpu_s_per_gb": row.cpu_s_per_gb,
        "memory_bytes": row.memory_bytes,
        "origins": row.origins,
        "later_origins": row.later_origins,
        "experiments": [_experiment(one) for one in row.results],
        "left_out": [_experiment(one) for one in row.left_out],
    }


def _estimate(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"mean": None, "low": None, "high": None, "values": []}
    return {"mean": found.mean, "low": found.low, "high": found.high, "values": found.values}


def _experiment(result: Result) -> dict[str, Any]:
    return {"id": result.id, "repeat": result.repeat, "seed": result.seed, "raw": result.raw}


def state_tables(summary: Summary) -> Iterator[Table]:
    """Yield a table of the workload `states` for each setting."""
    for setting, rows in summary.state_settings():
        ours = [place for place, row in enumerate(rows) if row.arm.system == "penstock"]
        yield Table(HEAD, [row.cells for row in rows], title=summary.title_of(setting), ours=ours)


@dataclass(frozen=True, slots=True)
class Cell:
    """`struck`: measured but left out; `note` has the reason, or the interval."""

    text: str
    note: str = ""
    struck: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    arm: Arm
    cells: tuple[Cell, ...]


def glance(summary: Summary) -> tuple[list[Setting], list[Line]]:
    settings = summary.settings
    arms = {row.arm.name: row.arm for row in summary.rows}
    lines = [
        Line(arm, tuple(_glance_cell(_find(summary.rows, arm, setting)) for setting in settings))
        for arm in sorted(arms.values(), key=lambda arm: arm.rank)
    ]
    return settings, lines


def _find(rows: Sequence[Row], arm: Arm, setting: Setting) -> Row | None:
    found = (row for row in rows if row.arm.name == arm.name and row.setting == setting)
    return next(found, None)


def _glance_cell(row: Row | None) -> Cell:
    if row is None:
        return Cell("–", "not in the plan, or not yet run")
    if row.speed is None:
        result = (row.left_out or row.results)[0]
        word, _, why = result.why_not.partition(": ")
        return Cell(word or "no figure", why, struck=True)
    if row.setting.workload.emulated and row.busy_share is not None:
        fed = f", feeds {estimates.accelerators(row.fed)}" if row.fed else ""
        text = f"{estimates.share(row.busy_share.mean)} busy{fed}"
        note = estimates.interval(row.busy_share, percent=True)
    else:
        text, note = row.shown_speed
        if row.setting.workload.kind != "read" and row.busy_share is not None:
            text += f", {estimates.share(row.busy_share.mean)} busy"
    if row.left_out:
        note += f"; {len(row.left_out)} of {len(row.left_out) + len(row.results)} left out"
    return Cell(text, "one repeat" if note == "–" else note)


@dataclass(frozen=True, slots=True)
class Tile:
    figure: str
    what: str
    note: str = ""


def tiles(summary: Summary) -> list[Tile]:
    found: list[Tile] = []
    verdict = summary.verdict
    ours = verdict.ours
    if ours is not None:
        if ours.fed is not None:
            shown = (ours, *verdict.peers[:1], verdict.native)
            found += [_fed_tile(row) for row in shown if row is not None and row.fed is not None]
        elif ours.speed is not None:
            found.append(_speed_tile(ours))
            # The best of the others: the slowest would flatter.
            found += [one for row in verdict.peers[:1] for one in _against_tile(ours, row, "times")]
            if verdict.native is not None:
                found += _against_tile(ours, verdict.native, "of")
        if ours.gets is not None:
            found.append(Tile(f"{ours.gets.mean:,.0f}", "GETs in an epoch", ours.arm.label))
    run = summary.run
    total = len(run.results) + len(run.unfinished)
    missing = [f"{len(run.left_out)} left out"] if run.left_out else []
    missing += [f"{len(run.unfinished)} without a result"] if run.unfinished else []
    found.append(
        Tile(
            f"{len(run.counted)} of {total}",
            "experiments count",
            ", ".join(missing) or "all proofs held",
        )
    )
    return found


def _against_tile(ours: Row, theirs: Row, how: str) -> list[Tile]:
    ratio, differs = difference(ours, theirs)
    if ratio is None:
        return []
    figure = f"{estimates.times(ratio.mean)}×" if how == "times" else estimates.times(ratio.mean)
    note = _interval_note(estimates.interval(ratio))
    if differs is False:
        note += ", no difference shown"
    what = f"as fast as {theirs.arm.label}" if how == "times" else f"of {theirs.arm.label}"
    return [Tile(figure, what, note)]


def _fed_tile(row: Row) -> Tile:
    assert row.fed is not None
    name = row.setting.workload.accelerator_name
    return Tile(
        estimates.accelerators(row.fed),
        f"{name} fed by {row.arm.label}",
        "as many as were tried"
        if row.fed.at_least
        else _interval_note(estimates.interval(row.fed.estimate)),
    )


def _speed_tile(row: Row) -> Tile:
    text, interval = row.shown_speed
    return Tile(text, row.arm.label, _interval_note(interval))


def _interval_note(text: str) -> str:
    return "one repeat" if text == "–" else f"95% interval {text}"
