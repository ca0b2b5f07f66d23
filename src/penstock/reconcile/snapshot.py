"""All declared resources at one moment, and the pairs of a Dataset and its runtime. Pure.

A Dataset and the runtime of the same name are reconciled together, as a pair. A pair's fingerprint
covers everything that determines its desired state: the manifests, the Secrets that they name, the
data sets that they refer to, and this machine's labels. Work that was done for a fingerprint need
not be done again; a change of any of these gives another fingerprint.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.reconcile.conditions import BOUND
from penstock.release import __version__
from penstock.specs.kinds import KINDS, ResourceKey

Json = dict[str, Any]
# Is this data set's mount served, at this mount point?
Served = Callable[[Path, ResourceKey], bool]

MOUNT_PATH = "penstock.dev/mount-path"
RESTARTED_AT = "penstock.dev/restarted-at"
CHANGED = "ChangedInPlace"  # the reason of events that say what a mount in use took
WARNED = "MountedWithWarning"  # and of those that say what readers will meet
RUNTIMES = frozenset(kind for kind, info in KINDS.items() if info.category == "runtime")
OPERATIONS = frozenset(kind for kind, info in KINDS.items() if info.category == "operation")
JOBS = frozenset(kind for kind, info in KINDS.items() if info.category == "job")


@dataclass(frozen=True, slots=True)
class Stored:
    """A resource as it was stored at one moment."""

    uid: str
    key: ResourceKey
    generation: int
    manifest: Json
    created_s: float
    deleting: Json | None  # how to delete it; None while it is to stay
    status: Json
    note: Json  # what the loop did for it on this machine
    sealed: bytes | None = field(repr=False)

    @property
    def spec(self) -> Json:
        return self.manifest.get("spec") or {}

    @property
    def api_version(self) -> str:
        return self.manifest["apiVersion"]

    @property
    def annotations(self) -> dict[str, str]:
        return self.manifest["metadata"].get("annotations") or {}


@dataclass(frozen=True, slots=True)
class Event:
    kind: str  # Normal or Warning
    reason: str
    message: str
    first_s: float
    last_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Pair:
    namespace: str
    name: str
    dataset: Stored | None
    runtime: Stored | None  # the one that the data set is bound to, or will be
    others: tuple[Stored, ...]  # runtimes of the same name that were created later

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_reference(self) -> bool:
        """Does it only show other data sets? Then it needs no runtime of its own."""
        if self.dataset is None or self.runtime is not None:
            return False
        mounts = _mounts(self.dataset.spec)
        addresses = [_referenced(one["mountPoint"], self.namespace) for one in mounts]
        return bool(addresses) and None not in addresses

    @property
    def serving_runtime(self) -> Stored | None:
        """The runtime; for a reference without one, a runtime without options."""
        return default_runtime(self) if self.is_reference else self.runtime


@dataclass(frozen=True, slots=True)
class Snapshot:
    resources: Mapping[ResourceKey, Stored]
    labels: Mapping[str, str]  # of this machine

    def pairs(self) -> list[Pair]:
        names = {
            (key.namespace, key.name)
            for key in self.resources
            if key.kind == "Dataset" or key.kind in RUNTIMES
        }
        return [self.pair(*name) for name in sorted(names)]

    def pair(self, namespace: str, name: str) -> Pair:
        runtimes = [
            one
            for kind in RUNTIMES
            if (one := self.resources.get(ResourceKey(kind, namespace, name))) is not None
        ]
        dataset = self.resources.get(ResourceKey("Dataset", namespace, name))
        bound = dataset.note.get("runtime") if dataset is not None else None
        # A data set keeps the runtime that it is bound to; otherwise the oldest runtime gets it.
        runtimes.sort(key=lambda one: (one.uid != bound, one.created_s, one.uid))
        return Pair(
            namespace, name, dataset, runtimes[0] if runtimes else None, tuple(runtimes[1:])
        )

    def operations(self) -> list[Stored]:
        return [one for one in self.resources.values() if one.key.kind in OPERATIONS]

    def jobs(self) -> list[Stored]:
        return [one for one in self.resources.values() if one.key.kind in JOBS]

    def fingerprint(self, pair: Pair, _path: tuple[str, ...] = ()) -> str:
        """Return a hash of everything that determines the pair's desired state.

        `_path`: the pairs that led here by their references, so that a cycle ends.
        """
        parts: list[Any] = [__version__.split(".")[0], sorted(self.labels.items())]
        for one in (pair.dataset, pair.runtime):
            parts.append(one and (one.uid, one.generation, one.deleting is not None))
        if pair.dataset is not None:
            parts.append(pair.dataset.note.get("asked"))
            for name in sorted(_secret_names(pair.dataset.spec)):
                secret = self.resources.get(ResourceKey("Secret", pair.namespace, name))
                parts.append(secret and (secret.uid, secret.generation))
            for key in sorted(references(pair.dataset)):
                if pair.label not in _path:
                    referenced = self.pair(key.namespace, key.name)
                    parts.append(self.fingerprint(referenced, (*_path, pair.label)))
                    if pair.is_reference:  # it is bound when the other one is
                        other = referenced.dataset
                        parts.append(other is not None and other.status.get("phase") == BOUND)
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()

    def referring_to(self, key: ResourceKey) -> list[ResourceKey]:
        """Return the data sets that mount a part of this one."""
        return sorted(
            one.key
            for one in self.resources.values()
            if one.key.kind == "Dataset" and one.deleting is None and key in references(one)
        )


def default_runtime(pair: Pair) -> Stored:
    """Return a runtime without options, which is not stored: what is written for it is lost."""
    manifest: Json = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "PenstockRuntime",
        "metadata": {"name": pair.name, "namespace": pair.namespace},
        "spec": {},
    }
    key = ResourceKey("PenstockRuntime", pair.namespace, pair.name)
    return Stored("", key, 0, manifest, 0.0, None, {}, {}, None)


def operation_datasets(operation: Stored) -> set[ResourceKey]:
    """Return the data sets that an operation reads or writes."""
    spec, namespace = operation.spec, operation.key.namespace
    sides: list[Json] = [spec, spec.get("from") or {}, spec.get("to") or {}]
    keys: set[ResourceKey] = set()
    for dataset in (side.get("dataset") for side in sides):
        if isinstance(dataset, str):  # a DataBackup
            keys.add(ResourceKey("Dataset", namespace, dataset))
        elif dataset:
            keys.add(ResourceKey("Dataset", dataset.get("namespace") or namespace, dataset["name"]))
    return keys


def _secret_names(spec: Mapping[str, Any]) -> set[str]:
    """Return the Secrets that the encryptOptions of a Dataset's spec name."""
    options: list[Json] = list(spec.get("sharedEncryptOptions") or [])
    for mount in _mounts(spec):
        options += mount.get("encryptOptions") or []
    names: set[str] = set()
    for option in options:
        value: Json = option.get("valueFrom") or {}
        reference: Json = value.get("secretKeyRef") or {}
        if "name" in reference:
            names.add(reference["name"])
    return names


def references(dataset: Stored) -> set[ResourceKey]:
    """Return the data sets that its mounts name."""
    return {
        key
        for mount in _mounts(dataset.spec)
        if (key := _referenced(mount["mountPoint"], dataset.key.namespace)) is not None
    }


def _referenced(mount_point: str, namespace: str) -> ResourceKey | None:
    """Parse `dataset://namespace/name/sub`, or `dataset://name` of the same namespace."""
    if not mount_point.startswith("dataset://"):
        return None
    words = [word for word in mount_point.removeprefix("dataset://").split("/") if word]
    if not words:
        return None
    return ResourceKey("Dataset", *(words[:2] if len(words) > 1 else (namespace, words[0])))


def _mounts(spec: Mapping[str, Any]) -> list[Json]:
    return spec.get("mounts") or []
