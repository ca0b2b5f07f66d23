"""Wait until resources are as they were declared, or cannot be. Waiting changes nothing."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.jobs.job_status import ENDED
from penstock.reconcile.conditions import COMPLETE, FAILED
from penstock.reconcile.loop_control import is_running, wake_loop
from penstock.reconcile.snapshot import Pair, Snapshot, Stored, references
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey

_LOOK_S = 0.05
_MOST_LOOPS = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a data set could not be bound, or an operation or job failed."""

    key: ResourceKey
    what: str
    hint: str | None
    exit_code: int


def failure_of(stored: Stored) -> Failure:
    trouble: dict[str, Any] | None = stored.note.get("trouble")
    return Failure(stored.key, **trouble) if trouble else Failure(stored.key, "failed", None, 1)


def wait_for_pairs(
    state: State,
    names: Iterable[tuple[str, str]],
    *,
    timeout_s: float | None = None,
    on_update: Callable[[list[Pair]], None] = lambda _: None,
) -> list[Failure]:
    """Wait until each of these pairs is settled; `on_update` gets those that are not yet."""
    waiting = set(names)
    failures: list[Failure] = []

    def look() -> bool:
        snapshot = state.snapshot()
        open_pairs: list[Pair] = []
        for name in sorted(waiting):
            pair = snapshot.pair(*name)
            if not _is_settled(snapshot, pair):
                open_pairs.append(pair)
                continue
            waiting.discard(name)
            if pair.dataset is not None and "trouble" in pair.dataset.note:
                failures.append(failure_of(pair.dataset))
        on_update(open_pairs)
        return not waiting

    _wait(state, look, timeout_s, "data sets: " + ", ".join(name for _, name in sorted(waiting)))
    return failures


def wait_for_operation(
    state: State,
    key: ResourceKey,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[Stored], None] = lambda _: None,
) -> Stored:
    """Wait until it is Complete or Failed; raises if it is deleted meanwhile."""
    return _wait_for_phase(state, key, (COMPLETE, FAILED), timeout_s, on_update)


def wait_for_job(
    state: State,
    key: ResourceKey,
    *,
    timeout_s: float | None = None,
    on_update: Callable[[Stored], None] = lambda _: None,
) -> Stored:
    """Wait until it has SUCCEEDED or FAILED; raises if it is deleted meanwhile."""
    return _wait_for_phase(state, key, ENDED, timeout_s, on_update)


def _wait_for_phase(
    state: State,
    key: ResourceKey,
    phases: Collection[str],
    timeout_s: float | None,
    on_update: Callable[[Stored], None],
) -> Stored:
    last: list[Stored] = []

    def look() -> bool:
        found = state.find(key)
        if found is None:
            raise PenstockError(f"{key} was deleted")
        on_update(found)
        last[:] = [found]
        return found.status.get("phase") in phases

    _wait(state, look, timeout_s, str(key))
    return last[0]


def wait_until_gone(
    state: State, keys: Iterable[ResourceKey], *, timeout_s: float | None = None
) -> None:
    waiting = set(keys)

    def look() -> bool:
        for key in list(waiting):
            found = state.find(key)
            if found is None or found.deleting is None:
                waiting.discard(key)
        return not waiting

    _wait(state, look, timeout_s, ", ".join(map(str, sorted(waiting))))


def _is_settled(snapshot: Snapshot, pair: Pair, seen: tuple[str, ...] = ()) -> bool:
    owner = pair.dataset or pair.runtime
    if owner is None:
        return True
    if any(one is not None and one.deleting is not None for one in (pair.dataset, pair.runtime)):
        return False
    if pair.dataset is not None and pair.is_reference and pair.label not in seen:
        for key in references(pair.dataset):  # it is bound only after these
            other = snapshot.pair(key.namespace, key.name)
            if not _is_settled(snapshot, other, (*seen, pair.label)):
                return False
    return owner.note.get("settled") == snapshot.fingerprint(pair)


def _wait(state: State, look: Callable[[], bool], timeout_s: float | None, what: str) -> None:
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    loops = 0
    while not look():
        if until_s is not None and time.monotonic() >= until_s:
            raise PenstockError(f"{what}: not done within {timeout_s:g} s")
        if not is_running(state.folder):
            if loops == _MOST_LOOPS:
                raise PenstockError(
                    f"{what}: the loop ended {_MOST_LOOPS} times before it was done",
                    hint=f"its log: {state.folder / 'logs' / 'loop.log'}",
                )
            loops += 1
            wake_loop(state.folder)
        time.sleep(_LOOK_S)
