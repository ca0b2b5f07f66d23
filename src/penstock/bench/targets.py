"""What the design asks of the mount (its section 4), held against the samples of one run.

Pure: samples in, verdicts out. A row that a run did not cover is left out, never guessed.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.bench.trial import Sample, State


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    goal: str
    figure: str
    met: bool


@dataclass(frozen=True, slots=True)
class CatalogFigures:
    """A catalog of 1.28 million files, mounted again from disk."""

    files: int
    ready_s: float
    memory_bytes: int


def judge(samples: Sequence[Sample], catalog: CatalogFigures | None) -> list[Verdict]:
    readers = sorted({sample.readers for sample in samples})
    verdicts: list[Verdict | None] = []
    for count in readers:
        verdicts += [
            _ratio(samples, "penstock", "small", "warm", count, _native, "of native", 0.95),
            _ratio(samples, "penstock", "large", "warm", count, _native, "of native", 0.95),
            _ratio(
                samples,
                "penstock-passthrough",
                "large",
                "cached",
                count,
                _native,
                "of native",
                0.95,
            ),
            _against_juicefs(samples, count),
        ]
    if readers:
        verdicts += [
            _ratio(samples, "penstock", "small", "cold", readers[-1], _bare, "of the client", 0.8),
            _ratio(samples, "penstock", "large", "cold", readers[0], _bare, "of the client", 0.9),
        ]
    if catalog is not None:
        verdicts += _catalog(catalog)
    return [verdict for verdict in verdicts if verdict is not None]


def _native(sample: Sample) -> float | None:
    return sample.native_ratio


def _bare(sample: Sample) -> float | None:
    return sample.bare_ratio


def _ratio(
    samples: Sequence[Sample],
    arm: str,
    dataset: str,
    state: State,
    readers: int,
    ratio_of: Callable[[Sample], float | None],
    unit: str,
    goal: float,
) -> Verdict | None:
    chosen = _choose(samples, arm, dataset, state, readers)
    if arm == "penstock-passthrough" and any(sample.mode != "passthrough" for sample in chosen):
        chosen = []  # it fell back: this machine cannot show the row
    ratios = [ratio for sample in chosen if (ratio := ratio_of(sample)) is not None]
    if not ratios:
        return None
    figure = statistics.median(ratios)
    by_way = ", passthrough" if arm == "penstock-passthrough" else ""
    return Verdict(
        what=f"{state} {dataset} files{by_way}, {_readers(readers)}",
        goal=f"{goal:g} {unit}",
        figure=f"{figure:.2f}",
        met=figure >= goal,
    )


def _against_juicefs(samples: Sequence[Sample], readers: int) -> Verdict | None:
    ours = _choose(samples, "penstock", "small", "cached", readers)
    theirs = _choose(samples, "juicefs", "small", "cached", readers)
    if not ours or not theirs:
        return None
    figure = statistics.median(s.files_per_s for s in ours) / statistics.median(
        s.files_per_s for s in theirs
    )
    return Verdict(
        what=f"cached small files, {_readers(readers)}",
        goal="8 times JuiceFS",
        figure=f"{figure:.1f}",
        met=figure >= 8,
    )


def _catalog(catalog: CatalogFigures) -> list[Verdict]:
    what = f"catalog of {catalog.files:,} files"
    memory_mb = catalog.memory_bytes / 1e6
    return [
        Verdict(
            f"{what}, saved mount ready", "1 s", f"{catalog.ready_s:.2f}", catalog.ready_s <= 1
        ),
        Verdict(f"{what}, server memory", "200 MB", f"{memory_mb:.0f}", memory_mb <= 200),
    ]


def _choose(
    samples: Sequence[Sample], arm: str, dataset: str, state: State, readers: int
) -> list[Sample]:
    return [
        sample
        for sample in samples
        if (sample.arm, sample.dataset, sample.state, sample.readers)
        == (arm, dataset, state, readers)
    ]


def _readers(count: int) -> str:
    return "1 reader" if count == 1 else f"{count} readers"
