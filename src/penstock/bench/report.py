"""Tables for people and JSON for programs. Takes samples and verdicts; measures nothing."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.bench.measure import Machine
from penstock.bench.targets import Verdict
from penstock.bench.trial import Sample, State

# Of all processes of a system together: CPU seconds for each gigabyte read, and memory held.
COST_COLUMNS = ("CPU s/GB", "memory MB")


@dataclass(frozen=True, slots=True)
class Row:
    """The samples of one arm in one state, by their medians."""

    arm: str
    dataset: str
    state: State
    readers: int
    samples: int
    files_per_s: float
    mb_per_s: float
    native_ratio: float | None
    bare_ratio: float | None
    cpu_s_per_gb: float  # of the system, all of its processes
    reader_cpu_s_per_gb: float
    memory_mb: float  # of all processes of the system; 0 for what has none
    messages_per_epoch: float | None


def rows(samples: Iterable[Sample]) -> list[Row]:
    """In the order in which the groups first appear."""
    groups: dict[tuple[str, str, State, int], list[Sample]] = {}
    for sample in samples:
        key = (sample.arm, sample.dataset, sample.state, sample.readers)
        groups.setdefault(key, []).append(sample)
    return [_row(group) for group in groups.values()]


def with_version(title: str, version: str) -> str:
    """A system as tables name it: `juicefs 1.4.2`, `Penstock 0.1.0, no plan`."""
    system, comma, way = title.partition(", ")
    release = version.split()[:1]
    return " ".join([system, *release]) + comma + way


def dataset_table(title: str, listed: Sequence[Row], versions: Mapping[str, str]) -> Table:
    """All systems on one data set. A row of a system begins where its name stands."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in ("system", "state"):
        table.add_column(name)
    columns = ("readers", "files/s", "MB/s", "of native", "of client", *COST_COLUMNS, "messages")
    for name in columns:
        table.add_column(name, justify="right")
    previous = ""
    for row in listed:
        table.add_row(
            with_version(row.arm, versions.get(row.arm, "")) if row.arm != previous else "",
            row.state,
            str(row.readers),
            _count(row.files_per_s),
            _count(row.mb_per_s),
            _ratio(row.native_ratio),
            _ratio(row.bare_ratio),
            *cost_cells(row.cpu_s_per_gb, row.memory_mb),
            "-" if row.messages_per_epoch is None else _count(row.messages_per_epoch),
            style="bold" if row.arm.startswith("penstock") else None,
        )
        previous = row.arm
    return table


def cost_cells(cpu_s_per_gb: float, memory_mb: float) -> tuple[str, str]:
    """Below COST_COLUMNS; native files and the bare client have no process of their own."""
    if not memory_mb:
        return "-", "-"
    return f"{cpu_s_per_gb:.2f}", _count(memory_mb)


def epoch_table(title: str, listed: Sequence[Row], versions: Mapping[str, str]) -> Table:
    """The short form, for the demo."""
    table = Table(title=title, box=box.ROUNDED, title_style="bold")
    table.add_column("read through")
    table.add_column("epoch")
    for name in ("files/s", "MB/s", "of native", *COST_COLUMNS, "messages"):
        table.add_column(name, justify="right")
    for row in listed:
        last_of_arm = row is listed[-1] or listed[listed.index(row) + 1].arm != row.arm
        table.add_row(
            with_version(row.arm, versions.get(row.arm, "")),
            row.state,
            _count(row.files_per_s),
            _count(row.mb_per_s),
            _ratio(row.native_ratio),
            *cost_cells(row.cpu_s_per_gb, row.memory_mb),
            "-" if row.messages_per_epoch is None else _count(row.messages_per_epoch),
            style="bold" if row.arm.startswith("penstock") else None,
            end_section=last_of_arm,
        )
    return table


def target_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Targets", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("target", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for verdict in verdicts:
        met = Text("met", style="green") if verdict.met else Text("short", style="bold red")
        table.add_row(verdict.what, verdict.goal, verdict.figure, met)
    return table


def output_console() -> Console:
    """Standard output. A pipe has no width of its own, and a cut table is no use in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=132)


def write_json(
    path: Path,
    *,
    machine: Machine,
    versions: Mapping[str, str],
    settings: Mapping[str, Any],
    samples: Sequence[Sample],
    verdicts: Sequence[Verdict],
    left_out: Mapping[str, str],
) -> None:
    document = {
        "machine": asdict(machine),
        "versions": dict(versions),
        "settings": dict(settings),
        "targets": [asdict(verdict) for verdict in verdicts],
        "rows": [asdict(row) for row in rows(samples)],
        "samples": [asdict(sample) for sample in samples],
        "left_out": dict(left_out),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _row(group: list[Sample]) -> Row:
    first = group[0]
    messages = [s.messages / s.epochs for s in group if s.messages is not None]
    return Row(
        arm=first.arm,
        dataset=first.dataset,
        state=first.state,
        readers=first.readers,
        samples=len(group),
        files_per_s=statistics.median(s.files_per_s for s in group),
        mb_per_s=statistics.median(s.bytes_per_s for s in group) / 1e6,
        native_ratio=_median(s.native_ratio for s in group),
        bare_ratio=_median(s.bare_ratio for s in group),
        cpu_s_per_gb=statistics.median(s.cpu_s_per_gb for s in group),
        reader_cpu_s_per_gb=statistics.median(s.reader_cpu_s_per_gb for s in group),
        memory_mb=max(s.memory_bytes for s in group) / 1e6,
        messages_per_epoch=statistics.median(messages) if messages else None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _count(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
