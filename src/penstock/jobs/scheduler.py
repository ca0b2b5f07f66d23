"""Training jobs as the loop sees them: which wait for what, which may start, which are removed.

The loop allots GPUs and cores, alone and in one thread, and records them before it starts the job's
supervisor. The record is removed in the same transaction in which the job ends. So what is allotted
is known from the state alone, whichever process was killed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from penstock import file_locks
from penstock.jobs.job_datasets import missing_data, what_to_load
from penstock.jobs.job_folder import (
    attempt_path,
    job_folder,
    keeper_lock_path,
    lock_path,
    read_record,
)
from penstock.jobs.job_queue import Holding, Waiting, decide
from penstock.jobs.job_status import ENDED, FAILED, PENDING, QUEUING, ended_status
from penstock.jobs.processes import clear
from penstock.jobs.usage import machine_gpus
from penstock.reconcile.conditions import stamp
from penstock.reconcile.resource_process import (
    end_resource_process,
    is_resource_process,
    start_resource_process,
)
from penstock.reconcile.snapshot import Served, Snapshot, Stored
from penstock.reconcile.state import State
from penstock.specs.jobs import cores

Json = dict[str, Any]

SUPERVISOR = "penstock.jobs.job_supervisor"
# Supervisors of one job that die in a row before it is given up.
_MOST_DEATHS = 5
# Within this time a supervisor that was killed is noticed.
_RUNNING_S = 2.0
# Whatever a job waits for wakes the loop when it is ready; this is for changes that send no wake.
_WAITING_S = 30.0
_LONGEST_SLEEP_S = 3600.0
# After a keeper was asked to end, before it is killed; the keeper itself gives the job less.
_KEEPER_END_TIMEOUT_S = 20.0


class Jobs:
    def __init__(self, state: State) -> None:
        self._state = state
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping: dict[str, float] = {}  # uid: when its keeper was asked to end

    def look(self, snapshot: Snapshot, is_served: Served, *, leaving: bool) -> float | None:
        """Start and end the jobs that are due. Return the seconds until the next look.

        None: no job needs one. `leaving`: the loop ends, so nothing is started.
        """
        self._children = [child for child in self._children if child.poll() is None]
        pauses: list[float] = []
        candidates: list[Stored] = []
        for job in snapshot.jobs():
            if job.deleting is not None:
                if not self._remove(job):
                    pauses.append(_RUNNING_S)
            elif file_locks.is_held(self._lock(job)):
                pauses.append(_RUNNING_S)
            elif leaving:
                continue
            elif job.status.get("phase") in ENDED:
                pauses += self._expire(job)
            elif self._resume(job):
                pauses.append(_RUNNING_S)
            elif self._is_ready(snapshot, job, is_served):
                candidates.append(job)
            else:
                pauses.append(_WAITING_S)
        if candidates:
            self._allot(snapshot, candidates)
            pauses.append(_RUNNING_S)
        return min(pauses, default=None)

    # -- before it starts ----------------------------------------------------------------

    def _is_ready(self, snapshot: Snapshot, job: Stored, is_served: Served) -> bool:
        """Is the job's data ready, so that it may queue for GPUs and cores?"""
        why = missing_data(job, snapshot.resources, is_served)
        if why is not None:
            self._record_wait(job, PENDING, "DataNotReady", why)
            return False
        wanted = what_to_load(job, snapshot.resources) if job.spec.get("warm") else []
        if wanted and job.note.get("loaded") != wanted:
            self._state.record(job.uid, note={"loading": True})
            self._start(job)
            return False
        if "dataReadyTime" not in job.status:
            self._state.record(job.uid, status={"dataReadyTime": stamp(time.time())})
        return True

    def _allot(self, snapshot: Snapshot, candidates: list[Stored]) -> None:
        holding = [
            Holding(one.key.name, tuple(held["gpus"]), held["cores"])
            for one in snapshot.jobs()
            if (held := one.note.get("allotted")) is not None
        ]
        waiting = [
            Waiting(
                one.key.name, _order(one), one.spec.get("priority") or 0, _gpus(one), _cores(one)
            )
            for one in candidates
        ]
        some_gpus = any(one.gpus for one in waiting)
        devices = [gpu.index for gpu in machine_gpus()] if some_gpus else []
        verdicts = decide(waiting, holding, devices, float(os.cpu_count() or 1))
        for job in candidates:
            verdict = verdicts[_order(job)]
            if verdict.gpus is None:
                self._record_wait(job, QUEUING, "Queuing", verdict.why)
                continue
            # Recorded before the job runs: from here on no other job gets them.
            held = {"gpus": list(verdict.gpus), "cores": _cores(job)}
            self._state.record(job.uid, note={"allotted": held, "waits": None})
            if held["gpus"]:
                self._state.add_event(job.uid, "Allotted", f"GPUs {held['gpus']}")
            self._start(job)

    def _record_wait(self, job: Stored, phase: str, reason: str, why: str) -> None:
        if job.note.get("waits") == why and job.status.get("phase") == phase:
            return
        self._state.record(
            job.uid, note={"waits": why}, status=_not_running(job, phase, reason, why)
        )
        self._state.add_event(job.uid, reason, why)

    def _start(self, job: Stored) -> None:
        folder = job_folder(self._state.folder, job.uid)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = file_locks.acquire(self._lock(job))
        if lock is None:
            return
        if job.status.get("phase") in (None, QUEUING):
            status = _not_running(job, PENDING, "Starting", "it is about to start")
            self._state.record(job.uid, status=status)
        child = start_resource_process(SUPERVISOR, job.uid, lock, folder / "supervisor.log")
        self._children.append(child)

    def _resume(self, job: Stored) -> bool:
        """Restart the supervisor of a job that was started before, but has none. False: it wasn't.

        Such a job has its GPUs and cores, or loads its data; its supervisor was killed.
        """
        now = self._state.by_uid(job.uid)  # it may have ended since the snapshot was taken
        if now is None or now.status.get("phase") in ENDED:
            return True
        if now.note.get("allotted") is None and not now.note.get("loading"):
            return False
        if now.note.get("pid") is None:
            self._start(now)  # the loop that allotted them was killed before it started the job
            return True
        deaths = now.note.get("deaths", 0) + 1
        if deaths > _MOST_DEATHS:
            self._give_up(now, deaths)
            return True
        self._state.record(job.uid, note={"deaths": deaths})
        self._state.add_event(job.uid, "Died", "its supervisor; restarted", kind="Warning")
        self._start(now)
        return True

    def _give_up(self, job: Stored, deaths: int) -> None:
        if not self._end_processes(job):
            return
        what = f"its supervisor died {deaths} times"
        log = job_folder(self._state.folder, job.uid) / "supervisor.log"
        removed: Json = dict.fromkeys(("allotted", "loading", "pid", "deaths"))
        trouble = {"what": what, "hint": f"its log: {log}", "exit_code": 1}
        now_s = time.time()
        record = read_record(attempt_path(job_folder(self._state.folder, job.uid)))
        if record is not None and record["run"] != job.note.get("run"):
            record = None  # of an earlier run of this job
        self._state.record(
            job.uid,
            note={**removed, "ended_s": now_s, "trouble": trouble},
            status=ended_status(FAILED, "Died", what, record, now_s),
        )
        self._state.add_event(job.uid, "Died", what, kind="Warning")

    # -- after it has ended --------------------------------------------------------------

    def _expire(self, job: Stored) -> list[float]:
        ttl_s = job.spec.get("ttlSecondsAfterFinished")
        ended_s: float | None = job.note.get("ended_s")
        if ttl_s is None or ended_s is None:
            return []
        left_s = ended_s + ttl_s - time.time()
        if left_s > 0:
            return [min(left_s, _LONGEST_SLEEP_S)]
        return [] if self._remove(job) else [_RUNNING_S]

    def _remove(self, job: Stored) -> bool:
        """End the job and remove all of it. False: its processes have not ended yet."""
        end_resource_process(job.uid, job.note.get("pid"))
        if file_locks.is_held(self._lock(job)) or not self._end_processes(job):
            return False
        shutil.rmtree(job_folder(self._state.folder, job.uid), ignore_errors=True)
        self._state.forget(job.uid)
        return True

    def _end_processes(self, job: Stored) -> bool:
        """End everything that an attempt runs. False: it has not ended yet."""
        folder = job_folder(self._state.folder, job.uid)
        record = read_record(attempt_path(folder))
        if file_locks.is_held(keeper_lock_path(folder)):
            asked_s = self._stopping.setdefault(job.uid, time.monotonic())
            pid = record["keeper"] if record is not None else None
            if pid is not None and is_resource_process(job.uid, pid):
                late = time.monotonic() - asked_s > _KEEPER_END_TIMEOUT_S
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            return False
        self._stopping.pop(job.uid, None)
        if record is not None and record["outcome"] is None:
            clear(job.uid, record)
        return True

    def _lock(self, job: Stored) -> Path:
        return lock_path(job_folder(self._state.folder, job.uid))


def _not_running(job: Stored, phase: str, reason: str, message: str) -> Json:
    return {
        "phase": phase,
        "reason": reason,
        "message": message,
        "gpusRequested": _gpus(job),
        "gpusAllocated": 0,
    }


def _gpus(job: Stored) -> int:
    """Return the GPUs that all workers of the job need together."""
    return (job.spec.get("gpus") or 0) * (job.spec.get("workers") or 1)


def _cores(job: Stored) -> float:
    cpu = job.spec.get("cpu")
    return 0.0 if cpu is None else cores(str(cpu)) * (job.spec.get("workers") or 1)


def _order(job: Stored) -> tuple[float, str]:
    return job.created_s, job.uid
