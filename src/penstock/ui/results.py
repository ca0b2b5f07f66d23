"""Benchmark runs: their list, and the files of their folders.

A folder of results may come from elsewhere (`--results`), so nothing in it is trusted: no path
leads out of it, and a report is served without scripts.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from penstock.bench.workflow.history import is_alive, known_results

Json = dict[str, Any]

REPORT = "report.html"
_MOST_BYTES = 16 << 20
_MOST_RUNS = 50
# What the steps that measure something need, and no other step; see bench/workflow/run.py.
_NEEDS_OF_EXPERIMENTS = ["upload-dataset"]


@dataclass(frozen=True, slots=True)
class Document:
    content: bytes
    is_report: bool


class Results:
    """The runs of this user, and those in `folders`. Threading: any thread."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = [folder.absolute() for folder in folders]

    def runs(self) -> list[Json]:
        """Return what the page shows of each run, the latest first."""
        ours = set(known_results())
        found = [_run(folder, is_ours=folder in ours) for folder in self._places().values()]
        found.sort(key=lambda run: (run["started"] or "", run["name"]), reverse=True)
        return found[:_MOST_RUNS]

    def read(self, run: str, path: str) -> Document | None:
        """Return a file of a run; None if there is none, or it lies outside of its folder."""
        folder = self._places().get(run)
        if folder is None or "\0" in path:
            return None
        place = Path(os.path.realpath(folder / path))
        if not place.is_relative_to(os.path.realpath(folder)):
            return None
        try:
            if not place.is_file() or place.stat().st_size > _MOST_BYTES:
                return None
            return Document(place.read_bytes(), is_report=path == REPORT)
        except OSError:
            return None

    def _places(self) -> dict[str, Path]:
        places = {*known_results(), *self._folders}
        for folder in self._folders:
            places |= _runs_in(folder)
        return {_id(place): place for place in places if _is_run(place)}


def _runs_in(folder: Path) -> set[Path]:
    try:
        return {one for one in folder.iterdir() if one.is_dir()}
    except OSError:
        return set()


def _is_run(folder: Path) -> bool:
    return (folder / "workflow.json").is_file() or (folder / REPORT).is_file()


def _id(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]


def _run(folder: Path, *, is_ours: bool) -> Json:
    workflow, summary = _json(folder / "workflow.json"), _json(folder / "summary.json")
    steps = _maps(workflow.get("steps"))
    measured = [one for one in steps if one.get("needs") == _NEEDS_OF_EXPERIMENTS]
    failed = [one for one in steps if one.get("state") == "failed"]
    verdict = summary.get("verdict")
    state = _text(workflow.get("state")) or "unknown"
    if state == "running" and is_ours and not is_alive(folder.name):
        state = "interrupted"
    return {
        "id": _id(folder),
        "name": folder.name,
        "folder": str(folder),
        "state": state,
        "started": min((_text(one.get("started")) for one in steps if one.get("started")),
                       default=None),
        "done": sum(one.get("state") == "done" for one in measured),
        "experiments": len(measured),
        "verdict": _text(cast(Json, verdict).get("sentence")) if isinstance(verdict, dict) else "",
        "problem": _text(failed[0].get("error")) if failed else "",
        "has_report": (folder / REPORT).is_file(),
    }  # fmt: skip


def _json(path: Path) -> Json:
    try:
        found = path.stat()
        return _parsed(path, found.st_mtime_ns, found.st_size)
    except OSError:
        return {}


@lru_cache(4 * _MOST_RUNS)
def _parsed(path: Path, _changed_ns: int, size_bytes: int) -> Json:
    """Return the object in a file, {} if there is none. Cached: the page asks every two seconds."""
    if size_bytes > _MOST_BYTES:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return cast(Json, found) if isinstance(found, dict) else {}


def _maps(value: Any) -> list[Json]:
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast(Json, one) for one in found if isinstance(one, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
