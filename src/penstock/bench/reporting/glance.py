"""The run in one table: arms down, settings across. For the top of the page and for a README."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.reporting import words
from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.summary import Summary


@dataclass(frozen=True, slots=True)
class Cell:
    """`struck`: measured, and left out; `note` says why, or gives the interval."""

    text: str
    note: str = ""
    struck: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    arm: Arm
    cells: tuple[Cell, ...]


def glance(summary: Summary) -> tuple[list[Setting], list[Line]]:
    settings = summary.settings
    arms = {row.arm.name: row.arm for row in summary.rows}
    lines = [
        Line(arm, tuple(_cell(_find(summary.rows, arm, setting)) for setting in settings))
        for arm in sorted(arms.values(), key=lambda arm: arm.rank)
    ]
    return settings, lines


def _find(rows: Sequence[Row], arm: Arm, setting: Setting) -> Row | None:
    found = (row for row in rows if row.arm.name == arm.name and row.setting == setting)
    return next(found, None)


def _cell(row: Row | None) -> Cell:
    if row is None:
        return Cell("–", "not in the plan, or not yet run")
    if row.speed is None:
        result = (row.left_out or row.results)[0]
        word, _, why = result.why_not.partition(": ")
        return Cell(word or "no figure", why, struck=True)
    kind = row.setting.workload.kind
    if kind == "emulated" and row.busy_share is not None:
        fed = f", feeds {words.accelerators(row.fed)}" if row.fed else ""
        text = f"{words.share(row.busy_share.mean)} busy{fed}"
        note = words.interval(row.busy_share, percent=True)
    elif kind == "read":
        text, note = words.rate(row.speed.mean), words.interval(row.speed, 1e6)
    else:
        busy = f", {words.share(row.busy_share.mean)} busy" if row.busy_share else ""
        text = f"{words.figure(row.speed.mean)} samples/s{busy}"
        note = words.interval(row.speed)
    if row.left_out:
        note += f"; {len(row.left_out)} of {len(row.left_out) + len(row.results)} left out"
    return Cell(text, "one repeat" if note == "–" else note)
