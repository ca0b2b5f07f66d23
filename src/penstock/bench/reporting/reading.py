"""Reads a results tree into values, and the long lists of one experiment when a chart needs them.

A file that cannot be read becomes a note, never a traceback, and the rest is reported.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.bench.reporting.results import (
    OPEN,
    Result,
    Run,
    Step,
    experiment_steps,
    mapping,
    maps,
    number,
    numbers,
    sequence,
    text,
)
from penstock.errors import ResultsError

SCHEMA = 1
# Intervals of an epoch: the last one is not full, and would look like a slow one.
_FEWEST = 4
_MARKS = ("workflow.json", "environment.json", "experiments/*/config", "experiments/*/output")


def read_run(folder: Path) -> Run:
    if not folder.is_dir():
        raise ResultsError(f"{folder}: no such folder", hint="`penstock bench run` makes one")
    if not any(next(folder.glob(mark), None) for mark in _MARKS):
        raise ResultsError(
            f"{folder}: not the results of a benchmark: neither workflow.json nor experiments",
            hint="name the folder that `penstock bench run` wrote, like bench-results/NAME-DATE",
        )
    notes: list[str] = []
    results: list[Result] = []
    unfinished: list[str] = []
    for place in _experiments(folder):
        path = place / "output" / "result.json"
        if not path.exists():
            unfinished.append(place.name)
            continue
        if (found := _result(folder, path, notes)) is not None:
            results.append(found)
    workflow = read_map(folder / "workflow.json", notes)
    steps = tuple(Step.model_validate(one) for one in maps(workflow.get("steps")))
    seen = {*unfinished, *(result.folder.rpartition("/")[2] for result in results)}
    unfinished += [
        s.name for s in experiment_steps(steps) if s.state in OPEN and s.name not in seen
    ]
    return Run(
        folder=folder,
        name=text(workflow.get("run")) or folder.resolve().name,
        results=tuple(sorted(results, key=lambda one: (one.order, one.id))),
        unfinished=tuple(unfinished),
        environment=read_map(folder / "environment.json", notes),
        datasets=_datasets(folder, notes),
        goals=tuple(maps(read_map(folder / "plan.json", notes).get("goals"))),
        state=text(workflow.get("state")),
        steps=steps,
        notes=tuple(notes),
    )


def _datasets(folder: Path, notes: list[str]) -> dict[str, dict[str, Any]]:
    """Read a description for each data set; up to release 0.1.0 a run had one of them."""
    found = {path.stem: path for path in sorted((folder / "datasets").glob("*.json"))}
    one = folder / "dataset.json"
    found |= {"data": one} if one.exists() else {}
    return {name: read_map(path, notes) for name, path in found.items()}


def read_map(path: Path, notes: list[str]) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none, and a note where it is bad."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{_short(path)} cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        notes.append(f"{_short(path)} is not an object")
        return {}
    return cast(dict[str, Any], found)


def _short(path: Path) -> str:
    """As it lies in the run: experiments/ID/output/result.json."""
    return "/".join(path.parts[-4:]) if path.parent.name == "output" else path.name


def _experiments(folder: Path) -> list[Path]:
    place = folder / "experiments"
    return sorted(one for one in place.iterdir() if one.is_dir()) if place.is_dir() else []


def _result(folder: Path, path: Path, notes: list[str]) -> Result | None:
    found = read_map(path, notes)
    if not found:
        return None
    place = path.parent.parent
    if found.get("schema") != SCHEMA:
        notes.append(f"{place.name}: its result has schema {found.get('schema')!r}, not {SCHEMA}")
        return None
    own_id = text(found.get("id")) or place.name
    path_in_run = place.relative_to(folder).as_posix()
    return Result.model_validate({**found, "id": own_id, "folder": path_in_run})


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
    path, found = _read_list(run, result, "series.json")
    interval_s, size_bytes = number(found.get("interval_s")), numbers(found.get("bytes"))
    marks = numbers(found.get("epoch_marks_s"))
    if not interval_s or not any(size_bytes) or len(size_bytes) < _FEWEST * max(1, len(marks)):
        return None
    return Series(path, interval_s, tuple(size_bytes), tuple(marks))


def steps_of(run: Run, result: Result) -> Steps | None:
    path, found = _read_list(run, result, "steps.json")
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
    path, found = _read_list(run, result, "latencies.json")
    epochs = sequence(found.get("epochs"))
    if not epochs:
        return None
    epoch = mapping(epochs[_epoch_drawn(result, len(epochs))])
    seconds = sorted(value for value in numbers(epoch.get("seconds")) if value > 0)
    return Latencies(path, text(found.get("what")), tuple(seconds)) if seconds else None


def _epoch_drawn(result: Result, count: int) -> int:
    """Return the epoch to draw: the last of a warm arm, else the first."""
    return count - 1 if result.arm.state == "warm" else 0


def _read_list(run: Run, result: Result, name: str) -> tuple[str, dict[str, Any]]:
    path = f"{result.folder}/output/{name}"
    return path, read_map(run.folder / Path(path), [])
