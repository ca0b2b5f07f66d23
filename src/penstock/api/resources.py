"""Create, list, describe, load and delete what manifests declare.

    import penstock

    penstock.apply("imagenet.yaml")
    imagenet = penstock.dataset("imagenet")
    imagenet.path                           # where its files are
    imagenet.load().wait()                  # fetch all of it into the cache
    imagenet.refresh().cached_bytes

Must not import models, YAML or stores at the top: `penstock get` and `get_all` need none of them.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.tables import describe as _describe
from penstock.errors import NoSuchResource, PenstockError, UsageError
from penstock.reconcile import live_status
from penstock.reconcile.conditions import COMPLETE, stamp
from penstock.reconcile.deletion import delete as _mark_deleted
from penstock.reconcile.deletion import refuse_if_read
from penstock.reconcile.loop_control import is_running, wake_loop
from penstock.reconcile.snapshot import CHANGED, RESTARTED_AT, RUNTIMES, WARNED, Event, Pair, Stored
from penstock.reconcile.state import State
from penstock.reconcile.waiting import (
    Failure,
    failure_of,
    wait_for_operation,
    wait_for_pairs,
    wait_until_gone,
)
from penstock.specs.kinds import KINDS, KindInfo, ResourceKey, find_kind, find_kinds

if TYPE_CHECKING:
    from penstock.api.manifests import Manifests
    from penstock.reconcile.admission import Applied

# What callers need of the packages below to use the functions of this module.
__all__ = [
    "Dataset",
    "Declared",
    "Failure",
    "KindInfo",
    "Operation",
    "Pair",
    "Remark",
    "ResourceKey",
    "apply",
    "dataset",
    "delete",
    "delete_keys",
    "describe",
    "events",
    "existing",
    "find_kind",
    "find_kinds",
    "get",
    "get_all",
    "load",
    "no_such",
    "raise_trouble",
    "remarks",
    "up",
    "wait_until_bound",
]

_Self = TypeVar("_Self", bound="Declared")


class Declared:
    """A resource as it was at one moment; `refresh` reads it again."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self._shown = shown

    @property
    def kind(self) -> str:
        return self._shown["kind"]

    @property
    def name(self) -> str:
        return self._shown["metadata"]["name"]

    @property
    def namespace(self) -> str:
        return self._shown["metadata"]["namespace"]

    @property
    def key(self) -> ResourceKey:
        return ResourceKey(self.kind, self.namespace, self.name)

    @property
    def uid(self) -> str:
        """Identifies this very resource: a later one of the same name has another."""
        return self._shown["metadata"]["uid"]

    @property
    def spec(self) -> dict[str, Any]:
        return self._shown.get("spec", {})

    @property
    def status(self) -> dict[str, Any]:
        return self._shown.get("status", {})

    @property
    def phase(self) -> str:
        return self.status.get("phase", "")

    @property
    def conditions(self) -> list[dict[str, Any]]:
        return self.status.get("conditions", [])

    def as_dict(self) -> dict[str, Any]:
        """The whole object, as `get -o json` prints it; secrets are hidden."""
        return self._shown

    def refresh(self: _Self) -> _Self:
        self._shown = _shown(_stored(State(), self.key))
        return self

    def delete(self, *, force: bool = False, wait: bool = True) -> None:
        delete(self.kind, self.name, namespace=self.namespace, force=force, wait=wait)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.namespace}/{self.name} {self.phase}>".replace(" >", ">")


class Dataset(Declared):
    @property
    def path(self) -> Path | None:
        """Where its files are; None while it is not bound."""
        path = self.status.get("mountPath")
        return Path(path) if path and self.phase == "Bound" else None

    @property
    def files(self) -> int:
        return int(self.status.get("fileNum", "0").rstrip("+"))

    @property
    def total_bytes(self) -> int:
        return self._bytes("total")

    @property
    def cached_bytes(self) -> int:
        return self._bytes("cached")

    @property
    def capacity_bytes(self) -> int:
        return self._bytes("capacity")

    def load(self, *paths: str, **options: Any) -> "Operation":
        """Start to fetch the data set, or these paths of it, into the cache."""
        return load(self.name, *paths, namespace=self.namespace, **options)

    def _bytes(self, name: str) -> int:
        return self.status.get("bytes", {}).get(name, 0)


class Operation(Declared):
    """A DataLoad, DataMigrate, DataProcess or DataBackup."""

    @property
    def progress(self) -> dict[str, Any]:
        return self.status.get("progress", {})

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        progress: Callable[["Operation"], None] = lambda _: None,
    ) -> "Operation":
        """Wait until the operation is done; raise if it failed."""

        def update(stored: Stored) -> None:
            self._shown = _shown(stored)
            progress(self)

        ended = wait_for_operation(State(), self.key, timeout_s=timeout_s, on_update=update)
        if self.phase != COMPLETE:
            raise_trouble([failure_of(ended)])
        return self


# -- create and change ------------------------------------------------------------------------


def apply(
    manifests: "Manifests",
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    only_new: bool = False,
    wait: bool = True,
    timeout_s: float | None = None,
    progress: Callable[[list[Pair]], None] = lambda _: None,
) -> list["Applied"]:
    """Create or update resources from manifests: paths, folders, YAML text, or objects.

    Either all of them are applied or, with an error that names each mistake, none. Waits until the
    data sets are bound, and raises the first failure; what was applied stays applied. `only_new`:
    a resource that exists already is a mistake."""
    from penstock.api.manifests import read
    from penstock.reconcile.admission import apply as admit

    state = State()
    documents = read(manifests, namespace=namespace)
    applied = admit(state, documents, namespace=namespace, dry_run=dry_run, only_new=only_new)
    if dry_run:
        return applied
    _retry_failures(state, applied)
    wake_loop(state.folder)
    if wait:
        raise_trouble(wait_until_bound(applied, timeout_s=timeout_s, progress=progress))
    return applied


def wait_until_bound(
    applied: Iterable["Applied"],
    *,
    timeout_s: float | None = None,
    progress: Callable[[list[Pair]], None] = lambda _: None,
) -> list[Failure]:
    """Wait until each data set that `applied` concerns is bound, failed, or cannot be bound yet.
    Return the failures; `progress` gets the data sets that are still waiting."""
    return wait_for_pairs(State(), _datasets_of(applied), timeout_s=timeout_s, on_update=progress)


@dataclass(frozen=True, slots=True)
class Remark:
    """What became of a data set that was applied, where its phase alone does not say it."""

    what: str
    hint: str | None = None


def remarks(applied: Iterable["Applied"], since_s: float) -> list[Remark]:
    """Return what running mounts took since then, what waits for a restart, and which data sets
    cannot be bound until something else is applied."""
    state = State()
    found: list[Remark] = []
    for namespace, name in sorted(_datasets_of(applied)):
        stored = state.find(ResourceKey("Dataset", namespace, name))
        if stored is None:
            continue
        title = f"dataset {name}"
        conditions: list[dict[str, Any]] = stored.status.get("conditions", [])
        if stored.status.get("phase") == "NotBound":
            messages = [one["message"] for one in conditions[:1]]
            # None while its runtime has not been applied yet, as in Fluid's own order.
            found += [Remark(f"{title} is not bound: {message}") for message in messages]
            continue
        for event in state.events(stored.uid):
            if event.reason == CHANGED and event.last_s >= since_s:
                found.append(Remark(f"{title} changed in place: {event.message}"))
            elif event.reason == WARNED and event.last_s >= since_s:
                found.append(Remark(f"{title}: {event.message}", _doctor_hint(stored.key)))
        for condition in conditions:
            if condition["type"] == "UpdateReady" and condition["status"] == "False":
                what, _, hint = condition["message"].partition(" (hint: ")
                found.append(
                    Remark(f"{title} waits for a restart: {what}", hint.removesuffix(")") or None)
                )
    return found


def load(
    dataset: str,
    *paths: str,
    namespace: str = "default",
    page_cache: bool = False,
    wait: bool = False,
    name: str | None = None,
) -> Operation:
    """Create a DataLoad of these paths, or of the whole data set."""
    options = {"loadMemoryData": "true"} if page_cache else {}
    name = name or f"{dataset}-load-{uuid.uuid4().hex[:6]}"
    manifest = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "DataLoad",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "dataset": {"name": dataset, "namespace": namespace},
            "target": [{"path": path} for path in paths or ("/",)],
            **({"options": options} if options else {}),
        },
    }
    found = get("Dataset", dataset, namespace=namespace)
    if found.phase != "Bound":  # refused at once: the load might wait for a long time
        why = [one["message"] for one in found.conditions[:1]]
        raise UsageError(
            ": ".join([f"dataset {dataset} is {found.phase or 'not bound yet'}", *why]),
            hint=f"penstock doctor {dataset}",
        )
    apply(manifest, wait=False)
    operation = get("DataLoad", name, namespace=namespace)
    assert isinstance(operation, Operation)
    return operation.wait() if wait else operation


def up(
    *names: str,
    namespace: str = "default",
    restart: bool = False,
    wait: bool = True,
    progress: Callable[[list[Pair]], None] = lambda _: None,
) -> list[Failure]:
    """Mount the declared data sets again, after a reboot or once a failure is repaired.

    Return the data sets that could not be mounted. `restart` remounts those that are mounted, so
    that they take options which a running mount cannot change."""
    state = State()
    keys = [ResourceKey("Dataset", namespace, name) for name in names]
    if restart and not names:
        raise UsageError("no data set to restart is named", hint="penstock up --restart NAME")
    for key in keys if restart else ():
        refuse_if_read(_stored(state, key))
    with state.transaction():
        chosen = [_stored(state, key) for key in keys]
        for one in chosen or state.all(["Dataset"]):
            _ask_again(state, one)
            if restart:
                _annotate_restart(state, one)
        state.request_recheck()
    wake_loop(state.folder)
    if not wait:
        return []
    keys = [one.key for one in chosen] or [one.key for one in state.all(["Dataset"])]
    return wait_for_pairs(state, [(key.namespace, key.name) for key in keys], on_update=progress)


# -- look -------------------------------------------------------------------------------------


def get(kind: str, name: str, *, namespace: str = "default") -> Declared:
    return _declared(_shown(_stored(State(), ResourceKey(find_kind(kind).kind, namespace, name))))


def get_all(
    kind: str = "all",
    *names: str,
    namespace: str | None = None,
    start_loop: bool = False,
) -> list[Declared]:
    """Return the resources of a kind (`datasets`, `runtimes`, `operations`, `all`), of these names
    or all of them, in one namespace or in every one.

    `start_loop` starts the reconcile loop where something is not as declared and no loop runs: the
    data set was unmounted, the machine was restarted, or the loop was killed."""
    state = State()
    kinds = [info.kind for info in find_kinds(kind)]
    stored = state.all(kinds, namespace)
    if names:
        stored = [one for name in names for one in stored if one.key.name == name]
        for name in names:
            if not any(one.key.name == name for one in stored):
                only = kinds[0] if len(kinds) == 1 else "resource"
                raise no_such(ResourceKey(only, namespace or "any", name))
    shown = live_status.show(stored)
    if start_loop and (
        any(map(live_status.is_missing, shown))
        or (live_status.has_work(stored) and not is_running(state.folder))
    ):
        wake_loop(state.folder)
    return list(map(_declared, shown))


def dataset(name: str, *, namespace: str = "default") -> Dataset:
    found = get("Dataset", name, namespace=namespace)
    assert isinstance(found, Dataset)
    return found


def describe(kind: str, name: str, *, namespace: str = "default") -> str:
    state = State()
    shown = _shown(_stored(state, ResourceKey(find_kind(kind).kind, namespace, name)))
    return _describe(shown, state.events(shown["metadata"]["uid"]))


def events(*, namespace: str | None = None) -> list[dict[str, Any]]:
    """Return what happened to all resources, as Events of Kubernetes, the latest last."""
    state = State()
    found = [(one, event) for one in state.all(None, namespace) for event in state.events(one.uid)]
    found.sort(key=lambda both: both[1].last_s)
    return [_event(one, number, event) for number, (one, event) in enumerate(found)]


def existing(keys: Iterable[ResourceKey]) -> list[ResourceKey]:
    state = State()
    return [key for key in keys if state.find(key) is not None]


# -- delete -----------------------------------------------------------------------------------


def delete(
    kind: str,
    *names: str,
    namespace: str = "default",
    force: bool = False,
    wait: bool = True,
    timeout_s: float | None = None,
) -> None:
    """Delete resources of one kind; refused while a job uses them, unless `force`."""
    keys = [ResourceKey(find_kind(kind).kind, namespace, name) for name in names]
    delete_keys(keys, force=force, wait=wait, timeout_s=timeout_s)


def delete_keys(
    keys: Iterable[ResourceKey],
    *,
    force: bool = False,
    wait: bool = True,
    timeout_s: float | None = None,
) -> None:
    """Delete all of these or, if one does not exist or is in use, none."""
    keys = list(keys)
    if not keys:
        return
    state = State()
    _mark_deleted(state, [_stored(state, key) for key in keys], force=force)
    wake_loop(state.folder)
    if wait:
        wait_until_gone(state, keys, timeout_s=timeout_s)


# -- errors -----------------------------------------------------------------------------------


def raise_trouble(troubles: Sequence[Failure]) -> None:
    """Raise the first of these failures; return if there is none."""
    if troubles:
        first = troubles[0]
        kind = first.key.kind.lower()
        error = PenstockError(f"{kind} {first.key.name}: {first.what}", hint=first.hint)
        error.exit_code = first.exit_code
        raise error


def no_such(key: ResourceKey) -> NoSuchResource:
    plural = KINDS[key.kind].plural if key.kind in KINDS else "all"
    return NoSuchResource(
        f"there is no {key.kind.lower()} {key.name} in the namespace {key.namespace}",
        hint=f"`penstock get {plural} -A` lists what there is",
    )


# -- helpers ----------------------------------------------------------------------------------


def _datasets_of(applied: Iterable["Applied"]) -> set[tuple[str, str]]:
    """Namespace and name of each data set that these resources are a part of."""
    return {
        (one.key.namespace, one.key.name)
        for one in applied
        if one.key.kind == "Dataset" or one.key.kind in RUNTIMES
    }


def _retry_failures(state: State, applied: Iterable["Applied"]) -> None:
    """Have the data sets that failed tried again: what was wrong may be repaired by now."""
    with state.transaction():
        for namespace, name in _datasets_of(applied):
            found = state.find(ResourceKey("Dataset", namespace, name))
            if found is not None and "trouble" in found.note:
                _ask_again(state, found)
                state.request_recheck()


def _ask_again(state: State, one: Stored) -> None:
    """Have the data set tried anew. An attempt that began earlier must not answer this request, so
    each request has a value of its own."""
    asked: dict[str, Any] = {"asked": uuid.uuid4().hex}
    state.record(one.uid, note=asked | dict.fromkeys(("attempts", "retry_at_s", "settled")))


def _doctor_hint(key: ResourceKey) -> str:
    place = "" if key.namespace == "default" else f" -n {key.namespace}"
    return f"penstock doctor {key.name}{place}"


def _stored(state: State, key: ResourceKey) -> Stored:
    found = state.find(key)
    if found is None:
        raise no_such(key)
    return found


def _shown(stored: Stored) -> dict[str, Any]:
    return live_status.show([stored], within_s=live_status.ONE_ANSWERS_WITHIN_S)[0]


def _declared(shown: dict[str, Any]) -> Declared:
    category = KINDS[shown["kind"]].category
    if category == "job":
        from penstock.api.jobs import TrainingJob

        return TrainingJob(shown)
    return {"dataset": Dataset, "operation": Operation}.get(category, Declared)(shown)


def _event(one: Stored, number: int, event: Event) -> dict[str, Any]:
    kind, namespace, name = one.key
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name}.{number}",
            "namespace": namespace,
            "uid": f"{one.uid}/{event.reason}/{event.message}",
        },
        "involvedObject": {"kind": kind, "namespace": namespace, "name": name, "uid": one.uid},
        "type": event.kind,
        "reason": event.reason,
        "message": event.message,
        "count": event.count,
        "firstTimestamp": stamp(event.first_s),
        "lastTimestamp": stamp(event.last_s),
    }


def _annotate_restart(state: State, one: Stored) -> None:
    metadata: Mapping[str, Any] = one.manifest["metadata"]
    annotations = {**one.annotations, RESTARTED_AT: datetime.now(UTC).isoformat()}
    manifest = {**one.manifest, "metadata": {**metadata, "annotations": annotations}}
    state.put(one.key, manifest, state.secrets(one))
