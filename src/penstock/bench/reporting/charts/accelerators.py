"""Busy share against the number of accelerators, with the 90% that counts as fed."""

from collections.abc import Sequence

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.figure import (
    Figure,
    Missing,
    Panel,
    Table,
    lines_legend,
    panel,
    sources_of,
)
from penstock.bench.reporting.charts.lines import Axis, Line, draw_lines
from penstock.bench.reporting.fed import GOAL, METHOD
from penstock.bench.reporting.palette import line_class
from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.summary import Summary

TITLE = "Accelerators fed"
_SHARES = tuple((share / 100, f"{share}%") for share in (0, 25, 50, 75, 100))


def draw(summary: Summary) -> Figure | Missing:
    rows = [row for row in summary.rows if len(_points(row)) >= 2]
    if not rows:
        return Missing(
            TITLE, "no valid experiment was run with two numbers of accelerators or more"
        )
    arms = [row.arm for row in rows]
    panels = [_panel(setting, [row for row in rows if row.setting == setting], arms)
              for setting in summary.settings]  # fmt: skip
    return Figure(
        "accelerators",
        TITLE,
        f"How busy accelerators are, by how many of them read at once. {METHOD}",
        tuple(one for one in panels if one),
        _table(rows),
        sources_of(rows),
        lines_legend(row.arm for row in rows),
    )


def _points(row: Row) -> dict[int, float]:
    """The mean busy share of each number, over repeats."""
    found: dict[int, list[float]] = {}
    for result in row.results:
        for count, share in result.accelerator_runs:
            found.setdefault(count, []).append(share)
    return {count: sum(shares) / len(shares) for count, shares in sorted(found.items())}


def _panel(setting: Setting, rows: Sequence[Row], arms: Sequence[Arm]) -> Panel | None:
    if not rows:
        return None
    counts = sorted({count for row in rows for count in _points(row)})
    name = setting.workload.accelerator_name or "accelerators"
    shown = counts if len(counts) <= 9 else counts[:: len(counts) // 8 + 1] + counts[-1:]
    lines = [
        Line(
            row.arm.label, line_class(row.arm, arms),
            tuple((float(count), share) for count, share in _points(row).items()),
            tuple(f"{row.arm.label}: {count} {name}, {words.share(share)} busy"
                  for count, share in _points(row).items()),
        )
        for row in rows
    ]  # fmt: skip
    scaled = f", each at scale {setting.workload.scale:.3g}" if setting.workload.scaled else ""
    picture = draw_lines(
        lines,
        x=Axis(f"number of {name}{scaled}", tuple((float(n), str(n)) for n in dict.fromkeys(shown)),
               logarithmic=counts[-1] > 4 * counts[0]),
        y=Axis("busy", _SHARES),
        label="busy share by number of accelerators",
        mark=(GOAL, "90%"),
    )  # fmt: skip
    return panel(setting, picture)


def _table(rows: Sequence[Row]) -> Table:
    counts = sorted({count for row in rows for count in _points(row)})
    cells = tuple(
        (
            row.setting.title,
            row.arm.label,
            *(words.share(_points(row)[n]) if n in _points(row) else "–" for n in counts),
            words.accelerators(row.fed) if row.fed else "–",
        )
        for row in rows
    )
    head = ("setting", "arm", *(f"busy of {n}" for n in counts), "fed at 90%")
    return Table(head, cells)
