"""Make a Dataset and its runtime real on this machine: one background mount, and their statuses.

`dataset_phases` decides what to do next and what the statuses say; this module does it. Each step
looks at what there is, does the next thing, and records what it is about to do before it does it.
After a kill, the next run finds that record and continues.

Threading: any thread; one at a time for each pair, which the loop ensures.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.catalog.refresh import catalog_path
from penstock.daemon.control_socket import ask
from penstock.daemon.mount_lifecycle import change_in_place, current_settings, start_supervisor
from penstock.daemon.mount_registry import MountNote, clear_dead_mount, find_note, signal_claimant
from penstock.daemon.server_process import WARNING
from penstock.errors import MountpointError, PenstockError, UsageError
from penstock.fluid.plan import MountPlan
from penstock.metrics import Counters
from penstock.operations.backup import local_folder, restore
from penstock.reconcile import cleanup, dataset_phases
from penstock.reconcile.conditions import BOUND, FAILED, NOT_BOUND, amount
from penstock.reconcile.dataset_phases import Action, Cause, Update, cause_of, next_action
from penstock.reconcile.live_status import Busy, ask_brief, find_mount_note, occupied
from penstock.reconcile.members import run_members, stop_members
from penstock.reconcile.mount_plan import plan_of
from penstock.reconcile.node_affinity import Node, node_mismatch
from penstock.reconcile.snapshot import (
    CHANGED,
    RESTARTED_AT,
    WARNED,
    Pair,
    Snapshot,
    Stored,
    default_runtime,
    references,
)
from penstock.reconcile.state import State
from penstock.settings import MountSettings, describe_changes, hold_back
from penstock.specs.kinds import ResourceKey
from penstock.store.juicefs import refuse_volume
from penstock.store.redaction import redact
from penstock.store.retry import FIRST_CONTACT_S, open_reliable_store

log = logging.getLogger(__name__)

Json = dict[str, Any]

_PROGRESS_S = 0.5
_LISTING_TIMEOUT_S = 3600


class Datasets:
    def __init__(
        self, state: State, snapshot: Callable[[], Snapshot], node: Callable[[], Node]
    ) -> None:
        self._state = state
        self._snapshot = snapshot
        self._node = node

    def reconcile(self, pair: Pair, fingerprint: str) -> None:
        """Bring the pair to its desired state, or a step closer. Raises Busy."""
        for other in pair.others:
            if other.deleting is not None:
                self._state.forget(other.uid)
            else:
                self._write(dataset_phases.second_runtime(other, pair))
        dataset, runtime = pair.dataset, pair.runtime
        match next_action(pair), dataset, runtime:
            case Action.FORGET_RUNTIME, None, Stored():
                self._state.forget(runtime.uid)
            case Action.WAIT_FOR_DATASET, None, Stored():
                self._write(dataset_phases.without_dataset(runtime, fingerprint, time.time()))
            case Action.DELETE, Stored(), _:
                self._take_down(dataset, dataset.deleting or {})
                if runtime is not None:
                    self._write(dataset_phases.not_ready(runtime, None, time.time()))
                self._state.forget(dataset.uid)
            case Action.UNBIND, Stored(), None if pair.is_reference:
                self._bind_reference(pair, dataset, fingerprint)
            case Action.UNBIND, Stored(), None:
                self._take_down(dataset, {})
                self._unbound(dataset, None, fingerprint, dataset_phases.NO_RUNTIME)
            case Action.DELETE_RUNTIME, Stored(), Stored():
                self._take_down(dataset, runtime.deleting or {})
                self._state.forget(runtime.uid)
            case Action.BIND, Stored(), Stored():
                self._bind(pair, dataset, runtime, fingerprint)
            case _:
                raise AssertionError(pair)

    def report_error(self, pair: Pair, fingerprint: str, error: Exception) -> None:
        """Record an unexpected error, so that clients that wait for the pair see it."""
        if not isinstance(error, PenstockError):
            error = PenstockError(
                f"a bug of ours: {type(error).__name__}: {error}",
                hint=f"its traceback is in {self._state.folder / 'logs' / 'loop.log'}",
            )
        for one in (pair.dataset, pair.runtime):
            if one is not None and one.deleting is not None:
                message = redact(str(error))
                self._state.add_event(one.uid, "NotDeletedYet", message, kind="Warning")
                return
        if pair.dataset is not None:
            self._unbound(pair.dataset, pair.runtime, fingerprint, _cause_of(error))

    def cancel_start(self, pair: Pair) -> None:
        """Stop a mount that another thread is still making, for a pair that is to be deleted.

        Its first listing may take hours.
        """
        if pair.dataset is not None and "mountpoint" in pair.dataset.note:
            signal_claimant(Path(pair.dataset.note["mountpoint"]))

    # -- up ----------------------------------------------------------------------------

    def _bind(self, pair: Pair, dataset: Stored, runtime: Stored, fingerprint: str) -> None:
        try:
            plan = plan_of(self._state, self._snapshot(), dataset, runtime)
        except PenstockError as error:  # a mistake in a manifest, or secrets that cannot be opened
            self._unbound(dataset, runtime, fingerprint, _cause_of(error))
            return
        if (why := node_mismatch(plan.dataset.spec.node_affinity, self._node())) is not None:
            self._take_down(dataset, {})
            hint = "`penstock label KEY=VALUE` gives this machine a label"
            cause = Cause(NOT_BOUND, "NodeAffinityNotMet", why, hint)
            self._unbound(dataset, runtime, fingerprint, cause, plan)
            return
        mountpoint = plan.settings.mountpoint
        if (before := dataset.note.get("mountpoint")) not in (None, str(mountpoint)):
            self._take_down(dataset, {"keep_cache": True})
            log.info("%s moves from %s to %s", pair.label, before, mountpoint)
        try:
            note = find_mount_note(mountpoint, dataset.key)
            self._record_intent(dataset, runtime, plan.settings)
            for address in run_members(plan.members, dataset.key):
                message = f"a member of its shared tier, at {address}"
                self._state.add_event(dataset.uid, "MemberStarted", message)
            restart_for = self._make_mount(dataset, runtime, plan, note)
        except PenstockError as error:
            self._unbound(dataset, runtime, fingerprint, _cause_of(error), plan)
            return
        updates = dataset_phases.bound(
            dataset, runtime, fingerprint, plan, restart_for, ask_brief(mountpoint), time.time()
        )
        if pair.runtime is None:
            updates[-1] = self._through_others(updates[-1], dataset)
        self._write(*updates)

    def _through_others(self, update: Update, dataset: Stored) -> Update:
        """Return the status of a data set that has the runtimes of those that it refers to."""
        others = [self._snapshot().resources.get(key) for key in sorted(references(dataset))]
        runtimes = [one for other in others if other for one in other.status.get("runtimes") or ()]
        event = update.event
        if event is not None:
            event = replace(event, message=f"through {', '.join(map(str, references(dataset)))}")
        return replace(update, status={**update.status, "runtimes": runtimes}, event=event)

    def _bind_reference(self, pair: Pair, dataset: Stored, fingerprint: str) -> None:
        """Bind a data set without a runtime that only shows others, once all of them are bound."""
        snapshot, runtime = self._snapshot(), default_runtime(pair)
        for key in sorted(references(dataset)):
            other = snapshot.resources.get(key)
            if other is not None and other.status.get("phase") != BOUND:
                self._take_down(dataset, {})
                why = f"{key}, which it refers to, is not bound"
                cause = Cause(NOT_BOUND, "ReferencedNotBound", why)
                self._unbound(dataset, runtime, fingerprint, cause)
                return
        self._bind(pair, dataset, runtime, fingerprint)

    def _record_intent(self, dataset: Stored, runtime: Stored, settings: MountSettings) -> None:
        """Record what will be on this machine before it is there, so that it can be removed.

        If two data sets name the same place, the first one keeps it.
        """
        note = {
            "mountpoint": str(settings.mountpoint),
            "runtime": runtime.uid,
            "left": cleanup.record(
                settings,
                dataset.key,
                keep_cache=_keeps_cache(dataset, runtime),
                before=dataset.note.get("left"),
            ),
        }
        with self._state.transaction():
            for other in self._state.all(["Dataset"]):
                if other.uid != dataset.uid and other.note.get("mountpoint") == note["mountpoint"]:
                    raise occupied(settings.mountpoint, str(other.key))
            self._state.record(dataset.uid, note=note)

    def _make_mount(
        self, dataset: Stored, runtime: Stored, plan: MountPlan, note: MountNote | None
    ) -> list[str]:
        """Return the settings that only a restart would change."""
        settings, mountpoint = plan.settings, plan.settings.mountpoint
        restarted = dataset.annotations.get(RESTARTED_AT)
        if note is not None and note.pid not in note.processes:
            # Its server still serves, but nothing would restart that server.
            self._state.add_event(dataset.uid, "NoSupervisor", "mounted again", kind="Warning")
            self._unmount(dataset, mountpoint, force=False)
            note = None
        if note is not None and restarted not in (None, dataset.note.get("restarted")):
            self._state.add_event(dataset.uid, "Restarting", "as requested")
            self._unmount(dataset, mountpoint, force=False)
            note = None
        if note is None:
            self._start(dataset, runtime, settings)
            self._state.record(dataset.uid, note={"restarted": restarted})
            return []
        current = current_settings(mountpoint)
        possible, waiting = hold_back(current, settings)
        if current != possible:
            _check_new_stores(current, possible)
            pause_s = change_in_place(mountpoint, possible)
            changes = "; ".join(describe_changes(current, possible)) or "nothing that readers see"
            message = f"{changes} (readers waited for {pause_s * 1000:.0f} ms)"
            self._state.add_event(dataset.uid, CHANGED, message)
        _list_new_parts(mountpoint)
        return waiting

    def _start(self, dataset: Stored, runtime: Stored, settings: MountSettings) -> None:
        clear_dead_mount(settings.mountpoint)
        _make_mountpoint(settings.mountpoint)
        cleanup.make_cache_folders(settings, dataset.key)
        self._state.record(dataset.uid, status={"phase": dataset.status.get("phase", NOT_BOUND)})
        self._write(dataset_phases.not_ready(runtime, None, time.time()))
        reported_s = 0.0

        def report_progress(files: int, size_bytes: int) -> None:
            nonlocal reported_s
            if time.monotonic() - reported_s >= _PROGRESS_S:
                reported_s = time.monotonic()
                so_far = {"ufsTotal": f"{amount(size_bytes)}+", "fileNum": f"{files}+"}
                self._state.record(dataset.uid, status=so_far)

        self._restore(dataset, settings)
        lines = start_supervisor(settings, progress=report_progress)
        self._state.add_event(dataset.uid, "Mounted", f"at {settings.mountpoint}")
        for line in lines:
            log.info("%s: %s", dataset.key, line)
            if line.startswith(WARNING):
                message = redact(line.removeprefix(WARNING))
                self._state.add_event(dataset.uid, WARNED, message, kind="Warning")

    def _restore(self, dataset: Stored, settings: MountSettings) -> None:
        """Put the catalog of a backup in place, if the spec names one: the mount starts with it.

        A DataLoad then fetches in the background what was cached at the time of the backup.
        """
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
            self._state.forget(before.uid)  # from an earlier data set of this name
        self._state.put(load, _load_of_backup(load, key.name, location["path"]), {})
        self._state.record(dataset.uid, note={"restored": True})
        self._state.add_event(dataset.uid, "Restored", f"the catalog, from {location['path']}")

    # -- down --------------------------------------------------------------------------

    def _take_down(self, dataset: Stored, how: Json) -> None:
        """Unmount, and remove what was made for the mount. May be repeated after a kill."""
        if "mountpoint" not in dataset.note:
            return
        mountpoint = Path(dataset.note["mountpoint"])
        self._unmount(dataset, mountpoint, force=bool(how.get("force")))
        stop_members(dataset.key)
        left: Json = dataset.note.get("left") or {}
        if not how.get("keep_cache"):
            freed = cleanup.remove(left, self._records_of_others(dataset))
            if freed:
                self._state.add_event(dataset.uid, "CacheCleared", f"{amount(freed)} freed")
        self._write(dataset_phases.unmounted(dataset))

    def _unmount(self, dataset: Stored, mountpoint: Path, *, force: bool) -> None:
        try:
            cleanup.unmount(mountpoint, str(dataset.key), force=force)
        except MountpointError as error:
            self._state.add_event(dataset.uid, "InUse", str(error).split("\n")[0], kind="Warning")
            raise Busy from error

    def _records_of_others(self, dataset: Stored) -> list[Json]:
        return [
            one.note["left"]
            for one in self._snapshot().resources.values()
            if one.uid != dataset.uid and "left" in one.note
        ]

    # -- status ------------------------------------------------------------------------

    def _unbound(
        self,
        dataset: Stored,
        runtime: Stored | None,
        fingerprint: str,
        cause: Cause,
        plan: MountPlan | None = None,
    ) -> None:
        updates = dataset_phases.unbound(
            dataset,
            runtime,
            fingerprint,
            cause,
            plan,
            time.time(),
            still_served=cause.phase == FAILED and _is_served(dataset),
        )
        self._write(*updates)

    def _write(self, *updates: Update) -> None:
        write_updates(self._state, updates)


def write_updates(state: State, updates: tuple[Update, ...] | list[Update]) -> None:
    for one in updates:
        if one.event is not None:
            state.add_event(one.uid, one.event.reason, one.event.message, kind=one.event.kind)
        state.record(one.uid, status=one.status, note=one.note)


def _cause_of(error: PenstockError) -> Cause:
    # The only place where an error's text enters the state: it may hold a key that a store sent.
    return cause_of(error, redact(str(error)))


def _is_served(dataset: Stored) -> bool:
    try:
        return "mountpoint" in dataset.note and (
            find_mount_note(Path(dataset.note["mountpoint"]), dataset.key) is not None
        )
    except MountpointError:
        return False


def _check_new_stores(current: MountSettings, wanted: MountSettings) -> None:
    """List the first page of each part whose place or keys change. Raises the store's error.

    A server that takes over asks no store, so that an upgrade cannot fail for one. But a store that
    refuses must leave the running mount as it was, so it is asked before the mount changes.
    """
    for part in wanted.parts:
        if part not in current.parts:
            store = open_reliable_store(part.source, part.store, Counters())
            next(iter(store.with_first_contact_limit(FIRST_CONTACT_S).list_all("")), None)
            refuse_volume(part.source, part.store)


def _list_new_parts(mountpoint: Path) -> None:
    """Have the mount list its new parts. Raises the error of the first that cannot be listed."""
    answer: Json = ask(
        find_note(mountpoint).socket_path,
        "refresh",
        timeout_s=_LISTING_TIMEOUT_S,
        only_new=True,
    )
    for failure in answer["failed"]:
        error = PenstockError(f"{failure['path']}: {failure['error']}", hint=failure["hint"])
        error.exit_code = failure["exit_code"]
        raise error


def _make_mountpoint(mountpoint: Path) -> None:
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{mountpoint}: {error.strerror}",
            hint="the annotation penstock.dev/mount-path names another place",
        ) from error


def _keeps_cache(dataset: Stored, runtime: Stored) -> bool:
    annotation = dataset.annotations.get(cleanup.KEEP_CACHE)
    if annotation is not None:
        return annotation == "true"
    policy: Json = runtime.spec.get("cleanCachePolicy") or {}
    return bool(policy.get("keep"))


def _load_of_backup(key: ResourceKey, dataset: str, location: str) -> Json:
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "DataLoad",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {
            "dataset": {"name": dataset, "namespace": key.namespace},
            "options": {"backup": location},
        },
    }
