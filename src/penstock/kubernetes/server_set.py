"""The DaemonSet of a data set: one server pod on each node that is labelled for it. Pure.

A server pod has no privilege and no right at the API server: see ADR 15. Everything that it serves
is in its environment, so a change of the Dataset is a change of the pod template, and a rollout.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import ValidationError

from penstock.errors import ManifestError, Problem, SpecProblem
from penstock.fluid.plan import MountPlan, Referenced, mounted_secrets
from penstock.kubernetes import names
from penstock.kubernetes.mount_plan import (
    CLAIMS_DIR,
    HOST_DIR,
    CacheMount,
    Placeholders,
    cache_mounts,
    claims_of,
    host_folders_of,
    memory_limit,
    plan_in_cluster,
)
from penstock.kubernetes.names import ServedKey
from penstock.specs.dataset import Dataset
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import MODELS, Runtime
from penstock.specs.resource import Resource
from penstock.specs.validation import refusals

Json = dict[str, Any]

SERVER_LABEL: Final = "penstock.dev/server"  # on server pods and their DaemonSets
DATASET_ID_LABEL: Final = "fluid.io/dataset-id"
CONTAINER: Final = "server"
_GRACE_S = 60
_LONGEST_VALUE = 63  # of a label


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    pull_policy: str = ""  # empty: the cluster's own rule
    pull_secrets: tuple[str, ...] = ()
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A checked Dataset with its runtime and what they refer to, as manifests and as a plan."""

    key: ServedKey
    dataset: Json
    runtime: Json
    references: tuple[Json, ...]
    plan: MountPlan
    secrets: tuple[str, ...]  # that its options name


def check_served(dataset: Json, runtime: Json, references: Iterable[Json]) -> Served:
    """Plan the mount, without values of Secrets. Raises PenstockError for users' mistakes.

    `references`: manifests of the data sets and runtimes that `dataset://` mounts need.
    """
    others = tuple(references)
    dataset_model, runtime_model = _model(dataset), _model(runtime)
    assert isinstance(dataset_model, Dataset)
    assert isinstance(runtime_model, Runtime)
    if not dataset_model.spec.mounts:
        raise SpecProblem("spec.mounts", "is empty", hint="name at least one source")
    secrets = Placeholders()
    plan = plan_in_cluster(dataset_model, runtime_model, secrets, referenced_of(others))
    key = ServedKey(dataset_model.metadata.namespace, dataset_model.metadata.name)
    by_file = mounted_secrets(runtime_model).values()
    return Served(key, dataset, runtime, others, plan, tuple(sorted({*secrets.names, *by_file})))


def referenced_of(manifests: Iterable[Json]) -> dict[ResourceKey, Referenced]:
    """Return the data sets among some manifests, each with the runtime of its name."""
    models = [_model(manifest) for manifest in manifests]
    runtimes = {
        (one.key.namespace, one.key.name): one for one in models if isinstance(one, Runtime)
    }
    return {
        one.key: Referenced(one, runtimes.get((one.key.namespace, one.key.name)))
        for one in models
        if isinstance(one, Dataset)
    }


def served_value(served: Served) -> str:
    """Return what a server pod reads from its environment."""
    return json.dumps(
        {
            "dataset": _bare(served.dataset),
            "runtime": _bare(served.runtime),
            "references": [_bare(one) for one in served.references],
        },
        separators=(",", ":"),
        sort_keys=True,
    )


def server_set(served: Served, image: Image) -> Json:
    """Return the manifest of the DaemonSet, without an owner."""
    key, mount_type = served.key, names.mount_type(served.runtime["kind"])
    labels = {
        "app": mount_type,
        "release": _value(key.name),
        "role": f"{mount_type}-fuse",
        "fluid.io/dataset": _value(names.volume_name(*key)),
        DATASET_ID_LABEL: _value(names.volume_name(*key)),
        SERVER_LABEL: "true",
    }
    # A selector cannot change, so it does not name the runtime's type, which can.
    selected = {name: labels[name] for name in ("release", "fluid.io/dataset", SERVER_LABEL)}
    own_labels, annotations = _pod_metadata(served.runtime)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": names.server_set_name(key.name),
            "namespace": key.namespace,
            "labels": labels,
        },
        "spec": {
            "selector": {"matchLabels": selected},
            # Nodes do not depend on each other: each has one server and a mount of its own.
            "updateStrategy": {
                "type": "RollingUpdate",
                # A pod that is deleted has its successor at once, and serves until it is there.
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "100%"},
            },
            "revisionHistoryLimit": 1,
            "template": {
                "metadata": {
                    "labels": {**own_labels, **labels},
                    **({"annotations": annotations} if annotations else {}),
                },
                "spec": _pod(served, image),
            },
        },
    }


def _model(manifest: Json) -> Resource:
    """Return the model of a manifest. Raises ManifestError with all its mistakes."""
    kind = manifest["kind"]
    try:
        return MODELS[kind].model_validate(manifest)
    except ValidationError as error:
        metadata = manifest["metadata"]
        where = f"{kind.lower()}/{metadata.get('namespace', 'default')}/{metadata['name']}"
        problems = [Problem(where, what, hint) for _, what, hint in refusals(MODELS[kind], error)]
        raise ManifestError.of(problems) from None


def _pod(served: Served, image: Image) -> Json:
    fuse = _fuse(served.runtime)
    mounts = [*_folders(served), *_secrets(served), *_sources(served)]
    container: Json = {
        "name": CONTAINER,
        "image": image.name,
        "command": ["penstock", "server"],
        "env": [*_environment(fuse), {"name": names.SERVED_VARIABLE, "value": _env(served)}],
        "ports": [{"name": "http", "containerPort": names.HTTP_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": names.HTTP_PORT},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": names.SERVER_USER,
            "runAsGroup": names.SERVER_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [mount for _, mount in mounts],
    }
    if image.pull_policy:
        container["imagePullPolicy"] = image.pull_policy
    if resources := _resources(served):
        container["resources"] = resources
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The first process of a process namespace ignores SIGTERM until it has a handler, and
        # Python starts for a second: a pod deleted in that time would stay for its grace period.
        "shareProcessNamespace": True,
        "nodeSelector": {
            **(fuse.get("nodeSelector") or {}),
            names.node_label("f", served.key): "true",
        },
        # A pod that reads may tolerate any taint, and needs its server wherever it is.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": list({volume["name"]: volume for volume, _ in mounts}.values()),
    }
    if priority := fuse.get("priorityClassName") or image.priority_class:
        pod["priorityClassName"] = priority
    spec = cast("Json", served.runtime.get("spec") or {})
    pull: list[Json] = [
        *({"name": name} for name in image.pull_secrets),
        *(spec.get("imagePullSecrets") or []),
        *(fuse.get("imagePullSecrets") or []),
    ]
    if pull:
        pod["imagePullSecrets"] = pull
    return pod


# -- volumes: (volume, mount) ----------------------------------------------------------------------


def _folders(served: Served) -> list[tuple[Json, Json]]:
    key = served.key
    found: list[tuple[Json, Json]] = [
        ({"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": "/tmp"}),
        (
            _inline("link", key),
            {"name": "link", "mountPath": str(names.LINK_DIR)},
        ),
        (
            _inline("state", key),
            {"name": "state", "mountPath": str(names.STATE_DIR)},
        ),
    ]
    for cache in cache_mounts(served.plan.settings):
        name = f"cache-{cache.container.name}"
        found.append((_cache(name, cache, key), _at(name, str(cache.container))))
    return found


def _at(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path}


def _inline(role: str, key: ServedKey, **attributes: str) -> Json:
    return {
        "name": role,
        "csi": {
            "driver": names.DRIVER,
            "volumeAttributes": {names.ROLE: role, names.DATASET: key.name, **attributes},
        },
    }


def _cache(name: str, cache: CacheMount, key: ServedKey) -> Json:
    if cache.host_root is None:
        folder: Json = {"medium": "Memory"} if cache.in_memory else {}
        if cache.quota_bytes is not None:
            folder["sizeLimit"] = str(cache.quota_bytes)
        return {"name": name, "emptyDir": folder}
    volume = _inline("cache", key, **{names.CACHE_ROOT: str(cache.host_root)})
    return {**volume, "name": name}


def _secrets(served: Served) -> list[tuple[Json, Json]]:
    """A Secret that is missing is no reason not to start: the server says so in its status."""
    return [
        (
            {"name": f"secret-{number}", "secret": {"secretName": name, "optional": True}},
            {
                "name": f"secret-{number}",
                "mountPath": str(names.SECRETS_DIR / name),
                "readOnly": True,
            },
        )
        for number, name in enumerate(served.secrets)
    ]


def _sources(served: Served) -> list[tuple[Json, Json]]:
    settings = served.plan.settings
    found: list[tuple[Json, Json]] = []
    for number, claim in enumerate(claims_of(settings)):
        name = f"claim-{number}"
        volume = {
            "name": name,
            "persistentVolumeClaim": {"claimName": claim, "readOnly": True},
        }
        found.append((volume, {**_at(name, str(CLAIMS_DIR / claim)), "readOnly": True}))
    for number, folder in enumerate(host_folders_of(settings)):
        name = f"host-{number}"
        place = HOST_DIR / folder.relative_to("/")
        volume = {"name": name, "hostPath": {"path": str(folder), "type": "Directory"}}
        mount = {
            **_at(name, str(place)),
            "readOnly": True,
            "mountPropagation": "HostToContainer",
        }
        found.append((volume, mount))
    return found


# -- what the runtime says of its pods -------------------------------------------------------------


def _fuse(runtime: Json) -> Json:
    spec = cast("Json", runtime.get("spec") or {})
    return cast("Json", spec.get("fuse") or {})


def _resources(served: Served) -> Json:
    """Return the fuse's resources. Memory tiers count to the pod that fills them."""
    resources: Json = dict(_fuse(served.runtime).get("resources") or {})
    limit = memory_limit(served.plan.runtime)
    in_memory = sum(
        one.quota_bytes or 0 for one in cache_mounts(served.plan.settings) if one.in_memory
    )
    if limit is not None and in_memory:
        resources["limits"] = {**resources["limits"], "memory": str(limit + in_memory)}
    return resources


def _environment(fuse: Json) -> list[Json]:
    given: Any = fuse.get("env") or []
    if isinstance(given, Mapping):  # Alluxio's and Jindo's are maps
        entries = cast("Mapping[str, Any]", given)
        given = [{"name": name, "value": str(value)} for name, value in sorted(entries.items())]
    return [one for one in cast("list[Json]", given) if one.get("name") != names.SERVED_VARIABLE]


def _env(served: Served) -> str:
    """The kubelet replaces $(NAME) in values, and reads $$ as $."""
    return served_value(served).replace("$", "$$")


def _pod_metadata(runtime: Json) -> tuple[dict[str, str], dict[str, str]]:
    """Return labels and annotations; those of the fuse win over those of all pods."""
    spec, fuse = cast("Json", runtime.get("spec") or {}), _fuse(runtime)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for part in (spec, fuse):
        metadata = cast("Json", part.get("podMetadata") or {})
        labels |= {**(part.get("labels") or {}), **(metadata.get("labels") or {})}
        annotations |= metadata.get("annotations") or {}
    return labels, annotations


def _value(text: str) -> str:
    """Return a value for a label: at most 63 characters."""
    if len(text) <= _LONGEST_VALUE:
        return text
    return names.node_label("x", ServedKey("", text)).rpartition("/")[2][-_LONGEST_VALUE:]


def _bare(manifest: Json) -> Json:
    """Return what a server needs of a manifest."""
    metadata = manifest["metadata"]
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata.get("namespace", "default")},
        "spec": manifest.get("spec") or {},
    }
