"""Start, watch, retry and remove data operations. Called by the loop.

Each operation runs in a process of its own (`penstock.operations.main`), which holds the lock in
the operation's folder until it ends.
"""

import logging
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from penstock import file_locks
from penstock.operations.schedule import Action, decide
from penstock.reconcile.conditions import (
    BOUND,
    COMPLETE,
    EXECUTING,
    FAILED,
    PENDING,
    Condition,
    stamp,
    with_conditions,
)
from penstock.reconcile.live_status import ask_brief
from penstock.reconcile.resource_process import end_resource_process, start_resource_process
from penstock.reconcile.snapshot import Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import model_of

log = logging.getLogger(__name__)

Json = dict[str, Any]

# Crashes in a row without progress.
_MOST_CRASHES = 5
_WORKER = "penstock.operations.main"


def _folder(state: Path, uid: str) -> Path:
    return state / "operations" / uid


def log_of(state: Path, uid: str, kind: str = "") -> Path:
    """Return the file to which an operation prints. Of a DataProcess, that is what its script
    prints; its own log has only what went wrong before."""
    return _folder(state, uid) / ("output" if kind == "DataProcess" else "log")


class OperationRunner:
    def __init__(self, state: State) -> None:
        self._state = state
        self._children: list[subprocess.Popen[bytes]] = []

    def step(self, snapshot: Snapshot, *, leaving: bool) -> bool:
        """Start and remove what is due. True while an operation runs or is due soon.

        `leaving`: the loop is about to end, and starts nothing.
        """
        self._children = [child for child in self._children if child.poll() is None]
        busy = False
        for operation in snapshot.operations():
            if operation.deleting is not None:
                busy |= not self._remove(operation)
            elif file_locks.is_held(self._lock(operation)):
                busy = True
            elif not leaving:
                busy |= self._advance(snapshot, operation)
        return busy

    def _advance(self, snapshot: Snapshot, operation: Stored) -> bool:
        """Start an idle operation if it is due. True if it runs now, or will soon."""
        if operation.status.get("phase") == EXECUTING:
            # It may have ended after the snapshot was taken and before its lock was looked at.
            now = self._state.by_uid(operation.uid)
            return now is None or now.status.get("phase") != EXECUTING or self._restart(now)
        decision = decide(
            model_of(operation.manifest),
            operation.status,
            time.time(),
            preceding_done=self._preceding_done(snapshot, operation),
            last_change=self._last_change(snapshot, operation),
            created_s=operation.created_s,
        )
        if decision.action is Action.EXPIRE:
            self._state.add_event(operation.uid, "Expired", "ttlSecondsAfterFinished has passed")
            self._remove(operation)
        elif decision.action is Action.START:
            if (missing := self._not_bound(snapshot, operation)) is not None:
                self._wait(operation, f"data set {missing} is not bound")
                return False  # the loop is woken when it is bound
            if decision.change is not None:
                self._state.record(operation.uid, status={"lastChange": decision.change})
            self._start(operation)
            return True
        elif decision.action is Action.WAIT:
            failed = self._preceding_failed(snapshot, operation)
            why = decision.why.replace("is not complete", "failed") if failed else decision.why
            self._wait(operation, why)
            return decision.until_s is not None and decision.until_s - time.time() < 60
        return False

    def _start(self, operation: Stored) -> None:
        folder = self.folder(operation.uid)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = file_locks.acquire(self._lock(operation))
        if lock is None:
            return
        now_s = time.time()
        # Before it starts: its own reports, the last of which may be that it is done, come later.
        self._state.record(
            operation.uid,
            status={
                "phase": EXECUTING,
                "duration": "Unfinished",
                "conditions": [],
                "lastScheduleTime": stamp(now_s),
                "progress": None,
            },
            note={"pid": None, "begun_s": operation.note.get("begun_s") or now_s},
        )
        log = log_of(self._state.folder, operation.uid)
        child = start_resource_process(_WORKER, operation.uid, lock, log)
        self._children.append(child)
        self._state.add_event(operation.uid, "Started", f"as process {child.pid}")

    def _restart(self, operation: Stored) -> bool:
        """Restart an operation whose process crashed; fail it after too many crashes."""
        progress: Json = operation.status.get("progress") or {}
        far = [progress.get("files", 0), progress.get("bytes", 0)]
        crashes = 1 if far != operation.note.get("far") else operation.note.get("deaths", 0) + 1
        if crashes > _MOST_CRASHES:
            self.finish(
                operation, FAILED, "Died", f"its process crashed {crashes} times without progress"
            )
            return False
        self._state.record(operation.uid, note={"deaths": crashes, "far": far})
        self._state.add_event(
            operation.uid, "Died", "its process ended; it is restarted", kind="Warning"
        )
        self._start(operation)
        return True

    def finish(
        self,
        operation: Stored,
        phase: str,
        reason: str,
        message: str,
        *,
        infos: Json | None = None,
        failure: Json | None = None,
    ) -> None:
        """Record the end. `failure` has what, hint and exit_code, for a client that waits."""
        now_s = time.time()
        begun_s = operation.note.get("begun_s", now_s)
        status = {
            "phase": phase,
            "duration": duration(now_s - begun_s),
            "conditions": with_conditions(
                [], [Condition(phase, True, reason, message)], now_s, probed=True
            ),
            **({"infos": infos} if infos else {}),
            **({"lastSuccessfulTime": stamp(now_s)} if phase == COMPLETE else {}),
        }
        gone: Json = dict.fromkeys(("pid", "begun_s", "deaths", "far"))
        self._state.record(operation.uid, status=status, note={**gone, "trouble": failure})
        kind = "Warning" if phase == FAILED else "Normal"
        self._state.add_event(operation.uid, reason, message, kind=kind)

    def _wait(self, operation: Stored, why: str) -> None:
        if operation.status.get("phase") in (COMPLETE, FAILED):
            return  # it keeps its phase until it starts again
        if operation.note.get("waits") != why:
            self._state.record(
                operation.uid,
                status={"phase": PENDING, "duration": "Unfinished"},
                note={"waits": why},
            )
            self._state.add_event(operation.uid, "Waiting", why)

    def _remove(self, operation: Stored) -> bool:
        """End and remove it. False if its process has not ended yet: try again."""
        end_resource_process(operation.uid, operation.note.get("pid"))
        if file_locks.is_held(self._lock(operation)):
            return False
        shutil.rmtree(self.folder(operation.uid), ignore_errors=True)
        self._state.forget(operation.uid)
        return True

    def folder(self, uid: str) -> Path:
        return _folder(self._state.folder, uid)

    def _lock(self, operation: Stored) -> Path:
        return self.folder(operation.uid) / "lock"

    # -- dependencies --------------------------------------------------------------------

    def _preceding_done(self, snapshot: Snapshot, operation: Stored) -> bool | None:
        """Whether the operation of runAfter is complete; None if there is none."""
        after = operation.spec.get("runAfter")
        if not after:
            return None
        namespace = after.get("namespace") or operation.key.namespace
        found = snapshot.resources.get(ResourceKey(after["kind"], namespace, after["name"]))
        return found is not None and found.status.get("phase") == COMPLETE

    def _preceding_failed(self, snapshot: Snapshot, operation: Stored) -> bool:
        after: Json = operation.spec.get("runAfter") or {}
        namespace = after.get("namespace") or operation.key.namespace
        key = ResourceKey(after.get("kind", ""), namespace, after.get("name", ""))
        found = snapshot.resources.get(key)
        return found is not None and found.status.get("phase") == FAILED

    def _last_change(self, snapshot: Snapshot, operation: Stored) -> int | None:
        if operation.spec.get("policy") != "OnEvent":
            return None
        for key in operation_datasets(operation):
            found = snapshot.resources.get(key)
            if found is not None and "mountpoint" in found.note:
                brief = ask_brief(Path(found.note["mountpoint"]))
                return None if brief is None else brief["last_change"]
        return None

    def _not_bound(self, snapshot: Snapshot, operation: Stored) -> str | None:
        for key in sorted(operation_datasets(operation)):
            found = snapshot.resources.get(key)
            if found is None or found.status.get("phase") != BOUND:
                return f"{key.namespace}/{key.name}"
        return None


def duration(seconds: float) -> str:
    """Format a duration as Go does: 1m3s."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return text + f"{whole % 60}s"
