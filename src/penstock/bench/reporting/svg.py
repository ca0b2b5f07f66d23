"""What every chart draws with: a canvas of one width, scales, ticks, text that fits. Pure.

All charts are 420 wide, which is a third of a desktop page and a whole phone: text keeps its size
on both, since nothing is scaled by more than a little.
"""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.bench.reporting.markup import Html, clean, element

WIDTH = 420.0
FONT = 13.0
_GLYPH = 0.54  # of the font's size, for system-ui; measured wide, so that text rather wraps early


@dataclass(frozen=True, slots=True)
class Scale:
    """From what is measured to where it is drawn."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(value) - low) / ((high - low) or 1.0)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def _bent(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.logarithmic else value


def canvas(height: float, parts: Iterable[Html], *, label: str) -> Html:
    return element(
        "svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:.0f}", role="img", aria_label=label
    )


def words_at(x: float, y: float, text: str, class_: str = "", anchor: str | None = None) -> Html:
    return element("text", text, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str, tip: str) -> Html:
    return element(
        "rect", element("title", tip), x=x, y=y, width=max(0.0, width), height=height,
        class_=class_,
    )  # fmt: skip


def path_of(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def ticks(high: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to `high`, `count` or so."""
    if high <= 0:
        return [0.0]
    rough = high / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= rough), 10 * power)
    return [step * number for number in range(int(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that enclose both."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def text_width(text: str, size: float = FONT) -> float:
    return sum(
        size * (1.0 if unicodedata.east_asian_width(one) in "WF" else _GLYPH) for one in text
    )


def wrapped(text: str, width: float, *, lines: int = 2, size: float = FONT) -> list[str]:
    """Broken where there is a space or a hyphen, and within a word that is too long; what does not
    fit into `lines` ends in an ellipsis."""
    rest, found = " ".join(clean(text).split()), list[str]()
    while rest and len(found) < lines:
        end = _fitting(rest, width, size)
        if end < len(rest):
            place = max(rest.rfind(" ", 0, end + 1), rest.rfind("-", 0, end) + 1)
            end = place if place > 0 else end
        found.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    if rest:
        last = found[-1]
        found[-1] = last[: max(1, min(len(last), _fitting(last, width - size, size)))] + "…"
    return found or [""]


def _fitting(text: str, width: float, size: float) -> int:
    used = 0.0
    for place, one in enumerate(text):
        used += text_width(one, size)
        if used > width:
            return max(1, place)
    return len(text)
