"""CPU seconds for each gigabyte, by who used them, and the most memory the system held."""

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.bars import Bar, Part, draw_bars
from penstock.bench.reporting.charts.figure import (
    Figure,
    Key,
    Missing,
    Panel,
    Table,
    panel,
    sources_of,
)
from penstock.bench.reporting.palette import part_class, system_class
from penstock.bench.reporting.rows import Row
from penstock.bench.reporting.summary import Summary
from penstock.units import format_size

TITLE = "CPU and memory"


def draw(summary: Summary) -> Figure | Missing:
    rows = [row for row in summary.rows if row.cpu_s_per_gb or row.memory_bytes is not None]
    if not rows:
        return Missing(TITLE, "no valid experiment measured them")
    users = list(dict.fromkeys(who for row in rows for who in row.cpu_s_per_gb))
    panels: list[Panel] = []
    for setting in summary.settings:
        here = [row for row in rows if row.setting == setting]
        if used := [_cpu(row, users) for row in here if row.cpu_s_per_gb]:
            picture = draw_bars(used, label="CPU seconds a GB")
            panels.append(panel(setting, picture, what="CPU seconds a GB"))
        if held := [_memory(row) for row in here if row.memory_bytes is not None]:
            panels.append(panel(setting, draw_bars(held, label="memory"), what="memory"))
    return Figure(
        "processors",
        TITLE,
        "CPU is per 10⁹ bytes read; system is the mount, readers what reads from it; the store's "
        "own CPU is not in it. Memory is the most that the system held at once.",
        tuple(panels),
        Table(
            ("setting", "arm", *(f"{who}, CPU s/GB" for who in users), "memory"),
            tuple(
                (row.setting.title, row.arm.label,
                 *(words.figure(row.cpu_s_per_gb[who]) if who in row.cpu_s_per_gb else "–"
                   for who in users),
                 "–" if row.memory_bytes is None else format_size(row.memory_bytes))
                for row in rows
            ),
        ),
        sources_of(rows),
        tuple(Key(part_class(who), f"CPU of {who}") for who in users),
    )  # fmt: skip


def _cpu(row: Row, users: list[str]) -> Bar:
    parts = tuple(
        Part(value, part_class(who), f"{row.arm.label}: {who} {words.figure(value)} CPU s/GB")
        for who in users
        if (value := row.cpu_s_per_gb.get(who)) is not None
    )
    return Bar(row.arm.label, f"{words.figure(sum(part.value for part in parts))} s", parts)


def _memory(row: Row) -> Bar:
    size = row.memory_bytes or 0.0
    part = Part(size, system_class(row.arm), f"{row.arm.label}: {format_size(size)}")
    return Bar(row.arm.label, format_size(size), (part,))
