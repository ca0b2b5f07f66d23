"""Makes a Dataset and its runtime real: one background mount, and the statuses that tell of it.

Each step looks at what is there, does the next thing, and writes down what it is about to do before
it does it. Whoever comes after a kill finds the note, looks, and goes on.

Threading: any thread; one at a time for each pair (the loop sees to that).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.catalog.refresh import catalog_path
from penstock.daemon.change import change_in_place, current_settings, what_needs_restart
from penstock.daemon.claim import ask_to_end, claimed_by
from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, clear_dead_mount, find_note
from penstock.daemon.settings import MountSettings
from penstock.daemon.start import start_supervisor
from penstock.errors import MountpointError, PenstockError, SpecProblem, UsageError
from penstock.resources import leftovers
from penstock.resources.conditions import (
    BOUND,
    FAILED,
    NOT_BOUND,
    NOT_READY,
    READY,
    WITHOUT_EFFECT,
    Condition,
    amount,
    dataset_amounts,
    with_conditions,
)
from penstock.resources.contact import ask_new_stores, list_new_parts
from penstock.resources.node import Node, why_not_here
from penstock.resources.operations.backup import local_folder, restore
from penstock.resources.pairs import RESTARTED_AT, Pair, World
from penstock.resources.planning import plan_of
from penstock.resources.state import State, Stored
from penstock.resources.translate.plan import MountPlan
from penstock.specs.dataset import Dataset
from penstock.specs.effects import NoEffect, without_effect
from penstock.specs.keys import ResourceKey
from penstock.specs.load import model_of

log = logging.getLogger(__name__)

Json = dict[str, Any]

_TELL_S = 0.5
# A user's mistake is not mended by trying again soon; a store that is away may be back.
_MISTAKE_S = 300.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 300.0
_MOST_DOUBLINGS = 10


class Busy(Exception):
    """Someone else is at it: look again in a moment."""


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why it is not bound."""

    phase: str
    reason: str
    message: str
    hint: str | None = None
    exit_code: int = 0
    retry_s: float | None = None


class Datasets:
    def __init__(self, state: State, world: Callable[[], World], node: Callable[[], Node]) -> None:
        self._state = state
        self._world = world
        self._node = node

    def reconcile(self, pair: Pair, fingerprint: str) -> None:
        """Brings the pair a step, or all the way, to what is wanted. Raises Busy."""
        for other in pair.others:
            self._refuse_second(other, pair)
        dataset, runtime = pair.dataset, pair.runtime
        if dataset is None:
            assert runtime is not None
            self._reconcile_lone_runtime(runtime, fingerprint)
        elif dataset.deleting is not None:
            self._take_down(dataset, dataset.deleting)
            if runtime is not None:
                self._state.observe(runtime.uid, status={**_phases(NOT_READY), "cacheStates": None})
            self._state.forget(dataset.uid)
        elif runtime is None:
            self._take_down(dataset, {})
            self._tell_unbound(
                dataset, None, fingerprint,
                _Trouble(NOT_BOUND, "NoRuntime", "no runtime of this name has been applied"),
            )  # fmt: skip
        elif runtime.deleting is not None:
            self._take_down(dataset, runtime.deleting)
            self._state.forget(runtime.uid)
        else:
            self._bind(pair, dataset, runtime, fingerprint)

    def tell_trouble(self, pair: Pair, fingerprint: str, error: Exception) -> None:
        """Of what went wrong where nobody expected it: whoever waits is told."""
        what = error if isinstance(error, PenstockError) else PenstockError(
            f"a bug of ours: {type(error).__name__}: {error}", hint="the log of the loop says more"
        )  # fmt: skip
        for one in (pair.dataset, pair.runtime):
            if one is not None and one.deleting is not None:
                self._state.add_event(one.uid, "NotDeletedYet", str(what), kind="Warning")
                return
        if pair.dataset is not None:
            self._tell_unbound(pair.dataset, pair.runtime, fingerprint, _trouble_of(what))

    def is_settled(
        self, pair: Pair, fingerprint: str, is_served: Callable[[Path, ResourceKey], bool]
    ) -> bool:
        """Is there nothing to do, as far as can be seen without asking anybody?"""
        for one in (pair.dataset, pair.runtime, *pair.others):
            if one is not None and one.deleting is not None:
                return False
        owner = pair.dataset or pair.runtime
        assert owner is not None
        if owner.note.get("settled") != fingerprint:
            return False
        if (retry_at := owner.note.get("retry_at_s")) is not None and time.time() >= retry_at:
            return False
        if owner.status.get("phase") == BOUND and not is_served(
            Path(owner.note["mountpoint"]), owner.key
        ):
            return False
        return all("settled" in other.note for other in pair.others)

    def give_up(self, pair: Pair) -> None:
        """It is to go, and another thread is still making it, which may be a listing of hours."""
        if pair.dataset is not None and "mountpoint" in pair.dataset.note:
            ask_to_end(Path(pair.dataset.note["mountpoint"]))

    # -- up ----------------------------------------------------------------------------

    def _bind(self, pair: Pair, dataset: Stored, runtime: Stored, fingerprint: str) -> None:
        try:
            plan = plan_of(self._state, self._world(), dataset, runtime)
        except PenstockError as problem:  # a mistake in it, or secrets that cannot be opened
            self._tell_unbound(dataset, runtime, fingerprint, _trouble_of(problem))
            return
        model = model_of(dataset.manifest)
        assert isinstance(model, Dataset)
        if (why := why_not_here(model.spec.node_affinity, self._node())) is not None:
            self._take_down(dataset, {})
            hint = "`penstock label KEY=VALUE` gives this machine a label"
            trouble = _Trouble(NOT_BOUND, "NodeAffinityNotMet", why, hint)
            self._tell_unbound(dataset, runtime, fingerprint, trouble, plan)
            return
        mountpoint = plan.settings.mountpoint
        if (before := dataset.note.get("mountpoint")) not in (None, str(mountpoint)):
            self._take_down(dataset, {"keep_cache": True})
            log.info("%s moves from %s to %s", pair.label, before, mountpoint)
        try:
            note = served(mountpoint, dataset.key)
            self._note_before(dataset, runtime, plan.settings)
            restart_for = self._make_mount(dataset, runtime, plan, note)
        except PenstockError as error:
            self._tell_unbound(dataset, runtime, fingerprint, _trouble_of(error), plan)
            return
        self._tell_bound(dataset, runtime, fingerprint, plan, restart_for)

    def _note_before(self, dataset: Stored, runtime: Stored, settings: MountSettings) -> None:
        """What there will be on this machine, before it is there. Of two data sets that want one
        place the first has it."""
        made = {
            "mountpoint": str(settings.mountpoint),
            "runtime": runtime.uid,
            "left": leftovers.describe(
                settings,
                dataset.key,
                keep_cache=_keeps_cache(dataset, runtime),
                before=dataset.note.get("left"),
            ),
        }
        with self._state.transaction():
            for other in self._state.all(["Dataset"]):
                if other.uid != dataset.uid and other.note.get("mountpoint") == made["mountpoint"]:
                    raise _not_ours(settings.mountpoint, str(other.key))
            self._state.observe(dataset.uid, note=made)

    def _make_mount(
        self, dataset: Stored, runtime: Stored, plan: MountPlan, note: MountNote | None
    ) -> list[str]:
        """Returns what only a restart would change."""
        settings, mountpoint = plan.settings, plan.settings.mountpoint
        restarted = dataset.annotations.get(RESTARTED_AT)
        if note is not None and note.pid not in note.processes:
            # Its server serves on, but nobody would replace that one.
            self._state.add_event(dataset.uid, "NoSupervisor", "mounted anew", kind="Warning")
            self._unmount(dataset, mountpoint, force=False)
            note = None
        if note is not None and restarted not in (None, dataset.note.get("restarted")):
            self._state.add_event(dataset.uid, "Restarting", "as it was asked for")
            self._unmount(dataset, mountpoint, force=False)
            note = None
        if note is None:
            self._start(dataset, runtime, settings)
            self._state.observe(dataset.uid, note={"restarted": restarted})
            return []
        current = current_settings(mountpoint)
        needs_restart = what_needs_restart(current, settings)
        if needs_restart:
            return needs_restart
        if current != settings:
            ask_new_stores(current, settings)
            pause_s = change_in_place(mountpoint, settings)
            self._state.add_event(
                dataset.uid, "Changed", f"in place; readers waited for {pause_s * 1000:.0f} ms"
            )
        list_new_parts(mountpoint)
        return []

    def _start(self, dataset: Stored, runtime: Stored, settings: MountSettings) -> None:
        clear_dead_mount(settings.mountpoint)
        _make_folder(settings.mountpoint)
        leftovers.make_folders(settings, dataset.key)
        self._state.observe(dataset.uid, status={"phase": dataset.status.get("phase", NOT_BOUND)})
        self._state.observe(runtime.uid, status=_phases(NOT_READY))
        told_s = 0.0

        def tell(files: int, size_bytes: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                so_far = {"ufsTotal": f"{amount(size_bytes)}+", "fileNum": f"{files}+"}
                self._state.observe(dataset.uid, status=so_far)

        self._restore(dataset, settings)
        said = start_supervisor(settings, progress=tell)
        self._state.add_event(dataset.uid, "Mounted", f"at {settings.mountpoint}")
        for line in said:
            log.info("%s: %s", dataset.key, line)

    def _restore(self, dataset: Stored, settings: MountSettings) -> None:
        """The catalog of a backup, if one is named: the mount then begins with it. What was cached
        is fetched again by a DataLoad, behind it."""
        location: Json = dataset.spec.get("dataRestoreLocation") or {}
        if "path" not in location or dataset.note.get("restored"):
            return
        assert settings.catalog is not None
        key = dataset.key
        folder = local_folder(location["path"], "spec.dataRestoreLocation.path")
        catalog = catalog_path(self._state.folder, settings.catalog)
        restore(folder, catalog, name=f"{key.name}-{key.namespace}", parts=settings.parts)
        load = ResourceKey("DataLoad", key.namespace, f"{key.name}-restore")
        if (before := self._state.find(load)) is not None:
            self._state.forget(before.uid)  # that of a data set of this name that is gone
        self._state.put(load, _load_of_backup(load, key.name, location["path"]), {})
        self._state.observe(dataset.uid, note={"restored": True})
        self._state.add_event(dataset.uid, "Restored", f"the catalog, from {location['path']}")

    # -- down --------------------------------------------------------------------------

    def _take_down(self, dataset: Stored, how: Json) -> None:
        """Unmounts, and clears away what was made for it. May be begun again at any point."""
        if "mountpoint" not in dataset.note:
            return
        mountpoint = Path(dataset.note["mountpoint"])
        self._unmount(dataset, mountpoint, force=bool(how.get("force")))
        left: Json = dataset.note.get("left") or {}
        if not how.get("keep_cache"):
            freed = leftovers.clear_away(left, self._others_left(dataset))
            if freed:
                self._state.add_event(dataset.uid, "CacheCleared", f"{amount(freed)} freed")
        gone: Json = dict.fromkeys(("mountpoint", "left", "runtime", "restarted", "settled"))
        # In one step: who sees that it is bound may look for where.
        self._state.observe(
            dataset.uid,
            status={"phase": NOT_BOUND, **dict.fromkeys(("mountPath", "runtimes", "cacheStates"))},
            note=gone,
        )

    def _unmount(self, dataset: Stored, mountpoint: Path, *, force: bool) -> None:
        try:
            leftovers.unmount(mountpoint, str(dataset.key), force=force)
        except MountpointError as error:
            self._state.add_event(dataset.uid, "InUse", str(error).split("\n")[0], kind="Warning")
            raise Busy from error

    def _others_left(self, dataset: Stored) -> list[Json]:
        return [
            one.note["left"] for one in self._world().resources.values()
            if one.uid != dataset.uid and "left" in one.note
        ]  # fmt: skip

    # -- telling -----------------------------------------------------------------------

    def _tell_bound(
        self, dataset: Stored, runtime: Stored, fingerprint: str, plan: MountPlan,
        restart_for: list[str],
    ) -> None:  # fmt: skip
        now_s = time.time()
        conditions = [
            Condition(READY, True, "DatasetReady", "The ddc runtime is ready."),
            *_update_condition(restart_for, dataset),
            *_without_effect(dataset, plan.of_dataset),
        ]
        brief = ask_brief(plan.settings.mountpoint)
        kind = runtime.key.kind
        self._state.observe(
            dataset.uid,
            status={
                "phase": BOUND, "mountPath": str(plan.settings.mountpoint),
                "mounts": dataset.spec.get("mounts"), "observedGeneration": dataset.generation,
                "runtimes": [{
                    "name": runtime.key.name, "namespace": runtime.key.namespace,
                    "category": "Accelerate", "type": kind.removesuffix("Runtime").lower(),
                }],
                "conditions": with_conditions(
                    dataset.status.get("conditions", []), conditions, now_s
                ),
                **(dataset_amounts(brief) if brief is not None else {}),
            },
            note={
                "settled": fingerprint, "attempts": None, "retry_at_s": None, "trouble": None,
            },
        )  # fmt: skip
        if dataset.status.get("phase") != BOUND:
            self._state.add_event(dataset.uid, "Bound", f"to {runtime.key.kind} {runtime.key.name}")
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
                **_phases(READY), "observedGeneration": runtime.generation,
                "valueFile": None,
                **({"cacheStates": dataset_amounts(brief)["cacheStates"]} if brief else {}),
                "conditions": with_conditions(
                    runtime.status.get("conditions", []), conditions, now_s, probed=True
                ),
            },
        )  # fmt: skip

    def _tell_unbound(
        self, dataset: Stored, runtime: Stored | None, fingerprint: str, trouble: _Trouble,
        plan: MountPlan | None = None,
    ) -> None:  # fmt: skip
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
                "settled": fingerprint, "attempts": attempts,
                "retry_at_s": None if retry_s is None else now_s + retry_s,
                "trouble": {"what": trouble.message, "hint": trouble.hint,
                            "exit_code": trouble.exit_code} if trouble.exit_code else None,
            },
        )  # fmt: skip
        if trouble.phase == FAILED:
            self._state.add_event(dataset.uid, trouble.reason, message, kind="Warning")
        if runtime is not None and not still_served:
            conditions = _without_effect(runtime, plan.of_runtime if plan is not None else [])
            self._state.observe(
                runtime.uid,
                status={
                    **_phases(NOT_READY), "observedGeneration": runtime.generation,
                    "cacheStates": None,
                    "conditions": with_conditions(
                        runtime.status.get("conditions", []), conditions, now_s, probed=True
                    ),
                },
            )  # fmt: skip

    def _reconcile_lone_runtime(self, runtime: Stored, fingerprint: str) -> None:
        if runtime.deleting is not None:
            self._state.forget(runtime.uid)
            return
        self._state.observe(
            runtime.uid,
            status={
                **_phases(NOT_READY), "observedGeneration": runtime.generation, "cacheStates": None,
                "conditions": with_conditions(
                    runtime.status.get("conditions", []), _without_effect(runtime, []), time.time(),
                    probed=True,
                ),
            },
            note={"settled": fingerprint},
        )  # fmt: skip
        self._state.add_event(runtime.uid, "WaitsForDataset", f"{runtime.key.name} is not there")

    def _refuse_second(self, other: Stored, pair: Pair) -> None:
        if other.deleting is not None:
            self._state.forget(other.uid)
            return
        assert pair.runtime is not None
        first = pair.runtime.key.kind
        message = f"{pair.label} has a runtime already: {first}"
        self._state.observe(
            other.uid,
            status={**_phases(NOT_READY), "observedGeneration": other.generation},
            note={"settled": "second"},
        )
        self._state.add_event(other.uid, "SecondRuntime", message, kind="Warning")


def served(mountpoint: Path, key: ResourceKey) -> MountNote | None:
    """The note of the data set's mount, if it is there and has processes. Raises Busy while one is
    being made, or is on its way out, and MountpointError if another one is there."""
    try:
        note = find_note(mountpoint)
    except MountpointError:
        note = None
    if note is not None and note.alive:
        if note.source != str(key):
            raise _not_ours(mountpoint, note.source)
        return note
    if claimed_by(mountpoint) is not None:
        raise Busy
    return None


def ask_brief(mountpoint: Path, timeout_s: float = 5.0) -> Json | None:
    """What a mount tells of itself; None if it cannot just now."""
    try:
        return ask(find_note(mountpoint).socket_path, "brief", timeout_s=timeout_s)
    except (PenstockError, OSError):
        return None


def _still_served(dataset: Stored) -> bool:
    """A change that cannot be made leaves what there was as it is."""
    try:
        return "mountpoint" in dataset.note and (
            served(Path(dataset.note["mountpoint"]), dataset.key) is not None
        )
    except MountpointError:
        return False


def _not_ours(mountpoint: Path, whose: str) -> MountpointError:
    return MountpointError(
        f"{mountpoint} is where {whose} is mounted",
        hint="the annotation penstock.dev/mount-path names another place",
    )


def _make_folder(mountpoint: Path) -> None:
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{mountpoint}: {error.strerror}",
            hint="the annotation penstock.dev/mount-path names another place",
        ) from error


def _trouble_of(error: PenstockError) -> _Trouble:
    reason = type(error).__name__ if type(error) is not PenstockError else "MountFailed"
    retry_s = _FIRST_RETRY_S
    if error.exit_code == UsageError.exit_code:
        retry_s = None if isinstance(error, SpecProblem) else _MISTAKE_S
    return _Trouble(FAILED, reason, str(error), error.hint, error.exit_code, retry_s)


def _keeps_cache(dataset: Stored, runtime: Stored) -> bool:
    said = dataset.annotations.get(leftovers.KEEP_CACHE)
    if said is not None:
        return said == "true"
    policy: Json = runtime.spec.get("cleanCachePolicy") or {}
    return bool(policy.get("keep"))


def _load_of_backup(key: ResourceKey, dataset: str, location: str) -> Json:
    return {
        "apiVersion": "penstock.dev/v1alpha1", "kind": "DataLoad",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "dataset": {"name": dataset, "namespace": key.namespace},
            "options": {"backup": location},
        },
    }  # fmt: skip


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
            "UpdateReady", False, "RestartNeeded",
            f"{', '.join(restart_for)} cannot change while it is mounted "
            f"(hint: `penstock up --restart {name}`)",
        )
    ]  # fmt: skip


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
