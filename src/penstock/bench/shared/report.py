"""The rows of a run, as Markdown for people and as JSON for programs. Pure, but for `write`."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.shared.cluster import Settings
from penstock.release import __version__

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. Without a target it is there for comparison."""

    name: str
    figure: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""  # what else belongs to it, in a few words
    detail: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def met(self) -> bool | None:
        """Whether it meets its target; None without one."""
        if self.at_most is not None:
            return self.figure <= self.at_most
        return None if self.at_least is None else self.figure >= self.at_least

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}" if self.at_most else "0"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


def to_markdown(rows: Sequence[Row], settings: Settings, machine: dict[str, Any]) -> str:
    lines = [
        _heading(settings, machine),
        "",
        "| | measured | target | met | |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        met = {True: "yes", False: "**no**", None: ""}[row.met]
        figure = f"{_number(row.figure)} {row.unit}".strip()
        lines.append(f"| {row.name} | {figure} | {row.target} | {met} | {row.note} |")
    return "\n".join(lines) + "\n"


def write(folder: Path, rows: Sequence[Row], settings: Settings, machine: dict[str, Any]) -> None:
    """Write report.md and result.json."""
    found = {
        "schema": SCHEMA,
        "penstock": __version__,
        "machine": machine,
        "settings": asdict(settings),
        "rows": [row.to_json() for row in rows],
    }
    (folder / "report.md").write_text(to_markdown(rows, settings, machine))
    (folder / "result.json").write_text(json.dumps(found, indent=2) + "\n")


def _heading(settings: Settings, machine: dict[str, Any]) -> str:
    link = f"links of {settings.link_gbit:g} Gbit/s" if settings.link_gbit else "unshaped links"
    return (
        f"{settings.nodes} nodes, memcached on {settings.members} of them, {link}, a store "
        f"{settings.latency_ms:g} ms away; {settings.small_files:,} files of 110 KiB, "
        f"{settings.large_files} of {settings.large_mib} MiB; all on {machine['cores']} cores, "
        f"Linux {machine['kernel']}, Penstock {__version__}:"
    )


def _number(value: float) -> str:
    """Three digits that matter, and no fraction for a count."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
