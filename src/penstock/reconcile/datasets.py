"""Makes a Dataset and its runtime real: one background mount, and the statuses that tell of it.

Each step looks at what is there, does the next thing, and writes down what it is about to do before
it does it. Whoever comes after a kill finds the note, looks, and goes on.

Threading: any thread; one at a time for each pair (the loop sees to that).
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.catalog.refresh import catalog_path
from penstock.daemon.change import change_in_place, current_settings
from penstock.daemon.claim import ask_to_end
from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, clear_dead_mount, find_note
from penstock.daemon.start import start_supervisor
from penstock.errors import MountpointError, PenstockError, UsageError
from penstock.fluid.plan import MountPlan
from penstock.metrics import Counters
from penstock.operations.backup import local_folder, restore
from penstock.reconcile import cleanup
from penstock.reconcile.conditions import BOUND, NOT_BOUND, amount
from penstock.reconcile.live_status import Busy, find_mount_note, not_ours
from penstock.reconcile.mount_plan import plan_of
from penstock.reconcile.node_affinity import Node, node_mismatch
from penstock.reconcile.snapshot import RESTARTED_AT, Pair, Snapshot, Stored
from penstock.reconcile.state import State
from penstock.reconcile.status import StatusWriter, Trouble, trouble_of
from penstock.settings import MountSettings, needs_new_mount
from penstock.specs.kinds import ResourceKey
from penstock.store.redaction import redact
from penstock.store.retry import FIRST_CONTACT_S, open_reliable_store

log = logging.getLogger(__name__)

Json = dict[str, Any]

_TELL_S = 0.5
_LISTING_TAKES_AT_MOST_S = 3600


class Datasets:
    def __init__(
        self, state: State, snapshot: Callable[[], Snapshot], node: Callable[[], Node]
    ) -> None:
        self._state = state
        self._snapshot = snapshot
        self._node = node
        self._status_writer = StatusWriter(state)

    def reconcile(self, pair: Pair, fingerprint: str) -> None:
        """Brings the pair a step, or all the way, to what is wanted. Raises Busy."""
        for other in pair.others:
            if other.deleting is not None:
                self._state.forget(other.uid)
            else:
                self._status_writer.second(other, pair)
        dataset, runtime = pair.dataset, pair.runtime
        if dataset is None:
            assert runtime is not None
            if runtime.deleting is not None:
                self._state.forget(runtime.uid)
            else:
                self._status_writer.lone(runtime, fingerprint)
        elif dataset.deleting is not None:
            self._take_down(dataset, dataset.deleting)
            if runtime is not None:
                self._status_writer.not_ready(runtime)
            self._state.forget(dataset.uid)
        elif runtime is None:
            self._take_down(dataset, {})
            self._status_writer.unbound(
                dataset,
                None,
                fingerprint,
                Trouble(NOT_BOUND, "NoRuntime", "no runtime of this name has been applied"),
            )
        elif runtime.deleting is not None:
            self._take_down(dataset, runtime.deleting)
            self._state.forget(runtime.uid)
        else:
            self._bind(pair, dataset, runtime, fingerprint)

    def report_trouble(self, pair: Pair, fingerprint: str, error: Exception) -> None:
        """Of what went wrong where nobody expected it: whoever waits is told."""
        what = (
            error
            if isinstance(error, PenstockError)
            else PenstockError(
                f"a bug of ours: {type(error).__name__}: {error}",
                hint="the log of the loop says more",
            )
        )
        for one in (pair.dataset, pair.runtime):
            if one is not None and one.deleting is not None:
                self._state.add_event(one.uid, "NotDeletedYet", redact(str(what)), kind="Warning")
                return
        if pair.dataset is not None:
            self._status_writer.unbound(pair.dataset, pair.runtime, fingerprint, trouble_of(what))

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
            plan = plan_of(self._state, self._snapshot(), dataset, runtime)
        except PenstockError as problem:  # a mistake in it, or secrets that cannot be opened
            self._status_writer.unbound(dataset, runtime, fingerprint, trouble_of(problem))
            return
        if (why := node_mismatch(plan.dataset.spec.node_affinity, self._node())) is not None:
            self._take_down(dataset, {})
            hint = "`penstock label KEY=VALUE` gives this machine a label"
            trouble = Trouble(NOT_BOUND, "NodeAffinityNotMet", why, hint)
            self._status_writer.unbound(dataset, runtime, fingerprint, trouble, plan)
            return
        mountpoint = plan.settings.mountpoint
        if (before := dataset.note.get("mountpoint")) not in (None, str(mountpoint)):
            self._take_down(dataset, {"keep_cache": True})
            log.info("%s moves from %s to %s", pair.label, before, mountpoint)
        try:
            note = find_mount_note(mountpoint, dataset.key)
            self._note_before(dataset, runtime, plan.settings)
            restart_for = self._make_mount(dataset, runtime, plan, note)
        except PenstockError as error:
            self._status_writer.unbound(dataset, runtime, fingerprint, trouble_of(error), plan)
            return
        self._status_writer.bound(dataset, runtime, fingerprint, plan, restart_for)

    def _note_before(self, dataset: Stored, runtime: Stored, settings: MountSettings) -> None:
        """What there will be on this machine, before it is there. Of two data sets that want one
        place the first has it."""
        made = {
            "mountpoint": str(settings.mountpoint),
            "runtime": runtime.uid,
            "left": cleanup.describe(
                settings,
                dataset.key,
                keep_cache=_keeps_cache(dataset, runtime),
                before=dataset.note.get("left"),
            ),
        }
        with self._state.transaction():
            for other in self._state.all(["Dataset"]):
                if other.uid != dataset.uid and other.note.get("mountpoint") == made["mountpoint"]:
                    raise not_ours(settings.mountpoint, str(other.key))
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
        needs_restart = needs_new_mount(current, settings)
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
        cleanup.make_folders(settings, dataset.key)
        self._state.observe(dataset.uid, status={"phase": dataset.status.get("phase", NOT_BOUND)})
        self._status_writer.not_ready(runtime)
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
            freed = cleanup.clear_away(left, self._others_left(dataset))
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
            cleanup.unmount(mountpoint, str(dataset.key), force=force)
        except MountpointError as error:
            self._state.add_event(dataset.uid, "InUse", str(error).split("\n")[0], kind="Warning")
            raise Busy from error

    def _others_left(self, dataset: Stored) -> list[Json]:
        return [
            one.note["left"]
            for one in self._snapshot().resources.values()
            if one.uid != dataset.uid and "left" in one.note
        ]


def ask_new_stores(current: MountSettings, wanted: MountSettings) -> None:
    """The first page of each that is elsewhere now, or asked with other keys. Raises what it
    answers."""
    for part in wanted.parts:
        if part not in current.parts:
            store = open_reliable_store(part.source, part.store, Counters())
            next(iter(store.with_first_contact_limit(FIRST_CONTACT_S).list_all("")), None)


def list_new_parts(mountpoint: Path) -> None:
    """Returns when they are in the tree. Raises what the first that cannot be listed says."""
    answer: dict[str, Any] = ask(
        find_note(mountpoint).socket_path,
        "refresh",
        timeout_s=_LISTING_TAKES_AT_MOST_S,
        only_new=True,
    )
    for failure in answer["failed"]:
        error = PenstockError(f"{failure['path']}: {failure['error']}", hint=failure["hint"])
        error.exit_code = failure["exit_code"]
        raise error


def _make_folder(mountpoint: Path) -> None:
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{mountpoint}: {error.strerror}",
            hint="the annotation penstock.dev/mount-path names another place",
        ) from error


def _keeps_cache(dataset: Stored, runtime: Stored) -> bool:
    said = dataset.annotations.get(cleanup.KEEP_CACHE)
    if said is not None:
        return said == "true"
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
