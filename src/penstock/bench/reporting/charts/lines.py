"""Lines over two axes. Pure. Which line is whose stands in the figure's legend."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.reporting.markup import Html, element
from penstock.bench.reporting.svg import WIDTH, Scale, canvas, line, path_of, words_at

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 40.0, 12.0, 12.0, 40.0, 270.0


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    class_: str
    points: tuple[tuple[float, float], ...]
    tips: tuple[str, ...]  # one for each point
    dots: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """Ticks are (value, text); the first and the last are its ends."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def scale(self, start: float, end: float) -> Scale:
        low, high = self.ticks[0][0], self.ticks[-1][0]
        return Scale(low, high, start, end, self.logarithmic)


def draw_lines(
    lines: Sequence[Line], *, x: Axis, y: Axis, label: str, mark: tuple[float, str] | None = None
) -> Html:
    """`mark` is a dashed line across, at a value of y."""
    across = x.scale(_LEFT, WIDTH - _RIGHT)
    up = y.scale(_HEIGHT - _BOTTOM, _TOP)
    parts: list[Html] = []
    for value, text in y.ticks:
        parts.append(line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid"))
        parts.append(words_at(_LEFT - 6, up(value) + 4, text, "tick", "end"))
    for value, text in x.ticks:
        parts.append(line(across(value), _HEIGHT - _BOTTOM, across(value), _HEIGHT - _BOTTOM + 4,
                          "grid"))  # fmt: skip
        parts.append(words_at(across(value), _HEIGHT - _BOTTOM + 17, text, "tick", "middle"))
    parts.append(words_at((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 5, x.title, "tick", "middle"))
    if mark:
        parts.append(line(_LEFT, up(mark[0]), WIDTH - _RIGHT, up(mark[0]), "mark"))
        parts.append(words_at(WIDTH - _RIGHT, up(mark[0]) - 4, mark[1], "tick", "end"))
    for one in lines:
        drawn = [(across(left), up(right)) for left, right in one.points]
        parts.append(element("polyline", element("title", one.name), points=path_of(drawn),
                             class_=f"line {one.class_}"))  # fmt: skip
        for (left, top), tip in zip(drawn, one.tips, strict=True):
            parts.append(
                element(
                    "circle",
                    element("title", tip),
                    cx=left,
                    cy=top,
                    r=3.0 if one.dots else 6.0,
                    class_=f"dot {one.class_}" if one.dots else "touch",
                )
            )
    return canvas(_HEIGHT, parts, label=label)
