"""The PersistentVolume and the claim of a data set, in Fluid's shapes. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey
from penstock.kubernetes.server_set import DATASET_ID_LABEL

Json = dict[str, Any]

CAPACITY: Final = "100Pi"
CAPACITY_ANNOTATION: Final = "pvc.fluid.io/resources.requests.storage"
METADATA_LIST: Final = "data.fluid.io/metadataList"
CREATED_BY: Final = {"CreatedBy": "fluid"}
DEFAULT_MODES: Final = ("ReadOnlyMany",)
_LONGEST_VALUE = 63


@dataclass(frozen=True, slots=True)
class Target:
    """What a claim leads to: the mount of a data set, or of the one that it refers to."""

    mount_type: str
    key: ServedKey  # of the data set that has servers
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a claim that a user made asks for: dynamic provisioning."""

    storage_class: str
    uid: str
    access_modes: tuple[str, ...]
    storage: str


def persistent_volume(
    dataset: Json, target: Target, runtime: Json | None, request: Request | None = None
) -> Json:
    """`runtime`: the manifest that may carry metadataList and the fuse's nodeSelector."""
    key = _key_of(dataset)
    name = names.volume_name(*key)
    labels, annotations = _extra(runtime, "PersistentVolume")
    attributes = {
        names.FLUID_PATH: str(names.mount_path(target.mount_type, target.key)),
        names.MOUNT_TYPE: target.mount_type,
        names.RUNTIME_NAMESPACE: target.key.namespace,
        names.RUNTIME_NAME: target.key.name,
    }
    if target.sub_path:
        attributes[names.SUB_PATH] = target.sub_path
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": key.namespace,
        "name": key.name,
    }
    if request is not None:
        claim["uid"] = request.uid
    spec: Json = {
        "accessModes": access_modes(dataset) if request is None else list(request.access_modes),
        "capacity": {"storage": _capacity(dataset) if request is None else request.storage},
        "claimRef": claim,
        "csi": {
            "driver": names.DRIVER,
            "volumeHandle": name,
            "volumeAttributes": attributes,
        },
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": names.STORAGE_CLASS if request is None else request.storage_class,
        "volumeMode": "Filesystem",
    }
    if (required := _required_nodes(dataset, runtime)) is not None:
        spec["nodeAffinity"] = {"required": required}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "labels": {**labels, **labels_of(key)},
            "annotations": {**annotations, **CREATED_BY},
        },
        "spec": spec,
    }


def volume_claim(dataset: Json, runtime: Json | None) -> Json:
    """Return the claim of the data set's name, without an owner."""
    key = _key_of(dataset)
    labels, annotations = _extra(runtime, "PersistentVolumeClaim")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {**labels, **labels_of(key)},
            "annotations": {**annotations, **CREATED_BY},
        },
        "spec": {
            "accessModes": access_modes(dataset),
            "resources": {"requests": {"storage": _capacity(dataset)}},
            "selector": {"matchLabels": {names.node_label("s", key): "true"}},
            "storageClassName": names.STORAGE_CLASS,
            "volumeMode": "Filesystem",
            "volumeName": names.volume_name(*key),
        },
    }


def labels_of(key: ServedKey) -> dict[str, str]:
    identity = names.volume_name(*key)
    if len(identity) > _LONGEST_VALUE:
        identity = names.node_label("", key).rpartition("/")[2].lstrip("-")
    return {names.node_label("s", key): "true", DATASET_ID_LABEL: identity}


def access_modes(dataset: Json) -> list[str]:
    spec = cast("Json", dataset.get("spec") or {})
    return list(spec.get("accessModes") or DEFAULT_MODES)


def _key_of(dataset: Json) -> ServedKey:
    metadata = dataset["metadata"]
    return ServedKey(metadata.get("namespace", "default"), metadata["name"])


def _capacity(dataset: Json) -> str:
    annotations = cast("Json", dataset["metadata"].get("annotations") or {})
    return str(annotations.get(CAPACITY_ANNOTATION) or CAPACITY)


def _required_nodes(dataset: Json, runtime: Json | None) -> Json | None:
    """Return where pods may use the volume: where a server may run."""
    spec = cast("Json", dataset.get("spec") or {})
    affinity = cast("Json", spec.get("nodeAffinity") or {})
    terms = cast("list[Json]", (affinity.get("required") or {}).get("nodeSelectorTerms") or [])
    fuse = cast("Json", ((runtime or {}).get("spec") or {}).get("fuse") or {})
    selector = cast("dict[str, str]", fuse.get("nodeSelector") or {})
    wanted = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.items())
    ]
    if not wanted:
        return {"nodeSelectorTerms": terms} if terms else None
    if not terms:
        return {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *wanted]}
            for term in terms
        ]
    }


def _extra(runtime: Json | None, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations for a kind from the runtime's metadataList.

    Fluid reads its field names without regard to case, and ignores a list that is no JSON.
    """
    annotations = cast("Json", ((runtime or {}).get("metadata") or {}).get("annotations") or {})
    try:
        entries: Any = json.loads(annotations.get(METADATA_LIST) or "[]")
    except ValueError:
        return {}, {}
    labels: dict[str, str] = {}
    notes: dict[str, str] = {}
    for entry in cast("list[Any]", entries) if isinstance(entries, list) else []:
        one = _lower_keys(entry)
        selector = _lower_keys(one.get("selector"))
        if selector.get("kind") == kind and not selector.get("group"):
            labels |= _texts(one.get("labels"))
            notes |= _texts(one.get("annotations"))
    return labels, notes


def _lower_keys(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key).lower(): one for key, one in cast("Mapping[Any, Any]", value).items()}


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): str(one) for key, one in cast("Mapping[Any, Any]", value).items()}
