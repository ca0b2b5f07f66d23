"""CustomResourceDefinitions, made from the models of specs. Pure; writes files as a program.

The schemas are lenient: every object keeps fields that no model has, so that what Fluid's CRDs take
is kept; what a model converts to text may be a number or a boolean; and only fields that nothing
can be done without are required. The operator checks the rest and says so in a condition.

    python -m penstock.kubernetes.crds [FOLDER]     writes them, by default to deploy/chart/crds
"""

import sys
import types
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from penstock.kubernetes.client import SERVED
from penstock.specs.fields import Fields, Quantities, Quantity
from penstock.specs.kinds import KINDS
from penstock.specs.models import MODELS

Json = dict[str, Any]

FOLDER: Final = Path("deploy/chart/crds")
_HEAD = "# Written by `python -m penstock.kubernetes.crds` from the models in penstock.specs.\n"


def definitions() -> Mapping[str, Json]:
    """Return the definition of each kind that is served, by the name of its file."""
    found = map(definition, SERVED)
    return {f"{one['spec']['group']}_{one['spec']['names']['plural']}.yaml": one for one in found}


def definition(kind: str) -> Json:
    info, resource = KINDS[kind], SERVED[kind]
    group, _, version = resource.group_version.partition("/")
    names: Json = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": info.plural,
        "singular": kind.lower(),
        "categories": ["fluid"],
    }
    if short := [one for one in info.short_names if one not in _TAKEN]:
        names["shortNames"] = short
    subresources: Json = {"status": {}}
    if info.category == "runtime":
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.currentWorkerNumberScheduled",
            "labelSelectorPath": ".status.selector",
        }
    served: Json = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "schema": {"openAPIV3Schema": _resource_schema(kind)},
    }
    if columns := _COLUMNS.get(kind):
        served["additionalPrinterColumns"] = [column.manifest() for column in columns]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced" if info.namespaced else "Cluster",
            "versions": [served],
        },
    }


def as_yaml(manifest: Json) -> str:
    text = yaml.safe_dump(manifest, sort_keys=False, width=100, allow_unicode=True)
    return _HEAD + text


# -- schemas -------------------------------------------------------------------------------------

_KEEP = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_QUANTITY_CHECKS = (get_args(Quantity)[-1], get_args(Quantities)[-1])
# `kubectl get ds` must go on to mean DaemonSets.
_TAKEN = ("ds",)


def _resource_schema(kind: str) -> Json:
    model = MODELS[kind]
    spec = _schema(_annotation(model.model_fields["spec"]), f"{kind}.spec")
    return {
        "description": " ".join(cleandoc(model.__doc__ or "").split()),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"description": "The desired state.", **spec},
            "status": {
                "description": "The observed state. Written by Penstock.",
                "type": "object",
                _KEEP: True,
            },
        },
    }


def _fields_schema(model: type[Fields], path: str) -> Json:
    properties: Json = {}
    required: list[str] = []
    for attribute, info in model.model_fields.items():
        name = info.alias or attribute
        below = f"{path}.{name}"
        schema = {"description": info.description or "", **_schema(_annotation(info), below)}
        if info.is_required():
            if not below.endswith(_NOT_REQUIRED):
                required.append(name)
        elif "enum" not in schema and name != "replicas":  # the scale subresource needs a number
            # `fuse:` without a value: a create drops it in any case, server-side apply refuses it.
            schema["nullable"] = True
        properties[name] = schema
    found: Json = {"type": "object", _KEEP: True, "properties": properties}
    return found | {"required": required} if required else found


def _annotation(info: FieldInfo) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _schema(annotation: Any, path: str) -> Json:
    """Return the schema of a type. It takes whatever the model takes, and often more."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], path)
    if origin in (Union, types.UnionType):
        rest = [one for one in arguments if one is not type(None)]
        return _schema(rest[0], path) if len(rest) == 1 else _anything()
    if origin is Literal:
        free = path.endswith(_FREE_TEXT)
        return {"type": "string"} if free else {"type": "string", "enum": [*arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0], f"{path}[]")}
    if origin is dict:
        value = arguments[1]
        if value is Any:
            return {"type": "object", _KEEP: True}
        return {"type": "object", "additionalProperties": _schema(value, f"{path}[]")}
    if isinstance(annotation, type) and issubclass(annotation, Fields):
        return _fields_schema(annotation, path)
    return dict(_PLAIN[annotation]) if annotation in _PLAIN else _anything()


def _annotated(base: Any, validators: Sequence[Any], path: str) -> Json:
    if any(one in _QUANTITY_CHECKS for one in validators):
        return {_INT_OR_STRING: True}
    schema = _schema(base, path)
    converts = any(isinstance(one, BeforeValidator) for one in validators)
    if not converts or base is int:
        return schema
    if get_origin(base) is dict:  # of text: `debug:` without a value stays a flag
        return {"type": "object", "additionalProperties": _anything() | {"nullable": True}}
    return _anything()


def _anything() -> Json:
    return {_KEEP: True}


_PLAIN: Mapping[type, Json] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
}
# Where Fluid's CRDs take more than the models do; the operator refuses it, and says so in a
# condition. Ends of paths. `tools/fluid-samples` finds what is missing here.
_NOT_REQUIRED = (
    "valueFrom",
    "valueFrom.secretKeyRef",
    "env[].valueFrom.secretKeyRef.name",
    "DataLoad.spec.dataset",
    "DataBackup.spec.dataset",
)
_FREE_TEXT = ("accessModes[]", "operator", "effect", "cleanPolicy", "affinityStrategy.policy")


# -- printer columns -----------------------------------------------------------------------------


class Column(NamedTuple):
    name: str
    path: str
    priority: int = 0  # above 0: shown by -o wide
    type: str = "string"

    def manifest(self) -> Json:
        found: Json = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return found | {"priority": self.priority} if self.priority else found


_AGE = Column("Age", ".metadata.creationTimestamp", type="date")


def _component(word: str, plural: str, status: str) -> list[Column]:
    return [
        Column(f"Ready {plural}", f".status.{status}NumberReady", 10, "integer"),
        Column(
            f"Desired {plural}",
            f".status.desired{status.capitalize()}NumberScheduled",
            10,
            "integer",
        ),
        Column(f"{word} Phase", f".status.{status}Phase"),
    ]


_MASTERS = _component("Master", "Masters", "master")
_WORKERS = [
    *_component("Worker", "Workers", "worker"),
    *_component("Fuse", "Fuses", "fuse"),
]
_PHASE = Column("Phase", ".status.phase")
_DURATION = Column("Duration", ".status.duration")
_LOAD = [Column("Dataset", ".spec.dataset.name"), _PHASE, _AGE, _DURATION]
# As Fluid has them, in its order.
_COLUMNS: Mapping[str, Sequence[Column]] = {
    "Dataset": [
        Column("Ufs Total Size", ".status.ufsTotal"),
        Column("Cached", ".status.cacheStates.cached"),
        Column("Cache Capacity", ".status.cacheStates.cacheCapacity"),
        Column("Cached Percentage", ".status.cacheStates.cachedPercentage"),
        _PHASE,
        Column("HCFS URL", ".status.hcfs.endpoint", 10),
        Column("TOTAL FILES", ".status.fileNum", 11),
        Column("CACHE HIT RATIO", ".status.cacheStates.cacheHitRatio", 10),
        _AGE,
    ],
    "AlluxioRuntime": [
        *_MASTERS,
        *_WORKERS,
        Column("API Gateway", ".status.apiGateway.endpoint", 10),
        _AGE,
    ],
    "JindoRuntime": [*_MASTERS, *_WORKERS, _AGE],
    "JuiceFSRuntime": [*_WORKERS, _AGE],
    "ThinRuntime": [*_WORKERS, _AGE],  # Fluid has none
    "PenstockRuntime": [*_WORKERS, _AGE],
    "ThinRuntimeProfile": [Column("File System", ".spec.fileSystemType"), _AGE],  # Fluid has none
    "DataLoad": _LOAD,
    "DataProcess": _LOAD,
    "DataMigrate": [_PHASE, _AGE, _DURATION],
    "DataBackup": [
        Column("Dataset", ".spec.dataset"),
        _PHASE,
        Column("Path", ".status.infos.BackupLocationPath"),
        Column("NodeName", ".status.infos.BackupLocationNodeName"),
        _DURATION,
        _AGE,
    ],
}


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, manifest in definitions().items():
        (folder / name).write_text(as_yaml(manifest))


if __name__ == "__main__":
    main(sys.argv[1:])
