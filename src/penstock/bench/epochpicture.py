"""The epoch benchmark as a picture: two bars for each way, drawn as SVG. Measures nothing."""

from collections.abc import Sequence
from html import escape

from penstock.bench.epochreport import BUSY_GOAL, second_of
from penstock.bench.epochruns import EpochSample

_TOP, _LEFT, _WIDTH, _HEIGHT = 66, 270, 420, 46
_NATIVE, _OURS, _OTHER, _SECOND, _GOAL = "#868e96", "#0b7285", "#adb5bd", "#ced4da", "#e03131"


def picture(samples: Sequence[EpochSample], caption: str) -> str:
    """How busy the accelerator was: the first epoch, and the second as a thin bar below it."""
    ways = [s for s in samples if s.figures.epoch == 0 and not s.has_small_cache]
    parts: list[str] = []
    for number, sample in enumerate(ways):
        y = _TOP + number * _HEIGHT
        title = f"{sample.title}, hinted" if sample.told else sample.title
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(title)}</text>'
        )
        parts.append(_bar(y, 18, 13, sample.figures.busy_share, _colour(sample)))
        if (second := second_of(samples, sample.way)) is not None:
            parts.append(_bar(y + 20, 10, 10, second.figures.busy_share, _SECOND))
    goal = _LEFT + _WIDTH * BUSY_GOAL
    total = _TOP + len(ways) * _HEIGHT + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{total}" '
        f'viewBox="0 0 780 {total}" font-family="system-ui, sans-serif" font-size="14" '
        'fill="#212529"><rect width="100%" height="100%" fill="#ffffff"/>'
        '<text x="10" y="24" font-weight="600">How busy an emulated accelerator is: first epoch '
        "from empty caches; below it the second</text>"
        f'<text x="10" y="44" font-size="12">{escape(caption)}</text>'
        + "".join(parts)
        + f'<line x1="{goal:.0f}" y1="{_TOP - 6}" x2="{goal:.0f}" y2="{total - 8}" '
        f'stroke="{_GOAL}" stroke-dasharray="4 3"/></svg>\n'
    )


def _bar(y: int, height: int, font: int, share: float, colour: str) -> str:
    length = max(2.0, share * _WIDTH)
    baseline = y + (height + font) // 2 - 1
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{length:.0f}" height="{height}" rx="2" '
        f'fill="{colour}"/><text x="{_LEFT + length + 6:.0f}" y="{baseline}" font-size="{font}">'
        f"{share:.0%}</text>"
    )


def _colour(sample: EpochSample) -> str:
    if sample.way == "native":
        return _NATIVE
    return _OURS if sample.title.startswith("Penstock") else _OTHER
