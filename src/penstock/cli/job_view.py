"""A training job as arena prints it, from the object that `get -o json` prints. Pure."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.resources.tables import age, aligned

Json = Mapping[str, Any]

_FIRST_ROLES = ("launcher", "master", "chief")


def phase_of(status: Json) -> str:
    """One that nobody has looked at yet waits for that."""
    return status.get("phase") or "PENDING"


def message_of(status: Json) -> str:
    """Why it waits or failed; nothing of one that does what it should."""
    quiet = phase_of(status) in ("RUNNING", "SUCCEEDED")
    return "" if quiet else str(status.get("message") or "")


def trainer_of(job: Json) -> str:
    return f"{job['spec'].get('trainer', '')}job".upper()


def duration_of(job: Json, now_s: float | None = None) -> str:
    """Since it was started first."""
    status = job.get("status", {})
    begun = status.get("startTime")
    return _between(begun, status.get("completionTime"), now_s) if begun else "0s"


def chief_of(instances: Sequence[Json]) -> str | None:
    """The instance that speaks for the job: the launcher, the master, the chief, or the first."""
    for role in _FIRST_ROLES:
        for one in instances:
            if one.get("role") == role:
                return one["name"]
    workers = [one for one in instances if one.get("role") == "worker"]
    return next((one["name"] for one in [*workers, *instances]), None)


def details(job: Json, now_s: float | None = None) -> list[str]:
    """`arena get`: what it is, and its instances."""
    metadata, spec, status = job["metadata"], job["spec"], job.get("status", {})
    head = [
        ("Name", metadata["name"]), ("Status", phase_of(status)),
        ("Namespace", metadata["namespace"]), ("Priority", spec.get("priority", 0)),
        ("Trainer", trainer_of(job)), ("Duration", duration_of(job, now_s)),
    ]  # fmt: skip
    if status.get("attempts", 1) > 1:
        head.append(("Attempts", status["attempts"]))
    if message := message_of(status):
        head.append(("Message", message))
    for number, one in enumerate(spec.get("data") or ()):
        whose = f"{one['namespace']}/" if one.get("namespace") else ""
        head.append(("" if number else "Data", f"{whose}{one['dataset']} at {one['mountPath']}"))
    lines = [f"{title + ':' if title else '':<12}{value}" for title, value in head]
    return [*lines, "", "Instances:", *instance_lines(job, now_s)]


def instance_lines(job: Json, now_s: float | None = None) -> list[str]:
    status = job.get("status", {})
    instances: list[Json] = status.get("instances") or []
    if not instances:
        return ["  none has been started"]
    chief = chief_of(instances)
    titles = ["NAME", "STATUS", "AGE", "IS_CHIEF", "GPU(Requested)", "NODE"]
    rows = [[f"  {titles[0]}", *titles[1:]], ["  ----", *("-" * len(one) for one in titles[1:])]]
    for one in instances:
        began = one.get("startTime")
        rows.append([
            f"  {one['name']}", one.get("phase") or "PENDING",
            _between(began, one.get("completionTime"), now_s) if began else "N/A",
            str(one["name"] == chief).lower(), str(requested_gpus(job, one)),
            status.get("node") or "N/A",
        ])  # fmt: skip
    return aligned(rows)


def requested_gpus(job: Json, instance: Json) -> int:
    """A launcher has those of all ranks below it; a parameter server has none."""
    spec, role = job["spec"], instance.get("role")
    workers = {"launcher": spec.get("workers", 1), "ps": 0}.get(role or "", 1)
    return workers * spec.get("gpus", 0)


def _between(begun: str, ended: str | None, now_s: float | None) -> str:
    until_s = time.time() if now_s is None else now_s
    if ended:
        until_s = datetime.fromisoformat(ended).timestamp()
    return age(until_s - datetime.fromisoformat(begun).timestamp())
