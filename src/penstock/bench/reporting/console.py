"""A run in a terminal: a table for each data set and workload, the goals, and one sentence."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from penstock.bench.reporting import estimates
from penstock.bench.reporting.rows import Row, name_of
from penstock.bench.reporting.summary import Summary, state_tables
from penstock.bench.reporting.tables import Table, clean, print_tables

_EPOCH_HEAD = (
    *("read through", "busy", "after\n1st batch", "samples\n/s", "1st\nbatch s", "GETs"),
    *(
        "fetched\n/read",
        "CPU\ns/GB",
        "memory\nMB",
        "later\nbusy",
        "later\nsamples/s",
        "later\nhits",
    ),
)


def print_summary(summary: Summary, console: Console) -> None:
    print_tables(_tables(summary), console)
    for one in summary.run.left_out_alike():
        console.print(Text(clean(f"left out: {one[0].arm.label}: {one[0].why_not}")))
    for step in summary.run.skipped:
        console.print(Text(clean(f"left out: {step.name}: {step.error}")))
    console.print(Text(clean(summary.verdict.sentence)))


def _tables(summary: Summary) -> Iterator[Table]:
    for table in state_tables(summary):
        names = [row[0] for row in table.rows]
        shown = [
            ["" if place and names[place - 1] == name else name, *row[1:]]
            for place, (name, row) in enumerate(zip(names, table.rows, strict=True))
        ]
        yield replace(table, rows=shown)
    for setting in summary.settings:
        rows = [row for row in summary.of(setting) if row.counted]
        ours = [place for place, row in enumerate(rows) if row.arm.system == "penstock"]
        title = f"{setting.title}: {setting.details}"
        if rows:
            yield Table(_EPOCH_HEAD, list(map(_epoch_cells, rows)), (0,), title, ours)
    for result in summary.run.counted:
        if result.figures:
            cells = [(name, estimates.figure(value)) for name, value in result.figures.items()]
            title = f"{result.workload.name}, {name_of(result.arm)}"
            yield Table(("figure", "value"), cells, (0,), title)
    if summary.goals:
        goals = [
            (one.what, one.goal, one.figure, "met" if one.met else "missed")
            for one in summary.goals
        ]
        yield Table(("what", "goal", "measured", ""), goals, (0, 3), "Goals")


def _epoch_cells(row: Row) -> tuple[str, ...]:
    """Busy includes the wait for the first batch here, as a training job feels it."""
    first = [epoch for one in row.results for epoch in one.epochs[:1]]
    later = [epoch for one in row.results for epoch in one.epochs[1:]]

    def mean(values: Iterable[float | None]) -> float | None:
        found = estimates.estimate([value for value in values if value is not None])
        return found.mean if found else None

    busy = mean(one.busy_with_first_batch for one in first)
    after = mean(one.busy_share for one in first)
    fetched = mean(one.fetched_share for one in first)
    gets = mean(one.gets for one in first)
    return (
        row.arm.label,
        _percent(busy),
        _percent(after),
        _figure(mean(one.samples / one.seconds for one in first)),
        _seconds(mean(one.first_batch_s for one in first)),
        "–" if gets is None else f"{gets:,.0f}",
        "–" if fetched is None else f"{fetched:.3f}",
        _seconds(row.cpu_s_per_gb.get("system")),
        "–" if not row.memory_bytes else f"{row.memory_bytes / 1e6:,.0f}",
        _percent(mean(one.busy_with_first_batch for one in later)),
        _figure(mean(one.samples / one.seconds for one in later)),
        _percent(mean(one.hit_share for one in later)),
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else estimates.share(value)


def _figure(value: float | None) -> str:
    return "–" if value is None else estimates.figure(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
