"""What a run would do: its experiments, what they read and move, and what is in the way."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.bench.plans.experiments import Experiment, expand, read_bytes, store_bytes
from penstock.bench.plans.model import Plan
from penstock.bench.workflow import checks
from penstock.bench.workflow.run import Settings
from penstock.bench.workflow.site import Places
from penstock.units import format_bit_rate, format_size

BEFORE = ("check", "make-dataset", "start-store", "upload-dataset")
AFTER = ("report", "copy-results", "stop-store", "remove-dataset", "sweep")


@dataclass(frozen=True)
class Preview:
    plan: Plan
    experiments: tuple[Experiment, ...]
    found: checks.CheckResult
    writes_to: tuple[str, ...]

    @cached_property
    def moved(self) -> list[dict[str, Any]]:
        """Return what each experiment reads, and what its network's bandwidth alone takes for it:
        no experiment is faster."""
        moved: list[dict[str, Any]] = []
        for one in self.experiments:
            size_bytes, rate = self.found.sizes.get(one.dataset, 0), one.shape.bytes_per_s
            fetched = store_bytes(one, size_bytes)
            moved.append(
                {
                    "read_bytes": read_bytes(one, size_bytes),
                    "store_bytes": fetched,
                    "least_s": 0.0 if rate is None else fetched / rate,
                }
            )
        return moved

    def total(self, name: str) -> float:
        return sum(one[name] for one in self.moved)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.plan.name,
            "dataset_bytes": sum(self.found.sizes.values()),
            "medium": str(self.found.medium),
            "medium_bytes": self.found.needed_bytes,
            "read_bytes": self.total("read_bytes"),
            "store_bytes": self.total("store_bytes"),
            "writes_to": list(self.writes_to),
            "steps": [*BEFORE, *(one.id for one in self.experiments), *AFTER],
            "experiments": [
                {
                    "id": one.id,
                    "arm": one.arm.name,
                    "workload": one.workload.name,
                    "network": one.shape.name,
                    "dataset": one.dataset,
                    "repeat": one.repeat,
                    **moved,
                }
                for one, moved in zip(self.experiments, self.moved, strict=True)
            ],
            "notes": self.found.notes,
            "problems": [what for what, _ in self.found.problems],
        }

    def lines(self) -> Iterator[str]:
        plan, found = self.plan, self.found
        yield f"{plan.name}: {len(self.experiments)} experiments, {plan.parallel} at once"
        for dataset in plan.datasets:
            size_bytes = found.sizes.get(dataset.name, 0)
            yield f"data set {dataset.name}: {dataset.form}, about {format_size(size_bytes)}"
        yield f"{format_size(found.needed_bytes)} on {found.medium}"
        reads, moves = format_size(self.total("read_bytes")), format_size(self.total("store_bytes"))
        yield f"reads {reads}, about {moves} of it from the store"
        if least_s := self.total("least_s"):
            yield f"the network alone takes {least_s:,.0f} s"
        for shape in plan.network:
            rate = "" if shape.bytes_per_s is None else f", {format_bit_rate(shape.bytes_per_s)}"
            yield f"network {shape.name}: {shape.latency_s * 1000:g} ms{rate}"
        for url in self.writes_to:
            yield f"writes to {url}, and removes it again"
        if plan.s3_result_path is not None:
            yield f"copies the results to {plan.s3_result_path}"
        yield f"steps: {', '.join(BEFORE)}"
        width = max((len(one.id) for one in self.experiments), default=0)
        for one, moved in zip(self.experiments, self.moved, strict=True):
            read, fetched = format_size(moved["read_bytes"]), format_size(moved["store_bytes"])
            yield f"  {one.id:{width}}  {read:>10}  {fetched:>10}"
        yield f"steps: {', '.join(AFTER)}"
        for note in found.notes:
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
    places = Places(plan, Path("penstock-bench-…")).all(left)
    if places:
        found.notes.append("not tried: whether the buckets can be written")
    return Preview(plan, left, found, tuple(map(str, places)))
