"""What an experiment leaves behind: result.json, series.json, steps.json, latencies.json.

Collects; knows the files of the program that reads (`feeding`), and nothing of systems.
"""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.accelerators import Accelerator, published
from penstock.bench.datasets import DatasetManifest
from penstock.bench.experiments.feeding import INTERVAL_S, MOST_STEPS
from penstock.bench.experiments.proofs import Proof
from penstock.bench.plans.experiments import ExperimentConfig
from penstock.bench.plans.model import WorkloadPlan
from penstock.bench.systems import title_of


def head_of(config: ExperimentConfig) -> dict[str, Any]:
    """Return the parts of result.json that are known before anything runs, without the workload."""
    experiment = config.experiment
    arm = experiment.arm
    return {
        "id": experiment.id,
        "run": config.run,
        "arm": {
            "name": arm.name,
            "title": title_of(arm),
            "system": arm.system,
            "version": "",
            "state": arm.state,
            "cache_share": arm.cache_share,
            "hinted": arm.state == "planned",
            "command": "",
            "options": [f"{name}={value}" for name, value in arm.options.items()],
        },
        "workload": {"name": experiment.workload.name, "kind": experiment.workload.kind},
        "shape": experiment.shape.model_dump(),
        "dataset": experiment.dataset,
        "repeat": experiment.repeat,
        "order": experiment.order,
        "seed": experiment.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def workload_head(workload: WorkloadPlan, manifest: DatasetManifest | None) -> dict[str, Any]:
    """Return the workload of result.json. Emulated ones are labelled so, with their source."""
    head: dict[str, Any] = {
        "name": workload.name,
        "kind": workload.kind,
        "model": workload.model,
        "accelerator": workload.accelerator,
        "accelerators": workload.accelerators[0],
        "emulated": workload.emulates,
        "batch": None,
        "step_s": None,
        "samples_per_s_wanted": None,
        "scale": workload.scale,
        "readers": workload.readers[-1],
        "sample_bytes": manifest.size_bytes / manifest.samples if manifest else None,
    }
    if workload.emulates:
        row, accelerator = published(workload.model, workload.accelerator), accelerator_of(workload)
        head |= {
            "batch": accelerator.batch,
            "step_s": accelerator.step_s,
            "samples_per_s_wanted": accelerator.samples_per_s,
            "readers": workload.workers if workload.kind == "loader" else row.read_threads,
            "published": {
                "batch": row.batch,
                "step_s": row.step_s,
                "sample_bytes": row.sample_bytes,
                "least_busy": row.least_busy,
                "source": f"mlcommons/storage, {row.source}",
            },
        }
    return head


def accelerator_of(workload: WorkloadPlan) -> Accelerator:
    """Return the emulated accelerator: the published one, scaled."""
    return published(workload.model, workload.accelerator).scaled(workload.scale)


SCHEMA = 1
_QUANTILES = 1000


@dataclass(frozen=True, slots=True)
class EpochRead:
    """One epoch as its readers saw it: all ranks together."""

    epoch: int
    ranks: Sequence[Mapping[str, Any]]

    @classmethod
    def load(cls, folder: Path, epoch: int, ranks: int) -> "EpochRead":
        files = [folder / f"epoch-{epoch}-rank-{rank}.json" for rank in range(ranks)]
        return cls(epoch, [json.loads(file.read_text()) for file in files])

    def begun_earlier(self, seconds: float) -> "EpochRead":
        """Return this epoch with so much waiting before its first batch."""
        shift = {"start_s", "end_s"}
        return EpochRead(
            self.epoch,
            [
                {name: value + seconds if name in shift else value for name, value in rank.items()}
                for rank in self.ranks
            ],
        )

    @property
    def seconds(self) -> float:
        """Return the time from the common start until the last rank was done."""
        return max(rank["end_s"] for rank in self.ranks)

    @property
    def samples(self) -> int:
        return sum(rank["samples"] for rank in self.ranks)

    @property
    def size_bytes(self) -> int:
        return sum(rank["bytes"] for rank in self.ranks)

    @property
    def cpu_s(self) -> float:
        return sum(rank["cpu_s"] for rank in self.ranks)

    @property
    def first_batch_s(self) -> float:
        """Return the time until the last rank had one: none goes on before."""
        return max(rank["start_s"] + rank["figures"]["first_batch_s"] for rank in self.ranks)

    @property
    def busy_s(self) -> float:
        """Return the mean over accelerators, by the published step time."""
        return statistics.fmean(rank["figures"]["busy_s"] for rank in self.ranks)

    @property
    def busy_share(self) -> float:
        """Return the share as MLPerf Storage defines it: without the wait for the first batch."""
        return self.busy_s / (self.seconds - self.first_batch_s)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "samples": self.samples,
            "bytes": self.size_bytes,
        }
        if self.emulated:
            found |= {
                "busy_s": self.busy_s,
                "busy_share": self.busy_share,
                "busy_share_with_first_batch": self.busy_s / self.seconds,
                "wait_s": self.seconds - self.busy_s,
                "first_batch_s": self.first_batch_s,
            }
        return found

    @property
    def emulated(self) -> bool:
        return self.ranks[0]["figures"] is not None

    def steps(self) -> dict[str, list[float]]:
        """Return the mean over the ranks that made the step."""
        made: list[list[Mapping[str, float]]] = [rank["steps"] for rank in self.ranks]
        count = min(MOST_STEPS, max(map(len, made)))
        return {
            name: [
                round(
                    statistics.fmean(steps[number][name] for steps in made if number < len(steps)),
                    6,
                )
                for number in range(count)
            ]
            for name in ("load_s", "compute_s", "barrier_s")
        }

    def latencies(self) -> list[float]:
        return quantiles(sorted(second for rank in self.ranks for second in rank["seconds"]))

    def series(self, name: str) -> list[int]:
        columns: list[list[int]] = [rank[name] for rank in self.ranks]
        total = [0] * max(map(len, columns))
        for column in columns:
            for place, value in enumerate(column):
                total[place] += value
        return total


def quantiles(ascending: Sequence[float], most: int = _QUANTILES) -> list[float]:
    """Return at most so many values, evenly spaced, with the first and the last."""
    if len(ascending) <= most:
        return list(ascending)
    last = len(ascending) - 1
    return [ascending[round(place * last / (most - 1))] for place in range(most)]


@dataclass(slots=True)
class Result:
    """Grows while the experiment runs, and is written whatever ends it."""

    head: dict[str, Any]  # id, arm, workload, shape, repeat, order, seed, started
    proofs: list[Proof] = field(default_factory=list[Proof])
    epochs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    reads: list[EpochRead] = field(default_factory=list[EpochRead])
    runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    samples: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # of states
    figures: dict[str, float] = field(default_factory=dict[str, float])  # of management
    failure: dict[str, Any] | None = None
    latency_of: str = "open, read and close of one file"

    @property
    def valid(self) -> bool:
        return self.failure is None and bool(self.proofs) and all(p.ok for p in self.proofs)

    def write(self, folder: Path, seconds: float) -> None:
        document = {
            "schema": SCHEMA,
            **self.head,
            "seconds": seconds,
            "valid": self.valid,
            "proofs": [asdict(proof) for proof in self.proofs],
            "failure": self.failure,
            "epochs": self.epochs,
            "accelerator_runs": self.runs,
            "samples": self.samples,
            "figures": self.figures,
        }
        series: dict[str, Any] = {
            "interval_s": INTERVAL_S,
            "bytes": [],
            "samples": [],
            "epoch_marks_s": [],
        }
        for read in self.reads:
            series["epoch_marks_s"].append(len(series["bytes"]) * INTERVAL_S)
            series["bytes"] += read.series("series_bytes")
            series["samples"] += read.series("series_samples")
        steps = [read.steps() for read in self.reads if read.emulated]
        latencies = [{"seconds": read.latencies()} for read in self.reads]
        _write(folder / "series.json", series)
        _write(folder / "steps.json", {"epochs": steps})
        _write(folder / "latencies.json", {"what": self.latency_of, "epochs": latencies})
        _write(folder / "result.json", document)  # last: the others are there then


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")
