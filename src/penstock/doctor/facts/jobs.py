"""A training job, and who sees to it: the state, its locks, its record, its processes."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.daemon import locks
from penstock.doctor.facts.declared import label
from penstock.jobs.job_datasets import job_datasets, missing_datasets
from penstock.jobs.job_folder import (
    attempt_path,
    job_folder,
    keeper_lock_path,
    lock_path,
    read_record,
)
from penstock.jobs.job_queue import TOO_MANY
from penstock.jobs.job_status import ENDED, QUEUING, RUNNING
from penstock.jobs.usage import job_usage
from penstock.procfs import is_gone
from penstock.reconcile.snapshot import Served, Snapshot, Stored
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Awaited:
    """A data set that the job waits for."""

    key: ResourceKey
    is_declared: bool
    why: str


@dataclass(frozen=True, slots=True)
class JobSeen:
    name: str  # job/NAME, with its namespace if that is another than `default`
    plain_name: str
    namespace: str
    phase: str
    reason: str
    message: str
    deleting_s: float | None  # for how long
    supervised: bool  # its supervisor lives
    kept: bool  # the keeper of an attempt lives
    running_s: float | None  # since its attempt began
    ended_s: float | None  # since its end
    instances: tuple[str, ...]  # without the job's name: worker-1
    lost: int  # that run by the record of its attempt, if none of them does
    notes: tuple[tuple[str, str], ...]  # reason and message: what its attempt has to do without
    datasets: tuple[ResourceKey, ...]
    awaited: tuple[Awaited, ...]
    holders: tuple[str, ...]  # other jobs, with what they have of what it waits for
    too_many: bool  # GPUs are asked for, more than there are
    prepared: bool  # by --warm or --plan
    cpu_s: float  # that its processes have used
    looked_s: float
    log: str  # its supervisor's

    @property
    def needs_the_loop(self) -> bool:
        if self.deleting_s is not None:
            return True
        return self.phase not in ENDED and not self.supervised and not self.kept


def look_at_job(state_folder: Path, snapshot: Snapshot, job: Stored, is_served: Served) -> JobSeen:
    now_s = time.time()
    folder = job_folder(state_folder, job.uid)
    status, note = job.status, job.note
    phase = status.get("phase", "")
    record = read_record(attempt_path(folder))
    if record is not None and record["run"] != note.get("run"):
        record = None  # of a run before this one
    instances: list[Json] = status.get("instances") or []
    ended_s: float | None = note.get("ended_s")
    has_ended = phase in ENDED
    return JobSeen(
        name=f"job/{label(job.key)}",
        plain_name=job.key.name,
        namespace=job.key.namespace,
        phase=phase,
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        deleting_s=now_s - job.deleting["at_s"] if job.deleting else None,
        supervised=locks.is_taken(lock_path(folder)),
        kept=locks.is_taken(keeper_lock_path(folder)),
        running_s=now_s - record["begun_s"] if record is not None else None,
        ended_s=now_s - ended_s if has_ended and ended_s is not None else None,
        instances=tuple(one["name"].removeprefix(f"{job.key.name}-") for one in instances),
        lost=_lost(record) if phase == RUNNING else 0,
        notes=tuple((reason, message) for reason, message in record["notes"]) if record else (),
        datasets=tuple(job_datasets(job)),
        awaited=()
        if has_ended or phase == RUNNING
        else tuple(
            Awaited(key, key in snapshot.resources, why)
            for key, why in missing_datasets(job, snapshot.resources, is_served)
        ),
        holders=_holders(snapshot, job) if phase == QUEUING else (),
        too_many=phase == QUEUING and TOO_MANY in status.get("message", ""),
        prepared=bool(job.spec.get("warm") or job.spec.get("plan")),
        cpu_s=job_usage(job.uid, state_folder).cpu_s if phase == RUNNING else 0.0,
        looked_s=time.monotonic(),
        log=str(folder / "supervisor.log"),
    )


def _lost(record: Json | None) -> int:
    """How many run, by what the keeper wrote; 0 if one of them does."""
    running = [
        one["pid"]
        for one in (record or {}).get("instances", ())
        if one["phase"] == RUNNING and one.get("pid") is not None
    ]
    return len(running) if all(map(is_gone, running)) else 0


def _holders(snapshot: Snapshot, job: Stored) -> tuple[str, ...]:
    """By what the loop has written down: nobody else is asked."""
    found: list[str] = []
    for other in snapshot.jobs():
        held: Json | None = other.note.get("allotted")
        if held is None or other.uid == job.uid:
            continue
        has: list[str] = []
        if job.spec.get("gpus") and held["gpus"]:
            numbers = ", ".join(map(str, held["gpus"]))
            has.append(f"GPU{'s' if len(held['gpus']) > 1 else ''} {numbers}")
        if job.spec.get("cpu") is not None and held["cores"]:
            has.append(f"{held['cores']:g} core{'' if held['cores'] == 1 else 's'}")
        if has:
            found.append(f"job/{label(other.key)} has {' and '.join(has)}")
    return tuple(found)
