"""GETs that left the store, and what they cost."""

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.bars import Bar, Part, draw_bars
from penstock.bench.reporting.charts.figure import Figure, Missing, Table, panel, sources_of
from penstock.bench.reporting.palette import system_class
from penstock.bench.reporting.rows import TRAINING_EPOCHS, Row
from penstock.bench.reporting.summary import Summary

TITLE = "GETs and what they cost"


def draw(summary: Summary) -> Figure | Missing:
    rows = [row for row in summary.rows if row.gets is not None
            and row.arm.system not in ("native", "ceiling")]  # fmt: skip
    if not rows:
        return Missing(TITLE, "no valid experiment counted GETs")
    price = summary.price
    panels = [
        panel(
            setting,
            draw_bars([_bar(row, summary) for row in rows if row.setting == setting],
                      label="GETs in an epoch"),
            what="GETs in an epoch",
        )
        for setting in summary.settings
        if any(row.setting == setting for row in rows)
    ]  # fmt: skip
    return Figure(
        "requests",
        TITLE,
        f"At ${price.dollars:g} for 1,000 GETs ({price.source}); bytes and storage cost besides. "
        f"{TRAINING_EPOCHS} epochs are the first and {TRAINING_EPOCHS - 1} like the last one that "
        "was measured; of an arm with a single cold epoch they cannot be told. Loading a warm "
        "arm beforehand is not counted.",
        tuple(panels),
        Table(
            ("setting", "arm", "GETs in an epoch", "95% interval", "cost of an epoch",
             f"cost of {TRAINING_EPOCHS} epochs"),
            tuple(_cells(row, summary) for row in rows),
        ),
        sources_of(rows),
    )  # fmt: skip


def _bar(row: Row, summary: Summary) -> Bar:
    gets = row.gets.mean if row.gets else 0.0
    cost = words.money(summary.price.of(gets))
    training = _training(row, summary)
    tip = f"{row.arm.label}: {gets:,.0f} GETs, {cost} an epoch, {training} in {TRAINING_EPOCHS}"
    figure = f"{gets:,.0f} · {cost}"
    if row.training_gets is not None:
        figure = f"{gets:,.0f} · {training} in {TRAINING_EPOCHS} epochs"
    return Bar(row.arm.label, figure, (Part(gets, system_class(row.arm), tip),),
               row.gets.low if row.gets else None, row.gets.high if row.gets else None)  # fmt: skip


def _training(row: Row, summary: Summary) -> str:
    gets = row.training_gets
    return "–" if gets is None else words.money(summary.price.of(gets))


def _cells(row: Row, summary: Summary) -> tuple[str, ...]:
    gets = row.gets.mean if row.gets else 0.0
    return (
        row.setting.title,
        row.arm.label,
        f"{gets:,.0f}",
        words.interval(row.gets),
        words.money(summary.price.of(gets)),
        _training(row, summary),
    )
