"""Throughput by time, a strip for each arm, with marks where epochs begin.

Each strip has scales of its own: a cold direct mount reads for minutes what a warm one reads in
seconds, and on one scale neither could be seen. Peak and duration stand beside it.
"""

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.figure import Figure, Missing, Table, panel
from penstock.bench.reporting.markup import Html, element
from penstock.bench.reporting.palette import system_class
from penstock.bench.reporting.raw import Series, series_of
from penstock.bench.reporting.rows import Row
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.svg import (
    WIDTH,
    Scale,
    canvas,
    line,
    path_of,
    text_width,
    words_at,
    wrapped,
)

TITLE = "Throughput over time"
POINTS = 48
_STRIP, _LINE = 36.0, 16.0


def draw(summary: Summary) -> Figure | Missing:
    drawn: list[tuple[Row, Series]] = []
    for row in summary.rows:
        found = series_of(summary.run, row.typical) if row.typical else None
        if found is not None:
            drawn.append((row, found))
    if not drawn:
        return Missing(TITLE, "no valid experiment left a series.json of four intervals an epoch")
    panels = [
        panel(setting, _picture([pair for pair in drawn if pair[0].setting == setting]))
        for setting in summary.settings
        if any(pair[0].setting == setting for pair in drawn)
    ]
    caption = (
        "The repeat in the middle of each arm. Every strip has its own scales, so look at shapes "
        "here and at figures elsewhere. Dashed: an epoch begins."
    )
    shown = {(row.arm.name, row.setting.key) for row, _ in drawn}
    if any((row.arm.name, row.setting.key) not in shown for row in summary.rows if row.counted):
        caption += " Arms whose epochs were shorter than four intervals are not drawn."
    return Figure(
        "time", TITLE, caption, tuple(panels), _table(drawn), tuple(s.path for _, s in drawn)
    )


def points_of(series: Series) -> list[tuple[float, float]]:
    """(second, bytes a second), in at most POINTS equal spans. The last one may be shorter."""
    width = -(-len(series.size_bytes) // POINTS)
    spans = [series.size_bytes[at : at + width] for at in range(0, len(series.size_bytes), width)]
    return [
        (number * width * series.interval_s, sum(span) / (len(span) * series.interval_s))
        for number, span in enumerate(spans)
    ]


def _picture(drawn: list[tuple[Row, Series]]) -> Html:
    parts: list[Html] = []
    y = 0.0
    for row, series in drawn:
        y = _strip(parts, row, series, y)
    return canvas(y, parts, label="throughput over time")


def _strip(parts: list[Html], row: Row, series: Series, y: float) -> float:
    points = points_of(series)
    peak = max(value for _, value in points)
    end_s = len(series.size_bytes) * series.interval_s
    said = f"peak {words.rate(peak)}"
    for number, text in enumerate(wrapped(row.arm.label, WIDTH - text_width(said) - 16)):
        y += _LINE if number else 0.0
        parts.append(words_at(0, y + 12, text, "name"))
    parts.append(words_at(WIDTH, y + 12, said, "tick", "end"))
    y += _LINE + 2
    across = Scale(0.0, end_s, 0.0, WIDTH)
    up = Scale(0.0, peak, y + _STRIP, y + 2)
    steps: list[tuple[float, float]] = [(0.0, y + _STRIP)]
    ends = [second for second, _ in points[1:]] + [end_s]
    for (second, value), end in zip(points, ends, strict=True):
        steps += [(across(second), up(value)), (across(end), up(value))]
    steps.append((WIDTH, y + _STRIP))
    class_ = system_class(row.arm)
    parts.append(element("polygon", points=path_of(steps), class_=f"area {class_}"))
    for mark in series.epoch_marks_s[1:]:
        parts.append(line(across(mark), y, across(mark), y + _STRIP, "epoch"))
    for (second, value), end in zip(points, ends, strict=True):
        tip = f"{second:.1f} to {end:.1f} s: {words.rate(value)}"
        parts.append(element("rect", element("title", tip), x=across(second), y=y,
                             width=across(end) - across(second), height=_STRIP,
                             class_="touch"))  # fmt: skip
    parts.append(line(0, y + _STRIP, WIDTH, y + _STRIP, "base"))
    parts.append(words_at(0, y + _STRIP + 13, "0 s", "tick"))
    parts.append(words_at(WIDTH, y + _STRIP + 13, words.seconds(end_s), "tick", "end"))
    return y + _STRIP + 28


def _table(drawn: list[tuple[Row, Series]]) -> Table:
    cells: list[tuple[str, ...]] = []
    for row, series in drawn:
        for second, value in points_of(series):
            cells.append(
                (row.setting.title, row.arm.label, f"{second:.1f}", words.figure(value / 1e6))
            )
    return Table(("setting", "arm", "from second", "MB/s"), tuple(cells))
