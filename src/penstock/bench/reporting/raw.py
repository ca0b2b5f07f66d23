"""The long lists of one experiment: throughput over time, steps, latencies. Read when drawn.

A list that is not there gives None, and the chart says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.reporting.reading import mapping, number, numbers, read_map, sequence, text
from penstock.bench.reporting.results import Result, Run

# Of an epoch: the last interval is not full, and would be taken for a slow one.
_FEWEST = 4


@dataclass(frozen=True, slots=True)
class Series:
    path: str
    interval_s: float
    size_bytes: tuple[float, ...]
    epoch_marks_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """Of one epoch, in order; the three lists are equally long."""

    path: str
    load_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    barrier_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Latencies:
    path: str
    what: str
    seconds: tuple[float, ...]  # quantiles, ascending


def series_of(run: Run, result: Result) -> Series | None:
    path, found = _read(run, result, "series.json")
    interval_s, size_bytes = number(found.get("interval_s")), numbers(found.get("bytes"))
    marks = numbers(found.get("epoch_marks_s"))
    if not interval_s or not any(size_bytes) or len(size_bytes) < _FEWEST * max(1, len(marks)):
        return None
    return Series(path, interval_s, tuple(size_bytes), tuple(marks))


def steps_of(run: Run, result: Result) -> Steps | None:
    path, found = _read(run, result, "steps.json")
    epochs = sequence(found.get("epochs"))
    if not epochs:
        return None
    epoch = mapping(epochs[_epoch_drawn(result, len(epochs))])
    load_s, compute_s = numbers(epoch.get("load_s")), numbers(epoch.get("compute_s"))
    barrier_s = numbers(epoch.get("barrier_s")) or [0.0] * len(load_s)
    count = min(len(load_s), len(compute_s), len(barrier_s))
    if not count:
        return None
    return Steps(path, tuple(load_s[:count]), tuple(compute_s[:count]), tuple(barrier_s[:count]))


def latencies_of(run: Run, result: Result) -> Latencies | None:
    path, found = _read(run, result, "latencies.json")
    epochs = sequence(found.get("epochs"))
    if not epochs:
        return None
    epoch = mapping(epochs[_epoch_drawn(result, len(epochs))])
    seconds = sorted(value for value in numbers(epoch.get("seconds")) if value > 0)
    return Latencies(path, text(found.get("what")), tuple(seconds)) if seconds else None


def _epoch_drawn(result: Result, count: int) -> int:
    """The epoch that the arm's name speaks of: the last of a warm arm, else the first."""
    return count - 1 if result.arm.state == "warm" else 0


def _read(run: Run, result: Result, name: str) -> tuple[str, dict[str, Any]]:
    path = f"{result.folder}/output/{name}"
    return path, read_map(run.folder / Path(path), [])
