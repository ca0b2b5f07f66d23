"""Facts about declared resources: data sets, the loop, operations, training jobs.

Reads the state, locks, logs and the records of jobs; asks no process.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import file_locks
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
from penstock.mounttable import mount_table
from penstock.procfs import is_gone
from penstock.reconcile.loop_control import is_running
from penstock.reconcile.snapshot import Event, Pair, Served, Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class LoopFacts:
    runs: bool
    log: str
    last_error: str  # in its log; empty if there is none


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    name: str  # with its namespace if that is not `default`
    namespace: str
    plain_name: str
    phase: str
    has_runtime: bool
    second_runtimes: tuple[str, ...]
    settled: bool
    deleting_s: float | None  # since it should be deleted
    conditions: tuple[Json, ...]
    trouble: Json | None
    retry_in_s: float | None
    mountpoint: str | None
    mounted: bool
    warnings: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class OperationFacts:
    name: str
    kind: str
    plain_name: str
    namespace: str
    phase: str
    policy: str
    message: str  # of its last condition
    waits_for: str | None
    runs: bool
    running_s: float | None  # since it started
    silent_s: float | None  # since it wrote to a file of its folder
    progress: Json | None
    unbound: tuple[str, ...]  # data sets that it needs and that are not bound
    log: str


def look_at_loop(folder: Path) -> LoopFacts:
    log = folder / "logs" / "loop.log"
    return LoopFacts(is_running(folder), str(log), last_error(tail(log, _TAIL_BYTES)))


def look_at_dataset(state: State, snapshot: Snapshot, pair: Pair) -> DatasetFacts:
    dataset = pair.dataset
    assert dataset is not None
    now_s = time.time()
    mountpoint = dataset.note.get("mountpoint")
    retry_at_s = dataset.note.get("retry_at_s")
    return DatasetFacts(
        name=label(dataset.key),
        namespace=pair.namespace,
        plain_name=pair.name,
        phase=dataset.status.get("phase", ""),
        has_runtime=pair.serving_runtime is not None,
        second_runtimes=tuple(other.key.kind for other in pair.others),
        settled=dataset.note.get("settled") == snapshot.fingerprint(pair),
        deleting_s=now_s - dataset.deleting["at_s"] if dataset.deleting else None,
        conditions=tuple(dataset.status.get("conditions", ())),
        trouble=dataset.note.get("trouble"),
        retry_in_s=None if retry_at_s is None else retry_at_s - now_s,
        mountpoint=mountpoint,
        mounted=any(entry.mountpoint == mountpoint for entry in mount_table()),
        warnings=tuple(one for one in state.events(dataset.uid) if one.kind == "Warning"),
    )


def look_at_operation(state: State, snapshot: Snapshot, operation: Stored) -> OperationFacts:
    now_s = time.time()
    folder = state.folder / "operations" / operation.uid
    begun_s = operation.note.get("begun_s")
    conditions: list[Json] = operation.status.get("conditions") or []
    return OperationFacts(
        name=f"{operation.key.kind.lower()}/{label(operation.key)}",
        kind=operation.key.kind,
        plain_name=operation.key.name,
        namespace=operation.key.namespace,
        phase=operation.status.get("phase", ""),
        policy=operation.spec.get("policy") or "Once",
        message=conditions[-1]["message"] if conditions else "",
        waits_for=operation.note.get("waits"),
        runs=file_locks.is_held(folder / "lock"),
        running_s=now_s - begun_s if begun_s else None,
        silent_s=now_s - max([begun_s, *_times(folder)]) if begun_s else None,
        progress=operation.status.get("progress"),
        unbound=tuple(
            name
            for kind, namespace, name in sorted(operation_datasets(operation))
            if _phase(snapshot, ResourceKey(kind, namespace, name)) != "Bound"
        ),
        log=str(folder / "log"),
    )


def label(key: ResourceKey) -> str:
    return key.name if key.namespace == "default" else f"{key.namespace}/{key.name}"


def tail(path: Path, most_bytes: int) -> str:
    """Return whole lines from the end of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            data = file.read(most_bytes)
    except OSError:
        return ""
    if size > most_bytes:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def last_error(log: str) -> str:
    """Return the last error or warning in a log; of a traceback, the exception."""
    lines = [line for line in log.splitlines() if line.strip()]
    for number, line in reversed(list(enumerate(lines))):
        if line.startswith("Traceback "):
            raised = [other for other in lines[number:] if not other.startswith((" ", "Traceback"))]
            return raised[0] if raised else line
        if " ERROR " in line or " WARNING " in line or " CRITICAL " in line:
            return line
    return ""


def _times(folder: Path) -> list[float]:
    times: list[float] = []
    try:
        for path in folder.iterdir():
            if path.name != "lock":
                times.append(path.stat().st_mtime)
    except OSError:
        pass  # it is being removed
    return times


def _phase(snapshot: Snapshot, key: ResourceKey) -> str | None:
    found = snapshot.resources.get(key)
    return None if found is None else found.status.get("phase")


# -- training jobs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Awaited:
    """A data set that a job waits for."""

    key: ResourceKey
    is_declared: bool
    why: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    name: str  # job/NAME, with its namespace if that is not `default`
    plain_name: str
    namespace: str
    phase: str
    reason: str
    message: str
    deleting_s: float | None  # since it should be deleted
    supervised: bool  # its supervisor runs
    kept: bool  # the keeper of an attempt runs
    running_s: float | None  # since its attempt started
    ended_s: float | None  # since its end
    instances: tuple[str, ...]  # without the job's name: worker-1
    lost: int  # instances that run by the record of the attempt, if none does in truth
    notes: tuple[tuple[str, str], ...]  # reason and message: features that its attempt lacks
    datasets: tuple[ResourceKey, ...]
    awaited: tuple[Awaited, ...]
    holders: tuple[str, ...]  # other jobs, with what they hold that it waits for
    too_many: bool  # it asks for more GPUs than there are
    prepared: bool  # submitted with --warm or --plan
    cpu_s: float  # used by its processes
    looked_s: float
    log: str  # of its supervisor

    @property
    def needs_the_loop(self) -> bool:
        if self.deleting_s is not None:
            return True
        return self.phase not in ENDED and not self.supervised and not self.kept


def look_at_job(state_folder: Path, snapshot: Snapshot, job: Stored, is_served: Served) -> JobFacts:
    now_s = time.time()
    folder = job_folder(state_folder, job.uid)
    status, note = job.status, job.note
    phase = status.get("phase", "")
    record = read_record(attempt_path(folder))
    if record is not None and record["run"] != note.get("run"):
        record = None  # of an earlier run
    instances: list[Json] = status.get("instances") or []
    ended_s: float | None = note.get("ended_s")
    has_ended = phase in ENDED
    return JobFacts(
        name=f"job/{label(job.key)}",
        plain_name=job.key.name,
        namespace=job.key.namespace,
        phase=phase,
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        deleting_s=now_s - job.deleting["at_s"] if job.deleting else None,
        supervised=file_locks.is_held(lock_path(folder)),
        kept=file_locks.is_held(keeper_lock_path(folder)),
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
    """Return how many instances the keeper recorded as running; 0 if one of them is."""
    running = [
        one["pid"]
        for one in (record or {}).get("instances", ())
        if one["phase"] == RUNNING and one.get("pid") is not None
    ]
    return len(running) if all(map(is_gone, running)) else 0


def _holders(snapshot: Snapshot, job: Stored) -> tuple[str, ...]:
    """Return what other jobs hold of what this one waits for, from the loop's notes."""
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
