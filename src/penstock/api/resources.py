"""The verbs of the command line as functions and objects, for notebooks and platforms.

    import penstock

    penstock.apply("imagenet.yaml")
    imagenet = penstock.dataset("imagenet")
    imagenet.path                           # where its files are
    imagenet.load().wait()                  # all of it into the cache
    imagenet.refresh().cached_bytes

Every function takes what the command takes, and raises `penstock.errors.PenstockError` (with a
`hint`) where the command would print one. What they change is the same state that the command
line uses, so both may be used at once. Threading: any thread.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.tables import describe as _describe
from penstock.errors import NoSuchResource, PenstockError, UsageError
from penstock.reconcile import live_status
from penstock.reconcile.conditions import COMPLETE
from penstock.reconcile.deletion import delete as _delete
from penstock.reconcile.deletion import refuse_if_read
from penstock.reconcile.loop_control import wake_loop
from penstock.reconcile.snapshot import RESTARTED_AT, RUNTIMES, Pair, Stored
from penstock.reconcile.state import State
from penstock.reconcile.waiting import (
    Trouble,
    trouble_of,
    wait_for_operation,
    wait_for_pairs,
    wait_until_gone,
)
from penstock.specs.kinds import KINDS, ResourceKey, find_kind, find_kinds

if TYPE_CHECKING:
    from penstock.reconcile.admission import Applied
    from penstock.specs.documents import Document

Manifests = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]]
_Self = TypeVar("_Self", bound="Declared")


class Declared:
    """A resource as it was when it was asked for; `refresh` asks again."""

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
        self._shown = _one(State(), self.key)
        return self

    def delete(self, *, force: bool = False, wait: bool = True) -> None:
        delete(self.kind, self.name, namespace=self.namespace, force=force, wait=wait)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.namespace}/{self.name} {self.phase}>".replace(" >", ">")


class Dataset(Declared):
    @property
    def path(self) -> Path | None:
        """Where its files are; None while it is not bound."""
        said = self.status.get("mountPath")
        return Path(said) if said and self.phase == "Bound" else None

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
        """Begins to fetch it, or these paths of it, into the cache."""
        return load(self.name, *paths, namespace=self.namespace, **options)

    def _bytes(self, what: str) -> int:
        return self.status.get("bytes", {}).get(what, 0)


class Operation(Declared):
    """A DataLoad, DataMigrate, DataProcess or DataBackup."""

    @property
    def progress(self) -> dict[str, Any]:
        return self.status.get("progress", {})

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        tell: Callable[["Operation"], None] = lambda _: None,
    ) -> "Operation":
        """Until it is done; raises if it failed."""
        state = State()

        def seen(stored: Stored) -> None:
            self._shown = _shown(stored)
            tell(self)

        ended = wait_for_operation(state, self.key, timeout_s=timeout_s, tell=seen)
        if self.phase != COMPLETE:
            raise_trouble([trouble_of(ended)])
        return self


# -- verbs ----------------------------------------------------------------------------------


def apply(
    manifests: Manifests,
    *,
    namespace: str | None = None,
    dry_run: bool = False,
    wait: bool = True,
    timeout_s: float | None = None,
    tell: Callable[[list[Pair]], None] = lambda _: None,
) -> list["Applied"]:
    """Has these resources made real. A path, a folder of manifests, YAML text, or objects.

    All of them are taken or, with an error that names each mistake, none. Waits until the data sets
    are bound; raises the first trouble that one had, which changes nothing of what is wanted."""
    from penstock.reconcile.admission import apply as admit

    state = State()
    applied = admit(
        state, read(manifests, namespace=namespace), namespace=namespace, dry_run=dry_run
    )
    if dry_run:
        return applied
    wake_loop(state.folder)
    if wait:
        raise_trouble(wait_for_pairs(state, pairs_of(applied), timeout_s=timeout_s, tell=tell))
    return applied


def validate(manifests: Manifests) -> list["Document"]:
    """Reads them; raises ManifestError with every mistake. Asks nobody, changes nothing."""
    return read(manifests)


def get(kind: str, name: str, *, namespace: str = "default") -> Declared:
    return _declared(_one(State(), ResourceKey(find_kind(kind).kind, namespace, name)))


def get_all(kind: str = "all", *, namespace: str | None = None) -> list[Declared]:
    """Of a kind (`datasets`, `runtimes`, `operations`, `all`), in all namespaces unless said."""
    kinds = [info.kind for info in find_kinds(kind)]
    return list(map(_declared, live_status.show(State().all(kinds, namespace))))


def dataset(name: str, *, namespace: str = "default") -> Dataset:
    found = get("Dataset", name, namespace=namespace)
    assert isinstance(found, Dataset)
    return found


def describe(kind: str, name: str, *, namespace: str = "default") -> str:
    state = State()
    shown = _one(state, ResourceKey(find_kind(kind).kind, namespace, name))
    return _describe(shown, state.events(shown["metadata"]["uid"]))


def delete(
    kind: str,
    *names: str,
    namespace: str = "default",
    force: bool = False,
    wait: bool = True,
    timeout_s: float | None = None,
) -> None:
    """Refused while a job uses it, unless `force`."""
    state = State()
    keys = [ResourceKey(find_kind(kind).kind, namespace, name) for name in names]
    delete_keys(state, keys, force=force, wait=wait, timeout_s=timeout_s)


def load(
    dataset: str,
    *paths: str,
    namespace: str = "default",
    page_cache: bool = False,
    wait: bool = False,
    name: str | None = None,
) -> Operation:
    """Makes a DataLoad; without paths, of the whole data set."""
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
    found = _one(State(), ResourceKey("Dataset", namespace, dataset))
    if (phase := found["status"].get("phase")) != "Bound":  # said at once: it could wait for long
        why = [one["message"] for one in found["status"].get("conditions", [])[:1]]
        raise UsageError(
            ": ".join([f"dataset {dataset} is {phase or 'not bound yet'}", *why]),
            hint=f"penstock doctor {dataset}",
        )
    apply(manifest, wait=False)
    found = get("DataLoad", name, namespace=namespace)
    assert isinstance(found, Operation)
    return found.wait() if wait else found


def up(
    *names: str,
    namespace: str = "default",
    restart: bool = False,
    wait: bool = True,
    tell: Callable[[list[Pair]], None] = lambda _: None,
) -> list[Trouble]:
    """Brings back what should be there: after a reboot, or after trouble was mended. Returns what
    could not be; with `restart`, these are mounted anew, with what a running mount cannot take."""
    state = State()
    wanted = [ResourceKey("Dataset", namespace, name) for name in names]
    if restart and not names:
        raise UsageError("restart of what?", hint="name the data sets")
    for key in wanted if restart else ():
        refuse_if_read(_stored(state, key))
    with state.transaction():
        chosen = [_stored(state, key) for key in wanted]
        for one in chosen or state.all(["Dataset"]):
            # A try that has begun before settles what was asked before.
            asked: dict[str, Any] = {"asked": uuid.uuid4().hex}
            anew = dict.fromkeys(("attempts", "retry_at_s", "settled"))
            state.observe(one.uid, note=asked | anew)
            if restart:
                _ask_for_restart(state, one)
        state.request_recheck()
    wake_loop(state.folder)
    if not wait:
        return []
    keys = [one.key for one in chosen] or [one.key for one in state.all(["Dataset"])]
    return wait_for_pairs(state, [(key.namespace, key.name) for key in keys], tell=tell)


# -- for the command line ---------------------------------------------------------------------


def read(manifests: Manifests, *, namespace: str | None = None) -> list["Document"]:
    """Documents with the lines they stand at."""
    import json

    from penstock.reconcile.manifests import read_manifests
    from penstock.specs.documents import read_all

    if isinstance(manifests, (str, os.PathLike)) and "\n" not in str(manifests):
        return read_manifests([os.fspath(manifests)], namespace=namespace or "default")
    texts = [(str(manifests), "text")]
    if isinstance(manifests, Mapping):
        texts = [(json.dumps(manifests), "object")]
    elif not isinstance(manifests, (str, os.PathLike)):
        texts = [(json.dumps(one), f"object {number}") for number, one in enumerate(manifests, 1)]
    return read_all(texts, namespace=namespace or "default")


def delete_keys(
    state: State,
    keys: Iterable[ResourceKey],
    *,
    force: bool,
    wait: bool,
    timeout_s: float | None = None,
) -> None:
    keys = list(keys)
    if not keys:
        return
    _delete(state, [_stored(state, key) for key in keys], force=force)
    wake_loop(state.folder)
    if wait:
        wait_until_gone(state, keys, timeout_s=timeout_s)


def pairs_of(applied: Iterable["Applied"]) -> set[tuple[str, str]]:
    """The data sets that these resources are a part of."""
    return {
        (one.key.namespace, one.key.name)
        for one in applied
        if one.key.kind == "Dataset" or one.key.kind in RUNTIMES
    }


def why_unbound(state: State, names: Iterable[tuple[str, str]]) -> list[str]:
    """Of data sets that wait for something that nobody is at: a line for each."""
    lines: list[str] = []
    for namespace, name in sorted(names):
        found = state.find(ResourceKey("Dataset", namespace, name))
        if found is None or found.status.get("phase") != "NotBound":
            continue
        for condition in found.status.get("conditions", [])[:1]:
            lines.append(f"dataset {name} is not bound: {condition['message']}")
    return lines


def raise_trouble(troubles: Sequence[Trouble]) -> None:
    if troubles:
        first = troubles[0]
        kind = first.key.kind.lower()
        error = PenstockError(f"{kind} {first.key.name}: {first.what}", hint=first.hint)
        error.exit_code = first.exit_code
        raise error


def _stored(state: State, key: ResourceKey) -> Stored:
    found = state.find(key)
    if found is None:
        raise no_such(key)
    return found


def no_such(key: ResourceKey) -> NoSuchResource:
    plural = KINDS[key.kind].plural if key.kind in KINDS else "all"
    return NoSuchResource(
        f"there is no {key.kind.lower()} {key.name} in the namespace {key.namespace}",
        hint=f"`penstock get {plural} -A` lists what there is",
    )


def _one(state: State, key: ResourceKey) -> dict[str, Any]:
    return _shown(_stored(state, key))


def _shown(stored: Stored) -> dict[str, Any]:
    return live_status.show([stored], within_s=live_status.ONE_ANSWERS_WITHIN_S)[0]


def _declared(shown: dict[str, Any]) -> Declared:
    category = KINDS[shown["kind"]].category
    return {"dataset": Dataset, "operation": Operation}.get(category, Declared)(shown)


def _ask_for_restart(state: State, one: Stored) -> None:
    metadata: dict[str, Any] = one.manifest["metadata"]
    annotations = {**one.annotations, RESTARTED_AT: datetime.now(UTC).isoformat()}
    manifest = {**one.manifest, "metadata": {**metadata, "annotations": annotations}}
    state.put(one.key, manifest, state.secrets(one))
