"""What a run would do, for --dry-run: its steps, its experiments, how much they move, and whether
anything is in the way. Changes nothing, and writes to no bucket."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.plans.expansion import expand, read_bytes, store_bytes
from penstock.bench.plans.model import Experiment, Plan
from penstock.bench.workflow import checks
from penstock.bench.workflow.run import Settings, places_of
from penstock.units import format_bit_rate, format_size

BEFORE = ("check", "make-dataset", "start-store", "upload-dataset")
AFTER = ("report", "copy-results", "stop-store", "remove-dataset", "sweep")


@dataclass(frozen=True)
class Preview:
    plan: Plan
    experiments: tuple[Experiment, ...]
    found: checks.Found
    writes_to: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        size_bytes = self.found.size_bytes
        return {
            "name": self.plan.name,
            "dataset_bytes": size_bytes,
            "medium": str(self.found.medium),
            "medium_bytes": self.found.needed_bytes,
            "read_bytes": sum(read_bytes(one, size_bytes) for one in self.experiments),
            "store_bytes": sum(store_bytes(one, size_bytes) for one in self.experiments),
            "writes_to": list(self.writes_to),
            "steps": [*BEFORE, *(one.id for one in self.experiments), *AFTER],
            "experiments": [
                {
                    "id": one.id,
                    "arm": one.arm.name,
                    "workload": one.workload.name,
                    "network": one.shape.name,
                    "repeat": one.repeat,
                    "read_bytes": read_bytes(one, size_bytes),
                    "store_bytes": store_bytes(one, size_bytes),
                    "least_s": least_s(one, size_bytes),
                }
                for one in self.experiments
            ],
            "notes": self.found.notes,
            "problems": [what for what, _ in self.found.problems],
        }

    def lines(self) -> Iterator[str]:
        size_bytes = self.found.size_bytes
        yield f"{self.plan.name}: {len(self.experiments)} experiments, {self.plan.parallel} at once"
        yield (
            f"data set: {self.plan.dataset.form}, about {format_size(size_bytes)}; "
            f"{format_size(self.found.needed_bytes)} on {self.found.medium}"
        )
        reads = sum(read_bytes(one, size_bytes) for one in self.experiments)
        moves = sum(store_bytes(one, size_bytes) for one in self.experiments)
        yield f"reads {format_size(reads)}, about {format_size(moves)} of it from the store"
        lines = sum(least_s(one, size_bytes) for one in self.experiments)
        if lines:
            yield f"the network alone takes {lines:,.0f} s"
        for shape in self.plan.network:
            rate = "" if shape.bytes_per_s is None else f", {format_bit_rate(shape.bytes_per_s)}"
            yield f"network {shape.name}: {shape.latency_s * 1000:g} ms{rate}"
        for url in self.writes_to:
            yield f"writes to {url}, and removes it again"
        if self.plan.result_path is not None:
            yield f"copies the results to {self.plan.result_path}"
        yield f"steps: {', '.join(BEFORE)}"
        width = max(len(one.id) for one in self.experiments) if self.experiments else 0
        for one in self.experiments:
            moved = format_size(store_bytes(one, size_bytes))
            yield f"  {one.id:{width}}  {format_size(read_bytes(one, size_bytes)):>10}  {moved:>10}"
        yield f"steps: {', '.join(AFTER)}"
        for note in self.found.notes:
            yield f"note: {note}"


def preview(plan: Plan, settings: Settings) -> Preview:
    experiments = expand(plan)
    found = checks.check(
        plan,
        experiments,
        medium=settings.medium,
        results=settings.out.absolute(),
        skip_missing=settings.skip_missing,
    )
    left = tuple(one for one in experiments if one.arm.system not in found.missing)
    places = places_of(plan, left, Path("penstock-bench-…"))
    if places:
        found.notes.append("not tried: whether the buckets can be written")
    return Preview(plan, left, found, tuple(map(str, places)))


def least_s(experiment: Experiment, size_bytes: int) -> float:
    """What the network's bandwidth alone makes of it: no experiment is faster."""
    bytes_per_s = experiment.shape.bytes_per_s
    return 0.0 if bytes_per_s is None else store_bytes(experiment, size_bytes) / bytes_per_s
