"""The epoch benchmark's tables, verdicts, JSON and picture. Takes samples; measures nothing.

Each row says whether storage was told the order. Nothing here is called an MLPerf result.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from penstock.bench.epochruns import EpochSample
from penstock.bench.measure import Machine
from penstock.bench.targets import Verdict

BUSY_GOAL = 0.95
FETCHED_GOAL = 1.02
ROUND_TRIPS_GOAL = 3
# Two runs of native files on one machine differ by as much.
NATIVE_GOAL = 0.98
# The optimum is the share of the data that fits, here half.
HIT_GOAL = 0.48
_HALF = "half-"


@dataclass(frozen=True, slots=True)
class Store:
    """The store as it was shaped, and what a batch takes from it at best."""

    latency_s: float
    bytes_per_s: float
    batch_bytes: float

    @property
    def transfer_s(self) -> float:
        return self.batch_bytes / self.bytes_per_s


def first_of(samples: Sequence[EpochSample], way: str) -> EpochSample | None:
    return next((s for s in samples if s.way == way and s.figures.epoch == 0), None)


def second_of(samples: Sequence[EpochSample], way: str) -> EpochSample | None:
    return next((s for s in samples if s.way == way and s.figures.epoch == 1), None)


def epoch_table(samples: Sequence[EpochSample]) -> Table:
    """The first epoch, and at the end how busy the second was. A small cache has its own table."""
    table = Table(title="Two epochs, the first from empty caches", **_LOOKS)
    table.add_column("read through", no_wrap=True)
    table.add_column("order told")
    for name in (
        "busy", "after 1st", "samples/s", "stall s", "1st batch s", "GETs", "fetched/read",
        "2nd busy",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for sample in samples:
        if sample.figures.epoch or sample.way.startswith(_HALF):
            continue
        figures = sample.figures
        second = second_of(samples, sample.way)
        table.add_row(
            sample.title,
            told_text(sample),
            f"{figures.busy_share:.1%}",
            f"{figures.busy_share_after_first:.1%}",
            f"{figures.samples_per_s:,.0f}",
            f"{figures.stall_s:,.1f}",
            f"{figures.first_batch_s:.2f}",
            f"{sample.gets:,}",
            f"{sample.fetched_share:.3f}",
            "-" if second is None else f"{second.figures.busy_share:.1%}",
            style="bold" if sample.way in ("penstock", "plan", "run", "warm") else None,
        )
    return table


def half_table(samples: Sequence[EpochSample]) -> Table:
    """A cache of half the data: what the second epoch found there."""
    table = Table(title="A cache of half the data, second epoch, pages dropped before", **_LOOKS)
    table.add_column("read through")
    for name in ("hits", "GETs", "busy", "stall s"):
        table.add_column(name, justify="right")
    for sample in samples:
        if sample.way.startswith(_HALF) and sample.figures.epoch == 1:
            table.add_row(
                sample.title,
                "-" if sample.hit_share is None else f"{sample.hit_share:.1%}",
                f"{sample.gets:,}",
                f"{sample.figures.busy_share:.1%}",
                f"{sample.figures.stall_s:,.1f}",
            )
    return table


def told_text(sample: EpochSample) -> str:
    return "hinted" if sample.told else "no"


def judge(samples: Sequence[EpochSample], store: Store) -> list[Verdict]:
    """Every target that these samples can show; one that a run did not cover is left out."""
    native = first_of(samples, "native"), second_of(samples, "native")
    verdicts: list[Verdict] = []
    for sample in samples:
        if not sample.told:
            continue
        if sample.figures.epoch == 0:
            verdicts += _judge_first(sample, native[0], store)
        elif native[1] is not None:
            ratio = sample.figures.samples_per_s / native[1].figures.samples_per_s
            verdicts.append(
                Verdict(
                    f"{sample.title}: second epoch, of native samples/s",
                    f"{NATIVE_GOAL:g} or more",
                    f"{ratio:.3f}",
                    ratio >= NATIVE_GOAL,
                )
            )
    kept = second_of(samples, "half-keep")
    if kept is not None and kept.hit_share is not None:
        verdicts.append(
            Verdict(
                "a cache of half the data: hits of the second epoch",
                f"{HIT_GOAL:.0%} or more",
                f"{kept.hit_share:.1%}",
                kept.hit_share >= HIT_GOAL,
            )
        )
    return verdicts


def _judge_first(sample: EpochSample, native: EpochSample | None, store: Store) -> list[Verdict]:
    figures = sample.figures
    verdicts = [
        Verdict(
            f"{sample.title}: busy in the first epoch",
            f"{BUSY_GOAL:.0%} or more",
            f"{figures.busy_share:.1%}",
            figures.busy_share >= BUSY_GOAL,
        ),
        Verdict(
            f"{sample.title}: bytes fetched over bytes read",
            f"{FETCHED_GOAL:g} or less",
            f"{sample.fetched_share:.3f}",
            sample.fetched_share <= FETCHED_GOAL,
        ),
    ]
    if native is not None:
        # Starting the loader's workers is in the time of native files too; no storage helps.
        beyond_s = figures.first_batch_s - native.figures.first_batch_s - store.transfer_s
        trips = max(0.0, beyond_s / store.latency_s)
        verdicts.append(
            Verdict(
                f"{sample.title}: first batch, beyond native's and its own transfer",
                f"{ROUND_TRIPS_GOAL} round trips or less",
                f"{trips:.1f}",
                trips <= ROUND_TRIPS_GOAL,
            )
        )
    return verdicts


def write_json(
    path: Path,
    *,
    machine: Machine,
    versions: Mapping[str, str],
    settings: Mapping[str, Any],
    samples: Sequence[EpochSample],
    verdicts: Sequence[Verdict],
    left_out: Mapping[str, str],
) -> None:
    document = {
        "machine": asdict(machine),
        "versions": dict(versions),
        "settings": dict(settings),
        "targets": [asdict(verdict) for verdict in verdicts],
        "samples": [_as_json(sample) for sample in samples],
        "left_out": dict(left_out),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def picture(samples: Sequence[EpochSample], caption: str) -> str:
    """Two bars for each way: how busy the accelerator was in the first and the second epoch."""
    ways = [s for s in samples if s.figures.epoch == 0 and not s.way.startswith(_HALF)]
    left, width, height = 240, 440, 46
    parts: list[str] = []
    for number, sample in enumerate(ways):
        y = 66 + number * height
        hinted = ", hinted" if sample.told else ""
        parts.append(
            f'<text x="{left - 10}" y="{y + 20}" text-anchor="end">'
            f"{escape(sample.title + hinted)}</text>"
        )
        parts.append(_bar(left, y, 18, width, sample.figures.busy_share, _colour(sample)))
        if (second := second_of(samples, sample.way)) is not None:
            parts.append(_bar(left, y + 20, 10, width, second.figures.busy_share, "#ced4da"))
    goal = left + width * BUSY_GOAL
    total = 66 + len(ways) * height + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{total}" '
        f'viewBox="0 0 780 {total}" font-family="system-ui, sans-serif" font-size="14" '
        'fill="#212529"><rect width="100%" height="100%" fill="#ffffff"/>'
        '<text x="10" y="24" font-weight="600">How busy the emulated accelerator is: first epoch '
        "from empty caches, second below</text>"
        f'<text x="10" y="44" font-size="12">{escape(caption)}</text>'
        + "".join(parts)
        + f'<line x1="{goal:.0f}" y1="60" x2="{goal:.0f}" y2="{total - 8}" stroke="#e03131" '
        'stroke-dasharray="4 3"/></svg>\n'
    )


_LOOKS: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "title_style": "bold",
}


def _bar(x: int, y: int, height: int, width: int, share: float, colour: str) -> str:
    length = max(2.0, share * width)
    return (
        f'<rect x="{x}" y="{y}" width="{length:.0f}" height="{height}" rx="2" fill="{colour}"/>'
        f'<text x="{x + length + 6:.0f}" y="{y + height - 2}" font-size="{height - 1}">'
        f"{share:.0%}</text>"
    )


def _colour(sample: EpochSample) -> str:
    if sample.way == "native":
        return "#868e96"
    return "#0b7285" if sample.title.startswith("Penstock") else "#adb5bd"


def _as_json(sample: EpochSample) -> dict[str, Any]:
    figures = sample.figures
    return asdict(sample) | {
        "busy_share": figures.busy_share,
        "busy_share_after_first": figures.busy_share_after_first,
        "samples_per_s": figures.samples_per_s,
        "stall_s": figures.stall_s,
        "fetched_share": sample.fetched_share,
        "hit_share": sample.hit_share,
    }
