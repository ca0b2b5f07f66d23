"""Pictures as SVG, drawn by matplotlib: bars and lines. Pure.

A picture is deterministic: no date, a fixed salt for its ids. In a page its text takes the page's
own colour and font, so that it is readable on a light and on a dark background; `standalone` gives
the same picture as a file with a white background.

All pictures are 420 points wide, a third of a desktop page and a whole phone. Names and figures
stand above their bar, so that a name of any length has the whole width.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure as Canvas

from penstock.bench.reporting.results import SYSTEMS, Arm
from penstock.bench.reporting.tables import clean

WIDTH = 420.0
FONT = 13.0
_POINTS = 72.0
_LETTER = 0.6  # width over size, in the mean; generous, so that a name wraps early
# Both stand for colours of the page; no data series has them.
_INK, _SOFT, _GRID = "#16191d", "#5b636c", "#d5d9dc"
_THEMED = {_INK: "currentColor", _SOFT: "var(--soft)", _GRID: "var(--rule)"}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and the browser sets it
    "svg.hashsalt": "penstock",
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "font.size": FONT,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _SOFT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "grid.color": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}
# Okabe and Ito's colours, which people with any colour blindness can tell apart, as matplotlib
# ships them: blue, green, orange, pink, yellow, light blue. All are readable on white and on black.
_BLUE, _GREEN, _ORANGE, _PINK, _YELLOW, _SKY = style.library["seaborn-v0_8-colorblind"][
    "axes.prop_cycle"
].by_key()["color"]
_GREY, _SILVER = "#868e96", "#adb5bd"
_SYSTEM_COLOURS: dict[str, str] = dict(
    zip(SYSTEMS, (_SILVER, _GREY, _BLUE, _GREEN, _YELLOW, _ORANGE, _PINK), strict=True)
)
# What a part of a page does not need: metadata, ids of groups, fonts, rotations by nothing.
_BOILERPLATE = re.compile(
    r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*|(?<=<g) id=\"[^\"]*\""
    r"|font-family: [^;]*; |\s*transform=\"rotate\(-0 [^\"]*\"|(?<= )xlink:(?=href)"
    r"|\s+(?=<)|(?<=\d) (?=\n)",
    re.DOTALL,
)
_DASHES = {"warm": "solid", "planned": "dashed", "cold": "dotted"}
_PALE = {"cold": 0.65, "planned": 0.85}


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn. `line` is solid, dashed or dotted, as in CSS and matplotlib."""

    colour: str
    line: str = "solid"
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Part:
    value: float
    look: Look


@dataclass(frozen=True, slots=True)
class Bar:
    """`low` and `high` are the ends of its interval; `second` is a thin bar below it."""

    name: str
    figure: str
    parts: tuple[Part, ...]
    low: float | None = None
    high: float | None = None
    second: Part | None = None

    @property
    def value(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class Line:
    look: Look
    points: tuple[tuple[float, float], ...]
    dots: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """Ticks are (value, text); the first and the last are the ends of the axis."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG without a background, and what it shows in a few words."""

    svg: str
    label: str

    def inline(self) -> Markup:
        """Return it as a part of a page, in the page's colours and font."""
        head, body = self.svg.split(">", 1)
        box = head[head.index("viewBox=") :].split('"')[1]
        for colour, themed in _THEMED.items():
            body = body.replace(colour, themed)
        return Markup(f'<svg viewBox="{box}" role="img" aria-label="{escape(self.label)}">{body}')

    def standalone(self) -> str:
        """Return it as a file, on white."""
        head, body = self.svg.split(">", 1)
        font = "font-family=\"system-ui, 'Liberation Sans', sans-serif\""
        return f'{head} {font}><rect width="100%" height="100%" fill="#ffffff"/>{body}\n'


def system_look(arm: Arm, state: str = "") -> Look:
    """One hue for each system; the state is the opacity of bars and the dashes of lines."""
    colour, state = _SYSTEM_COLOURS.get(arm.system) or _SKY, state or arm.state
    return Look(colour, _DASHES.get(state, "dotted"), _PALE.get(state, 1.0))


def line_look(arm: Arm, arms: Iterable[Arm]) -> Look:
    """Dashes only where a system has several arms."""
    alone = len({one.name for one in arms if one.system == arm.system}) == 1
    return replace(system_look(arm), line="solid") if alone else system_look(arm)


def draw_bars(
    bars: Sequence[Bar],
    *,
    label: str,
    most: float | None = None,
    mark: tuple[float, str] | None = None,
    title: str = "",
    width: float = WIDTH,
) -> Picture:
    """Draw bars one below the other. `most` is the value at full width; `mark` a dashed line."""
    top = (20.0 if mark else 4.0) + (24.0 if title else 0.0)
    layout: list[tuple[float, list[str]]] = []
    y = top
    for bar in bars:
        lines = _wrapped(bar.name, width - _LETTER * FONT * len(bar.figure) - 16)
        layout.append((y, lines))
        y += 17.0 * len(lines) + 14.0 + (8.0 if bar.second else 0.0) + 13.0
    height = y - 8.0
    reach = most or _reach(bars) or 1.0

    def draw(canvas: Canvas) -> None:
        axes = _bare_axes(canvas, width, height)
        if title:
            axes.text(0, 15, title, weight="bold")
        scale = (width - 8.0) / reach
        for bar, (at, lines) in zip(bars, layout, strict=True):
            for number, text in enumerate(lines):
                axes.text(0, at + 12 + 17 * number, text)
            below = at + 17.0 * len(lines)
            axes.text(width, below - 5, bar.figure, ha="right", weight="bold")
            _draw_bar(axes, bar, below, scale, reach)
            if mark:  # beside the bars only: a line through all would cross the figures
                ends = [below - 2, below + (22 if bar.second else 14)]
                axes.plot([mark[0] * scale] * 2, ends, color=_INK, lw=1, ls=(0, (3, 2)))
        if mark:
            axes.text(mark[0] * scale, top - 6, mark[1], ha="center", color=_SOFT, size=12)

    return _picture(draw, width, height, label)


def draw_lines(
    lines: Sequence[Line], *, x: Axis, y: Axis, label: str, mark: tuple[float, str] | None = None
) -> Picture:
    """Draw lines over two axes. The legend is the page's. `mark`: a dashed line at a value of y."""
    height = 270.0

    def draw(canvas: Canvas) -> None:
        axes: Any = canvas.add_axes((0.105, 0.16, 0.865, 0.8))
        for scale, axis, limits in (
            (axes.set_xscale, x, axes.set_xlim),
            (axes.set_yscale, y, axes.set_ylim),
        ):
            if axis.logarithmic:
                scale("log")
            limits(axis.ticks[0][0], axis.ticks[-1][0])
        axes.set_xticks([v for v, _ in x.ticks], [t for _, t in x.ticks], size=11.5)
        axes.set_yticks([v for v, _ in y.ticks], [t for _, t in y.ticks], size=11.5)
        axes.minorticks_off()
        axes.tick_params(length=0, pad=6)
        axes.grid(axis="y", lw=1)
        axes.set_axisbelow(True)
        axes.set_xlabel(x.title, size=11.5)
        if mark:
            axes.axhline(mark[0], color=_SOFT, lw=1, ls=(0, (4, 3)))
            axes.text(x.ticks[-1][0], mark[0], mark[1], ha="right", va="bottom", color=_SOFT)
        for line in lines:
            across, up = zip(*line.points, strict=True)
            axes.plot(
                across,
                up,
                color=line.look.colour,
                ls=line.look.line,
                lw=2,
                marker="o" if line.dots else None,
                ms=5,
                clip_on=False,
            )

    return _picture(draw, WIDTH, height, label)


def _draw_bar(axes: Any, bar: Bar, y: float, scale: float, reach: float) -> None:
    x = 0.0
    for part in bar.parts:
        if part.value > 0:
            wide = min(part.value, reach) * scale
            look = part.look
            axes.barh(y + 6, max(wide, 1.0), 12, left=x, color=look.colour, alpha=look.opacity)
            x += wide
    if not x:
        axes.barh(y + 6, 1.5, 12, color=_SOFT)
    # Counts that never differ have no whisker. One longer than the chart is cut, without an end.
    if bar.low is not None and bar.high is not None and (bar.high - bar.low) * scale >= 0.5:
        low, high = max(0.0, bar.low) * scale, min(bar.high, reach) * scale
        axes.plot([low, high], [y + 6, y + 6], color=_INK, lw=1.3)
        for end in [low] if bar.high > reach else [low, high]:
            axes.plot([end, end], [y + 2, y + 10], color=_INK, lw=1.3)
    if bar.second is not None:
        wide = max(bar.second.value * scale, 1.0)
        axes.barh(y + 16.5, wide, 5, color=bar.second.look.colour, alpha=0.4)


def _reach(bars: Sequence[Bar]) -> float:
    """Return the value at full width. Two repeats may have an interval ten times as long as their
    bar: it is cut, so that the other bars stay long enough to see."""
    longest = max(bar.value for bar in bars)
    second = max(bar.second.value if bar.second else 0.0 for bar in bars)
    ends = max(max(bar.value, bar.high or 0.0) for bar in bars)
    return max(min(ends, 1.5 * longest), second, longest)


def _bare_axes(canvas: Canvas, width: float, height: float) -> Any:
    """Return axes without frame, in points from the upper left corner."""
    axes: Any = canvas.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    return axes


def _wrapped(text: str, width: float, *, lines: int = 2) -> list[str]:
    letters = max(8, int(width / (_LETTER * FONT)))
    found = textwrap.wrap(clean(text), letters, max_lines=lines, placeholder="…")
    return found or [""]


def _picture(draw: Callable[[Canvas], None], width: float, height: float, label: str) -> Picture:
    written = io.StringIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The browser sets the text: a letter that matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        canvas = Canvas(figsize=(width / _POINTS, height / _POINTS), dpi=_POINTS)
        draw(canvas)
        for axes in canvas.axes:
            for artist in axes.get_children():
                artist.set_clip_on(False)
        canvas.savefig(written, format="svg", facecolor="none", metadata={"Date": None})
    svg = written.getvalue()
    return Picture(_BOILERPLATE.sub("", svg[svg.index("<svg") :]).strip(), label)
