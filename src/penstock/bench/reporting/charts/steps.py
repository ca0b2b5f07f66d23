"""Step times: what a mean step is made of, and the first steps one after the other."""

from collections.abc import Sequence

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.bars import Bar, Part, draw_bars
from penstock.bench.reporting.charts.figure import Figure, Key, Missing, Panel, Table, panel
from penstock.bench.reporting.markup import Html
from penstock.bench.reporting.palette import part_class
from penstock.bench.reporting.raw import Steps, steps_of
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.svg import WIDTH, Scale, box, canvas, line, words_at, wrapped

TITLE = "Where a step's time goes"
FIRST = 12
PARTS = ("load", "compute", "barrier")
_ROW, _LEFT = 11.0, 22.0


def draw(summary: Summary) -> Figure | Missing:
    drawn: list[tuple[Row, Steps]] = []
    for row in summary.rows:
        found = steps_of(summary.run, row.typical) if row.typical else None
        if found is not None:
            drawn.append((row, found))
    if not drawn:
        return Missing(TITLE, "no valid experiment has steps: only what trains has them")
    panels: list[Panel] = []
    for setting in summary.settings:
        here = [pair for pair in drawn if pair[0].setting == setting]
        if here:
            panels.append(panel(setting, _means(here), what="a mean step"))
            panels.append(panel(setting, _waterfall(_told(summary, setting, here)),
                                what=f"the first {FIRST} steps"))  # fmt: skip
    return Figure(
        "steps",
        TITLE,
        "Load is waiting for data, compute the step itself, barrier waiting for the other "
        "workers. The repeat in the middle of each arm. In the waterfall a step begins where the "
        "one above it ended; all arms of a panel share its time.",
        tuple(panels),
        _table(drawn),
        tuple(steps.path for _, steps in drawn),
        tuple(Key(part_class(name), name) for name in PARTS),
    )


def means_of(steps: Steps) -> tuple[float, float, float]:
    count = len(steps.load_s)
    return (sum(steps.load_s) / count, sum(steps.compute_s) / count, sum(steps.barrier_s) / count)


def _means(drawn: Sequence[tuple[Row, Steps]]) -> Html:
    bars: list[Bar] = []
    for row, steps in drawn:
        parts = tuple(
            Part(value, part_class(name), f"{row.arm.label}: {name} {words.seconds(value)}")
            for name, value in zip(PARTS, means_of(steps), strict=True)
        )
        bars.append(Bar(row.arm.label, words.seconds(sum(means_of(steps))), parts))
    return draw_bars(bars, label="a mean step")


def _told(
    summary: Summary, setting: Setting, drawn: Sequence[tuple[Row, Steps]]
) -> Sequence[tuple[Row, Steps]]:
    """The arms that the verdict speaks of; elsewhere our first and the slowest."""
    verdict = summary.verdict
    if verdict.setting == setting and verdict.ours is not None:
        spoken = {row.arm.name for row in (verdict.ours, *verdict.peers)}
        if named := [pair for pair in drawn if pair[0].arm.name in spoken]:
            return named
    ours = [pair for pair in drawn if pair[0].arm.system == "penstock"][:1]
    slowest = max(drawn, key=lambda pair: sum(means_of(pair[1])))
    return [pair for pair in drawn if pair in ours or pair is slowest]


def _waterfall(drawn: Sequence[tuple[Row, Steps]]) -> Html:
    end_s = max(
        sum(sum(times[:FIRST]) for times in (s.load_s, s.compute_s, s.barrier_s)) for _, s in drawn
    )
    across = Scale(0.0, end_s, _LEFT, WIDTH)
    parts: list[Html] = []
    y = 0.0
    for row, steps in drawn:
        for text in wrapped(row.arm.label, WIDTH):
            parts.append(words_at(0, y + 12, text, "name"))
            y += 16.0
        y += 2
        now_s = 0.0
        for number, times in enumerate(_first(steps)):
            parts.append(words_at(_LEFT - 6, y + _ROW - 2, str(number + 1), "tiny", "end"))
            for name, seconds in zip(PARTS, times, strict=True):
                if seconds > 0:
                    tip = f"{row.arm.label}, step {number + 1}: {name} {words.seconds(seconds)}"
                    left, right = across(now_s), across(now_s + seconds)
                    parts.append(box(left, y, max(0.6, right - left), _ROW - 2,
                                     f"bar {part_class(name)}", tip))  # fmt: skip
                now_s += seconds
            y += _ROW
        y += 12
    parts.append(line(_LEFT, y - 6, WIDTH, y - 6, "base"))
    parts.append(words_at(_LEFT, y + 8, "0 s", "tick"))
    parts.append(words_at(WIDTH, y + 8, words.seconds(end_s), "tick", "end"))
    return canvas(y + 14, parts, label=f"the first {FIRST} steps")


def _first(steps: Steps) -> list[tuple[float, float, float]]:
    return list(zip(steps.load_s, steps.compute_s, steps.barrier_s, strict=True))[:FIRST]


def _table(drawn: Sequence[tuple[Row, Steps]]) -> Table:
    cells: list[tuple[str, ...]] = []
    for row, steps in drawn:
        who = row.setting.title, row.arm.label
        mean = means_of(steps)
        cells.append((*who, f"mean of {len(steps.load_s):,}", *map(words.seconds, mean),
                      words.seconds(sum(mean))))  # fmt: skip
        for number, times in enumerate(_first(steps)):
            cells.append((*who, f"step {number + 1}", *map(words.seconds, times),
                          words.seconds(sum(times))))  # fmt: skip
    return Table(("setting", "arm", "step", *PARTS, "together"), tuple(cells))
