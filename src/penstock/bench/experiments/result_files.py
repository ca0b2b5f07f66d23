"""What an experiment leaves behind: result.json, series.json, latencies.json.

Whatever the workload, `epochs` of result.json has one item for each measured epoch; the lists of
the other files are in the same order. Collects; knows the files of the program that trains
(`feeding`), and nothing of systems.
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
from penstock.bench.experiments.feeding import INTERVAL_S
from penstock.bench.experiments.proofs import Proof
from penstock.bench.peers import title_of
from penstock.bench.plans.experiments import ExperimentConfig
from penstock.bench.plans.model import WorkloadPlan
from penstock.bench.readers import quantiles

SCHEMA = 2
Figures = dict[str, Any]  # JSON


def head_of(config: ExperimentConfig) -> Figures:
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


def workload_head(workload: WorkloadPlan, manifest: DatasetManifest | None) -> Figures:
    """Return the workload of result.json. Emulated ones are labelled so, with their source."""
    head: Figures = {
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


@dataclass(frozen=True, slots=True)
class EpochRead:
    """One epoch as its accelerators saw it: all ranks together."""

    epoch: int
    ranks: Sequence[Mapping[str, Any]]
    loading_s: float = 0.0  # of a load before the first batch, in which they waited

    @classmethod
    def load(cls, folder: Path, epoch: int, ranks: int, loading_s: float = 0.0) -> "EpochRead":
        files = [folder / f"epoch-{epoch}-rank-{rank}.json" for rank in range(ranks)]
        return cls(epoch, [json.loads(file.read_text()) for file in files], loading_s)

    def sum(self, name: str) -> Any:
        return sum(rank[name] for rank in self.ranks)

    def figures(self) -> Figures:
        """Return what result.json has of it. An epoch lasts from the common start until the last
        rank is done, and none goes on before all have their first batch. Busy is the mean over
        accelerators, by the published step time; its share is without the wait for the first
        batch, as MLPerf Storage defines it."""
        seconds = self.loading_s + max(rank["end_s"] for rank in self.ranks)
        busy_s = statistics.fmean(rank["figures"]["busy_s"] for rank in self.ranks)
        first_s = self.loading_s + max(
            rank["start_s"] + rank["figures"]["first_batch_s"] for rank in self.ranks
        )
        return {
            "epoch": self.epoch,
            "readers": len(self.ranks),
            "seconds": seconds,
            "samples": self.sum("samples"),
            "bytes": self.sum("bytes"),
            "busy_s": busy_s,
            "busy_share": busy_s / (seconds - first_s),
            "first_batch_s": first_s,
        }

    def latencies(self) -> list[float]:
        return quantiles([second for rank in self.ranks for second in rank["seconds"]])

    def series(self, name: str) -> list[int]:
        columns: list[list[int]] = [rank[name] for rank in self.ranks]
        total = [0] * max(map(len, columns))
        for column in columns:
            for place, value in enumerate(column):
                total[place] += value
        return total


@dataclass(slots=True)
class Result:
    """Grows while the experiment runs, and is written whatever ends it."""

    head: Figures  # id, arm, workload, shape, repeat, order, seed, started
    proofs: list[Proof] = field(default_factory=list[Proof])
    epochs: list[Figures] = field(default_factory=list[Figures])
    latencies: list[Sequence[float]] = field(default_factory=list[Sequence[float]])
    reads: list[EpochRead] = field(default_factory=list[EpochRead])  # of emulated accelerators
    figures: dict[str, float] = field(default_factory=dict[str, float])  # of management
    failure: Figures | None = None
    latency_of: str = "open, read and close of one file"

    @property
    def valid(self) -> bool:
        return self.failure is None and bool(self.proofs) and all(p.ok for p in self.proofs)

    def add(self, figures: Figures, latencies_s: Sequence[float] = ()) -> None:
        self.epochs.append(figures)
        self.latencies.append(latencies_s)

    def write(self, folder: Path, seconds: float) -> None:
        document = {
            "schema": SCHEMA,
            **self.head,
            "seconds": seconds,
            "valid": self.valid,
            "proofs": [asdict(proof) for proof in self.proofs],
            "failure": self.failure,
            "epochs": self.epochs,
            "figures": self.figures,
        }

        def write(name: str, content: Mapping[str, Any]) -> None:
            (folder / name).write_text(json.dumps(content, indent=1) + "\n")

        # Of every epoch a list, which begins with its first second.
        series = {
            name: [read.series(f"series_{name}") for read in self.reads]
            for name in ("bytes", "samples")
        }
        write("series.json", {"interval_s": INTERVAL_S, **series})
        latencies = [{"seconds": list(seconds)} for seconds in self.latencies]
        write("latencies.json", {"what": self.latency_of, "epochs": latencies})
        write("result.json", document)  # last: the others are there then
