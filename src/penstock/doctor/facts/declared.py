"""What is declared, and who works on it: resources, the loop, operations. Reads the state only."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.daemon import locks
from penstock.mounttable import mount_table
from penstock.reconcile.loop_control import is_running
from penstock.reconcile.snapshot import Event, Pair, Snapshot, Stored, operation_datasets
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class LoopSeen:
    runs: bool
    log: str
    last_words: str  # of its log, where they speak of trouble


@dataclass(frozen=True, slots=True)
class DatasetSeen:
    name: str  # as people call it: with its namespace if that is another than `default`
    namespace: str
    plain_name: str
    phase: str
    has_runtime: bool
    second_runtimes: tuple[str, ...]
    settled: bool
    deleting_s: float | None  # for how long
    conditions: tuple[Json, ...]
    trouble: Json | None
    retry_in_s: float | None
    mountpoint: str | None
    mounted: bool
    warnings: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class OperationSeen:
    name: str
    kind: str
    plain_name: str
    namespace: str
    phase: str
    policy: str
    message: str  # of its last condition
    waits_for: str | None
    runs: bool
    running_s: float | None  # since it was begun
    silent_s: float | None  # since it last wrote anything
    progress: Json | None
    unbound: tuple[str, ...]  # data sets that it needs and that are not bound
    log: str


def look_at_loop(folder: Path) -> LoopSeen:
    log = folder / "logs" / "loop.log"
    return LoopSeen(is_running(folder), str(log), last_trouble(tail(log, _TAIL_BYTES)))


def look_at_dataset(state: State, snapshot: Snapshot, pair: Pair) -> DatasetSeen:
    dataset = pair.dataset
    assert dataset is not None
    now_s = time.time()
    mountpoint = dataset.note.get("mountpoint")
    retry_at_s = dataset.note.get("retry_at_s")
    return DatasetSeen(
        name=label(dataset.key),
        namespace=pair.namespace,
        plain_name=pair.name,
        phase=dataset.status.get("phase", ""),
        has_runtime=pair.runtime is not None,
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


def look_at_operation(state: State, snapshot: Snapshot, operation: Stored) -> OperationSeen:
    now_s = time.time()
    folder = state.folder / "operations" / operation.uid
    begun_s = operation.note.get("begun_s")
    conditions: list[Json] = operation.status.get("conditions") or []
    return OperationSeen(
        name=f"{operation.key.kind.lower()}/{label(operation.key)}",
        kind=operation.key.kind,
        plain_name=operation.key.name,
        namespace=operation.key.namespace,
        phase=operation.status.get("phase", ""),
        policy=operation.spec.get("policy") or "Once",
        message=conditions[-1]["message"] if conditions else "",
        waits_for=operation.note.get("waits"),
        runs=locks.is_taken(folder / "lock"),
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
    """Whole lines from the end of a file; "" if there is none."""
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


def last_trouble(log: str) -> str:
    """The last line of a log that tells of trouble: of a traceback, what was raised."""
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
        pass  # it is being cleared away
    return times


def _phase(snapshot: Snapshot, key: ResourceKey) -> str | None:
    found = snapshot.resources.get(key)
    return None if found is None else found.status.get("phase")
