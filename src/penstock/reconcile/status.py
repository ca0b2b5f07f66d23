"""What is told of a data set and its runtime: phases, conditions, counts, why not, when again.

Everything goes into the state, where `get`, `describe` and whoever waits find it. What an error
says may hold a key that a store sent back: it is redacted here, once, before it is written.

Threading: any thread; one at a time for each pair.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import MountpointError, PenstockError, SpecProblem, UsageError
from penstock.fluid.plan import MountPlan
from penstock.reconcile.conditions import (
    BOUND,
    FAILED,
    NOT_READY,
    READY,
    WITHOUT_EFFECT,
    Condition,
    dataset_amounts,
    with_conditions,
)
from penstock.reconcile.live_status import ask_brief, find_mount_note
from penstock.reconcile.snapshot import Pair, Stored
from penstock.reconcile.state import State
from penstock.specs.models import model_of
from penstock.specs.schema import NoEffect, without_effect
from penstock.store.redaction import redact

Json = dict[str, Any]

# A user's mistake is not mended by trying again soon; a store that is away may be back.
_MISTAKE_S = 300.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 300.0
_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why it is not bound."""

    phase: str
    reason: str
    message: str
    hint: str | None = None
    exit_code: int = 0
    retry_s: float | None = None


def trouble_of(error: PenstockError) -> Trouble:
    reason = type(error).__name__ if type(error) is not PenstockError else "MountFailed"
    retry_s = _FIRST_RETRY_S
    if error.exit_code == UsageError.exit_code:
        retry_s = None if isinstance(error, SpecProblem) else _MISTAKE_S
    return Trouble(FAILED, reason, redact(str(error)), error.hint, error.exit_code, retry_s)


class StatusWriter:
    def __init__(self, state: State) -> None:
        self._state = state

    def bound(
        self,
        dataset: Stored,
        runtime: Stored,
        fingerprint: str,
        plan: MountPlan,
        restart_for: list[str],
    ) -> None:
        now_s = time.time()
        brief = ask_brief(plan.settings.mountpoint)
        if dataset.status.get("phase") != BOUND:
            self._state.add_event(dataset.uid, "Bound", f"to {runtime.key.kind} {runtime.key.name}")
        # The data set last: with its note, whoever waits for the pair goes on and looks.
        conditions = [
            Condition("MasterReady", True, "Master is ready", "The master is ready."),
            Condition("WorkersReady", True, "Workers are ready", "The workers are ready."),
            Condition("FusesReady", True, "Fuses are ready", "The fuses are ready."),
            *_without_effect(runtime, plan.of_runtime),
            *_adjusted(plan),
        ]
        self._state.observe(
            runtime.uid,
            status={
                **_phases(READY),
                "observedGeneration": runtime.generation,
                "valueFile": None,
                **({"cacheStates": dataset_amounts(brief)["cacheStates"]} if brief else {}),
                "conditions": with_conditions(
                    runtime.status.get("conditions", []), conditions, now_s, probed=True
                ),
            },
        )
        conditions = [
            Condition(READY, True, "DatasetReady", "The ddc runtime is ready."),
            *_update_condition(restart_for, dataset),
            *_without_effect(dataset, plan.of_dataset),
        ]
        kind = runtime.key.kind
        self._state.observe(
            dataset.uid,
            status={
                "phase": BOUND,
                "mountPath": str(plan.settings.mountpoint),
                "mounts": dataset.spec.get("mounts"),
                "observedGeneration": dataset.generation,
                "runtimes": [
                    {
                        "name": runtime.key.name,
                        "namespace": runtime.key.namespace,
                        "category": "Accelerate",
                        "type": kind.removesuffix("Runtime").lower(),
                    }
                ],
                "conditions": with_conditions(
                    dataset.status.get("conditions", []), conditions, now_s
                ),
                **(dataset_amounts(brief) if brief is not None else {}),
            },
            note={
                "settled": fingerprint,
                "attempts": None,
                "retry_at_s": None,
                "trouble": None,
            },
        )

    def unbound(
        self,
        dataset: Stored,
        runtime: Stored | None,
        fingerprint: str,
        trouble: Trouble,
        plan: MountPlan | None = None,
    ) -> None:
        now_s = time.time()
        message = trouble.message + (f" (hint: {trouble.hint})" if trouble.hint else "")
        conditions: list[Condition] = []
        if runtime is not None or trouble.phase == FAILED:
            conditions.append(Condition(READY, False, trouble.reason, message))
        if plan is not None:
            conditions += _without_effect(dataset, plan.of_dataset)
        tried = dataset.note.get("attempts", 0) if dataset.note.get("settled") == fingerprint else 0
        attempts = tried + 1
        retry_s = None
        if trouble.retry_s is not None:
            # Of a store that is away for days the exponent would outgrow what a float can hold.
            retry_s = min(trouble.retry_s * 2 ** min(tried, _MOST_DOUBLINGS), _LAST_RETRY_S)
        still_served = trouble.phase == FAILED and _still_served(dataset)
        if trouble.phase == FAILED:
            self._state.add_event(dataset.uid, trouble.reason, message, kind="Warning")
        if runtime is not None and not still_served:
            self.not_ready(runtime, plan.of_runtime if plan is not None else [])
        self._state.observe(
            dataset.uid,
            status={
                "phase": BOUND if still_served else trouble.phase,
                "mountPath": dataset.status.get("mountPath") if still_served else None,
                "runtimes": dataset.status.get("runtimes") if still_served else None,
                "cacheStates": dataset.status.get("cacheStates") if still_served else None,
                "observedGeneration": dataset.generation,
                "conditions": with_conditions(
                    dataset.status.get("conditions", []), conditions, now_s
                ),
            },
            note={
                "settled": fingerprint,
                "attempts": attempts,
                "retry_at_s": None if retry_s is None else now_s + retry_s,
                "trouble": {
                    "what": trouble.message,
                    "hint": trouble.hint,
                    "exit_code": trouble.exit_code,
                }
                if trouble.exit_code
                else None,
            },
        )

    def not_ready(self, runtime: Stored, options: list[NoEffect] | None = None) -> None:
        """`options`: those of it that change nothing here; None if nobody has looked."""
        status: Json = {**_phases(NOT_READY), "cacheStates": None}
        if options is not None:
            status["observedGeneration"] = runtime.generation
            status["conditions"] = with_conditions(
                runtime.status.get("conditions", []),
                _without_effect(runtime, options),
                time.time(),
                probed=True,
            )
        self._state.observe(runtime.uid, status=status)

    def lone(self, runtime: Stored, fingerprint: str) -> None:
        """A runtime without a data set."""
        self.not_ready(runtime, [])
        self._state.add_event(runtime.uid, "WaitsForDataset", f"{runtime.key.name} is not there")
        self._state.observe(runtime.uid, note={"settled": fingerprint})

    def second(self, other: Stored, pair: Pair) -> None:
        """A runtime whose data set has another one."""
        assert pair.runtime is not None
        first = pair.runtime.key.kind
        message = f"{pair.label} has a runtime already: {first}"
        self._state.add_event(other.uid, "SecondRuntime", message, kind="Warning")
        self._state.observe(
            other.uid,
            status={**_phases(NOT_READY), "observedGeneration": other.generation},
            note={"settled": "second"},
        )


def _still_served(dataset: Stored) -> bool:
    """A change that cannot be made leaves what there was as it is."""
    try:
        return "mountpoint" in dataset.note and (
            find_mount_note(Path(dataset.note["mountpoint"]), dataset.key) is not None
        )
    except MountpointError:
        return False


def _phases(phase: str) -> Json:
    """One machine: one master, one worker, one fuse."""
    ready = 1 if phase == READY else 0
    phases: Json = {}
    for role in ("master", "worker", "fuse"):
        phases[f"{role}Phase"] = phase
        phases[f"{role}NumberReady"] = ready
        phases[f"current{role.capitalize()}NumberScheduled"] = 1
        phases[f"desired{role.capitalize()}NumberScheduled"] = 1
        if role != "master":
            phases[f"{role}NumberAvailable"] = ready
    return phases


def _update_condition(restart_for: list[str], dataset: Stored) -> list[Condition]:
    if not restart_for:
        return []
    name = dataset.key.name
    return [
        Condition(
            "UpdateReady",
            False,
            "RestartNeeded",
            f"{', '.join(restart_for)} cannot change while it is mounted "
            f"(hint: `penstock up --restart {name}`)",
        )
    ]


def _adjusted(plan: MountPlan) -> list[Condition]:
    """What is not just as it was written, because this machine cannot have it so."""
    return [Condition("Adjusted", True, "AsItCanBe", "; ".join(plan.notes))] if plan.notes else []


def _without_effect(stored: Stored, options: list[NoEffect]) -> list[Condition]:
    """Fields and options that change nothing here, by their reasons."""
    by_reason: dict[str, list[str]] = {}
    for one in [*without_effect(model_of(stored.manifest)), *options]:
        by_reason.setdefault(one.reason, []).append(one.path.removeprefix("spec."))
    if not by_reason:
        return []
    message = "; ".join(f"{why} ({', '.join(paths)})" for why, paths in by_reason.items())
    return [Condition(WITHOUT_EFFECT, True, "OneMachine", message)]
