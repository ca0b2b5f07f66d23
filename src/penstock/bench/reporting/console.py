"""A run in a terminal: a table for each data set and workload, the goals, and one sentence."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.bench.reporting import estimates
from penstock.bench.reporting.drawing import clean
from penstock.bench.reporting.rows import HEAD, Row, StateRow, name_of
from penstock.bench.reporting.summary import Summary

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


def output_console() -> Console:
    """Return standard output. A pipe has no width, and a cut table is no use in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=132)


def print_summary(summary: Summary, console: Console) -> None:
    for table in _tables(summary):
        console.print(table)
    for one in summary.run.left_out_alike():
        console.print(Text(clean(f"left out: {one[0].arm.label}: {one[0].why_not}")))
    for step in summary.run.skipped:
        console.print(Text(clean(f"left out: {step.name}: {step.error}")))
    console.print(Text(clean(summary.verdict.sentence)))


def _tables(summary: Summary) -> Iterable[Table]:
    for setting, rows in summary.state_settings():
        yield _state_table(summary.title_of(setting), rows)
    for setting in summary.settings:
        rows = [row for row in summary.of(setting) if row.counted]
        if rows:
            yield _epoch_table(f"{setting.title}: {setting.details}", rows)
    for result in summary.run.counted:
        if result.figures:
            table = _plain(f"{result.workload.name}, {name_of(result.arm)}", ("figure", "value"))
            for name, value in result.figures.items():
                table.add_row(clean(name), estimates.figure(value))
            yield table
    if summary.goals:
        yield _goal_table(summary)


def _state_table(title: str, rows: Sequence[StateRow]) -> Table:
    table = _plain(title, HEAD, texts=2)
    previous = ""
    for row in rows:
        name, *rest = map(clean, row.cells)
        style = "bold" if row.arm.system == "penstock" else None
        table.add_row(name if name != previous else "", *rest, style=style)
        previous = name
    return table


def _epoch_table(title: str, rows: Sequence[Row]) -> Table:
    table = _plain(title, _EPOCH_HEAD)
    for row in rows:
        style = "bold" if row.arm.system == "penstock" else None
        table.add_row(*map(clean, _epoch_cells(row)), style=style)
    return table


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


def _goal_table(summary: Summary) -> Table:
    table = Table(title="Goals", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in ("what", "goal", "measured", ""):
        table.add_column(name, justify="left" if name in ("what", "") else "right")
    for goal in summary.goals:
        met = Text("met", style="green") if goal.met else Text("missed", style="bold red")
        table.add_row(clean(goal.what), clean(goal.goal), goal.figure, met)
    return table


def _plain(title: str, head: Sequence[str], *, texts: int = 1) -> Table:
    table = Table(title=clean(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < texts else "right")
    return table


def _percent(value: float | None) -> str:
    return "–" if value is None else estimates.share(value)


def _figure(value: float | None) -> str:
    return "–" if value is None else estimates.figure(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
