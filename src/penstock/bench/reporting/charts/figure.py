"""What a chart gives to the page: pictures, a legend, the table behind them, the raw files."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.bench.reporting.markup import Html
from penstock.bench.reporting.palette import line_class
from penstock.bench.reporting.results import Arm
from penstock.bench.reporting.rows import Row, Setting


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    details: str
    picture: Html


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text. Columns from `numbers` on hold figures and are set to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 2


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend. `line`: it stands for a line, not for an area."""

    class_: str
    label: str
    line: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: Table
    sources: tuple[str, ...]
    legend: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    title: str
    why: str


def panel(setting: Setting, picture: Html, *, what: str = "") -> Panel:
    title = f"{setting.title}: {what}" if what else setting.title
    return Panel(title, setting.details, picture)


def lines_legend(arms: Iterable[Arm]) -> tuple[Key, ...]:
    known = {arm.name: arm for arm in arms}
    return tuple(
        Key(line_class(arm, known.values()), arm.label, line=True)
        for arm in sorted(known.values(), key=lambda arm: arm.rank)
    )


def sources_of(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(result.raw for row in rows for result in row.results)
