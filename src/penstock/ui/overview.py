"""The values that the page shows: data sets, mounts, jobs, operations and benchmark runs, as JSON.

Each section is collected by itself, so that what cannot be read leaves the others as they are. All
text that a store, a program or a manifest may have written is redacted once more.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, cast

from penstock.api import jobs, mounts, resources
from penstock.api.log_parts import redact
from penstock.errors import PenstockError
from penstock.release import __version__
from penstock.ui.results import Results

Json = dict[str, Any]

# A mount that hangs must not hold the page back.
_ANSWERS_WITHIN_S = 3.0
_MOST_ENDED = 20  # jobs and operations that have ended, the latest
_UNFINISHED = ("Pending", "Executing")


def overview(results: Results) -> Json:
    """Return everything; a section that cannot be collected is an `error` with a `hint`."""
    sections: dict[str, Callable[[], list[Json]]] = {
        "datasets": _datasets,
        "mounts": _mounts,
        "jobs": _jobs,
        "operations": _operations,
        "runs": results.runs,
    }
    with ThreadPoolExecutor(len(sections)) as threads:
        collected = {name: threads.submit(_section, get) for name, get in sections.items()}
    return {
        "machine": os.uname().nodename,
        "version": __version__,
        "now_s": round(time.time(), 3),
        **{name: section.result() for name, section in collected.items()},
    }


def _section(collect: Callable[[], list[Json]]) -> Json:
    try:
        return {"items": [_redacted(one) for one in collect()]}
    except (PenstockError, OSError) as error:
        hint = error.hint if isinstance(error, PenstockError) else None
        return {"items": [], "error": redact(str(error)), "hint": redact(hint or "")}


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(below) for key, below in cast(Json, value).items()}
    if isinstance(value, list):
        return [_redacted(below) for below in cast("list[Any]", value)]
    return value


# -- data sets --------------------------------------------------------------------------------


def _datasets() -> list[Json]:
    return [_dataset(one) for one in resources.get_all("Dataset")]


def _dataset(one: resources.Declared) -> Json:
    assert isinstance(one, resources.Dataset)
    problem, hint = _problem_of(one)
    return {
        "id": one.uid,
        "namespace": one.namespace,
        "name": one.name,
        "phase": one.phase or "Pending",
        "files": one.files,
        "bytes": one.total_bytes,
        "cached_bytes": one.cached_bytes,
        "capacity_bytes": one.capacity_bytes,
        "mountpoint": None if one.path is None else str(one.path),
        "age_s": _since(one.as_dict()["metadata"]["creationTimestamp"]),
        "problem": problem,
        "hint": hint,
    }


def _problem_of(one: resources.Dataset) -> tuple[str, str]:
    """What is wrong with a data set, and what to do; empty where nothing is."""
    place = "" if one.namespace == "default" else f" -n {one.namespace}"
    if one.status.get("missing"):
        return "it is not mounted any more", f"penstock up {one.name}{place}"
    doctor = f"penstock doctor {one.name}{place}"
    if one.phase != "Bound":
        if one.conditions:
            return _what_and_hint(one.conditions[0]["message"], doctor)
        # Without a phase no loop has looked at it yet.
        return ("no runtime of its name has been applied", doctor) if one.phase else ("", "")
    for condition in one.conditions:
        if condition["type"] == "UpdateReady" and condition["status"] == "False":
            what, hint = _what_and_hint(condition["message"], doctor)
            return f"waits for a restart: {what}", hint
        if condition["type"] == "Ready" and condition["status"] == "False":
            return _what_and_hint(condition["message"], doctor)
    return "", ""


def _what_and_hint(message: str, otherwise: str) -> tuple[str, str]:
    what, _, hint = message.partition(" (hint: ")
    return what, hint.removesuffix(")") or otherwise


# -- mounts -----------------------------------------------------------------------------------


def _mounts() -> list[Json]:
    silent: list[Json] = []

    def failed(mountpoint: str, error: PenstockError) -> None:
        silent.append(
            {
                "id": mountpoint,
                "mountpoint": mountpoint,
                "state": "silent",
                "problem": str(error),
                "hint": f"penstock doctor {mountpoint}",
            }
        )

    found = mounts.all_stats(failed=failed, within_s=_ANSWERS_WITHIN_S)
    return sorted([*map(_mount, found), *silent], key=lambda one: one["mountpoint"])


def _mount(one: Json) -> Json:
    shown: Json = {
        "id": one["mountpoint"],
        "mountpoint": one["mountpoint"],
        "source": one["source"],
        "state": one["state"],
        "problem": "",
        "hint": "",
    }
    if one["state"] != "serving":
        last = f": {one['last_end']}" if one.get("last_end") else ""
        return {
            **shown,
            "problem": f"its server is replaced, and readers wait{last}",
            "hint": f"penstock doctor {one['mountpoint']}",
        }
    problem, hint = _mount_problem(one)
    requests: dict[str, int] = one["requests"]
    return {
        **shown,
        "problem": problem,
        "hint": hint,
        "mode": one["mode"],
        "pid": one["pid"],  # another server counts from zero
        "uptime_s": one["uptime_s"],
        "memory_bytes": one["memory_bytes"],
        "restarts": one["restarts"],
        "files": one["files"],
        "bytes": one["bytes"],
        "cached_bytes": one["cached_bytes"],
        "capacity_bytes": one["capacity_bytes"],
        "store_bytes": one["store_bytes"],
        "store_requests": one["store_requests"],
        "hit_bytes": sum(one["hit_bytes"].values()),
        "pushed_bytes": one["pushed_bytes"],
        "read_bytes": one["read_bytes"],
        "reads": requests.get("READ", 0),
        "plans": [
            {"label": plan["label"] or str(plan["pid"]), "done": plan["handed_out"],
             "total": plan["end"]}
            for plan in one["plans"]
        ],
    }  # fmt: skip


def _mount_problem(one: Json) -> tuple[str, str]:
    doctor = f"penstock doctor {one['mountpoint']}"
    if one["refresh_error"]:
        return f"it cannot be listed: {one['refresh_error']}", doctor
    for tier in one["tiers"]:
        if tier["state"] == "out":
            return f"tier {tier['name']} is out of service: {tier['error']}", doctor
    if one["errors"]:
        named = ", ".join(f"{count} {name}" for name, count in one["errors_by_name"].items())
        return f"readers have got errors: {named}", doctor
    return "", ""


# -- jobs -------------------------------------------------------------------------------------


def _jobs() -> list[Json]:
    found = sorted(jobs.jobs(), key=lambda one: (not one.has_ended, _created(one)), reverse=True)
    active = sum(not one.has_ended for one in found)
    return [_job(one) for one in found[: active + _MOST_ENDED]]


def _job(one: jobs.TrainingJob) -> Json:
    waits = one.loader_waits
    begun = one.status.get("startTime")
    problem, hint = _what_and_hint(one.message, "")
    return {
        "id": one.uid,
        "namespace": one.namespace,
        "name": one.name,
        "phase": one.phase,
        "trainer": one.trainer,
        "duration": one.duration if begun else "",
        "problem": problem,
        "hint": hint,
        "data": [str(part["dataset"]) for part in one.spec.get("data") or ()],
        "gpus": one.status.get("gpusRequested", 0),
        "data_wait_s": round(one.data_wait_s, 3),
        "waits_for_data": one.phase == "PENDING" and "dataReadyTime" not in one.status,
        "loops": None
        if waits is None
        else {
            "waited_s": round(waits.waited_s, 3),
            "share": round(waits.share, 4),
            "batches": waits.batches,
        },
        "planned": bool(one.spec.get("plan")),
        "instances": [instance["name"] for instance in one.instances],
        "chief": one.chief,
    }


# -- data operations --------------------------------------------------------------------------


def _operations() -> list[Json]:
    found = sorted(resources.get_all("operations"), key=_created, reverse=True)
    active = [one for one in found if _is_unfinished(one)]
    return [_operation(one) for one in (*active, *_ended(found))]


def _ended(found: list[resources.Declared]) -> Iterator[resources.Declared]:
    ended = [one for one in found if not _is_unfinished(one)]
    yield from ended[:_MOST_ENDED]


def _is_unfinished(one: resources.Declared) -> bool:
    return (one.phase or "Pending") in _UNFINISHED


def _operation(one: resources.Declared) -> Json:
    dataset: Any = one.spec.get("dataset")
    if isinstance(dataset, dict):
        dataset = cast(Json, dataset).get("name")
    progress: Json = one.status.get("progress") or {}
    failed = one.phase == "Failed" and one.conditions
    problem, hint = "", ""
    if failed:
        place = "" if one.namespace == "default" else f" -n {one.namespace}"
        doctor = f"penstock doctor {one.kind.lower()}/{one.name}{place}"
        problem, hint = _what_and_hint(one.conditions[0]["message"], doctor)
    return {
        "id": one.uid,
        "namespace": one.namespace,
        "kind": one.kind,
        "name": one.name,
        "dataset": dataset or "",
        "phase": one.phase or "Pending",
        "done_bytes": progress.get("bytes"),
        "total_bytes": progress.get("ofBytes"),
        "duration": str(one.status.get("duration") or ""),
        "problem": problem,
        "hint": hint,
    }


def _created(one: resources.Declared) -> str:
    return one.as_dict()["metadata"]["creationTimestamp"]


def _since(stamp: str) -> float:
    return round(max(0.0, time.time() - datetime.fromisoformat(stamp).timestamp()), 3)
