"""Bars with intervals: how fast each arm was, in each setting."""

from collections.abc import Sequence

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.bars import Bar, Part, draw_bars
from penstock.bench.reporting.charts.figure import Figure, Missing, Panel, Table, panel, sources_of
from penstock.bench.reporting.fed import GOAL
from penstock.bench.reporting.intervals import Estimate
from penstock.bench.reporting.palette import system_class
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.summary import Summary

TITLE = "Speed"
_HEAD = (
    "setting", "arm", "repeats", "MB/s", "95% interval", "samples/s", "95% interval", "busy",
    "95% interval", "later epochs, MB/s", "later epochs, busy", "first batch",
)  # fmt: skip


def draw(summary: Summary) -> Figure | Missing:
    rows = [row for row in summary.rows if row.speed is not None]
    if not rows:
        return Missing(TITLE, "no experiment was valid")
    panels = [_panel(setting, summary.of(setting)) for setting in summary.settings]
    caption = (
        "Bars are means over repeats, whiskers 95% intervals (Student's t). Cold and planned arms "
        "by their first epoch, with later epochs as a thin bar below; warm arms by all epochs. "
        "Busy is without the wait for the first batch, which is in the table; so is zero I/O "
        "where files are only read."
    )
    if max(len(row.results) for row in rows) == 1:
        caption += " One repeat each, so there is no interval."
    return Figure(
        "speed", TITLE, caption, tuple(one for one in panels if one), _table(rows),
        sources_of(rows),
    )  # fmt: skip


def _panel(setting: Setting, rows: Sequence[Row]) -> Panel | None:
    shown = [row for row in rows if row.speed is not None]
    if not shown:
        return None
    busy = [(row, row.busy_share) for row in shown if row.busy_share is not None]
    if setting.workload.kind == "emulated" and len(busy) == len(shown):
        bars = [
            _bar(row, found, words.share(found.mean), row.later_busy_share, words.share)
            for row, found in busy
        ]
        what = "busy share of accelerators"
        picture = draw_bars(bars, label=what, most=1.0, mark=(GOAL, "90%"))
    elif setting.workload.kind == "read":
        # Reading nothing is so much faster that beside it no other bar could be seen.
        shown = [row for row in shown if row.arm.system != "ceiling"] or shown
        bars = [
            _bar(row, row.bytes_per_s, words.rate(row.bytes_per_s.mean), row.later_bytes_per_s,
                 words.rate)
            for row in shown if row.bytes_per_s is not None
        ]  # fmt: skip
        what = "bytes a second"
        picture = draw_bars(bars, label=what)
    else:
        bars = [
            _bar(row, row.speed, f"{words.figure(row.speed.mean)} samples/s", None, words.figure)
            for row in shown if row.speed is not None
        ]  # fmt: skip
        what = "samples a second"
        picture = draw_bars(bars, label=what)
    return panel(setting, picture, what=what)


def _bar(row: Row, found: Estimate, figure: str, later: Estimate | None, said: words.Said) -> Bar:
    class_ = system_class(row.arm)
    interval = "one repeat"
    if found.low is not None and found.high is not None:
        interval = f"95% interval {said(max(0.0, found.low))} to {said(found.high)}"
    second = None
    if later is not None:
        tip = f"{row.arm.label}, later epochs: {said(later.mean)}"
        second = Part(later.mean, class_, tip)
    tip = f"{row.arm.label}: {figure}, {interval}, {words.repeats(found.repeats)}"
    return Bar(row.arm.label, figure, (Part(found.mean, class_, tip),), found.low, found.high,
               second)  # fmt: skip


def _table(rows: Sequence[Row]) -> Table:
    return Table(_HEAD, tuple(_cells(row) for row in rows))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.setting.title,
        row.arm.label,
        str(len(row.results)),
        words.figure(row.bytes_per_s.mean / 1e6) if row.bytes_per_s else "–",
        words.interval(row.bytes_per_s, 1e6),
        words.figure(row.samples_per_s.mean) if row.samples_per_s else "–",
        words.interval(row.samples_per_s),
        words.share(row.busy_share.mean) if row.busy_share else "–",
        words.interval(row.busy_share, percent=True),
        words.figure(row.later_bytes_per_s.mean / 1e6) if row.later_bytes_per_s else "–",
        words.share(row.later_busy_share.mean) if row.later_busy_share else "–",
        words.seconds(row.first_batch_s.mean) if row.first_batch_s else "–",
    )
