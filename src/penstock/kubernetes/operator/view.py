"""The cluster as the operator sees it: caches, what they say together, and the work of a change.

Each cache calls its handler in its own thread. Handlers update the indexes, under one lock, and add
keys to the queue; they send no request.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from penstock.errors import PenstockError
from penstock.kubernetes import names
from penstock.kubernetes.client import (
    DAEMON_SETS,
    DATASETS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RUNTIMES,
    STORAGE_CLASSES,
    Client,
)
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.operator.objects import (
    Claim,
    Declared,
    Node,
    Pod,
    ServerSet,
    StorageClass,
    Volume,
    keep_claim,
    keep_declared,
    keep_node,
    keep_pod,
    keep_server_set,
    keep_storage_class,
    keep_volume,
)
from penstock.kubernetes.operator.queue import WorkQueue
from penstock.kubernetes.operator.references import (
    Reference,
    reference_of,
    referenced_keys,
    resolve,
)
from penstock.kubernetes.operator.writer import Writer
from penstock.kubernetes.server_set import SERVER_LABEL
from penstock.kubernetes.watch import Cache, Key
from penstock.reconcile.snapshot import Snapshot, Stored
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]


class Task(NamedTuple):
    """What a worker takes from the queue."""

    what: Literal["dataset", "node", "claim"]
    namespace: str
    name: str


class View:
    def __init__(self, client: Client, queue: WorkQueue[Task], writer: Writer) -> None:
        self._queue = queue
        self._writer = writer
        self._lock = threading.Lock()
        self._pods_of_claim: dict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._pods_of_node: dict[str, dict[Key, Pod]] = defaultdict(dict)
        self._servers: dict[ServedKey, dict[Key, Pod]] = defaultdict(dict)
        self._referring: dict[ServedKey, set[ServedKey]] = defaultdict(set)
        self._by_label: dict[str, ServedKey] = {}
        self.notes: dict[str, Json] = {}  # by uid: what `dataset_phases` remembers of a resource
        self.datasets = Cache(client, DATASETS, keep=keep_declared, on_change=self._dataset_changed)
        self.runtimes: Mapping[str, Cache[Declared]] = {
            kind: Cache(
                client, resource, keep=keep_declared, on_change=self._runtime_changed(resource)
            )
            for kind, resource in RUNTIMES.items()
        }
        self.sets = Cache(
            client,
            DAEMON_SETS,
            keep=keep_server_set,
            on_change=self._set_changed,
            labels=SERVER_LABEL,
        )
        self.volumes = Cache(
            client, PERSISTENT_VOLUMES, keep=keep_volume, on_change=self._volume_changed
        )
        self.claims = Cache(
            client, PERSISTENT_VOLUME_CLAIMS, keep=keep_claim, on_change=self._claim_changed
        )
        self.pods = Cache(client, PODS, keep=keep_pod, on_change=self._pod_changed)
        self.nodes = Cache(
            client, NODES, keep=keep_node, on_change=self._node_changed, metadata_only=True
        )
        self.classes = Cache(
            client, STORAGE_CLASSES, keep=keep_storage_class, on_change=self._class_changed
        )
        self.snapshot = Snapshot(_Resources(self), {})

    @property
    def caches(self) -> list[Cache[Any]]:
        return [
            self.datasets,
            *self.runtimes.values(),
            self.sets,
            self.volumes,
            self.claims,
            self.pods,
            self.nodes,
            self.classes,
        ]

    # -- objects, with our own last writes -------------------------------------------------------

    def declared(self, key: ResourceKey) -> Declared | None:
        cache = self.datasets if key.kind == "Dataset" else self.runtimes.get(key.kind)
        if cache is None:
            return None
        return self._writer.current(cache, key.namespace, key.name)

    def stored(self, key: ResourceKey) -> Stored | None:
        found = self.declared(key)
        if found is None:
            return None
        note = self.notes.get(found.stored.uid, {})
        if key.kind == "Dataset" and "runtime" not in note:
            note = {**note, "runtime": self._bound_runtime(found.stored)}
        return replace(found.stored, note=note)

    def dataset(self, key: ServedKey) -> Stored | None:
        return self.stored(ResourceKey("Dataset", *key))

    def server_set(self, key: ServedKey) -> ServerSet | None:
        name = names.server_set_name(key.name)
        return self._writer.current(self.sets, key.namespace, name)

    def volume(self, key: ServedKey) -> Volume | None:
        return self._writer.current(self.volumes, "", names.volume_name(*key))

    def claim(self, key: ServedKey) -> Claim | None:
        return self._writer.current(self.claims, key.namespace, key.name)

    def node(self, name: str) -> Node | None:
        return self.nodes.get(None, name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.classes.get(None, name)

    # -- what they say together ------------------------------------------------------------------

    def reference(self, key: ServedKey) -> Reference | None:
        """Return what a data set refers to if it has no servers of its own. Raises SpecProblem."""
        pair = self.snapshot.pair(*key)
        if pair.dataset is None:
            return None
        return reference_of(pair.dataset.manifest, pair.runtime and pair.runtime.manifest)

    def served_by(self, key: ServedKey) -> ServedKey | None:
        """Return the data set whose servers a claim needs; None if there is none."""
        try:
            found, _ = resolve(key, self.reference)
        except PenstockError:
            return None
        dataset = self.dataset(found)
        return None if dataset is None else found

    def users_of(self, key: ServedKey) -> list[Pod]:
        """Return the pods that use a data set's claim, on nodes that exist."""
        with self._lock:
            pods = list(self._pods_of_claim.get(key, {}).values())
        using = [pod for pod in pods if pod.uses_claims and self.node(pod.node) is not None]
        return sorted(using, key=lambda pod: pod.name)

    def referring_to(self, key: ServedKey) -> list[ServedKey]:
        """Return the data sets that refer to this one and stay."""
        with self._lock:
            keys = sorted(self._referring.get(key, ()))
        found = [(one, self.dataset(one)) for one in keys]
        return [one for one, dataset in found if dataset is not None and dataset.deleting is None]

    def served_on(self, node: str) -> set[ServedKey]:
        """Return the data sets that pods on a node use."""
        with self._lock:
            pods = list(self._pods_of_node.get(node, {}).values())
        claims = {
            ServedKey(pod.namespace, claim)
            for pod in pods
            if pod.uses_claims
            for claim in pod.claims
        }
        found = {self.served_by(key) for key in claims if self.datasets.get(*key) is not None}
        return {key for key in found if key is not None}

    def servers_of(self, key: ServedKey) -> list[Pod]:
        with self._lock:
            return list(self._servers.get(key, {}).values())

    def served_keys(self) -> list[ServedKey]:
        """Return the data sets that have server pods."""
        with self._lock:
            return list(self._servers)

    def runtime_types(self, key: ServedKey) -> list[str]:
        """Return `alluxio` for a data set with an AlluxioRuntime; nothing without a runtime."""
        runtime = self.snapshot.pair(*key).runtime
        return [] if runtime is None else [names.mount_type(runtime.key.kind)]

    def key_of_label(self, label: str) -> ServedKey | None:
        with self._lock:
            return self._by_label.get(label)

    def labelled_nodes(self, key: ServedKey) -> list[str]:
        """Return the nodes that have a label for a data set."""
        label = names.node_label("f", key)
        return [name for (_, name), node in self.nodes.items() if label in node.labels]

    # -- changes ---------------------------------------------------------------------------------

    def _dataset_changed(self, key: Key, old: Declared | None, new: Declared | None) -> None:
        served = ServedKey(*key)
        if new is None:
            self._writer.forget(DATASETS, key)
        if old is not None and (new is None or new.stored.uid != old.stored.uid):
            self.notes.pop(old.stored.uid, None)
        before, after = _references(old), _references(new)
        label = names.node_label("f", served)
        with self._lock:
            for other in before - after:
                self._referring[other].discard(served)
                if not self._referring[other]:
                    del self._referring[other]
            for other in after - before:
                self._referring[other].add(served)
            if new is None:
                self._by_label.pop(label, None)
            else:
                self._by_label[label] = served
            referring = list(self._referring.get(served, ()))
        self._queue.add(Task("dataset", *key))
        if old is None or new is None or old.stored.spec != new.stored.spec:
            self._queue_nodes_of(served)
        if old is not None and new is None:
            for node in self.labelled_nodes(served):
                self._queue.add(Task("node", "", node))
            self._queue.add(Task("claim", *key))
        for other in referring:  # which show its state
            self._queue.add(Task("dataset", *other))
        if new is None or new.stored.deleting is not None:
            for other in before | after:  # which may wait for this one to go
                self._queue.add(Task("dataset", *other))

    def _runtime_changed(
        self, resource: Any
    ) -> Callable[[Key, Declared | None, Declared | None], None]:
        def changed(key: Key, old: Declared | None, new: Declared | None) -> None:
            if new is None:
                self._writer.forget(resource, key)
            if old is not None and (new is None or new.stored.uid != old.stored.uid):
                self.notes.pop(old.stored.uid, None)
            self._queue.add(Task("dataset", *key))
            if old is None or new is None or old.stored.spec != new.stored.spec:
                with self._lock:
                    referring = list(self._referring.get(ServedKey(*key), ()))
                for other in referring:
                    self._queue.add(Task("dataset", *other))

        return changed

    def _set_changed(self, key: Key, old: ServerSet | None, new: ServerSet | None) -> None:
        if new is None:
            self._writer.forget(DAEMON_SETS, key)
        self._queue.add(Task("dataset", key[0], key[1].removesuffix("-fuse")))

    def _volume_changed(self, key: Key, old: Volume | None, new: Volume | None) -> None:
        if new is None:
            self._writer.forget(PERSISTENT_VOLUMES, key)
        for volume in filter(None, (old, new)):
            bound = old is not None and new is not None and old.phase != new.phase == "Bound"
            gone = new is None or new.deleting or self.datasets.get(*volume.claim) is None
            if bound or gone:
                self._queue.add(Task("dataset", *volume.claim))

    def _claim_changed(self, key: Key, old: Claim | None, new: Claim | None) -> None:
        if new is None:
            self._writer.forget(PERSISTENT_VOLUME_CLAIMS, key)
            self._queue.add(Task("dataset", *key))
        elif not new.applied:
            self._queue.add(Task("claim", *key))
        elif new.deleting or new.phase == "Lost":
            self._queue.add(Task("dataset", *key))

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        with self._lock:
            for pod in filter(None, (old, new)):
                kept = new if new is not None and pod is new else None
                for claim in pod.claims:
                    _put(self._pods_of_claim, (pod.namespace, claim), key, kept)
                if pod.node:
                    _put(self._pods_of_node, pod.node, key, kept if pod.claims else None)
                if pod.server_of:
                    _put(self._servers, ServedKey(pod.namespace, pod.server_of), key, kept)
        for pod in filter(None, (old, new)):
            for claim in pod.claims:
                served = ServedKey(pod.namespace, claim)
                if self.datasets.get(*served) is None:
                    continue
                if pod.node:
                    self._queue.add(Task("node", "", pod.node))
                if not (new is not None and new.uses_claims):  # someone may wait for its end
                    self._queue.add(Task("dataset", *served))
            if pod.server_of:
                self._queue.add(Task("dataset", pod.namespace, pod.server_of), delay_s=1.0)

    def _node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        self._queue.add(Task("node", "", key[1]))
        if new is None:  # someone may have waited for the pods that were on it
            with self._lock:
                pods = list(self._pods_of_node.get(key[1], {}).values())
            for pod in pods:
                for claim in pod.claims:
                    self._queue.add(Task("dataset", pod.namespace, claim))

    def _class_changed(self, key: Key, old: StorageClass | None, new: StorageClass | None) -> None:
        for (namespace, name), claim in self.claims.items():
            if claim.storage_class == key[1] and not claim.volume:
                self._queue.add(Task("claim", namespace, name))

    def _queue_nodes_of(self, key: ServedKey) -> None:
        for pod in self.users_of(key):
            self._queue.add(Task("node", "", pod.node))

    def _bound_runtime(self, dataset: Stored) -> str | None:
        """Return the uid of the runtime that a status names: an operator may have restarted."""
        bound_to: list[Json] = dataset.status.get("runtimes") or []
        for bound in bound_to:
            for kind in self.runtimes:
                if names.mount_type(kind) == bound.get("type"):
                    key = ResourceKey(kind, dataset.key.namespace, dataset.key.name)
                    if (found := self.declared(key)) is not None:
                        return found.stored.uid
        return None


class _Resources(Mapping[ResourceKey, Stored]):
    """Datasets and runtimes, as `Snapshot` reads them. There are no Secrets."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __getitem__(self, key: ResourceKey) -> Stored:
        if (found := self._view.stored(key)) is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[ResourceKey]:
        for cache in (self._view.datasets, *self._view.runtimes.values()):
            for one in cache.values():
                yield one.stored.key

    def __len__(self) -> int:
        return sum(len(one) for one in (self._view.datasets, *self._view.runtimes.values()))


def _references(declared: Declared | None) -> set[ServedKey]:
    if declared is None:
        return set()
    try:
        return referenced_keys(declared.stored.manifest)
    except PenstockError:
        return set()


def _put(index: Any, key: Any, pod_key: Key, pod: Pod | None) -> None:
    if pod is not None:
        index[key][pod_key] = pod
    elif key in index:
        index[key].pop(pod_key, None)
        if not index[key]:
            del index[key]
