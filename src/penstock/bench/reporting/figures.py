"""The figures of a report, each with its caption, its legend, the table behind it and raw files.

A figure without data is a `Missing` with the reason. Long lists are read when they are drawn.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from penstock.bench.reporting import estimates
from penstock.bench.reporting.drawing import (
    Axis,
    Bar,
    Line,
    Look,
    Part,
    Picture,
    Strip,
    draw_bars,
    draw_lines,
    draw_strips,
    draw_waterfall,
    line_look,
    part_look,
    system_look,
)
from penstock.bench.reporting.estimates import Estimate
from penstock.bench.reporting.reading import (
    Latencies,
    Series,
    Steps,
    latencies_of,
    series_of,
    steps_of,
)
from penstock.bench.reporting.results import Arm, Result, Run
from penstock.bench.reporting.rows import (
    GOAL,
    HEAD,
    METHOD,
    TRAINING_EPOCHS,
    Row,
    Setting,
    StateRow,
    name_of,
    setting_of,
)
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.tables import Table
from penstock.bench.reporting.verdict import REFERENCES
from penstock.units import format_size

POINTS = 48  # of throughput over time
FIRST_STEPS = 12
_STEP_PARTS = ("load", "compute", "barrier")
_LATENCY_SHARES = (
    *(0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0),
)
_PERCENT_TICKS = tuple((share / 100, f"{share}%") for share in (0, 25, 50, 75, 100))
_ORIGINS = {
    "pages": "the kernel's page cache",
    "cache": "its own cache or the page cache",
    "store": "the store",
}

T = TypeVar("T")


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
class Figure:
    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: Table
    sources: tuple[str, ...]
    legend: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    title: str
    why: str
    panels: tuple[Panel, ...] = ()


def states(summary: Summary) -> list[Figure]:
    """Return a figure for each data set that was read cold, cached and warm."""
    found: list[Figure] = []
    for number, (setting, rows) in enumerate(summary.state_settings()):
        panels: list[Panel] = []
        for state, most in {row.state: 0 for row in rows}.items():
            here = [row for row in rows if row.state == state]
            most = max(row.readers for row in here)
            bars = [_state_bar(row) for row in here if row.readers == most]
            what = f"{state}, {most} reading: files per second"
            panels.append(Panel(what, setting.shape.details, draw_bars(bars, label=what)))
        found.append(
            Figure(
                f"states-{number}",
                summary.title_of(setting),
                "Medians over samples. Shares of native files and of the bare client are medians "
                "of neighbouring measurements, and no quotients of the columns. CPU and memory are "
                "those of all processes of a system, without the readers and the store.",
                tuple(panels),
                Table(HEAD, tuple(row.cells for row in rows)),
                tuple(one.raw for one in summary.run.counted if setting_of(one).key == setting.key),
            )
        )
    return found


def _state_bar(row: StateRow) -> Bar:
    look = system_look(row.arm.model_copy(update={"state": "warm"}))
    return Bar(name_of(row.arm), f"{row.files_per_s:,.0f}", (Part(row.files_per_s, look),))


def speed(summary: Summary) -> Figure | Missing:
    """How fast each arm was, with intervals."""
    rows = [row for row in summary.rows if row.speed is not None]
    if not rows:
        return Missing("Speed", "no experiment was valid")
    caption = (
        "Bars are means over repeats, whiskers 95% intervals (Student's t). Cold and planned arms "
        "show their first epoch, with later epochs as a thin bar below; warm arms show all epochs. "
        "Busy excludes the wait for the first batch, which is in the table; so is zero I/O where "
        "files are only read."
    )
    if max(len(row.results) for row in rows) == 1:
        caption += " One repeat each, so there is no interval."
    head = (
        *("repeats", "MB/s", "95% interval", "samples/s", "95% interval"),
        *("busy", "95% interval", "later epochs, MB/s", "later epochs, busy", "first batch"),
    )
    panels = _panels(summary, rows, _speed_panel)
    table = _table(head, ((row, _speed_cells(row)) for row in rows))
    return Figure("speed", "Speed", caption, panels, table, _sources(rows))


def _speed_panel(setting: Setting, rows: Sequence[Row]) -> tuple[str, Picture]:
    busy = [(row, row.busy_share) for row in rows if row.busy_share is not None]
    if setting.workload.emulated and len(busy) == len(rows):
        what = "busy share of accelerators"
        bars = [
            _speed_bar(row, found, estimates.share(found.mean), row.later_busy_share)
            for row, found in busy
        ]
        return what, draw_bars(bars, label=what, most=1.0, mark=(GOAL, "90%"))
    if setting.workload.kind == "read":
        # Reading nothing is so much faster that no other bar would be visible beside it.
        shown = [row for row in rows if row.arm.system != "ceiling"] or rows
        bars = [
            _speed_bar(row, found, estimates.rate(found.mean), row.later_bytes_per_s)
            for row in shown
            if (found := row.bytes_per_s) is not None
        ]
        return "bytes per second", draw_bars(bars, label="bytes per second")
    bars = [
        _speed_bar(row, found, f"{estimates.figure(found.mean)} samples/s", None)
        for row in rows
        if (found := row.speed) is not None
    ]
    return "samples per second", draw_bars(bars, label="samples per second")


def _speed_bar(row: Row, found: Estimate, figure: str, later: Estimate | None) -> Bar:
    look = system_look(row.arm)
    second = None if later is None else Part(later.mean, look)
    return Bar(row.arm.label, figure, (Part(found.mean, look),), found.low, found.high, second)


def _speed_cells(row: Row) -> tuple[str, ...]:
    def shown(found: Estimate | None, unit: float = 1.0) -> str:
        return estimates.figure(found.mean / unit) if found else "–"

    return (
        str(len(row.results)),
        shown(row.bytes_per_s, 1e6),
        estimates.interval(row.bytes_per_s, 1e6),
        shown(row.samples_per_s),
        estimates.interval(row.samples_per_s),
        estimates.share(row.busy_share.mean) if row.busy_share else "–",
        estimates.interval(row.busy_share, percent=True),
        shown(row.later_bytes_per_s, 1e6),
        estimates.share(row.later_busy_share.mean) if row.later_busy_share else "–",
        estimates.seconds(row.first_batch_s.mean) if row.first_batch_s else "–",
    )


def accelerators_fed(summary: Summary) -> Figure | Missing:
    """Busy share against the number of accelerators, with the 90% that counts as fed."""
    title = "Accelerators fed"
    rows = [row for row in summary.rows if len(_busy_by_count(row)) >= 2]
    if not rows:
        why = "no valid experiment was run with two numbers of accelerators or more"
        return Missing(title, why)
    arms = [row.arm for row in rows]
    counts = sorted({count for row in rows for count in _busy_by_count(row)})

    def cells(row: Row) -> tuple[str, ...]:
        shares = (_busy_by_count(row).get(count) for count in counts)
        fed = estimates.accelerators(row.fed) if row.fed else "–"
        return (*("–" if share is None else estimates.share(share) for share in shares), fed)

    return Figure(
        "accelerators",
        title,
        f"How busy accelerators are, by how many of them read at once. {METHOD}",
        _panels(summary, rows, lambda setting, here: ("", _fed_picture(setting, here, arms))),
        _table(
            (*(f"busy of {n}" for n in counts), "fed at 90%"), ((row, cells(row)) for row in rows)
        ),
        _sources(rows),
        _line_keys(arms),
    )


def _busy_by_count(row: Row) -> dict[int, float]:
    """Return the mean busy share of each number of accelerators, over repeats."""
    found: dict[int, list[float]] = {}
    for result in row.results:
        for count, share in result.accelerator_runs:
            found.setdefault(count, []).append(share)
    return {count: sum(shares) / len(shares) for count, shares in sorted(found.items())}


def _fed_picture(setting: Setting, rows: Sequence[Row], arms: Sequence[Arm]) -> Picture:
    counts = sorted({count for row in rows for count in _busy_by_count(row)})
    shown = counts if len(counts) <= 9 else counts[:: len(counts) // 8 + 1] + counts[-1:]
    name = setting.workload.accelerator_name or "accelerators"
    scaled = f", each at scale {setting.workload.scale:.3g}" if setting.workload.scaled else ""
    lines = [
        Line(line_look(row.arm, arms), tuple((float(n), v) for n, v in _busy_by_count(row).items()))
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


def over_time(summary: Summary) -> Figure | Missing:
    """Throughput over time, a strip for each arm, with marks where epochs begin.

    Each strip has its own scales: a cold mount may read for minutes what a warm one reads in
    seconds, and on one scale neither would be visible.
    """
    title = "Throughput over time"
    drawn = _typical(summary, series_of)
    if not drawn:
        return Missing(title, "no valid experiment left a series.json of four intervals an epoch")
    caption = (
        "The median repeat of each arm. Every strip has its own scales, so look at shapes here "
        "and at figures elsewhere. Dotted: an epoch begins."
    )
    shown = {(row.arm.name, row.setting.key) for row, _ in drawn}
    if any((row.arm.name, row.setting.key) not in shown for row in summary.rows if row.counted):
        caption += " Arms whose epochs were shorter than four intervals are not drawn."
    cells = (
        (row, (f"{second:.1f}", estimates.figure(value / 1e6)))
        for row, series in drawn
        for second, value in _series_points(series)
    )
    return Figure(
        "time",
        title,
        caption,
        _pair_panels(summary, drawn, lambda _, here: ("", _strips(here))),
        _table(("from second", "MB/s"), cells),
        tuple(series.path for _, series in drawn),
    )


def _series_points(series: Series) -> list[tuple[float, float]]:
    """Return (second, bytes/s) in at most POINTS equal spans. The last one may be shorter."""
    width = -(-len(series.size_bytes) // POINTS)
    spans = [series.size_bytes[at : at + width] for at in range(0, len(series.size_bytes), width)]
    return [
        (number * width * series.interval_s, sum(span) / (len(span) * series.interval_s))
        for number, span in enumerate(spans)
    ]


def _strips(drawn: Sequence[tuple[Row, Series]]) -> Picture:
    strips: list[Strip] = []
    for row, series in drawn:
        points = _series_points(series)
        peak = estimates.rate(max(value for _, value in points))
        end_s = len(series.size_bytes) * series.interval_s
        marks = series.epoch_marks_s[1:]
        look = system_look(row.arm)
        strips.append(Strip(row.arm.label, f"peak {peak}", tuple(points), end_s, marks, look))
    return draw_strips(strips, label="throughput over time")


def step_times(summary: Summary) -> Figure | Missing:
    """What a mean step consists of, and the first steps one after the other."""
    title = "Where a step's time goes"
    drawn = _typical(summary, steps_of)
    if not drawn:
        return Missing(title, "no valid experiment has steps: only training has them")
    panels: list[Panel] = []
    for setting in summary.settings:
        here = [pair for pair in drawn if pair[0].setting == setting]
        if here:
            chosen = _waterfall_arms(summary, setting, here)
            panels.append(_panel(setting, _mean_steps(here), "a mean step"))
            panels.append(_panel(setting, _waterfall(chosen), f"the first {FIRST_STEPS} steps"))
    cells: list[tuple[Row, tuple[str, ...]]] = []
    for row, steps in drawn:
        mean = _mean_step(steps)
        named = [(f"mean of {len(steps.load_s):,}", mean)]
        named += [(f"step {n + 1}", times) for n, times in enumerate(_first_steps(steps))]
        for name, times in named:
            cells.append((row, (name, *map(estimates.seconds, (*times, sum(times))))))
    return Figure(
        "steps",
        title,
        "Load is waiting for data, compute the step itself, barrier waiting for the other "
        "workers. The median repeat of each arm. In the waterfall a step begins where the "
        "one above it ended; all arms of a panel share its time axis.",
        tuple(panels),
        _table(("step", *_STEP_PARTS, "together"), cells),
        tuple(steps.path for _, steps in drawn),
        tuple(Key(part_look(name), name) for name in _STEP_PARTS),
    )


def _mean_step(steps: Steps) -> tuple[float, ...]:
    lists = (steps.load_s, steps.compute_s, steps.barrier_s)
    return tuple(sum(times) / len(times) for times in lists)


def _first_steps(steps: Steps) -> list[tuple[float, ...]]:
    return list(zip(steps.load_s, steps.compute_s, steps.barrier_s, strict=True))[:FIRST_STEPS]


def _mean_steps(drawn: Sequence[tuple[Row, Steps]]) -> Picture:
    bars: list[Bar] = []
    for row, steps in drawn:
        mean = _mean_step(steps)
        parts = (Part(v, part_look(name)) for name, v in zip(_STEP_PARTS, mean, strict=True))
        bars.append(Bar(row.arm.label, estimates.seconds(sum(mean)), tuple(parts)))
    return draw_bars(bars, label="a mean step")


def _waterfall_arms(
    summary: Summary, setting: Setting, drawn: Sequence[tuple[Row, Steps]]
) -> Sequence[tuple[Row, Steps]]:
    """Return the arms of the verdict; in other settings our first arm and the slowest."""
    verdict = summary.verdict
    if verdict.setting == setting and verdict.ours is not None:
        named = {row.arm.name for row in (verdict.ours, *verdict.peers)}
        if found := [pair for pair in drawn if pair[0].arm.name in named]:
            return found
    ours = [pair for pair in drawn if pair[0].arm.system == "penstock"][:1]
    slowest = max(drawn, key=lambda pair: sum(_mean_step(pair[1])))
    return [pair for pair in drawn if pair in ours or pair is slowest]


def _waterfall(drawn: Sequence[tuple[Row, Steps]]) -> Picture:
    arms = [(row.arm.label, _first_steps(steps)) for row, steps in drawn]
    end_s = max(sum(map(sum, steps)) for _, steps in arms)
    styles = [part_look(name) for name in _STEP_PARTS]
    label = f"the first {FIRST_STEPS} steps"
    return draw_waterfall(arms, styles, label=label, end=estimates.seconds(end_s))


def latency(summary: Summary) -> Figure | Missing:
    """The distribution of the time of single reads, on a logarithmic scale."""
    drawn = _typical(summary, latencies_of)
    if not drawn:
        return Missing("Latency", "no valid experiment left a latencies.json")
    what = next((found.what for _, found in drawn if found.what), "one read")
    arms = [row.arm for row, _ in drawn]
    names = {0.0: "least", 1.0: "most"}
    return Figure(
        "latency",
        "Latency",
        f"Measured: {what}. A line shows which share of them took at most so long; farther left "
        "is better. The median repeat of each arm.",
        _pair_panels(summary, drawn, lambda _, here: ("", _latency_picture(here, arms))),
        _table(
            (names.get(share, f"{share * 100:g}%") for share in _LATENCY_SHARES),
            ((row, map(estimates.seconds, _quantiles(found))) for row, found in drawn),
        ),
        tuple(found.path for _, found in drawn),
        _line_keys(arms),
    )


def _quantiles(found: Latencies) -> list[float]:
    return [float(value) for value in np.quantile(found.seconds, _LATENCY_SHARES)]


def _latency_picture(drawn: Sequence[tuple[Row, Latencies]], arms: Sequence[Arm]) -> Picture:
    lines = [
        Line(
            line_look(row.arm, arms),
            tuple(zip(_quantiles(found), _LATENCY_SHARES, strict=True)),
            dots=False,
        )
        for row, found in drawn
    ]
    first = math.floor(math.log10(min(found.seconds[0] for _, found in drawn)))
    last = math.ceil(math.log10(max(found.seconds[-1] for _, found in drawn)))
    decades = [10.0**power for power in range(first, max(last, first + 1) + 1)]
    ticks = tuple((value, estimates.seconds(value)) for value in decades)
    return draw_lines(
        lines,
        x=Axis("time of one, logarithmic", ticks, logarithmic=True),
        y=Axis("share", _PERCENT_TICKS),
        label="distribution of latencies",
    )


def origins(summary: Summary) -> Figure | Missing:
    """Where the bytes came from: the kernel's page cache, the tiers of the cache, the store."""
    title = "Hit ratio by tier"
    rows = [row for row in summary.rows if row.origins and row.arm.system not in REFERENCES]
    if not rows:
        return Missing(title, "no valid experiment counted the bytes that left the store")
    found: list[tuple[Row, str, Mapping[str, float]]] = []
    for row in rows:
        found.append((row, row.arm.label, row.origins or {}))
        if row.later_origins:
            found.append((row, f"{row.arm.label}, later epochs", row.later_origins))
    present = dict.fromkeys(name for _, _, by in found for name in by if _origin_share(by, name))
    tiers = [name for name in present if name not in _ORIGINS]
    order = [name for name in ("pages", "cache", *tiers, "store") if name in present]

    def look(name: str) -> Look:
        return part_look(f"tier-{tiers.index(name)}" if name in tiers else name)

    def bar(label: str, by: Mapping[str, float]) -> Bar:
        parts = tuple(Part(_origin_share(by, name), look(name)) for name in order)
        return Bar(label, estimates.share(max(0.0, 1.0 - _origin_share(by, "store"))), parts)

    return Figure(
        "origins",
        title,
        "Of the bytes that were read: what each tier of the cache served, by the system's own "
        "count, and what the store sent, by the store's. The rest came from the page cache. A "
        "system that does not count its hits is not split. The figure is all but the store.",
        tuple(
            _panel(setting, draw_bars(bars, label="where the bytes came from", most=1.0))
            for setting in summary.settings
            if (bars := [bar(label, by) for row, label, by in found if row.setting == setting])
        ),
        Table(
            ("setting", "arm", *(_ORIGINS.get(name, name) for name in order)),
            tuple(
                (row.setting.title, label, *(estimates.share(_origin_share(by, n)) for n in order))
                for row, label, by in found
            ),
        ),
        _sources(rows),
        tuple(Key(look(name), _ORIGINS.get(name, name)) for name in order),
    )


def _origin_share(by: Mapping[str, float], name: str) -> float:
    """Sums of floats leave dust below zero and above one."""
    return min(1.0, max(0.0, round(by.get(name, 0.0), 9)))


def processors(summary: Summary) -> Figure | Missing:
    """CPU seconds per gigabyte, by who used them, and the most memory that the system held."""
    title = "CPU and memory"
    rows = [row for row in summary.rows if row.cpu_s_per_gb or row.memory_bytes is not None]
    if not rows:
        return Missing(title, "no valid experiment measured them")
    users = list(dict.fromkeys(user for row in rows for user in row.cpu_s_per_gb))
    panels: list[Panel] = []
    for setting in summary.settings:
        here = [row for row in rows if row.setting == setting]
        if used := [_cpu_bar(row, users) for row in here if row.cpu_s_per_gb]:
            what = "CPU seconds per GB"
            panels.append(_panel(setting, draw_bars(used, label=what), what))
        if held := [_memory_bar(row) for row in here if row.memory_bytes is not None]:
            panels.append(_panel(setting, draw_bars(held, label="memory"), "memory"))
    return Figure(
        "processors",
        title,
        "CPU is per 10⁹ bytes read; system is the mount, readers what reads from it; the store's "
        "own CPU is not included. Memory is the most that the system held at once.",
        tuple(panels),
        _table(
            (*(f"{user}, CPU s/GB" for user in users), "memory"),
            ((row, _processor_cells(row, users)) for row in rows),
        ),
        _sources(rows),
        tuple(Key(part_look(user), f"CPU of {user}") for user in users),
    )


def _processor_cells(row: Row, users: list[str]) -> tuple[str, ...]:
    used = (row.cpu_s_per_gb.get(user) for user in users)
    memory = "–" if row.memory_bytes is None else format_size(row.memory_bytes)
    return (*("–" if one is None else estimates.figure(one) for one in used), memory)


def _cpu_bar(row: Row, users: list[str]) -> Bar:
    used = row.cpu_s_per_gb
    parts = tuple(Part(used[user], part_look(user)) for user in users if user in used)
    return Bar(row.arm.label, f"{estimates.figure(sum(used.values()))} s", parts)


def _memory_bar(row: Row) -> Bar:
    size = row.memory_bytes or 0.0
    return Bar(row.arm.label, format_size(size), (Part(size, system_look(row.arm)),))


def requests(summary: Summary) -> Figure | Missing:
    """GETs that reached the store, and what they cost."""
    title = "GETs and what they cost"
    rows = [r for r in summary.rows if r.gets is not None and r.arm.system not in REFERENCES]
    if not rows:
        return Missing(title, "no valid experiment counted GETs")
    price = summary.price

    def training(row: Row) -> str:
        return "–" if row.training_gets is None else estimates.money(price.of(row.training_gets))

    def bar(row: Row) -> Bar:
        gets = row.gets or Estimate(0.0, ())
        cost = estimates.money(price.of(gets.mean))
        if row.training_gets is not None:
            cost = f"{training(row)} in {TRAINING_EPOCHS} epochs"
        parts = (Part(gets.mean, system_look(row.arm)),)
        return Bar(row.arm.label, f"{gets.mean:,.0f} · {cost}", parts, gets.low, gets.high)

    def cells(row: Row) -> tuple[str, ...]:
        gets = row.gets.mean if row.gets else 0.0
        return (
            f"{gets:,.0f}",
            estimates.interval(row.gets),
            estimates.money(price.of(gets)),
            training(row),
        )

    def panel(setting: Setting, here: Sequence[Row]) -> tuple[str, Picture]:
        return "GETs in an epoch", draw_bars([bar(row) for row in here], label="GETs in an epoch")

    head = ("GETs in an epoch", "95% interval", "cost of an epoch")
    return Figure(
        "requests",
        title,
        f"At {estimates.money(price.dollars)} for 1,000 GETs ({price.source}); traffic and storage "
        f"cost extra. {TRAINING_EPOCHS} epochs are the first and {TRAINING_EPOCHS - 1} like the "
        "last measured one; a single cold epoch does not predict them. Loading a warm arm "
        "beforehand is not counted.",
        _panels(summary, rows, panel),
        _table((*head, f"cost of {TRAINING_EPOCHS} epochs"), ((row, cells(row)) for row in rows)),
        _sources(rows),
    )


FIGURES: tuple[Callable[[Summary], Figure | Missing], ...] = (
    speed,
    accelerators_fed,
    over_time,
    step_times,
    latency,
    origins,
    processors,
    requests,
)


def _typical(summary: Summary, read: Callable[[Run, Result], T | None]) -> list[tuple[Row, T]]:
    """Return what `read` finds for the median repeat of each row."""
    found: list[tuple[Row, T]] = []
    for row in summary.rows:
        if row.typical and (one := read(summary.run, row.typical)) is not None:
            found.append((row, one))
    return found


def _table(head: Iterable[str], rows: Iterable[tuple[Row, Iterable[str]]]) -> Table:
    """Return a table of which each line begins with its setting and its arm."""
    lines = [(row.setting.title, row.arm.label, *cells) for row, cells in rows]
    return Table(("setting", "arm", *head), lines)


def _panels(
    summary: Summary,
    rows: Sequence[Row],
    draw: Callable[[Setting, Sequence[Row]], tuple[str, Picture]],
) -> tuple[Panel, ...]:
    """Return a panel for each setting that has rows; `draw` returns its subtitle and picture."""
    pairs = [(row, row) for row in rows]
    return _pair_panels(summary, pairs, lambda s, here: draw(s, [row for row, _ in here]))


def _pair_panels(
    summary: Summary,
    drawn: Sequence[tuple[Row, T]],
    draw: Callable[[Setting, Sequence[tuple[Row, T]]], tuple[str, Picture]],
) -> tuple[Panel, ...]:
    panels: list[Panel] = []
    for setting in summary.settings:
        if here := [pair for pair in drawn if pair[0].setting == setting]:
            what, picture = draw(setting, here)
            panels.append(_panel(setting, picture, what))
    return tuple(panels)


def _panel(setting: Setting, picture: Picture, what: str = "") -> Panel:
    title = f"{setting.title}: {what}" if what else setting.title
    return Panel(title, setting.details, picture)


def _line_keys(arms: Iterable[Arm]) -> tuple[Key, ...]:
    known = {arm.name: arm for arm in arms}
    ranked = sorted(known.values(), key=lambda arm: arm.rank)
    return tuple(Key(line_look(arm, ranked), arm.label, line=True) for arm in ranked)


def _sources(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(result.raw for row in rows for result in row.results)
