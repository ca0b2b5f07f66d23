"""How long single reads take: their distribution, on a logarithmic scale."""

from collections.abc import Sequence

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.figure import Figure, Missing, Table, lines_legend, panel
from penstock.bench.reporting.charts.lines import Axis, Line, draw_lines
from penstock.bench.reporting.intervals import quantile
from penstock.bench.reporting.markup import Html
from penstock.bench.reporting.palette import line_class
from penstock.bench.reporting.raw import Latencies, latencies_of
from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.rows import Row
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.svg import decades

TITLE = "Latency"
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
_TICKS = tuple((share / 100, f"{share}%") for share in (0, 25, 50, 75, 100))


def draw(summary: Summary) -> Figure | Missing:
    drawn: list[tuple[Row, Latencies]] = []
    for row in summary.rows:
        found = latencies_of(summary.run, row.typical) if row.typical else None
        if found is not None:
            drawn.append((row, found))
    if not drawn:
        return Missing(TITLE, "no valid experiment left a latencies.json")
    what = next((found.what for _, found in drawn if found.what), "one read")
    arms = [row.arm for row, _ in drawn]
    panels = [
        panel(setting, _picture([pair for pair in drawn if pair[0].setting == setting], arms))
        for setting in summary.settings
        if any(pair[0].setting == setting for pair in drawn)
    ]
    return Figure(
        "latency",
        TITLE,
        f"Measured: {what}. A line shows which share of them took at most so long; the farther "
        "left, the better. The repeat in the middle of each arm.",
        tuple(panels),
        _table(drawn),
        tuple(found.path for _, found in drawn),
        lines_legend(row.arm for row, _ in drawn),
    )


def _picture(drawn: Sequence[tuple[Row, Latencies]], arms: Sequence[Arm]) -> Html:
    low = min(found.seconds[0] for _, found in drawn)
    high = max(found.seconds[-1] for _, found in drawn)
    lines = [
        Line(
            row.arm.label, line_class(row.arm, arms),
            tuple((quantile(found.seconds, share), share) for share in SHARES),
            tuple(f"{row.arm.label}: {share:.3g} of all within "
                  f"{words.seconds(quantile(found.seconds, share))}" for share in SHARES),
            dots=False,
        )
        for row, found in drawn
    ]  # fmt: skip
    ticks = tuple((value, words.seconds(value)) for value in decades(low, high))
    return draw_lines(
        lines,
        x=Axis("time of one, logarithmic", ticks, logarithmic=True),
        y=Axis("share", _TICKS),
        label="distribution of latencies",
    )


def _table(drawn: Sequence[tuple[Row, Latencies]]) -> Table:
    head = ("setting", "arm", *(_name(share) for share in SHARES))
    cells = tuple(
        (row.setting.title, row.arm.label,
         *(words.seconds(quantile(found.seconds, share)) for share in SHARES))
        for row, found in drawn
    )  # fmt: skip
    return Table(head, cells)


def _name(share: float) -> str:
    return {0.0: "least", 1.0: "most"}.get(share, f"{share * 100:g}%")
