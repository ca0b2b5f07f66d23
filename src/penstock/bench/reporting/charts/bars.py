"""Bars in rows: the name and the figure on a line, the bar below it. Pure.

No axis: each bar carries its figure. A name of any length has the whole width to wrap in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.reporting.markup import Html, element
from penstock.bench.reporting.svg import (
    WIDTH,
    Scale,
    box,
    canvas,
    line,
    text_width,
    words_at,
    wrapped,
)

_LINE, _BAR, _THIN, _GAP = 17.0, 12.0, 5.0, 14.0
_SEEN = 0.5  # counts that are always the same have no whisker, not a stroke
_ROUND = 8.0  # room at the right, so that a whisker's end is not cut


@dataclass(frozen=True, slots=True)
class Part:
    value: float
    class_: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """`low` and `high` are the ends of its interval; `second` is a thin bar below."""

    name: str
    figure: str
    parts: tuple[Part, ...]
    low: float | None = None
    high: float | None = None
    second: Part | None = None

    @property
    def reach(self) -> float:
        total = sum(part.value for part in self.parts)
        return max(total, self.high or 0.0, self.second.value if self.second else 0.0)


def draw_bars(
    bars: Sequence[Bar], *, label: str, most: float | None = None,
    mark: tuple[float, str] | None = None,
) -> Html:  # fmt: skip
    """`most` is the value at full width; `mark` a dashed line with a word above it."""
    scale = Scale(0.0, most or _most(bars) or 1.0, 0.0, WIDTH - _ROUND)
    parts: list[Html] = []
    y = 16.0 if mark else 2.0
    top = y
    for bar in bars:
        y = _row(parts, bar, y, scale)
    height = y - _GAP + 4
    if mark:
        x = scale(mark[0])
        parts.insert(0, line(x, top, x, height - 2, "mark"))
        parts.append(words_at(x, 11, mark[1], "tick", "middle"))
    return canvas(height, parts, label=label)


def _row(parts: list[Html], bar: Bar, y: float, scale: Scale) -> float:
    room = WIDTH - text_width(bar.figure) - 16
    for number, text in enumerate(wrapped(bar.name, room)):
        y += _LINE if number else 0.0
        parts.append(words_at(0, y + 11, text, "name"))
    parts.append(words_at(WIDTH, y + 11, bar.figure, "figure", "end"))
    y += _LINE
    x = 0.0
    for part in bar.parts:
        width = scale(part.value)
        if part.value > 0:
            parts.append(box(x, y, max(width, 1.0), _BAR, f"bar {part.class_}", part.tip))
        x += width
    if not x:
        parts.append(box(0, y, 1.5, _BAR, "bar none", f"{bar.name}: {bar.figure}"))
    if bar.low is not None and bar.high is not None:
        left, right = scale(max(0.0, bar.low)), scale(bar.high)
        if right - left >= _SEEN:
            parts.append(_whisker(left, right, y + _BAR / 2, cut=bar.high > scale.high))
    y += _BAR
    if bar.second is not None:
        part = bar.second
        parts.append(
            box(0, y + 2, max(scale(part.value), 1.0), _THIN, f"bar thin {part.class_}", part.tip)
        )
        y += _THIN + 2
    return y + _GAP


def _most(bars: Sequence[Bar]) -> float:
    """Two repeats may have an interval ten times as long as their bar; it must not make all other
    bars too short to see, so it is cut, and then has no end."""
    longest = max(sum(part.value for part in bar.parts) for bar in bars)
    return min(max(bar.reach for bar in bars), max(1.5 * longest, _seconds(bars)))


def _seconds(bars: Sequence[Bar]) -> float:
    return max(bar.second.value if bar.second else 0.0 for bar in bars)


def _whisker(left: float, right: float, y: float, *, cut: bool) -> Html:
    end = "" if cut else f"M{right:.1f} {y - 4:g}v8"
    return element(
        "path", class_="whisker",
        d=f"M{left:.1f} {y - 4:g}v8M{left:.1f} {y:g}H{right:.1f}{end}",
    )  # fmt: skip
