"""The phases of a job and of its instances, and how a job's status shows them. Pure.

PENDING ──data bound──> QUEUING ──GPUs and cores allotted──> PENDING ──instances run──> RUNNING
RUNNING ──an attempt fails, retries are left──> PENDING
RUNNING ──done──> SUCCEEDED;  any ──> FAILED when it cannot start or no retries are left
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.reconcile.conditions import Condition, stamp, with_conditions

Json = dict[str, Any]

PENDING, RUNNING, SUCCEEDED, FAILED = "PENDING", "RUNNING", "SUCCEEDED", "FAILED"
QUEUING = "QUEUING"
ENDED = (SUCCEEDED, FAILED)


def instance_record(name: str, role: str, gpus: Sequence[int], *, awaited: bool) -> Json:
    """Return an instance as the keeper records it."""
    return {"name": name, "role": role, "phase": PENDING, "gpus": list(gpus), "awaited": awaited}


def shown_instance(one: Mapping[str, Any]) -> Json:
    """Return a recorded instance as a job's status shows it."""
    shown = {key: one[key] for key in ("name", "role", "phase", "gpus")}
    for key, name in (("begun_s", "startTime"), ("ended_s", "completionTime")):
        if key in one:
            shown[name] = stamp(one[key])
    for key, name in (("code", "exitCode"), ("signal", "signal"), ("pid", "pid")):
        if one.get(key) is not None:
            shown[name] = one[key]
    return shown


def last_instances(record: Mapping[str, Any], now_s: float) -> list[Json]:
    """Return the instances of an attempt that has no keeper any more: none of them runs."""
    ended: Json = {"phase": FAILED, "ended_s": now_s, "pid": None}
    return [
        shown_instance({**one, **ended} if one["phase"] == RUNNING else one)
        for one in record["instances"]
    ]


def ended_status(
    phase: str, reason: str, message: str, record: Mapping[str, Any] | None, now_s: float
) -> Json:
    """Return the status of a job that has ended. `record`: of its last attempt, if it had one."""
    condition = Condition(phase.capitalize(), True, reason, message)
    status: Json = {
        "phase": phase,
        "reason": reason,
        "message": message,
        "gpusAllocated": 0,
        "completionTime": stamp(now_s),
        "conditions": with_conditions([], [condition], now_s, probed=True),
    }
    if record is not None:
        status["instances"] = last_instances(record, now_s)
    return status
