"""A run in one value, and that value as summary.json."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.bench.reporting.cost import DEFAULT_PRICE, Price
from penstock.bench.reporting.intervals import Estimate
from penstock.bench.reporting.reading import read_run
from penstock.bench.reporting.results import Result, Run
from penstock.bench.reporting.rows import Row, Setting, rows_of
from penstock.bench.reporting.verdict import Verdict, judge

SCHEMA = 1
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

    @property
    def settings(self) -> list[Setting]:
        return list({row.setting.key: row.setting for row in self.rows}.values())

    def of(self, setting: Setting) -> list[Row]:
        return [row for row in self.rows if row.setting == setting]

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
            "dataset": dict(run.dataset),
            "environment": dict(run.environment),
            "price_of_1000_gets": asdict(self.price),
            "rows": [_row(row, self.price) for row in self.rows],
            "left_out": [
                {"id": one.id, "why": one.why_not, "raw": one.raw} for one in run.left_out
            ],
            "unfinished": list(run.unfinished),
            "skipped": [{"id": step.name, "why": step.error} for step in run.skipped],
            "notes": list(run.notes),
        }


def summary_of(folder: Path, price: Price = DEFAULT_PRICE) -> Summary:
    run = read_run(folder)
    rows = rows_of(run)
    return Summary(run, tuple(rows), judge(run, rows), price)


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


def _row(row: Row, price: Price) -> dict[str, Any]:
    gets = row.gets.mean if row.gets else None
    return {
        "arm": asdict(row.arm),
        "workload": asdict(row.setting.workload),
        "shape": asdict(row.setting.shape),
        "repeats": len(row.results),
        "bytes_per_s": _estimate(row.bytes_per_s),
        "samples_per_s": _estimate(row.samples_per_s),
        "busy_share": _estimate(row.busy_share),
        "first_batch_s": _estimate(row.first_batch_s),
        "later_bytes_per_s": _estimate(row.later_bytes_per_s),
        "later_busy_share": _estimate(row.later_busy_share),
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
    return {"mean": found.mean, "low": found.low, "high": found.high, "values": list(found.values)}


def _experiment(result: Result) -> dict[str, Any]:
    return {"id": result.id, "repeat": result.repeat, "seed": result.seed, "raw": result.raw}
