"""The state machine of a Dataset and its runtime: what to do next, and the statuses to write. Pure.

                  mount made                     its runtime is removed
    NotBound ──────────────────────> Bound ──────────────────────────────> NotBound
       │                               │
       │ mount fails                   │ a change fails: stays Bound, with Ready=False,
       ▼                               │ while the mount is served; else Failed
     Failed ──> retried with backoff, and at once when the pair's fingerprint changes

A Dataset is NotBound without a runtime of its name, or while its nodeAffinity excludes this
machine. Only `datasets` acts on this machine; this module neither looks at it nor writes anything.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, SpecProblem, UsageError
from penstock.fluid.plan import MountPlan
from penstock.reconcile.conditions import (
    BOUND,
    FAILED,
    NOT_BOUND,
    NOT_READY,
    PARTIAL_READY,
    READY,
    WITHOUT_EFFECT,
    Condition,
    dataset_amounts,
    with_conditions,
)
from penstock.reconcile.snapshot import Pair, Served, Stored
from penstock.specs.models import model_of
from penstock.specs.schema import NoEffect, fields_without_effect

Json = dict[str, Any]


def _all_effects(_resource: Stored, effects: list[NoEffect]) -> list[NoEffect]:
    return effects


@dataclass(frozen=True, slots=True)
class Site:
    """Where a pair's servers run, as far as its statuses say so."""

    reason: str  # of the condition that names what has no effect there
    restart_hint: str  # {name}: the data set's; {place}: ` -n NAMESPACE` where it is needed
    # Of the fields without effect on one machine, those that have none here either.
    effects: Callable[[Stored, list[NoEffect]], list[NoEffect]] = _all_effects
    desired: int = 1  # servers
    ready: int | None = None  # None: all of them, if the pair is ready


ONE_MACHINE = Site("OneMachine", "`penstock up --restart {name}{place}`")

# A user's mistake does not go away by an early retry; a store that is unreachable may come back.
_MISTAKE_RETRY_S = 300.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 300.0
# After days of failures the exponent would exceed what a float can hold.
_MOST_DOUBLINGS = 10

_KEYS_OF_COMMANDS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_KEYS_OF_MANIFESTS = (
    "the Secret that encryptOptions name (without one: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
)
_OPTION_OF_COMMANDS = re.compile(r"(?<![\w`])--([a-z][a-z-]*[a-z])")


class Action(Enum):
    FORGET_RUNTIME = auto()  # it is deleted, and nothing was made of it
    WAIT_FOR_DATASET = auto()
    DELETE = auto()
    UNBIND = auto()  # there is no runtime (any more)
    DELETE_RUNTIME = auto()
    BIND = auto()  # make the mount, or change it


def next_action(pair: Pair) -> Action:
    dataset, runtime = pair.dataset, pair.runtime
    if dataset is None:
        assert runtime is not None
        return Action.WAIT_FOR_DATASET if runtime.deleting is None else Action.FORGET_RUNTIME
    if dataset.deleting is not None:
        return Action.DELETE
    if runtime is None:
        return Action.UNBIND
    return Action.BIND if runtime.deleting is None else Action.DELETE_RUNTIME


def is_settled(pair: Pair, fingerprint: str, is_served: Served, now_s: float) -> bool:
    """Is there nothing to do for this pair?"""
    for one in (pair.dataset, pair.runtime, *pair.others):
        if one is not None and one.deleting is not None:
            return False
    owner = pair.dataset or pair.runtime
    assert owner is not None
    if owner.note.get("settled") != fingerprint:
        return False
    if (retry_at_s := owner.note.get("retry_at_s")) is not None and now_s >= retry_at_s:
        return False
    if owner.status.get("phase") == BOUND and not is_served(
        Path(owner.note["mountpoint"]), owner.key
    ):
        return False
    return all("settled" in other.note for other in pair.others)


def retries_soon(pair: Pair, now_s: float, *, attempts: int) -> bool:
    """Is a retry due within a minute, after fewer than `attempts` failures?"""
    note = pair.dataset.note if pair.dataset is not None else {}
    return (
        "retry_at_s" in note
        and note.get("attempts", 0) < attempts
        and note["retry_at_s"] - now_s < 60
    )


# -- the statuses ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    reason: str
    message: str
    kind: str = "Normal"


@dataclass(frozen=True, slots=True)
class Update:
    """What to write for one resource: first the event, then the fields; None removes a field."""

    uid: str
    status: Json = field(default_factory=dict[str, Any])
    note: Json = field(default_factory=dict[str, Any])
    event: Notice | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a Dataset is not bound."""

    phase: str
    reason: str
    message: str
    hint: str | None = None
    exit_code: int = 0
    retry_s: float | None = None


NO_RUNTIME = Cause(NOT_BOUND, "NoRuntime", "no runtime of this name has been applied")


def cause_of(error: PenstockError, message: str) -> Cause:
    """`message`: that of the error, without secrets."""
    reason = type(error).__name__ if type(error) is not PenstockError else "MountFailed"
    retry_s = _FIRST_RETRY_S
    if error.exit_code == UsageError.exit_code:
        retry_s = None if isinstance(error, SpecProblem) else _MISTAKE_RETRY_S
    return Cause(FAILED, reason, message, hint_for_manifests(error.hint), error.exit_code, retry_s)


def hint_for_manifests(hint: str | None) -> str | None:
    """Return a hint that was written for `penstock mount`, in the words of manifests."""
    if hint is None:
        return None
    hint = hint.replace(_KEYS_OF_COMMANDS, _KEYS_OF_MANIFESTS)
    return _OPTION_OF_COMMANDS.sub(r"`\1`", hint)


def bound(
    dataset: Stored,
    runtime: Stored,
    fingerprint: str,
    plan: MountPlan,
    restart_for: list[str],
    brief: Json | None,
    now_s: float,
    site: Site = ONE_MACHINE,
) -> list[Update]:
    """The Dataset is mounted. Its Update is the last: clients that wait for the pair wait for it.

    `restart_for`: the settings that only a restart would change. `brief`: the mount's own counts.
    """
    runtime_conditions = [
        Condition("MasterReady", True, "Master is ready", "The master is ready."),
        Condition("WorkersReady", True, "Workers are ready", "The workers are ready."),
        Condition("FusesReady", True, "Fuses are ready", "The fuses are ready."),
        *_without_effect(runtime, plan.of_runtime, site),
    ]
    if plan.notes:  # settings that differ from the manifest, since this machine cannot have them
        adjusted = "; ".join(plan.notes)
        runtime_conditions.append(Condition("Adjusted", True, "AsItCanBe", adjusted))
    dataset_conditions = [
        Condition(READY, True, "DatasetReady", "The ddc runtime is ready."),
        *_restart_needed(restart_for, dataset, site),
        *_without_effect(dataset, plan.of_dataset, site),
    ]
    amounts = {} if brief is None else dataset_amounts(brief)
    kind, name = runtime.key.kind, runtime.key.name
    return [
        Update(
            runtime.uid,
            {
                **runtime_phases(READY, site),
                "observedGeneration": runtime.generation,
                "valueFile": None,
                **({"cacheStates": amounts["cacheStates"]} if amounts else {}),
                **_conditions(runtime, runtime_conditions, now_s),
            },
        ),
        Update(
            dataset.uid,
            {
                "phase": BOUND,
                "mountPath": str(plan.settings.mountpoint),
                "mounts": dataset.spec.get("mounts"),
                "observedGeneration": dataset.generation,
                "runtimes": [
                    {
                        "name": name,
                        "namespace": runtime.key.namespace,
                        "category": "Accelerate",
                        "type": kind.removesuffix("Runtime").lower(),
                    }
                ],
                **_conditions(dataset, dataset_conditions, now_s),
                **amounts,
            },
            {"settled": fingerprint, "attempts": None, "retry_at_s": None, "trouble": None},
            None if dataset.status.get("phase") == BOUND else Notice("Bound", f"to {kind} {name}"),
        ),
    ]


def unbound(
    dataset: Stored,
    runtime: Stored | None,
    fingerprint: str,
    cause: Cause,
    plan: MountPlan | None,
    now_s: float,
    *,
    still_served: bool,
    site: Site = ONE_MACHINE,
) -> list[Update]:
    """The Dataset could not be mounted or changed. Its Update is the last, as in `bound`.

    `still_served`: the mount from before the change serves on, so the Dataset stays Bound.
    """
    failed = cause.phase == FAILED
    message = cause.message + (f" (hint: {cause.hint})" if cause.hint else "")
    conditions: list[Condition] = []
    if runtime is not None or failed:
        conditions.append(Condition(READY, False, cause.reason, message))
    if plan is not None:
        conditions += _without_effect(dataset, plan.of_dataset, site)
    failures = dataset.note.get("attempts", 0) if dataset.note.get("settled") == fingerprint else 0
    retry_at_s = None
    if cause.retry_s is not None:
        retry_at_s = now_s + min(cause.retry_s * 2 ** min(failures, _MOST_DOUBLINGS), _LAST_RETRY_S)
    trouble = {"what": cause.message, "hint": cause.hint, "exit_code": cause.exit_code}
    kept = dataset.status if still_served else {}
    updates: list[Update] = []
    if runtime is not None and not still_served:
        effects = _effects_of(runtime) if plan is None else plan.of_runtime
        updates.append(not_ready(runtime, effects, now_s, site))
    updates.append(
        Update(
            dataset.uid,
            {
                "phase": BOUND if still_served else cause.phase,
                "mountPath": kept.get("mountPath"),
                "runtimes": kept.get("runtimes"),
                "cacheStates": kept.get("cacheStates"),
                "observedGeneration": dataset.generation,
                **_conditions(dataset, conditions, now_s),
            },
            {
                "settled": fingerprint,
                "attempts": failures + 1,
                "retry_at_s": retry_at_s,
                "trouble": trouble if cause.exit_code else None,
            },
            Notice(cause.reason, message, "Warning") if failed else None,
        )
    )
    return updates


def unmounted(dataset: Stored) -> Update:
    """The mount and what was made for it are gone."""
    # One Update: a client that sees the phase Bound may look for the mount point.
    return Update(
        dataset.uid,
        {"phase": NOT_BOUND, **dict.fromkeys(("mountPath", "runtimes", "cacheStates"))},
        dict.fromkeys(("mountpoint", "left", "runtime", "restarted", "settled")),
    )


def not_ready(
    runtime: Stored, effects: list[NoEffect] | None, now_s: float, site: Site = ONE_MACHINE
) -> Update:
    """`effects`: what in the runtime has no effect on one machine; None if it was not checked."""
    status: Json = {**runtime_phases(NOT_READY, site), "cacheStates": None}
    if effects is not None:
        status["observedGeneration"] = runtime.generation
        status |= _conditions(runtime, _without_effect(runtime, effects, site), now_s)
    return Update(runtime.uid, status)


def without_dataset(
    runtime: Stored, fingerprint: str, now_s: float, site: Site = ONE_MACHINE
) -> Update:
    """There is no Dataset of the runtime's name yet."""
    waits = Notice("WaitsForDataset", f"there is no data set {runtime.key.name} yet")
    status = not_ready(runtime, _effects_of(runtime), now_s, site).status
    return Update(runtime.uid, status, {"settled": fingerprint}, waits)


def second_runtime(other: Stored, pair: Pair, site: Site = ONE_MACHINE) -> Update:
    """The Dataset of the runtime's name is bound to another runtime."""
    assert pair.runtime is not None
    message = f"{pair.label} has a runtime already: {pair.runtime.key.kind}"
    return Update(
        other.uid,
        {**runtime_phases(NOT_READY, site), "observedGeneration": other.generation},
        {"settled": "second"},
        Notice("SecondRuntime", message, "Warning"),
    )


def _conditions(stored: Stored, conditions: list[Condition], now_s: float) -> Json:
    before: list[Json] = stored.status.get("conditions", [])
    probed = stored.key.kind != "Dataset"
    return {"conditions": with_conditions(before, conditions, now_s, probed=probed)}


def runtime_phases(phase: str, site: Site) -> Json:
    """Each server is a worker and a fuse. One machine has one; a cluster one for each node."""
    phases: Json = {}
    for role in ("master", "worker", "fuse"):
        desired = 1 if role == "master" else site.desired
        ready = 0
        if phase == READY:
            ready = desired if role == "master" or site.ready is None else site.ready
        partial = phase == READY and ready < desired
        phases[f"{role}Phase"] = (PARTIAL_READY if ready else NOT_READY) if partial else phase
        phases[f"{role}NumberReady"] = ready
        phases[f"current{role.capitalize()}NumberScheduled"] = desired
        phases[f"desired{role.capitalize()}NumberScheduled"] = desired
        if role != "master":
            phases[f"{role}NumberAvailable"] = ready
    return phases


def _restart_needed(restart_for: list[str], dataset: Stored, site: Site) -> list[Condition]:
    if not restart_for:
        return []
    key = dataset.key
    place = "" if key.namespace == "default" else f" -n {key.namespace}"
    hint = site.restart_hint.format(name=key.name, place=place)
    message = f"{', '.join(restart_for)} cannot change while it is mounted (hint: {hint})"
    return [Condition("UpdateReady", False, "RestartNeeded", message)]


def _effects_of(runtime: Stored) -> list[NoEffect]:
    """Return the fields without effect of a runtime that no plan was made of."""
    return fields_without_effect(model_of(runtime.manifest))


def _without_effect(resource: Stored, effects: list[NoEffect], site: Site) -> list[Condition]:
    """Group what has no effect here by the reasons, in one condition."""
    by_reason: dict[str, list[str]] = {}
    for one in site.effects(resource, effects):
        by_reason.setdefault(one.reason, []).append(one.path.removeprefix("spec."))
    if not by_reason:
        return []
    message = "; ".join(f"{why} ({', '.join(paths)})" for why, paths in by_reason.items())
    return [Condition(WITHOUT_EFFECT, True, site.reason, message)]
