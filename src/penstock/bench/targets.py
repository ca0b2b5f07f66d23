"""What the design asks of the mount (its section 4), held against the samples of one run.

Pure: samples in, verdicts out. A row that a run did not cover is left out, never guessed.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.bench.trial import BARE, Sample, State

_MANY_CORES = 8
_MANY_READERS = 16
# The one absolute figure: files/s from the local cache, on a machine and with readers like those
# that it was set for.
_SPEED_CORES, _SPEED_READERS, _SPEED_FILES_PER_S = 16, 8, 60_000
_NOT_PEERS = {BARE, "native", "penstock", "penstock-passthrough"}


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
    memory_bytes: int  # of all processes of the mount


def judge(
    samples: Sequence[Sample], catalog: CatalogFigures | None, *, cores: int
) -> list[Verdict]:
    """What is asked differs with the machine: on few cores readers, mount and store share them."""
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
            _against_juicefs(samples, count, _juicefs_goal(cores, count)),
        ]
        if cores >= _SPEED_CORES and count == _SPEED_READERS:
            verdicts.append(_cached_speed(samples, count))
    large_goal = 0.85 if cores >= _MANY_CORES else 0.7
    for count in readers:
        if count == readers[-1]:
            verdicts.append(
                _ratio(samples, "penstock", "small", "cold", count, _bare, "of the client", 0.8)
            )
        verdicts += [
            _ratio(samples, "penstock", "large", "cold", count, _bare, "of the client", large_goal),
            _against_peers(samples, "small", count),
            _against_peers(samples, "large", count),
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


def _juicefs_goal(cores: int, readers: int) -> float:
    if cores < _MANY_CORES:
        return 2.5
    return 2.0 if readers >= _MANY_READERS else 1.5


def _against_juicefs(samples: Sequence[Sample], readers: int, goal: float) -> Verdict | None:
    ours = _files_per_s(_choose(samples, "penstock", "small", "cached", readers))
    theirs = _files_per_s(_choose(samples, "juicefs", "small", "cached", readers))
    if ours is None or theirs is None:
        return None
    return Verdict(
        what=f"cached small files, {_readers(readers)}",
        goal=f"{goal:g} times JuiceFS",
        figure=f"{ours / theirs:.2f}",
        met=ours >= goal * theirs,
    )


def _cached_speed(samples: Sequence[Sample], readers: int) -> Verdict | None:
    figure = _files_per_s(_choose(samples, "penstock", "small", "cached", readers))
    if figure is None:
        return None
    return Verdict(
        what=f"cached small files, {_readers(readers)}",
        goal=f"{_SPEED_FILES_PER_S:,} files/s",
        figure=f"{figure:,.0f}",
        met=figure >= _SPEED_FILES_PER_S,
    )


def _against_peers(samples: Sequence[Sample], dataset: str, readers: int) -> Verdict | None:
    """The cold epoch beside the fastest of the others in the same run."""
    ours = _files_per_s(_choose(samples, "penstock", dataset, "cold", readers))
    theirs = {
        arm: figure
        for arm in {sample.arm for sample in samples} - _NOT_PEERS
        if (figure := _files_per_s(_choose(samples, arm, dataset, "cold", readers))) is not None
    }
    if ours is None or not theirs:
        return None
    best = max(theirs, key=theirs.__getitem__)
    return Verdict(
        what=f"cold {dataset} files, {_readers(readers)}",
        goal="ahead of every peer",
        figure=f"{ours / theirs[best]:.2f} times {best}",
        met=ours > theirs[best],
    )


def _files_per_s(samples: Sequence[Sample]) -> float | None:
    return statistics.median(sample.files_per_s for sample in samples) if samples else None


def _catalog(catalog: CatalogFigures) -> list[Verdict]:
    what = f"catalog of {catalog.files:,} files"
    memory_mb = catalog.memory_bytes / 1e6
    return [
        Verdict(
            f"{what}, saved mount ready", "1 s", f"{catalog.ready_s:.2f}", catalog.ready_s <= 1
        ),
        Verdict(f"{what}, memory", "200 MB", f"{memory_mb:.0f}", memory_mb <= 200),
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
