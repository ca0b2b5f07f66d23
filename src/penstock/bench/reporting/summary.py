"""A run as one value: its rows, its verdict, its tables, and summary.json.

Pure, but for reading the run.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from penstock.bench.reporting import estimates
from penstock.bench.reporting.estimates import Estimate
from penstock.bench.reporting.goals import Judged, judge_goals
from penstock.bench.reporting.results import Result, Run, number
from penstock.bench.reporting.results_tree import read_run
from penstock.bench.reporting.rows import (
    MEASURES,
    Row,
    Setting,
    rows_of,
    table_of,
)
from penstock.bench.reporting.tables import Table, clean, print_tables
from penstock.bench.reporting.verdict import Finding, Verdict, judge
from penstock.units import format_size

SCHEMA = 3
METHOD = (
    "A figure is the mean over repeats of the median over a repeat's epochs, with a 95% interval "
    "by Student's t; from one repeat no interval. Shares of native files and of the bare client "
    "are medians of neighbouring measurements, and their intervals are over these. Busy counts the "
    "wait for the first batch as idle, once begun does not. Fetched is what came from the store "
    "over what was read. CPU and memory are those of all processes of a system, without the "
    "readers and the store."
)
DISCLAIMER = "Nothing here is an MLPerf result."


@dataclass(frozen=True, slots=True)
class Summary:
    run: Run
    rows: tuple[Row, ...]
    verdict: Verdict
    goals: tuple[Judged, ...] = ()

    @property
    def settings(self) -> list[Setting]:
        return list({row.setting.key: row.setting for row in self.rows}.values())

    def of(self, setting: Setting) -> list[Row]:
        return [row for row in self.rows if row.setting == setting]

    def title_of(self, setting: Setting) -> str:
        """Return the heading of a table: `read · data: 1,000 files, 107.4 MiB; plain`."""
        dataset = self.run.datasets.get(setting.dataset, {})
        files, size_bytes = number(dataset.get("files")), number(dataset.get("size_bytes"))
        parts = [] if setting.workload.reads else [setting.workload.details]
        if files is not None and size_bytes is not None:
            parts.append(f"{files:,.0f} files, {format_size(size_bytes)}")
        parts += [] if setting.shape.plain else [setting.shape.details]
        return f"{setting.title}: {'; '.join(parts)}" if parts else setting.title

    def tables(self) -> Iterator[Table]:
        """Yield the tables of a run: of every setting, of what reads no data, and the goals."""
        for setting in self.settings:
            table = table_of(setting, self.of(setting), self.title_of(setting))
            if table.rows:
                yield table
        for result in self.run.counted:
            if result.figures:
                cells = [(name, estimates.figure(one)) for name, one in result.figures.items()]
                title = f"{result.workload.name}, {result.arm.released}"
                yield Table(("figure", "value"), cells, (0,), title)
        if self.goals:
            goals = [
                (one.what, one.goal, one.figure, "met" if one.met else "missed")
                for one in self.goals
            ]
            yield Table(("goal", "asked", "measured", ""), goals, (0, 3), "Goals of the plan")

    def print(self, console: Console) -> None:
        """Print the tables, what is left out, and the verdict."""
        print_tables(self.tables(), console)
        alike = [group[0] for group in self.run.left_out_alike()]
        lines = [f"left out: {one.arm.label}: {one.why_not}" for one in alike]
        lines += [f"left out: {step.name}: {step.error}" for step in self.run.skipped]
        lines += [f"warning: {one}" for one in self.verdict.warnings]
        for line in (*lines, self.verdict.sentence):
            console.print(Text(clean(line)))

    def to_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "schema": SCHEMA,
            "run": run.name,
            "ended": run.ended,
            "state": run.state,
            "verdict": {
                "sentence": self.verdict.sentence,
                "notes": list(self.verdict.notes),
                "warnings": list(self.verdict.warnings),
                "others": [_finding(one) for one in self.verdict.others],
            },
            "method": METHOD,
            "disclaimer": DISCLAIMER,
            "datasets": {name: dict(one) for name, one in run.datasets.items()},
            "environment": dict(run.environment),
            "rows": [_row(row) for row in self.rows],
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


def summary_of(folder: Path) -> Summary:
    run = read_run(folder)
    rows = rows_of(run)
    return Summary(run, tuple(rows), judge(run, rows), tuple(judge_goals(run, rows)))


def _finding(found: Finding) -> dict[str, Any]:
    setting = found.setting
    return {
        "workload": setting.workload.name,
        "shape": setting.shape.name,
        "sentence": found.sentence,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "arm": row.arm.model_dump(),
        "workload": row.setting.workload.model_dump(),
        "shape": row.setting.shape.model_dump(),
        "dataset": row.setting.dataset,
        "state": row.state,
        "first_epoch": row.is_first,
        "readers": row.readers,
        "repeats": row.repeats,
        "epochs": len(row.measured),
        "modes": sorted(row.modes),
        **{name: _estimate(row.figure(name)) for name in MEASURES},
        "experiments": [_experiment(one) for one in row.results],
        "left_out": [_experiment(one) for one in row.left_out],
    }


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": found.mean, "low": found.low, "high": found.high, "values": found.values}


def _experiment(result: Result) -> dict[str, Any]:
    return {"id": result.id, "repeat": result.repeat, "seed": result.seed, "raw": result.raw}
