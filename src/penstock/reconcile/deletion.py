"""Mark resources to be deleted, unless they are in use; the loop does the rest."""

import time
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import InUse
from penstock.fuse.holders import holders
from penstock.jobs.job_datasets import job_datasets
from penstock.jobs.job_status import ENDED
from penstock.reconcile.conditions import EXECUTING
from penstock.reconcile.snapshot import RUNTIMES, Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.specs.kinds import KINDS

# Nothing is made of these on this machine.
_STATE_ONLY = ("secret", "profile")


def delete(state: State, doomed: Sequence[Stored], *, force: bool = False) -> None:
    """Delete all of them or none. `force`: also a data set that is in use; its open files fail."""
    if not force:
        # Outside the transaction: it looks at all processes, and writers must not wait for that.
        # A process that opens a file in between keeps the data set from being unmounted.
        snapshot = state.snapshot()
        for dataset in filter(None, (_dataset_of(snapshot, one) for one in doomed)):
            refuse_if_read(dataset)
    with state.transaction():
        snapshot = state.snapshot()
        if not force:
            for one in doomed:
                _refuse_if_needed(snapshot, one, {other.uid for other in doomed})
        for one in doomed:
            if KINDS[one.key.kind].category in _STATE_ONLY:
                state.forget(one.uid)
            else:
                state.mark_deleted(one.uid, {"at_s": time.time(), "force": force})


def _dataset_of(snapshot: Snapshot, one: Stored) -> Stored | None:
    """Return the data set that is deleted or unmounted with this resource."""
    if one.key.kind != "Dataset" and one.key.kind not in RUNTIMES:
        return None
    pair = snapshot.pair(one.key.namespace, one.key.name)
    if one.key.kind in RUNTIMES and (pair.runtime is None or one.uid != pair.runtime.uid):
        return None
    return pair.dataset


def _refuse_if_needed(snapshot: Snapshot, one: Stored, doomed: set[str]) -> None:
    dataset = _dataset_of(snapshot, one)
    if dataset is None:
        return
    key = dataset.key
    label = f"{one.key.kind.lower()} {one.key.name}"
    referring = [
        other for other in snapshot.referring_to(key) if snapshot.resources[other].uid not in doomed
    ]
    if referring:
        names = ", ".join(f"{other.namespace}/{other.name}" for other in referring)
        raise InUse(f"{label} is mounted by other data sets: {names}", hint="delete those first")
    for operation in snapshot.operations():
        if operation.uid in doomed or operation.status.get("phase") != EXECUTING:
            continue
        if key in operation_datasets(operation):
            raise InUse(
                f"{label}: {operation.key.kind} {operation.key.name} uses it",
                hint="wait for it, or delete it first",
            )
    for job in snapshot.jobs():
        phase = job.status.get("phase")
        if job.uid not in doomed and phase not in ENDED and key in job_datasets(job):
            raise InUse(
                f"{label}: job {job.key.name} is {phase or 'PENDING'} and uses it",
                hint="wait for it, or delete it first",
            )


def refuse_if_read(dataset: Stored) -> None:
    if "mountpoint" not in dataset.note:
        return
    # This process counts too: a notebook with an open file would wait for itself.
    found = holders(Path(dataset.note["mountpoint"]), skip_self=False)
    if found.processes or found.mounted_inside:
        lines = "\n  ".join(found.lines())
        raise InUse(f"dataset {dataset.key.name} is in use:\n  {lines}")
