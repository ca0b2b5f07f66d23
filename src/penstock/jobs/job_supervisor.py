"""The supervisor of one job: `python -Pm penstock.jobs.job_supervisor UID`.

Started by the loop, which has taken the lock for it: to load the job's data sets, if it wants them
loaded first; then, when it was allotted what it needs, to see its attempts through. Killed, it is
started again, and finds the attempt that runs by the lock of its keeper: nothing is started twice.
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

from penstock.daemon import locks
from penstock.daemon.warming import Warming, Wish
from penstock.errors import PenstockError, StoreError
from penstock.jobs.attempt_setup import KEEPER, prepare, start_keeper
from penstock.jobs.job_datasets import missing_data, sources, what_to_load
from penstock.jobs.job_folder import (
    attempt_path,
    job_folder,
    keeper_lock_path,
    lock_path,
    read_record,
)
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
from penstock.reconcile.resource_process import is_worker, release_lock, start_as_worker
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.store.redaction import redact
from penstock.units import format_size

# Loads the data sets of a job before it starts. Begun again, it passes over what is cached.


def load_first(
    places: Iterable[tuple[str, Path, str]],
    tell: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """(name, mount point, path below it) of each. `tell` gets how far it is, often; `note` what
    should be remembered."""
    for name, mountpoint, below in places:

        def progress(told: dict[str, Any], name: str = name) -> None:
            total = told["bytes"]
            share = 100 * told.get("done_bytes", 0) // total if total else 0
            tell(f"loading {name}: {min(share, 99)}%")

        def started(told: dict[str, Any], name: str = name) -> None:
            if not told["fits"]:
                note(
                    f"{name}: {format_size(told['bytes'])} are more than the cache holds; about "
                    f"{format_size(told['fitting_bytes'])} will fit"
                )

        tell(f"loading {name}")
        with Warming(mountpoint, Wish(started=started, progress=progress)) as warming:
            if below:
                warming.add_patterns([below])
            answer = warming.run()
        if answer["failed_files"]:
            first = answer["failures"][0]
            raise StoreError(
                f"{answer['failed_files']:,} of {answer['files']:,} files of {name} could not be "
                f"loaded; {first['path']}: {first['why']}",
                hint="applied again, it goes on where it was",
            )


log = logging.getLogger(__name__)

Json = dict[str, Any]

_LOOK_S = 0.5
_MOST_KEEPERS = 4
# One that has lived so long is not counted among those that die one after the other.
_ALIVE_S = 10.0
_KEEPER_ENDS_WITHIN_S = 20.0
# Before the second attempt, the third, …: as a pod that fails again and again.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0


class _NotThere(Exception):
    """A data set that was there when the supervisor was started."""


class Supervisor:
    def __init__(self, state: State, job: Stored) -> None:
        self._state = state
        self._job = job
        self._folder = job_folder(state.folder, job.uid)
        self._record = attempt_path(self._folder)
        self._lock = keeper_lock_path(self._folder)
        self._told: set[tuple[str, str]] = set()
        self._seen_ns = 0

    @property
    def is_kept(self) -> bool:
        """Whether an attempt runs."""
        return locks.is_taken(self._lock)

    def run(self) -> None:
        if self._job.note.get("allotted") is None:
            self._load_data()
            return
        run: str | None = self._job.note.get("run")
        number: int = self._job.note.get("attempt", 0)
        if run is None:
            run, number = uuid.uuid4().hex, 1
            self._state.observe(self._job.uid, note={"run": run, "attempt": number})
        while True:
            record = self._see_through(run, number)
            if record["outcome"] is None:
                clear(self._job.uid, record)
            outcome: Json = record["outcome"] or _LOST
            if outcome["ok"]:
                self._finish(SUCCEEDED, outcome, record)
                return
            retries = self._job.spec.get("retries") or 0
            if outcome.get("final") or number > retries:
                self._finish(FAILED, outcome, record)
                return
            self._pause(number, outcome, record)
            number += 1
            self._state.observe(self._job.uid, note={"attempt": number})

    # -- an attempt ----------------------------------------------------------------------

    def _see_through(self, run: str, number: int) -> Json:
        """What its keeper wrote of it. Starts it, unless it was started before."""
        for _ in range(_MOST_KEEPERS):
            if locks.is_taken(self._lock):
                self._wait_for_keeper()
            found = read_record(self._record)
            if found is not None and (found["run"], found["attempt"]) == (run, number):
                self._show(found)
                return found
            self._start(run, number)
        raise PenstockError(
            f"its keeper ended {_MOST_KEEPERS} times without a word",
            hint=f"its log: {self._folder / 'supervisor.log'}",
        )

    def _start(self, run: str, number: int) -> None:
        self._observe(
            phase=PENDING, reason="Starting", message="its processes are started", attempts=number
        )
        snapshot = self._state.snapshot()
        if (why := missing_data(self._job, snapshot.resources, served_mounts())) is not None:
            raise _NotThere(why)
        gpus = tuple(self._job.note["allotted"]["gpus"])
        attempt = prepare(
            self._state,
            self._job,
            snapshot.resources,
            self._folder,
            run=run,
            number=number,
            gpus=gpus,
        )
        lock = locks.take(self._lock)
        if lock is None:
            return
        start_keeper(self._job, attempt, lock, sys.stderr.fileno())
        names = ", ".join(one.name for one in attempt.instances[:8])
        self._tell("Started", f"attempt {number} ({attempt.launch}): {names}")

    def _wait_for_keeper(self) -> None:
        ended = threading.Event()

        def wait() -> None:
            lock = locks.take(self._lock, wait=True)
            assert lock is not None
            os.close(lock)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        lived_s = time.monotonic()
        while not ended.wait(_LOOK_S):
            if self._job.note.get("deaths") and time.monotonic() - lived_s > _ALIVE_S:
                self._state.observe(self._job.uid, note={"deaths": None})
            try:
                changed_ns = self._record.stat().st_mtime_ns
            except FileNotFoundError:
                continue
            if changed_ns != self._seen_ns and (found := read_record(self._record)) is not None:
                self._seen_ns = changed_ns
                self._show(found)

    def _show(self, record: Json) -> None:
        for reason, message in record["notes"]:
            if (reason, message) not in self._told:
                self._told.add((reason, message))
                self._tell(reason, message)
        instances = [shown_instance(one) for one in record["instances"]]
        if record["outcome"] is not None or not any(
            "begun_s" in one for one in record["instances"]
        ):
            self._observe(instances=instances)
            return
        now = self._state.by_uid(self._job.uid)
        begun = now.status.get("startTime") if now is not None else None
        gpus = self._job.note["allotted"]["gpus"]
        self._observe(
            phase=RUNNING,
            reason="Running",
            message=f"attempt {record['attempt']} runs",
            startTime=begun or stamp(record["begun_s"]),
            gpusAllocated=len(gpus),
            node=os.uname().nodename,
            instances=instances,
        )

    def _pause(self, number: int, outcome: Json, record: Json) -> None:
        pause_s = min(_FIRST_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
        message = redact(f"attempt {number}: {outcome['message']}; again in {pause_s:g}s")
        self._tell("Retrying", message, kind="Warning")
        self._observe(
            phase=PENDING,
            reason="Retrying",
            message=message,
            instances=last_instances(record, time.time()),
        )
        time.sleep(pause_s)

    # -- before and after ----------------------------------------------------------------

    def _load_data(self) -> None:
        # merged

        snapshot = self._state.snapshot()
        if (why := missing_data(self._job, snapshot.resources, served_mounts())) is not None:
            raise _NotThere(why)
        last_s = 0.0

        def tell(message: str) -> None:
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
        load_first(places, tell, lambda message: self._tell("DoesNotFit", message))
        loaded = what_to_load(self._job, snapshot.resources)
        self._state.observe(self._job.uid, note={"loaded": loaded, "loading": None, "pid": None})
        self._tell("Loaded", "its data sets are in the cache, as far as they fit")

    def _finish(self, phase: str, outcome: Json, record: Json | None) -> None:
        now_s = time.time()
        message = redact(outcome["message"])
        hint = outcome.get("hint")
        said = f"{message} (hint: {hint})" if hint else message
        status = ended_status(phase, outcome["reason"], said, record, now_s)
        if record is not None and any("begun_s" in one for one in record["instances"]):
            now = self._state.by_uid(self._job.uid)
            begun = now.status.get("startTime") if now is not None else None
            status |= {"startTime": begun or stamp(record["begun_s"]), "node": os.uname().nodename}
        trouble = None if phase == SUCCEEDED else {"what": message, "hint": hint, "exit_code": 2}
        gone: Json = dict.fromkeys(("pid", "allotted", "loading", "deaths"))
        self._state.observe(
            self._job.uid, status=status, note={**gone, "ended_s": now_s, "trouble": trouble}
        )
        kind = "Normal" if phase == SUCCEEDED else "Warning"
        self._tell(outcome["reason"], said, kind=kind)

    def fail(self, reason: str, message: str, hint: str | None = None) -> None:
        self._stop_keeper()
        record = read_record(self._record)
        now = self._state.by_uid(self._job.uid)
        if record is not None and (now is None or record["run"] != now.note.get("run")):
            record = None  # of a run before this one
        if record is not None and record["outcome"] is None:
            clear(self._job.uid, record)
        self._finish(FAILED, {"reason": reason, "message": message, "hint": hint}, record)

    def _stop_keeper(self) -> None:
        """Nothing goes on of a job that has failed."""
        until_s = time.monotonic() + _KEEPER_ENDS_WITHIN_S
        while locks.is_taken(self._lock):
            record = read_record(self._record)
            if record is not None and is_worker(KEEPER, self._job.uid, record["keeper"]):
                late = time.monotonic() > until_s
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record["keeper"], signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(_LOOK_S)

    def _observe(self, **status: Any) -> None:
        self._state.observe(self._job.uid, status=status)

    def _tell(self, reason: str, message: str, kind: str = "Normal") -> None:
        self._state.add_event(self._job.uid, reason, redact(message), kind=kind)


_LOST: Json = {
    "ok": False,
    "reason": "Lost",
    "message": "its processes are gone: they were killed, or the machine was restarted",
}


def main() -> int:
    if (begun := start_as_worker()) is None:
        return 0
    state, job = begun
    if not run_job(state, job):
        return 1
    release_lock(lock_path(job_folder(state.folder, job.uid)))
    wake_loop(state.folder)
    return 0


def run_job(state: State, job: Stored) -> bool:
    """False: what happened could not be read or written down. The job goes on without us, and the
    loop has another look for it."""
    supervisor = Supervisor(state, job)
    try:
        supervisor.run()
    except _NotThere as error:
        state.observe(
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
    except Exception as error:  # a bug is told where people look
        log.exception("%s", job.key)
        # A database that somebody has locked for long, or a full disk.
        if isinstance(error, sqlite3.Error) or (isinstance(error, OSError) and supervisor.is_kept):
            return False
        supervisor.fail("Bug", f"{type(error).__name__}: {error}")
    return True


if __name__ == "__main__":
    sys.exit(main())
