"""The charts of a report, each with its caption, its legend and its raw files.

A chart without data is a `Missing` with the reason. Long lists are read when they are drawn. What
is a figure of a row stands in the tables; a chart has a table of its own only for what these lack.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.bench.reporting import estimates
from penstock.bench.reporting.drawing import (
    Axis,
    Bar,
    Line,
    Look,
    Part,
    Picture,
    draw_bars,
    draw_lines,
    line_look,
    system_look,
)
from penstock.bench.reporting.estimates import Estimate
from penstock.bench.reporting.results import Arm, Epoch, Result, Run
from penstock.bench.reporting.results_tree import Companion, latencies_of, series_of
from penstock.bench.reporting.rows import (
    FED_METHOD,
    GOAL,
    Row,
    Setting,
    busy_by_count,
    fed_of,
)
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.tables import Table

POINTS = 48  # of throughput over time
_LATENCY_SHARES = (
    *(0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0),
)
_PERCENT_TICKS = tuple((share / 100, f"{share}%") for share in (0, 25, 50, 75, 100))

Bars = tuple[str, Picture]  # the subtitle of a panel, and what it shows
Reader = Callable[[Run, Result, Epoch], Companion | None]
Drawn = Sequence[tuple[Row, Companion]]


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    details: str
    picture: Picture


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend. `line`: it stands for a line, not for an area."""

    look: Look
    label: str
    line: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    sources: tuple[str, ...]
    legend: tuple[Key, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    title: str
    why: str
    panels: tuple[Panel, ...] = ()


def speed(summary: Summary) -> Chart | Missing:
    """Return how fast each arm was in each state, or how busy it kept an accelerator."""
    rows = [row for row in summary.rows if row.speed is not None]
    if not rows:
        return Missing("Speed", "no experiment was valid")
    panels: list[Panel] = []
    for setting in summary.settings:
        here = [row for row in rows if row.setting == setting]
        if any(len(_busy_over(row)) > 1 for row in here):
            continue  # the next chart has them
        for name, group in _by_state(here).items():
            panels.append(_speed_panel(setting, name, group))
    caption = (
        "Whiskers are 95% intervals (Student's t) over repeats. Busy counts the wait for the first "
        "batch as idle."
    )
    return Chart("speed", "Speed", caption, tuple(panels), _sources(rows))


def _by_state(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the bars of each panel: of read files, one panel for each state by the most readers;
    of training, one for first epochs and one for later ones."""
    most = max((row.readers for row in rows), default=0)
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.is_first is not None:
            found.setdefault("first epoch" if row.is_first else "later epochs", []).append(row)
        elif row.readers == most:
            name = "from empty caches" if row.begins_empty else row.state
            found.setdefault(f"{name}, {row.readers} reading", []).append(row)
    return found


def _speed_panel(setting: Setting, name: str, rows: Sequence[Row]) -> Panel:
    busy = [row.figure("busy") for row in rows]
    # Reading nothing is so much faster that no other bar would be visible beside it.
    shown = [row for row in rows if row.arm.system != "ceiling"] or rows
    if all(busy):
        bars = [
            _bar(row, row.label, estimates.share(found.mean), found)
            for row, found in zip(rows, busy, strict=True)
            if found is not None
        ]
        picture = draw_bars(bars, label=f"busy, {name}", most=1.0, mark=(GOAL, "90%"))
        return _panel(setting, picture, f"{name}, busy")
    what = f"{name}, {'files' if setting.workload.reads else 'samples'} per second"
    bars = [
        _bar(row, row.label, estimates.count(found.mean), found)
        for row in shown
        if (found := row.figure("samples_per_s")) is not None
    ]
    return _panel(setting, draw_bars(bars, label=what), what)


def _bar(row: Row, label: str, figure: str, found: Estimate) -> Bar:
    parts = (Part(found.mean, system_look(row.arm, row.state)),)
    return Bar(label, figure, parts, found.low, found.high)


def accelerators_fed(summary: Summary) -> Chart | Missing:
    """Return the busy share against the number of accelerators, with the 90% that counts as fed."""
    title = "Accelerators fed"
    arms: dict[tuple[object, ...], Row] = {}
    for row in summary.rows:
        if len(_busy_over(row)) > 1:
            arms.setdefault((row.arm.name, row.setting.key), row)
    rows = list(arms.values())
    if not rows:
        why = "no valid experiment was run with two numbers of accelerators or more"
        return Missing(title, why)
    counts = sorted({count for row in rows for count in _busy_over(row)})

    def cells(row: Row) -> tuple[str, ...]:
        shares = (_busy_over(row).get(count) for count in counts)
        found = fed_of(row)
        fed = "–" if found is None else estimates.accelerators(found)
        return (*("–" if share is None else estimates.share(share) for share in shares), fed)

    known = [row.arm for row in rows]
    return Chart(
        "accelerators",
        title,
        f"How busy accelerators are, by how many of them read at once. {FED_METHOD}",
        _panels(summary, rows, lambda setting, here: ("", _fed_picture(setting, here, known))),
        _sources(rows),
        _line_keys(known),
        _table(
            (*(f"busy of {n}" for n in counts), "fed at 90%"), ((row, cells(row)) for row in rows)
        ),
    )


def _busy_over(row: Row) -> dict[int, float]:
    """Return the mean busy share of each number of accelerators, over repeats."""
    found: dict[int, list[float]] = {}
    for result in row.results:
        for count, share in busy_by_count(result).items():
            found.setdefault(count, []).append(share)
    return {count: sum(shares) / len(shares) for count, shares in sorted(found.items())}


def _fed_picture(setting: Setting, rows: Sequence[Row], arms: Sequence[Arm]) -> Picture:
    counts = sorted({count for row in rows for count in _busy_over(row)})
    shown = counts if len(counts) <= 9 else counts[:: len(counts) // 8 + 1] + counts[-1:]
    name = setting.workload.accelerator_name or "accelerators"
    scaled = f", each at scale {setting.workload.scale:.3g}" if setting.workload.scaled else ""
    lines = [
        Line(line_look(row.arm, arms), tuple((float(n), v) for n, v in _busy_over(row).items()))
        for row in rows
    ]
    ticks = tuple((float(count), str(count)) for count in dict.fromkeys(shown))
    return draw_lines(
        lines,
        x=Axis(f"number of {name}{scaled}", ticks, logarithmic=counts[-1] > 4 * counts[0]),
        y=Axis("busy", _PERCENT_TICKS),
        label="busy share by number of accelerators",
        mark=(GOAL, "90%"),
    )


def over_time(summary: Summary) -> Chart | Missing:
    """Return what was read in each moment of the first epoch."""
    title = "Throughput over time"
    drawn = _typical(summary, series_of, lambda row: row.is_first is True)
    if not drawn:
        return Missing(title, "no valid experiment trained for four intervals in its first epoch")
    arms = [row.arm for row, _ in drawn]
    cells = (
        (row, (f"{second:.1f}", estimates.figure(value / 1e6)))
        for row, series in drawn
        for second, value in _series_points(series)
    )
    return Chart(
        "time",
        title,
        "The first epoch of the median repeat of each arm.",
        _pair_panels(summary, drawn, lambda _, here: ("MB/s", _series_picture(here, arms))),
        tuple(series.path for _, series in drawn),
        _line_keys(arms),
        _table(("from second", "MB/s"), cells),
    )


def _series_points(series: Companion) -> list[tuple[float, float]]:
    """Return (second, bytes/s) in at most POINTS equal spans. The last one may be shorter."""
    starts, rates = series.lists["starts_s"], series.lists["bytes_per_s"]
    width = -(-len(rates) // POINTS)
    return [
        (starts[at], sum(rates[at : at + width]) / len(rates[at : at + width]))
        for at in range(0, len(rates), width)
    ]


def _series_picture(drawn: Drawn, arms: Sequence[Arm]) -> Picture:
    lines = [
        Line(
            line_look(row.arm, arms),
            tuple((second, value / 1e6) for second, value in _series_points(series)),
            dots=False,
        )
        for row, series in drawn
    ]
    points = [point for line in lines for point in line.points]
    return draw_lines(
        lines,
        x=Axis("seconds since the epoch began", _ticks(max(x for x, _ in points))),
        y=Axis("MB/s", _ticks(max(y for _, y in points))),
        label="throughput over time",
    )


def _ticks(most: float) -> tuple[tuple[float, str], ...]:
    """Return about five round values from 0 to beyond the most."""
    step = 10.0 ** math.floor(math.log10(max(most, 1e-9) / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if most <= 5 * factor * step)
    return tuple((at * step, f"{at * step:g}") for at in range(math.ceil(most / step) + 1))


def latency(summary: Summary) -> Chart | Missing:
    """Return the distribution of the time of single reads, on a logarithmic scale."""
    drawn = _typical(summary, latencies_of, _is_telling)
    if not drawn:
        return Missing("Latency", "no valid experiment left a latencies.json")
    what = next((found.what for _, found in drawn if found.what), "one read")
    arms = [row.arm for row, _ in drawn]
    names = {0.0: "least", 1.0: "most"}
    return Chart(
        "latency",
        "Latency",
        f"Measured: {what}. A line shows which share of them took at most so long; farther left "
        "is better. The first epoch of arms that begin with empty caches, of others a warm one.",
        _pair_panels(summary, drawn, lambda _, here: ("", _latency_picture(here, arms))),
        tuple(found.path for _, found in drawn),
        _line_keys(arms),
        _table(
            (names.get(share, f"{share * 100:g}%") for share in _LATENCY_SHARES),
            ((row, map(estimates.seconds, _quantiles(found))) for row, found in drawn),
        ),
    )


def _is_telling(row: Row) -> bool:
    """Choose one row of each arm: that of its own state."""
    begins_empty = row.arm.state != "warm"
    return row.is_first is not False and row.begins_empty == begins_empty and row.state != "cached"


def _quantiles(found: Companion) -> list[float]:
    return [float(value) for value in np.quantile(found.lists["seconds"], _LATENCY_SHARES)]


def _latency_picture(drawn: Drawn, arms: Sequence[Arm]) -> Picture:
    lines = [
        Line(
            line_look(row.arm, arms),
            tuple(zip(_quantiles(found), _LATENCY_SHARES, strict=True)),
            dots=False,
        )
        for row, found in drawn
    ]
    first = math.floor(math.log10(min(found.lists["seconds"][0] for _, found in drawn)))
    last = math.ceil(math.log10(max(found.lists["seconds"][-1] for _, found in drawn)))
    decades = [10.0**power for power in range(first, max(last, first + 1) + 1)]
    ticks = tuple((value, estimates.seconds(value)) for value in decades)
    return draw_lines(
        lines,
        x=Axis("time of one, logarithmic", ticks, logarithmic=True),
        y=Axis("share", _PERCENT_TICKS),
        label="distribution of latencies",
    )


CHARTS: tuple[Callable[[Summary], Chart | Missing], ...] = (
    speed,
    accelerators_fed,
    over_time,
    latency,
)


def _typical(
    summary: Summary, read: Reader, wanted: Callable[[Row], bool]
) -> list[tuple[Row, Companion]]:
    """Return what `read` finds for the median epoch of each row, by the most readers."""
    found: list[tuple[Row, Companion]] = []
    for row in summary.rows:
        pair = row.typical if wanted(row) and row.readers == _main_readers(row) else None
        if pair is not None and (one := read(summary.run, *pair)) is not None:
            found.append((row, one))
    return found


def _main_readers(row: Row) -> int:
    """Return the number that the long lists are shown of: the most readers, or of accelerators the
    first number, whose epochs are all measured."""
    counts = [epoch.readers for result in row.results for epoch in result.epochs]
    return max(counts, default=0) if row.is_first is None else min(counts, default=0)


def _table(head: Iterable[str], rows: Iterable[tuple[Row, Iterable[str]]]) -> Table:
    """Return a table of which each line begins with its setting, its arm and its state."""
    lines = [(row.setting.title, row.label, row.state_label, *cells) for row, cells in rows]
    return Table(("setting", "arm", "state", *head), lines, texts=(0, 1, 2))


def _panels(
    summary: Summary, rows: Sequence[Row], draw: Callable[[Setting, Sequence[Row]], Bars]
) -> tuple[Panel, ...]:
    """Return a panel for each setting that has rows; `draw` returns its subtitle and picture."""
    panels: list[Panel] = []
    for setting in summary.settings:
        if here := [row for row in rows if row.setting == setting]:
            what, picture = draw(setting, here)
            panels.append(_panel(setting, picture, what))
    return tuple(panels)


def _pair_panels(
    summary: Summary, drawn: Drawn, draw: Callable[[Setting, Drawn], Bars]
) -> tuple[Panel, ...]:
    by_row = {row.key: (row, found) for row, found in drawn}
    rows = [row for row, _ in drawn]
    return _panels(summary, rows, lambda s, here: draw(s, [by_row[row.key] for row in here]))


def _panel(setting: Setting, picture: Picture, what: str = "") -> Panel:
    title = f"{setting.title}: {what}" if what else setting.title
    return Panel(title, setting.details, picture)


def _line_keys(arms: Iterable[Arm]) -> tuple[Key, ...]:
    known = {arm.name: arm for arm in arms}
    ranked = sorted(known.values(), key=lambda arm: arm.rank)
    return tuple(Key(line_look(arm, ranked), arm.label, line=True) for arm in ranked)


def _sources(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(result.raw for row in rows for result in row.results))
