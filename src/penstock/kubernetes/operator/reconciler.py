"""One data set: the actions for each state of `reconcile.dataset_phases`, and its statuses.

Each step looks at what is there and changes only what differs, so it may be repeated at any time.
What must wait raises `Again`; what a user has to fix becomes a condition.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, assert_never

from penstock.errors import ApiError, Conflict, PenstockError, UsageError
from penstock.kubernetes.client import (
    DAEMON_SETS,
    DATASETS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RUNTIMES,
    Client,
    Resource,
)
from penstock.kubernetes.effects import site
from penstock.kubernetes.mount_plan import capacity_bytes
from penstock.kubernetes.names import FINALIZER, ServedKey, mount_type
from penstock.kubernetes.operator.nodes import Nodes
from penstock.kubernetes.operator.objects import (
    APPLIED,
    Claim,
    Pod,
    keep_claim,
)
from penstock.kubernetes.operator.provision import Provisioner, request_of
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.references import (
    Reference,
    reference_of,
    referenced_keys,
    resolve,
)
from penstock.kubernetes.operator.servers import Servers, before_listing
from penstock.kubernetes.operator.view import Task, View
from penstock.kubernetes.operator.writer import Writer, fingerprint
from penstock.kubernetes.server_set import Image, Served, check_served, server_set
from penstock.kubernetes.volumes import Target, persistent_volume, volume_claim
from penstock.reconcile import dataset_phases
from penstock.reconcile.conditions import (
    BOUND,
    FAILED,
    NOT_BOUND,
    READY,
    Condition,
    with_conditions,
)
from penstock.reconcile.dataset_phases import (
    NO_RUNTIME,
    Action,
    Cause,
    Notice,
    Site,
    Update,
    cause_of,
    next_action,
)
from penstock.reconcile.snapshot import Stored
from penstock.store.redaction import redact

log = logging.getLogger(__name__)

Json = dict[str, Any]

PV_PROTECTION: Final = "kubernetes.io/pv-protection"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_PAIR_S = 1.0
_MOST_NAMES = 5  # of pods in a message


class Again(Exception):
    """Something must be gone or be there first: try again soon."""


class Reconciler:
    def __init__(
        self,
        client: Client,
        view: View,
        writer: Writer,
        queue: WorkQueue[Task],
        nodes: Nodes,
        servers: Servers,
        provisioner: Provisioner,
        image: Image,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._view = view
        self._writer = writer
        self._queue = queue
        self._nodes = nodes
        self._servers = servers
        self._provisioner = provisioner
        self._image = image
        self._now = now

    def work_on(self, task: Task) -> None:
        """Raises Again and PenstockError: work on the task again later."""
        match task.what:
            case "dataset":
                self.reconcile(ServedKey(task.namespace, task.name))
            case "node":
                self._nodes.reconcile(task.name)
            case "claim":
                self._provisioner.reconcile(ServedKey(task.namespace, task.name))
            case _:
                assert_never(task.what)

    def reconcile(self, key: ServedKey) -> None:
        pair = self._view.snapshot.pair(*key)
        if pair.dataset is None and pair.runtime is None:
            self._remove_leftovers(key)
            return
        mark = self._view.snapshot.fingerprint(pair)
        for other in pair.others:
            if other.deleting is None:
                self._write(other, dataset_phases.second_runtime(other, pair, self._site(key)))
        dataset, runtime = pair.dataset, pair.runtime
        reference = None
        if dataset is not None and dataset.deleting is None:
            try:
                reference = reference_of(dataset.manifest, runtime and runtime.manifest)
            except PenstockError as error:
                self._unbound(key, dataset, runtime, mark, _cause_of(error))
                return
        match next_action(pair), dataset, runtime:
            case Action.FORGET_RUNTIME, None, Stored():
                self._remove_leftovers(key)
            case Action.WAIT_FOR_DATASET, None, Stored():
                self._remove_leftovers(key)
                if self._comes_soon(key, runtime):
                    return
                update = dataset_phases.without_dataset(runtime, mark, self._now(), self._site(key))
                self._write(runtime, update)
            case Action.DELETE, Stored(), _:
                self._delete(key, dataset)
            case _, Stored(), _ if reference is not None:
                self._bind_reference(key, dataset, runtime, reference, mark)
            case ((Action.UNBIND | Action.DELETE_RUNTIME), Stored(), _):
                self._unbind(key, dataset, mark)
            case Action.BIND, Stored(), Stored():
                self._bind(key, dataset, runtime, mark)
            case _:
                raise AssertionError(pair)

    # -- up ----------------------------------------------------------------------------------------

    def _bind(self, key: ServedKey, dataset: Stored, runtime: Stored, mark: str) -> None:
        try:
            served = check_served(
                dataset.manifest, runtime.manifest, self._referenced_manifests(dataset)
            )
        except ApiError:
            raise
        except PenstockError as error:
            self._unbound(key, dataset, runtime, mark, _cause_of(error))
            return
        try:
            self._adopt(dataset, runtime)
            self._ensure_set(key, dataset, served)
            target = Target(mount_type(runtime.key.kind), key)
            self._ensure_volumes(key, dataset, runtime, target)
        except UsageError as error:  # something of that name belongs to someone else
            self._unbound(key, dataset, runtime, mark, _cause_of(error), served)
            return
        said = self._servers.summary(key)
        if (error := said.error) is not None:
            cause = Cause(FAILED, "ServerFailed", error.message, error.hint, error.exit_code)
            self._unbound(key, dataset, runtime, mark, cause, served, still_served=said.serving > 0)
            return
        updates = dataset_phases.bound(
            dataset,
            runtime,
            mark,
            served.plan,
            said.restart_for,
            None,
            self._now(),
            self._site(key),
        )
        amounts = said.amounts or before_listing(
            dataset.status, capacity_bytes(served.plan.settings)
        )
        of_runtime, of_dataset = updates
        of_dataset.status.update(amounts)
        if "cacheStates" in amounts:
            of_runtime.status["cacheStates"] = amounts["cacheStates"]
        self._write(runtime, of_runtime)
        self._write(dataset, of_dataset)

    def _referenced_manifests(self, dataset: Stored) -> list[Json]:
        """Return the data sets that a mount needs, with their runtimes, and what those need."""
        found: list[Json] = []
        seen: set[ServedKey] = set()
        waiting = sorted(referenced_keys(dataset.manifest))
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            pair = self._view.snapshot.pair(*key)
            if pair.dataset is None or pair.dataset.deleting is not None:
                continue  # the plan says that it is missing
            found.append(pair.dataset.manifest)
            if pair.runtime is not None and pair.runtime.deleting is None:
                found.append(pair.runtime.manifest)
            waiting += sorted(referenced_keys(pair.dataset.manifest))
        return found

    def _adopt(self, dataset: Stored, runtime: Stored | None) -> None:
        """Keep the Dataset until all is removed, and let the runtime go with it."""
        declared = self._view.declared(dataset.key)
        if declared is not None and FINALIZER not in declared.finalizers:
            finalizers = [*declared.finalizers, FINALIZER]
            self._writer.patch(DATASETS, dataset, {"metadata": {"finalizers": finalizers}})
        if runtime is None or (found := self._view.declared(runtime.key)) is None:
            return
        if not any(owner.get("uid") == dataset.uid for owner in found.owners):
            owners = [*found.owners, _owner(dataset)]
            resource = RUNTIMES[runtime.key.kind]
            self._writer.patch(resource, runtime, {"metadata": {"ownerReferences": owners}})

    def _ensure_set(self, key: ServedKey, dataset: Stored, served: Served) -> None:
        manifest = _owned(server_set(served, self._image), dataset)
        applied = fingerprint(manifest)
        current = self._view.server_set(key)
        if current is None:
            self._create(DAEMON_SETS, manifest, applied)
        elif current.deleting or current.owner != dataset.uid:
            self._writer.delete(self._view.sets, key.namespace, f"{key.name}-fuse", current)
            raise Again(f"DaemonSet {key}-fuse of an earlier Dataset is being deleted")
        elif current.applied != applied:
            self._writer.apply(DAEMON_SETS, manifest, applied, force=True)

    def _ensure_volumes(
        self, key: ServedKey, dataset: Stored, runtime: Stored | None, target: Target
    ) -> None:
        annotated = runtime and runtime.manifest
        volume = self._view.volume(key)
        if volume is not None and volume.deleting and not self._view.users_of(key):
            self._remove_volumes(key)  # the claim too: it is lost without its volume
            raise Again(f"PersistentVolume of {key} is being deleted")
        claim = self._ensure_claim(key, dataset, annotated)
        request = None
        if not claim.applied and (request := request_of(claim, self._view)) is None:
            raise UsageError(
                f"PersistentVolumeClaim {key} exists, and is not Penstock's",
                hint="delete it, or give the Dataset another name",
            )
        manifest = persistent_volume(dataset.manifest, target, annotated, request)
        applied = fingerprint(manifest["spec"])
        manifest["spec"]["claimRef"]["uid"] = claim.uid
        name = manifest["metadata"]["name"]
        if volume is None:
            self._create(PERSISTENT_VOLUMES, manifest, applied)
        elif volume.claim != key or volume.claim_uid not in ("", claim.uid):
            if volume.claim != key and self._view.datasets.get(*volume.claim) is not None:
                raise UsageError(
                    f"PersistentVolume {name} belongs to Dataset {'/'.join(volume.claim)}",
                    hint="names of volumes are NAMESPACE-NAME: give the Dataset another name",
                )
            self._writer.delete(self._view.volumes, "", name, volume)
            raise Again(f"PersistentVolume {name} of an earlier Dataset is being deleted")
        elif volume.applied != applied and not self._view.users_of(key):
            self._remove_volumes(key)
            raise Again(f"PersistentVolume {name} is made again: it cannot change")
        bound = volume is not None and volume.phase == "Bound" and not volume.deleting
        if bound and claim.applied and claim.phase != "Bound":
            self._bind_claim(claim, manifest)

    def _ensure_claim(self, key: ServedKey, dataset: Stored, runtime: Json | None) -> Claim:
        manifest = _owned(volume_claim(dataset.manifest, runtime), dataset)
        applied = fingerprint(manifest["spec"])
        claim = self._view.claim(key)
        if claim is None:
            found = keep_claim(self._create(PERSISTENT_VOLUME_CLAIMS, manifest, applied))
            assert found is not None
            return found
        if not claim.applied:
            return claim
        if claim.deleting:
            raise Again(f"PersistentVolumeClaim {key} is being deleted")
        other = claim.owner != dataset.uid or claim.applied != applied
        if other and not self._view.users_of(key):
            self._remove_volumes(key)
            raise Again(f"PersistentVolumeClaim {key} is made again: it cannot change")
        return claim

    def _bind_claim(self, claim: Claim, volume: Json) -> None:
        """Bind the claim to its volume, which is bound to it, without waiting for the controller.

        Its client sends 20 requests a second, and would need five for each new claim: 50 s for 200
        of them. Earlier than its volume is bound, the controller would declare the claim lost.
        """
        spec = volume["spec"]
        reference = spec["claimRef"]
        found = self._client.patch(
            PERSISTENT_VOLUME_CLAIMS,
            reference["namespace"],
            reference["name"],
            {
                "metadata": {"uid": claim.uid, "annotations": {BIND_COMPLETED: "yes"}},
                "status": {
                    "phase": "Bound",
                    "accessModes": spec["accessModes"],
                    "capacity": spec["capacity"],
                },
            },
            subresource="status",
        )
        self._writer.remember(PERSISTENT_VOLUME_CLAIMS, found)

    def _create(self, resource: Resource, manifest: Json, applied: str) -> Json:
        """Create an object. Raises Again if it is ours and the cache does not have it yet."""
        try:
            if resource is DAEMON_SETS:
                # What a later apply leaves out goes only if an apply has made it.
                return self._writer.apply(resource, manifest, applied, force=False)
            return self._writer.create(resource, manifest, applied)
        except Conflict as error:
            metadata = manifest["metadata"]
            namespace, name = metadata.get("namespace"), metadata["name"]
            found = self._client.get(resource, namespace, name)
            if APPLIED in (found["metadata"].get("annotations") or {}):
                self._writer.remember(resource, found)
                raise Again(f"{resource.kind} {name} is there already") from error
            place = f"{namespace}/{name}" if namespace else name
            raise UsageError(
                f"{resource.kind} {place} exists, and is not Penstock's",
                hint="delete it, or give the Dataset another name",
            ) from error

    # -- references --------------------------------------------------------------------------------

    def _bind_reference(
        self,
        key: ServedKey,
        dataset: Stored,
        runtime: Stored | None,
        reference: Reference,
        mark: str,
    ) -> None:
        """Lead the claim to the mount of another data set."""
        try:
            target, folder = resolve(key, self._view.reference)
        except PenstockError as error:
            self._unbound(key, dataset, runtime, mark, _cause_of(error))
            return
        physical = self._view.dataset(target)
        if (
            physical is None
            or physical.deleting is not None
            or physical.status.get("phase") != (BOUND)
        ):
            what = "does not exist" if physical is None else "is not Bound"
            why = f"data set {target}, which it refers to, {what}"
            cause = Cause(NOT_BOUND, "ReferencedNotBound", why)
            self._unbound(key, dataset, runtime, mark, cause)
            return
        (kind,) = self._view.runtime_types(target) or [""]
        try:
            self._adopt(dataset, runtime)
            self._remove_set(key)
            self._ensure_volumes(key, dataset, runtime, Target(kind, target, folder))
        except UsageError as error:
            self._unbound(key, dataset, runtime, mark, _cause_of(error))
            return
        before = dataset.status.get("conditions", [])
        ready = Condition(READY, True, "DatasetReady", f"Data set {target} is bound.")
        shown = ("ufsTotal", "fileNum", "cacheStates") if not folder else ()
        status: Json = {
            "phase": BOUND,
            "mounts": dataset.spec.get("mounts"),
            "observedGeneration": dataset.generation,
            "runtimes": physical.status.get("runtimes"),
            "conditions": with_conditions(before, [ready], self._now()),
            **{name: physical.status.get(name) for name in shown},
        }
        if runtime is not None:
            phases = dataset_phases.runtime_phases(READY, self._site(target))
            generation = {"observedGeneration": runtime.generation}
            self._write(runtime, Update(runtime.uid, {**phases, **generation}))
        note = {"settled": mark, "attempts": None, "retry_at_s": None, "trouble": None}
        self._write(dataset, Update(dataset.uid, status, note))

    # -- down --------------------------------------------------------------------------------------

    def _unbind(self, key: ServedKey, dataset: Stored, mark: str) -> None:
        """There is no runtime (any more)."""
        if (why := self._in_use(key, references=False)) is not None:
            self._wait_for_users(dataset, why)
            return
        self._remove_set(key)
        self._remove_volumes(key)
        self._unbound(key, dataset, None, mark, NO_RUNTIME)

    def _delete(self, key: ServedKey, dataset: Stored) -> None:
        declared = self._view.declared(dataset.key)
        if declared is None or FINALIZER not in declared.finalizers:
            return
        if (why := self._in_use(key, references=True)) is not None:
            self._wait_for_users(dataset, why)
            return
        self._remove_set(key)
        self._remove_volumes(key)
        for kind, resource in RUNTIMES.items():
            # The garbage collector would do it too, at 20 requests a second.
            runtime = self._view.stored(dataset.key._replace(kind=kind))
            found = runtime and self._view.declared(runtime.key)
            if runtime is None or found is None or runtime.deleting is not None:
                continue
            if any(owner.get("uid") == dataset.uid for owner in found.owners):
                self._delete_owned(resource, runtime)
        for node in self._view.labelled_nodes(key):
            self._nodes.reconcile(node)
        finalizers = [one for one in declared.finalizers if one != FINALIZER]
        self._writer.patch(DATASETS, dataset, {"metadata": {"finalizers": finalizers}})

    def _delete_owned(self, resource: Resource, runtime: Stored) -> None:
        try:
            self._client.delete(resource, runtime.key.namespace, runtime.key.name, uid=runtime.uid)
        except Conflict:
            return

    def _remove_leftovers(self, key: ServedKey) -> None:
        """Remove what a Dataset left that went without its finalizer."""
        volume = self._view.volume(key)
        if volume is not None and volume.claim == key and not self._view.users_of(key):
            self._remove_set(key)
            self._remove_volumes(key)

    def _remove_set(self, key: ServedKey) -> None:
        if (found := self._view.server_set(key)) is not None:
            self._writer.delete(self._view.sets, key.namespace, f"{key.name}-fuse", found)

    def _remove_volumes(self, key: ServedKey) -> None:
        """Delete the volume and the claim, unless a user made the claim."""
        claim, volume = self._view.claim(key), self._view.volume(key)
        if claim is not None and claim.applied:
            self._writer.delete(self._view.claims, key.namespace, key.name, claim)
        if volume is None or volume.claim != key:
            return
        name = f"{key.namespace}-{key.name}"
        self._writer.delete(self._view.volumes, "", name, volume)
        if claim is None and PV_PROTECTION in volume.finalizers:
            # It protects claims; its controller would take two of its 20 requests a second.
            kept = [one for one in volume.finalizers if one != PV_PROTECTION]
            self._writer.drop_finalizers(PERSISTENT_VOLUMES, name, volume.uid, kept)

    def _in_use(self, key: ServedKey, *, references: bool) -> str | None:
        """Return who uses a data set, in words; None if nobody does."""
        others = self._view.referring_to(key) if references else []
        if others:
            return f"data sets refer to it: {', '.join(map(str, others[:_MOST_NAMES]))}"
        pods = self._view.users_of(key)
        return _pods_in_words(pods) if pods else None

    def _wait_for_users(self, dataset: Stored, why: str) -> None:
        """Say who uses it. A change of pods or data sets brings its key back into the queue."""
        before: list[Json] = dataset.status.get("conditions", [])
        message = f"{why} (hint: it goes when they have ended)"
        waits = Condition("Removed", False, "InUse", message)
        kept = [
            Condition(one["type"], one["status"] == "True", one["reason"], one["message"])
            for one in before
            if one["type"] != "Removed"
        ]
        conditions = with_conditions(before, [*kept, waits], self._now())
        notice = Notice("InUse", message, "Warning")
        self._write(dataset, Update(dataset.uid, {"conditions": conditions}, event=notice))

    def _comes_soon(self, key: ServedKey, alone: Stored) -> bool:
        """Give the other one of a pair a second to come: both are mostly in one manifest."""
        if alone.status or alone.note.get("waited"):
            return False
        self._view.notes.setdefault(alone.uid, {})["waited"] = True
        self._queue.add(Task("dataset", *key), delay_s=_PAIR_S)
        return True

    # -- statuses ----------------------------------------------------------------------------------

    def _unbound(
        self,
        key: ServedKey,
        dataset: Stored,
        runtime: Stored | None,
        mark: str,
        cause: Cause,
        served: Served | None = None,
        *,
        still_served: bool | None = None,
    ) -> None:
        # A change that cannot be made: servers go on with what they have.
        goes_on = cause.phase == FAILED and bool(dataset.status.get("phase") == BOUND)
        if still_served is None:
            still_served = goes_on and self._view.server_set(key) is not None
        updates = dataset_phases.unbound(
            dataset,
            runtime,
            mark,
            cause,
            served and served.plan,
            self._now(),
            still_served=still_served,
            site=self._site(key),
        )
        for stored, update in zip((runtime, dataset)[-len(updates) :], updates, strict=True):
            assert stored is not None
            self._write(stored, update)
        retry_at_s = updates[-1].note.get("retry_at_s")
        if retry_at_s is not None:
            self._queue.add(Task("dataset", *key), delay_s=max(0.0, retry_at_s - self._now()))

    def _site(self, key: ServedKey) -> Site:
        found = self._view.server_set(key)
        if found is None:
            return site(desired=0, ready=0)
        return site(desired=found.desired, ready=found.ready)

    def _write(self, stored: Stored, update: Update) -> None:
        resource = DATASETS if stored.key.kind == "Dataset" else RUNTIMES[stored.key.kind]
        written = self._writer.write_status(resource, stored, update.status)
        note = {**self._view.notes.get(stored.uid, {}), **update.note}
        self._view.notes[stored.uid] = {
            name: value for name, value in note.items() if value is not None
        }
        if update.event is not None and (written or update.event.kind == "Warning"):
            self._writer.event(stored.api_version, stored.key, stored.uid, update.event)


def _cause_of(error: PenstockError) -> Cause:
    return cause_of(error, redact(str(error)))


def _owner(dataset: Stored) -> Json:
    return {
        "apiVersion": dataset.api_version,
        "kind": "Dataset",
        "name": dataset.key.name,
        "uid": dataset.uid,
        "controller": True,
    }


def _owned(manifest: Json, dataset: Stored) -> Json:
    metadata = {**manifest["metadata"], "ownerReferences": [_owner(dataset)]}
    return {**manifest, "metadata": metadata}


def _pods_in_words(pods: list[Pod]) -> str:
    named = [f"{pod.name} on {pod.node}" for pod in pods[:_MOST_NAMES]]
    more = f" and {len(pods) - _MOST_NAMES} more" if len(pods) > _MOST_NAMES else ""
    return f"pods use it: {', '.join(named)}{more}"
