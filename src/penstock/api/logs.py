"""What jobs, data operations and mounts print: which file has it, and whether more will come.

A `Log` is found by a name as people write it: a job or an operation by its own name, KIND/NAME
where that could be several, a path for a mount.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.api.jobs import TrainingJob, job
from penstock.api.resources import Dataset, Declared, Operation, dataset, get, get_all
from penstock.daemon.mount_registry import all_notes, resolve_mountpoint
from penstock.errors import MountpointError, OptionError, UsageError
from penstock.operations.lifecycle import log_of
from penstock.paths import logs_dir, name_of
from penstock.reconcile.conditions import COMPLETE, FAILED
from penstock.reconcile.state import State
from penstock.specs.kinds import KINDS, find_kind

_OPERATIONS: Final = tuple(one.kind for one in KINDS.values() if one.category == "operation")
_JOB: Final = "TrainingJob"


class Log(Protocol):
    @property
    def path(self) -> Path | None:
        """The file; None while there is none. What was in it before it was full is in PATH.1."""
        ...

    def has_ended(self) -> bool:
        """Look again, and return whether nothing will be printed any more."""
        ...

    def describe(self, *, has_log: bool) -> str:
        """One line about whose log it is, as of the last look."""
        ...


@dataclass(slots=True)
class JobLog:
    job: TrainingJob
    instance: str | None

    @property
    def path(self) -> Path | None:
        return self.job.log_path(self.instance)

    def has_ended(self) -> bool:
        return self.job.refresh().has_ended

    def describe(self, *, has_log: bool) -> str:
        why = f": {self.job.message}" if self.job.message else ""
        if self.job.has_ended:
            nothing = "" if has_log else ", and has printed nothing"
            return f"job {self.job.name} {self.job.phase} after {self.job.duration}{nothing}{why}"
        return f"job {self.job.name} is {self.job.phase}, and has printed nothing yet{why}"


@dataclass(slots=True)
class OperationLog:
    operation: Operation

    @property
    def path(self) -> Path | None:
        path = log_of(State().folder, self.operation.uid, self.operation.kind)
        return path if path.exists() else None

    def has_ended(self) -> bool:
        return self.operation.refresh().phase in (COMPLETE, FAILED)

    def describe(self, *, has_log: bool) -> str:
        one = self.operation
        what = f"{one.kind.lower()} {one.name}"
        why = "".join(f": {found['message']}" for found in one.conditions if one.phase == FAILED)
        if one.phase in (COMPLETE, FAILED):
            nothing = "" if has_log else ", and has printed nothing"
            return f"{what} {one.phase} after {one.status.get('duration')}{nothing}{why}"
        return f"{what} is {one.phase or 'Pending'}, and has printed nothing yet"


@dataclass(slots=True)
class MountLog:
    mountpoint: Path
    _path: Path | None

    @property
    def path(self) -> Path | None:
        return self._path if self._path is not None and self._path.exists() else None

    def has_ended(self) -> bool:
        return not any(
            note.mountpoint == str(self.mountpoint) and note.alive for note in all_notes()
        )

    def describe(self, *, has_log: bool) -> str:
        nothing = "" if has_log else ", and nothing was logged"
        return f"{self.mountpoint} is not mounted any more{nothing}"


def find_log(
    name: str, *, namespace: str | None = None, instance: str | None = None
) -> JobLog | OperationLog | MountLog:
    """Return the log that a name means: `resnet`, `dataload/warm`, `dataset/imagenet`, `/mnt/x`."""
    found = _found(name, namespace or "default", instance)
    if instance is not None and not isinstance(found, JobLog):
        raise OptionError(
            f"--instance: {name} has no instances", hint="only training jobs consist of instances"
        )
    return found


def _found(name: str, namespace: str, instance: str | None) -> JobLog | OperationLog | MountLog:
    kind, has_kind, rest = name.partition("/")
    if name.startswith(("/", ".")) or (has_kind and _is_mounted(resolve_mountpoint(name))):
        return _log_of_mount(resolve_mountpoint(name))
    if has_kind:
        return _log_of_kind(find_kind(kind).kind, rest, namespace, instance)
    named = [one for one in get_all("job,operations", namespace=namespace) if one.name == name]
    if len(named) > 1:
        words = " or ".join(f"penstock logs {one.kind.lower()}/{name}" for one in named)
        raise UsageError(f"{name} are several: {_kinds(named)}", hint=words)
    if named:
        return _log_of_kind(named[0].kind, name, namespace, instance)
    if any(one.name == name for one in get_all("Dataset", namespace=namespace)):
        return _log_of_dataset(dataset(name, namespace=namespace))
    return JobLog(job(name, namespace=namespace), instance)  # raises, with a hint


def _is_mounted(path: Path) -> bool:
    return any(note.mountpoint == str(path) for note in all_notes())


def _kinds(found: Sequence[Declared]) -> str:
    return " and ".join(f"a {one.kind}" for one in found)


def _log_of_kind(
    kind: str, name: str, namespace: str, instance: str | None
) -> JobLog | OperationLog | MountLog:
    if kind == _JOB:
        return JobLog(job(name, namespace=namespace), instance)
    if kind != "Dataset" and kind not in _OPERATIONS:
        raise UsageError(
            f"a {kind} prints nothing",
            hint="jobs, data operations and mounts have logs: penstock logs dataset/NAME",
        )
    found = get(kind, name, namespace=namespace)
    if isinstance(found, Operation):
        return OperationLog(found)
    assert isinstance(found, Dataset)
    return _log_of_dataset(found)


def _log_of_dataset(found: Dataset) -> MountLog:
    path = found.path
    if path is None:
        raise UsageError(
            f"data set {found.name} is not mounted",
            hint=f"penstock describe dataset {found.name}",
        )
    return _log_of_mount(path)


def _log_of_mount(mountpoint: Path) -> MountLog:
    """Of a mount that is over, the log is still there."""
    note = next((one for one in all_notes() if one.mountpoint == str(mountpoint)), None)
    if note is not None and note.log is None:
        raise UsageError(
            f"{mountpoint} is a mount in the foreground",
            hint="it logs to its terminal; penstock mount -b keeps a log",
        )
    path = logs_dir() / f"{name_of(mountpoint)}.log" if note is None else Path(note.log or "")
    if note is None and not path.exists():
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted by you",
        )
    return MountLog(mountpoint, path)
