"""What the operator keeps of each object of the cluster. Pure.

`version` is no part of equality: an object that changed in other ways only is the same.
"""

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from penstock.kubernetes import names
from penstock.kubernetes.server_set import SERVER_LABEL
from penstock.reconcile.snapshot import Stored
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]

APPLIED: Final = "penstock.dev/applied"  # a hash of the manifest that an object was made from
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Declared:
    """A Dataset or a runtime."""

    stored: Stored
    finalizers: tuple[str, ...]
    owners: tuple[Mapping[str, Any], ...]
    version: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ServerSet:
    uid: str
    applied: str
    owner: str  # uid of the Dataset
    desired: int
    ready: int
    deleting: bool
    version: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Volume:
    uid: str
    applied: str
    claim: tuple[str, str]  # namespace and name
    claim_uid: str
    phase: str
    finalizers: tuple[str, ...]
    deleting: bool
    version: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    uid: str
    applied: str  # empty: made by a user
    owner: str  # uid of the Dataset
    volume: str
    phase: str
    storage_class: str
    access_modes: tuple[str, ...]
    storage: str
    selected_node: str
    deleting: bool
    version: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    namespace: str
    name: str
    node: str  # empty: not scheduled
    phase: str
    address: str
    ready: bool
    deleting: bool
    claims: tuple[str, ...]
    server_of: str  # the data set that it serves; empty for any other pod

    @property
    def uses_claims(self) -> bool:
        return bool(self.node) and self.phase not in _FINISHED and bool(self.claims)


@dataclass(frozen=True, slots=True)
class Node:
    labels: Mapping[str, str]  # those of Fluid


@dataclass(frozen=True, slots=True)
class StorageClass:
    name: str
    parameters: Mapping[str, str]
    waits_for_consumer: bool


def keep_declared(found: Json) -> Declared | None:
    metadata = _metadata(found)
    kept = {"name": metadata["name"], "namespace": metadata["namespace"]}
    for name in ("annotations", "labels"):
        if metadata.get(name):
            kept[name] = metadata[name]
    manifest = {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": kept,
        "spec": found.get("spec") or {},
    }
    status: Json = found.get("status") or {}
    if status.get("mounts") == manifest["spec"].get("mounts"):  # a third of a Dataset, kept once
        status = {**status, "mounts": manifest["spec"].get("mounts")}
    stored = Stored(
        uid=metadata["uid"],
        key=ResourceKey(found["kind"], metadata["namespace"], metadata["name"]),
        generation=int(metadata.get("generation") or 1),
        manifest=manifest,
        created_s=_seconds(metadata.get("creationTimestamp")),
        deleting={} if metadata.get("deletionTimestamp") else None,
        status=status,
        note={},
        sealed=None,
    )
    return Declared(
        stored,
        tuple(metadata.get("finalizers") or ()),
        tuple(metadata.get("ownerReferences") or ()),
        _version(metadata),
    )


def keep_server_set(found: Json) -> ServerSet | None:
    metadata, status = _metadata(found), _part(found, "status")
    return ServerSet(
        metadata["uid"],
        _annotations(metadata).get(APPLIED, ""),
        _owner(metadata),
        int(status.get("desiredNumberScheduled") or 0),
        int(status.get("numberReady") or 0),
        "deletionTimestamp" in metadata,
        _version(metadata),
    )


def keep_volume(found: Json) -> Volume | None:
    """Keep the volumes that the operator made: any other of the driver has no hash."""
    metadata, spec = _metadata(found), _part(found, "spec")
    csi = cast("Json", spec.get("csi") or {})
    applied = _annotations(metadata).get(APPLIED, "")
    if csi.get("driver") != names.DRIVER or not applied:
        return None
    claim = cast("Json", spec.get("claimRef") or {})
    return Volume(
        metadata["uid"],
        applied,
        (str(claim.get("namespace") or ""), str(claim.get("name") or "")),
        str(claim.get("uid") or ""),
        str(_part(found, "status").get("phase") or ""),
        tuple(metadata.get("finalizers") or ()),
        "deletionTimestamp" in metadata,
        _version(metadata),
    )


def keep_claim(found: Json) -> Claim | None:
    """Keep the claims that the operator made, and those of users that may want a volume of ours."""
    metadata, spec = _metadata(found), _part(found, "spec")
    annotations = _annotations(metadata)
    applied = annotations.get(APPLIED, "")
    storage_class = str(spec.get("storageClassName") or "")
    if not applied and not storage_class:
        return None
    requests = cast("Json", _part(spec, "resources").get("requests") or {})
    return Claim(
        metadata["uid"],
        applied,
        _owner(metadata),
        str(spec.get("volumeName") or ""),
        str(_part(found, "status").get("phase") or ""),
        storage_class,
        tuple(spec.get("accessModes") or ()),
        str(requests.get("storage") or ""),
        annotations.get(SELECTED_NODE, ""),
        "deletionTimestamp" in metadata,
        _version(metadata),
    )


def keep_pod(found: Json) -> Pod | None:
    metadata, spec, status = _metadata(found), _part(found, "spec"), _part(found, "status")
    server_of = _server_of(metadata)
    volumes = cast("list[Json]", spec.get("volumes") or [])
    claims = tuple(
        str(one["persistentVolumeClaim"]["claimName"])
        for one in volumes
        if "persistentVolumeClaim" in one
    )
    if not claims and not server_of:
        return None
    conditions = cast("list[Json]", status.get("conditions") or [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return Pod(
        metadata["uid"],
        metadata["namespace"],
        metadata["name"],
        str(spec.get("nodeName") or ""),
        str(status.get("phase") or ""),
        str(status.get("podIP") or "") if server_of else "",
        ready and bool(server_of),
        "deletionTimestamp" in metadata,
        claims,
        server_of,
    )


def keep_node(found: Json) -> Node | None:
    labels = cast("dict[str, str]", _metadata(found).get("labels") or {})
    return Node({name: value for name, value in labels.items() if is_node_label(name)})


def keep_storage_class(found: Json) -> StorageClass | None:
    if found.get("provisioner") != names.DRIVER:
        return None
    return StorageClass(
        _metadata(found)["name"],
        cast("dict[str, str]", found.get("parameters") or {}),
        found.get("volumeBindingMode") == "WaitForFirstConsumer",
    )


def is_node_label(name: str) -> bool:
    """Whether a label of a node is one that the operator gives and takes."""
    return name.startswith(("fluid.io/f-", "fluid.io/s-")) or name == "fluid.io/dataset-num"


def _server_of(metadata: Json) -> str:
    labels = cast("dict[str, str]", metadata.get("labels") or {})
    if SERVER_LABEL not in labels:
        return ""
    for owner in cast("list[Json]", metadata.get("ownerReferences") or []):
        if owner.get("kind") == "DaemonSet":
            return str(owner["name"]).removesuffix("-fuse")
    return ""


def _owner(metadata: Json) -> str:
    for owner in cast("list[Json]", metadata.get("ownerReferences") or []):
        if owner.get("kind") == "Dataset":
            return str(owner["uid"])
    return ""


def _metadata(found: Json) -> Json:
    return found["metadata"]


def _part(found: Json, name: str) -> Json:
    return found.get(name) or {}


def _annotations(metadata: Json) -> dict[str, str]:
    return metadata.get("annotations") or {}


def _version(metadata: Json) -> int:
    """Resource versions grow: Kubernetes 1.35 made them comparable, and etcd's always were."""
    text = str(metadata.get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


def _seconds(stamp: Any) -> float:
    if not isinstance(stamp, str):
        return 0.0
    return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))
