"""Reads a results tree into values, and the long lists of one experiment when a chart needs them.

A file that cannot be read becomes a note, never a traceback, and the rest is reported.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from penstock.bench.reporting.results import (
    OPEN,
    Epoch,
    Result,
    Run,
    Step,
    experiment_steps,
    number,
    text,
)
from penstock.errors import ResultsError

SCHEMA = 2
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
    for place in sorted(one for one in folder.glob("experiments/*") if one.is_dir()):
        path = place / "output" / "result.json"
        if not path.exists():
            unfinished.append(place.name)
        elif (found := _result(folder, path, notes)) is not None:
            results.append(found)
    workflow = read_map(folder / "workflow.json", notes)
    steps = _steps(workflow, notes)
    seen = {*unfinished, *(result.folder.rpartition("/")[2] for result in results)}
    unfinished += [
        s.name for s in experiment_steps(steps) if s.state in OPEN and s.name not in seen
    ]
    datasets = sorted((folder / "datasets").glob("*.json"))
    return Run(
        folder=folder,
        name=text(workflow.get("run")) or folder.resolve().name,
        results=tuple(sorted(results, key=lambda one: (one.order, one.id))),
        unfinished=tuple(unfinished),
        environment=read_map(folder / "environment.json", notes),
        datasets={path.stem: read_map(path, notes) for path in datasets},
        goals=_goals(read_map(folder / "plan.json", notes)),
        state=text(workflow.get("state")),
        steps=steps,
        notes=tuple(notes),
    )


def read_map(path: Path, notes: list[str]) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none, and a note where it is bad."""
    short = "/".join(path.parts[-4:]) if path.parent.name == "output" else path.name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{short} cannot be read: {error}")
        return {}
    if not isinstance(found, dict):
        notes.append(f"{short} is not an object")
        return {}
    return cast(dict[str, Any], found)


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
    try:
        return Result.model_validate({**found, "id": own_id, "folder": path_in_run})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        notes.append(f"{place.name}: its result cannot be read: {where}: {first['msg']}")
        return None


def _goals(plan: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    value = plan.get("goals")
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(cast("dict[str, Any]", one) for one in items if isinstance(one, dict))


def _steps(workflow: dict[str, Any], notes: list[str]) -> tuple[Step, ...]:
    try:
        return tuple(Step.model_validate(one) for one in workflow.get("steps") or ())
    except (ValidationError, TypeError) as error:
        notes.append(f"workflow.json cannot be read: {error}")
        return ()


@dataclass(frozen=True, slots=True)
class Companion:
    """What another file of an experiment says of one epoch: lists of numbers by name."""

    path: str
    what: str
    lists: dict[str, list[float]]


def series_of(run: Run, result: Result, epoch: Epoch) -> Companion | None:
    """Return bytes of each interval of an epoch; None for an epoch of few intervals."""
    path, found = _read(run, result, "series.json")
    size_bytes, interval_s = _numbers(_item(found, "bytes", epoch)), number(found.get("interval_s"))
    if not interval_s or not any(size_bytes) or len(size_bytes) < _FEWEST:
        return None
    # The last interval is a part of one.
    rates = [size / interval_s for size in size_bytes[:-1]]
    starts = [place * interval_s for place in range(len(rates))]
    return Companion(path, "", {"starts_s": starts, "bytes_per_s": rates})


def latencies_of(run: Run, result: Result, epoch: Epoch) -> Companion | None:
    """Return quantiles of the time of single reads, in rising order."""
    path, found = _read(run, result, "latencies.json")
    item = _item(found, "epochs", epoch)
    given = cast("dict[str, Any]", item).get("seconds") if isinstance(item, dict) else None
    seconds = sorted(value for value in _numbers(given) if value > 0)
    return Companion(path, text(found.get("what")), {"seconds": seconds}) if seconds else None


def _numbers(value: Any) -> list[float]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [one for item in items if (one := number(item)) is not None]


def _item(found: dict[str, Any], name: str, epoch: Epoch) -> Any:
    value = found.get(name)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return items[epoch.place] if epoch.place < len(items) else None


def _read(run: Run, result: Result, name: str) -> tuple[str, dict[str, Any]]:
    path = f"{result.folder}/output/{name}"
    return path, read_map(run.folder / Path(path), [])
