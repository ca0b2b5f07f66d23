"""The supervisor of one job: `python -Pm penstock.jobs.job_supervisor UID`.

The loop takes the job's lock and starts it: first to load the job's data sets, if the job asks for
that; then, once GPUs and cores are allotted, to run its attempts. If it is killed, the loop starts
it again, and it finds a running attempt by the lock of that attempt's keeper: nothing starts twice.
"""

import contextlib
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock import file_locks
from penstock.daemon.warm_client import WarmClient, WarmRequest
from penstock.errors import PenstockError, StoreError
from penstock.jobs.attempt_setup import prepare, start_keeper
from penstock.jobs.job_datasets import missing_data, sources, what_to_load
from penstock.jobs.job_folder import (
    attempt_path,
    job_folder,
    keeper_lock_path,
    lock_path,
    read_record,
)
from penstock.jobs.job_retry import LOST, retry_pause_s
from penstock.jobs.job_status import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    ended_status,
    last_instances,
    shown_instance,
)
from penstock.jobs.processes import clear
from penstock.reconcile.conditions import stamp
from penstock.reconcile.live_status import served_mounts
from penstock.reconcile.loop_control import wake_loop
from penstock.reconcile.resource_process import (
    enter_resource_process,
    is_resource_process,
    release_lock,
)
from penstock.reconcile.snapshot import Snapshot, Stored
from penstock.reconcile.state import State
from penstock.store.redaction import redact
from penstock.units import format_size

log = logging.getLogger(__name__)

Json = dict[str, Any]

_LOOK_S = 0.5
# Keepers of one attempt that die in a row before the job is given up.
_MOST_KEEPERS = 4
# A supervisor that lived this long no longer counts as one of several that die in a row.
_STABLE_S = 10.0
_KEEPER_END_TIMEOUT_S = 20.0


class _DataNotReady(Exception):
    """A data set that was ready when the supervisor was started is not any more."""


class Supervisor:
    def __init__(self, state: State, job: Stored) -> None:
        self._state = state
        self._job = job
        self._folder = job_folder(state.folder, job.uid)
        self._record = attempt_path(self._folder)
        self._lock = keeper_lock_path(self._folder)
        self._shown_notes: set[tuple[str, str]] = set()
        self._seen_ns = 0

    @property
    def has_keeper(self) -> bool:
        """Does an attempt run?"""
        return file_locks.is_held(self._lock)

    def run(self) -> None:
        if self._job.note.get("allotted") is None:
            self._load_data()
            return
        run: str | None = self._job.note.get("run")
        attempt: int = self._job.note.get("attempt", 0)
        if run is None:
            run, attempt = uuid.uuid4().hex, 1
            self._state.record(self._job.uid, note={"run": run, "attempt": attempt})
        while True:
            record = self._run_attempt(run, attempt)
            if record["outcome"] is None:
                clear(self._job.uid, record)
            outcome: Json = record["outcome"] or LOST
            pause_s = retry_pause_s(outcome, attempt, self._job.spec.get("retries") or 0)
            if pause_s is None:
                self._finish(SUCCEEDED if outcome["ok"] else FAILED, outcome, record)
                return
            self._pause(attempt, outcome, record, pause_s)
            attempt += 1
            self._state.record(self._job.uid, note={"attempt": attempt})

    # -- an attempt ----------------------------------------------------------------------

    def _run_attempt(self, run: str, attempt: int) -> Json:
        """Return its keeper's record. Start the attempt, unless it was started before."""
        for _ in range(_MOST_KEEPERS):
            if file_locks.is_held(self._lock):
                self._wait_for_keeper()
            found = read_record(self._record)
            if found is not None and (found["run"], found["attempt"]) == (run, attempt):
                self._show(found)
                return found
            self._start(run, attempt)
        raise PenstockError(
            f"its keeper died {_MOST_KEEPERS} times",
            hint=f"its log: {self._folder / 'supervisor.log'}",
        )

    def _start(self, run: str, attempt: int) -> None:
        self._observe(
            phase=PENDING, reason="Starting", message="its processes are started", attempts=attempt
        )
        snapshot = self._snapshot_with_data()
        prepared = prepare(
            self._state,
            self._job,
            snapshot.resources,
            self._folder,
            run=run,
            number=attempt,
            gpus=tuple(self._job.note["allotted"]["gpus"]),
        )
        lock = file_locks.acquire(self._lock)
        if lock is None:
            return
        start_keeper(self._job, prepared, lock, sys.stderr.fileno())
        names = ", ".join(one.name for one in prepared.instances[:8])
        self._add_event("Started", f"attempt {attempt} ({prepared.launch}): {names}")

    def _snapshot_with_data(self) -> Snapshot:
        snapshot = self._state.snapshot()
        if (why := missing_data(self._job, snapshot.resources, served_mounts())) is not None:
            raise _DataNotReady(why)
        return snapshot

    def _wait_for_keeper(self) -> None:
        ended = threading.Event()

        def wait() -> None:
            lock = file_locks.acquire(self._lock, wait=True)
            assert lock is not None
            os.close(lock)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        started_s = time.monotonic()
        while not ended.wait(_LOOK_S):
            if self._job.note.get("deaths") and time.monotonic() - started_s > _STABLE_S:
                self._state.record(self._job.uid, note={"deaths": None})
            try:
                changed_ns = self._record.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if changed_ns != self._seen_ns and (found := read_record(self._record)) is not None:
                self._seen_ns = changed_ns
                self._show(found)

    def _show(self, record: Json) -> None:
        """Copy the keeper's record into the job's status and events."""
        for reason, message in record["notes"]:
            if (reason, message) not in self._shown_notes:
                self._shown_notes.add((reason, message))
                self._add_event(reason, message)
        instances = [shown_instance(one) for one in record["instances"]]
        if record["outcome"] is not None or not _has_run(record):
            self._observe(instances=instances)
            return
        self._observe(
            phase=RUNNING,
            reason="Running",
            message=f"attempt {record['attempt']} runs",
            gpusAllocated=len(self._job.note["allotted"]["gpus"]),
            instances=instances,
            **self._started(record),
        )

    def _started(self, record: Json) -> Json:
        """Return where the job runs, and since when: the start of its first attempt."""
        now = self._state.by_uid(self._job.uid)
        earlier = now.status.get("startTime") if now is not None else None
        return {"startTime": earlier or stamp(record["begun_s"]), "node": os.uname().nodename}

    def _pause(self, attempt: int, outcome: Json, record: Json, pause_s: float) -> None:
        message = redact(f"attempt {attempt}: {outcome['message']}; next attempt in {pause_s:g}s")
        self._add_event("Retrying", message, kind="Warning")
        self._observe(
            phase=PENDING,
            reason="Retrying",
            message=message,
            instances=last_instances(record, time.time()),
        )
        time.sleep(pause_s)

    # -- before and after ----------------------------------------------------------------

    def _load_data(self) -> None:
        snapshot = self._snapshot_with_data()
        last_s = 0.0

        def report(message: str) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= _LOOK_S:
                last_s = time.monotonic()
                self._observe(phase=PENDING, reason="Loading", message=message)

        names = [one["dataset"] for one in self._job.spec["data"]]
        found = sources(self._job, snapshot.resources)
        places = [
            (name, mountpoint, below)
            for name, (mountpoint, below, _) in zip(names, found, strict=True)
        ]
        _load_datasets(places, report, lambda message: self._add_event("DoesNotFit", message))
        loaded = what_to_load(self._job, snapshot.resources)
        self._state.record(self._job.uid, note={"loaded": loaded, "loading": None, "pid": None})
        self._add_event("Loaded", "its data sets are in the cache, as far as they fit")

    def _finish(self, phase: str, outcome: Json, record: Json | None) -> None:
        now_s = time.time()
        message = redact(outcome["message"])
        hint = outcome.get("hint")
        text = f"{message} (hint: {hint})" if hint else message
        status = ended_status(phase, outcome["reason"], text, record, now_s)
        if record is not None and _has_run(record):
            status |= self._started(record)
        trouble = None if phase == SUCCEEDED else {"what": message, "hint": hint, "exit_code": 2}
        removed: Json = dict.fromkeys(("pid", "allotted", "loading", "deaths"))
        self._state.record(
            self._job.uid, status=status, note={**removed, "ended_s": now_s, "trouble": trouble}
        )
        kind = "Normal" if phase == SUCCEEDED else "Warning"
        self._add_event(outcome["reason"], text, kind=kind)

    def fail(self, reason: str, message: str, hint: str | None = None) -> None:
        self._stop_keeper()
        record = read_record(self._record)
        now = self._state.by_uid(self._job.uid)
        if record is not None and (now is None or record["run"] != now.note.get("run")):
            record = None  # of an earlier run of this job
        if record is not None and record["outcome"] is None:
            clear(self._job.uid, record)
        self._finish(FAILED, {"reason": reason, "message": message, "hint": hint}, record)

    def _stop_keeper(self) -> None:
        """End a running attempt: nothing of a job that has failed may run on."""
        until_s = time.monotonic() + _KEEPER_END_TIMEOUT_S
        while file_locks.is_held(self._lock):
            record = read_record(self._record)
            if record is not None and is_resource_process(self._job.uid, record["keeper"]):
                late = time.monotonic() > until_s
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record["keeper"], signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(_LOOK_S)

    def _observe(self, **status: Any) -> None:
        self._state.record(self._job.uid, status=status)

    def _add_event(self, reason: str, message: str, kind: str = "Normal") -> None:
        self._state.add_event(self._job.uid, reason, redact(message), kind=kind)


def _has_run(record: Json) -> bool:
    return any("begun_s" in one for one in record["instances"])


def _load_datasets(
    places: Iterable[tuple[str, Path, str]],
    report: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Load each (name, mount point, path below it); repeated, it skips what is cached.

    `report` gets the progress, often.
    """
    for name, mountpoint, below in places:

        def progress(load: Json, name: str = name) -> None:
            total = load["bytes"]
            share = 100 * load.get("done_bytes", 0) // total if total else 0
            report(f"loading {name}: {min(share, 99)}%")

        def started(load: Json, name: str = name) -> None:
            if not load["fits"]:
                warn(
                    f"{name}: {format_size(load['bytes'])} are more than the cache holds; about "
                    f"{format_size(load['fitting_bytes'])} will fit"
                )

        report(f"loading {name}")
        with WarmClient(mountpoint, WarmRequest(started=started, progress=progress)) as warming:
            if below:
                warming.add_patterns([below])
            answer = warming.run()
        if answer["failed_files"]:
            first = answer["failures"][0]
            raise StoreError(
                f"{answer['failed_files']:,} of {answer['files']:,} files of {name} could not be "
                f"loaded; {first['path']}: {first['why']}",
                hint="apply the job again: loading continues where it stopped",
            )


def main() -> int:
    if (started := enter_resource_process()) is None:
        return 0
    state, job = started
    if not run_job(state, job):
        return 1
    release_lock(lock_path(job_folder(state.folder, job.uid)))
    wake_loop(state.folder)
    return 0


def run_job(state: State, job: Stored) -> bool:
    """Run the job to its end. False: the outcome could not be read or written down.

    Then the job itself runs on, and the loop starts another supervisor for it.
    """
    supervisor = Supervisor(state, job)
    try:
        supervisor.run()
    except _DataNotReady as error:
        state.record(
            job.uid,
            note={"allotted": None, "loading": None, "pid": None},
            status={
                "phase": PENDING,
                "reason": "DataNotReady",
                "message": str(error),
                "gpusAllocated": 0,
            },
        )
    except PenstockError as error:
        log.warning("%s: %s", job.key, error)
        supervisor.fail("CannotStart", str(error), error.hint)
    except Exception as error:  # a bug is reported in the job's status
        log.exception("%s", job.key)
        # The database has been locked for long, or the disk is full.
        if isinstance(error, sqlite3.Error) or (
            isinstance(error, OSError) and supervisor.has_keeper
        ):
            return False
        supervisor.fail("Bug", f"{type(error).__name__}: {error}")
    return True


if __name__ == "__main__":
    sys.exit(main())
