"""Where the bytes came from: the kernel's page cache, the tiers of the cache, the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.bench.reporting import words
from penstock.bench.reporting.charts.bars import Bar, Part, draw_bars
from penstock.bench.reporting.charts.figure import Figure, Key, Missing, Table, panel, sources_of
from penstock.bench.reporting.markup import Html
from penstock.bench.reporting.palette import part_class
from penstock.bench.reporting.rows import Row, Setting
from penstock.bench.reporting.summary import Summary
from penstock.bench.reporting.verdict import REFERENCES

TITLE = "Hit ratio by tier"
_NAMES = {"pages": "the kernel's page cache", "cache": "its own cache or the page cache",
          "store": "the store"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Shares:
    """Of one arm in its first or in its later epochs."""

    setting: Setting
    label: str
    origins: Mapping[str, float]

    def of(self, name: str) -> float:
        """Sums of floats leave dust below zero and above one."""
        return min(1.0, max(0.0, round(self.origins.get(name, 0.0), 9)))


def draw(summary: Summary) -> Figure | Missing:
    rows = [row for row in summary.rows if row.origins and row.arm.system not in REFERENCES]
    if not rows:
        return Missing(TITLE, "no valid experiment counted the bytes that left the store")
    found = [one for row in rows for one in _shares(row)]
    present = dict.fromkeys(name for one in found for name in one.origins if one.of(name))
    tiers = [name for name in present if name not in _NAMES]
    order = [name for name in ("pages", "cache", *tiers, "store") if name in present]
    panels = [
        panel(setting, _picture(here, order, tiers))
        for setting in summary.settings
        if (here := [one for one in found if one.setting == setting])
    ]
    return Figure(
        "origins",
        TITLE,
        "Of the bytes that were read: what each tier of the cache gave, by the system's own "
        "count, and what the store sent, by the store's. What neither gave, the kernel had. A "
        "system that does not count its hits is not split. The figure is all but the store.",
        tuple(panels),
        Table(
            ("setting", "arm", *(_NAMES.get(name, name) for name in order)),
            tuple(
                (one.setting.title, one.label, *(words.share(one.of(name)) for name in order))
                for one in found
            ),
        ),
        sources_of(rows),
        tuple(Key(_class(name, tiers), _NAMES.get(name, name)) for name in order),
    )


def _shares(row: Row) -> list[_Shares]:
    found = [_Shares(row.setting, row.arm.label, row.origins or {})]
    if row.later_origins:
        found.append(_Shares(row.setting, f"{row.arm.label}, later epochs", row.later_origins))
    return found


def _picture(found: Sequence[_Shares], order: Sequence[str], tiers: Sequence[str]) -> Html:
    bars = [
        Bar(
            one.label,
            words.share(max(0.0, 1.0 - one.of("store"))),
            tuple(
                Part(one.of(name), _class(name, tiers),
                     f"{one.label}: {words.share(one.of(name))} from {_NAMES.get(name, name)}")
                for name in order
            ),
        )
        for one in found
    ]  # fmt: skip
    return draw_bars(bars, label="where the bytes came from", most=1.0)


def _class(name: str, tiers: Sequence[str]) -> str:
    return part_class(f"tier-{tiers.index(name)}" if name in tiers else name)
