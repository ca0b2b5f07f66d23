"""Reads a results tree into values, and the long lists of one experiment when a chart needs them.

Another release, a crash or a hand edit may have written the tree: a file that cannot be read
becomes a note, never a traceback, and the rest is reported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from penstock.bench.plans.model import Shape
from penstock.bench.reporting.results import (
    OPEN,
    Arm,
    Epoch,
    Failure,
    Proof,
    Result,
    Run,
    Sample,
    Step,
    Workload,
    experiment_steps,
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
    steps = tuple(_step(one) for one in _maps(workflow.get("steps")))
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
        goals=tuple(_maps(read_map(folder / "plan.json", notes).get("goals"))),
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


def number(value: Any) -> float | None:
    """A finite number that is not negative, or None: all that is measured here is such."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def numbers(value: Any) -> list[float]:
    return [found for one in sequence(value) if (found := number(one)) is not None]


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    return cast(Sequence[Any], value) if isinstance(value, list) else ()


def seconds_between(started: Any, ended: Any) -> float | None:
    """Of two RFC 3339 times."""
    try:
        passed = datetime.fromisoformat(text(ended)) - datetime.fromisoformat(text(started))
    except (ValueError, TypeError):  # TypeError: one with a zone, the other without
        return None
    return passed.total_seconds()


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
    failure = mapping(found.get("failure"))
    repeat, order, seed = (number(found.get(name)) for name in ("repeat", "order", "seed"))
    return Result(
        id=text(found.get("id")) or place.name,
        folder=place.relative_to(folder).as_posix(),
        arm=_arm(mapping(found.get("arm"))),
        workload=_workload(mapping(found.get("workload"))),
        shape=_shape(mapping(found.get("shape"))),
        dataset=text(found.get("dataset")),
        repeat=int(repeat or 0),
        order=int(order or 0),
        seed=None if seed is None else int(seed),
        started=text(found.get("started")),
        seconds=number(found.get("seconds")),
        valid=found.get("valid") is True,
        proofs=tuple(
            Proof(
                text(one.get("name")),
                one.get("ok") is True,
                text(one.get("detail")),
            )
            for one in _maps(found.get("proofs"))
        ),
        failure=Failure(text(failure.get("what")), text(failure.get("hint"))) if failure else None,
        epochs=_epochs(found.get("epochs")),
        accelerator_runs=tuple(_accelerator_runs(found.get("accelerator_runs"))),
        samples=tuple(_samples(found.get("samples"))),
        figures=_shares(found.get("figures")),
    )


def _arm(found: Mapping[str, Any]) -> Arm:
    share = number(found.get("cache_share"))
    name = text(found.get("name")) or "unnamed"
    return Arm(
        name=name,
        title=text(found.get("title")) or name,
        system=text(found.get("system")),
        version=text(found.get("version")),
        state=text(found.get("state")) or "cold",
        cache_share=1.0 if share is None else share,
        hinted=found.get("hinted") is True,
        command=text(found.get("command")),
        options=tuple(text(one) for one in sequence(found.get("options"))),
    )


def _workload(found: Mapping[str, Any]) -> Workload:
    count, readers = number(found.get("accelerators")), number(found.get("readers"))
    return Workload(
        name=text(found.get("name")) or "unnamed",
        kind=text(found.get("kind")) or "read",
        model=text(found.get("model")) or None,
        accelerator=text(found.get("accelerator")) or None,
        accelerators=int(count) if count else None,
        emulated=found.get("emulated") is True,
        batch=number(found.get("batch")),
        step_s=number(found.get("step_s")),
        scale=_scale(found),
        readers=int(readers) if readers else None,
        sample_bytes=number(found.get("sample_bytes")),
    )


def _scale(found: Mapping[str, Any]) -> float:
    """How hungry one emulated accelerator is, of a whole one. Batches are whole samples, so that
    what was asked for (`scale`) is met only about; what was published says it exactly."""
    whole = mapping(found.get("published"))
    sides = [(number(one.get("batch")), number(one.get("step_s"))) for one in (found, whole)]
    rates = [batch / step_s for batch, step_s in sides if batch and step_s]
    if len(rates) == 2:
        return rates[0] / rates[1]
    return number(found.get("scale")) or 1.0


def _shape(found: Mapping[str, Any]) -> Shape:
    return Shape(
        name=text(found.get("name")) or "unshaped",
        latency_s=number(found.get("latency_s")) or 0.0,
        bytes_per_s=number(found.get("bytes_per_s")) or None,
    )


def _epochs(found: Any) -> tuple[Epoch, ...]:
    """Those with a time: an epoch that was cut off has no speed."""
    epochs: list[Epoch] = []
    for place, one in enumerate(_maps(found)):
        seconds = number(one.get("seconds"))
        if not seconds:
            continue
        store, count = mapping(one.get("store")), number(one.get("epoch"))
        share = number(one.get("busy_share"))
        epochs.append(
            Epoch(
                number=place if count is None else int(count),
                seconds=seconds,
                samples=number(one.get("samples")) or 0.0,
                size_bytes=number(one.get("bytes")) or 0.0,
                busy_share=share,
                busy_s=number(one.get("busy_s")),
                first_batch_s=number(one.get("first_batch_s")),
                gets=number(store.get("gets")),
                get_bytes=number(store.get("get_bytes")),
                hit_bytes=_shares(one["hit_bytes"])
                if isinstance(one.get("hit_bytes"), dict)
                else None,
                cpu_s=_shares(one.get("cpu_s")),
                memory_bytes=number(one.get("memory_bytes")),
            )
        )
    return tuple(epochs)


def _samples(found: Any) -> list[Sample]:
    samples: list[Sample] = []
    for one in _maps(found):
        seconds, size_bytes = number(one.get("seconds")), number(one.get("size_bytes"))
        if not seconds or not size_bytes:
            continue
        samples.append(
            Sample(
                arm=text(one.get("arm")),
                state=text(one.get("state")),
                readers=int(number(one.get("readers")) or 0),
                epochs=int(number(one.get("epochs")) or 1),
                seconds=seconds,
                files=number(one.get("files")) or 0.0,
                size_bytes=size_bytes,
                cpu_s=number(one.get("daemon_cpu_s")) or 0.0,
                memory_bytes=number(one.get("memory_bytes")) or 0.0,
                messages=number(one.get("messages")),
                native_ratio=number(one.get("native_ratio")),
                bare_ratio=number(one.get("bare_ratio")),
                mode=text(one.get("mode")),
            )
        )
    return samples


def _accelerator_runs(found: Any) -> list[tuple[int, float]]:
    points: dict[int, float] = {}
    for one in _maps(found):
        count, share = number(one.get("accelerators")), number(one.get("busy_share"))
        if count and share is not None:
            points[int(count)] = share
    return sorted(points.items())


def _step(found: Mapping[str, Any]) -> Step:
    attempts = number(found.get("attempts"))
    return Step(
        name=text(found.get("name")) or "unnamed",
        state=text(found.get("state")) or "waiting",
        attempts=None if attempts is None else int(attempts),
        seconds=seconds_between(found.get("started"), found.get("ended")),
        error=text(found.get("error")),
        needs=tuple(text(one) for one in sequence(found.get("needs"))),
        last=found.get("last") is True,
    )


def _shares(found: Any) -> dict[str, float]:
    pairs = ((name, number(value)) for name, value in mapping(found).items())
    return {name: value for name, value in pairs if value is not None}


def _maps(found: Any) -> list[Mapping[str, Any]]:
    return [cast(Mapping[str, Any], one) for one in sequence(found) if isinstance(one, dict)]


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
