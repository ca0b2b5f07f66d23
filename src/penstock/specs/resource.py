"""The base of all resources: apiVersion, kind, metadata. Pure."""

import re
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, field_validator

from penstock.specs.fields import Fields, FreeList, FreeMap, TextMap, field, invalid
from penstock.specs.kinds import KINDS, LAST_APPLIED, ResourceKey

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _name(text: str) -> str:
    """Check that it is a DNS-1123 subdomain: it names a folder, and in a cluster a host."""
    labels = text.split(".")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise invalid(f"{text[:60]!r} is not a name", _name_hint(text))
    return text


def _namespace(text: str) -> str:
    if len(text) > 63 or not _LABEL.fullmatch(text):
        raise invalid(f"{text[:60]!r} is not a namespace", _name_hint(text, dots=False))
    return text


def _name_hint(text: str, *, dots: bool = True) -> str:
    also = "- and ." if dots else "and -"
    rule = f"use a-z, 0-9, {also}, and begin and end with a letter or digit"
    near = re.sub(r"[^a-z0-9.]+" if dots else r"[^a-z0-9]+", "-", text.lower()).strip("-.")[:63]
    return f"{rule}; did you mean {near}?" if near and near != text else rule


Name = Annotated[str, AfterValidator(_name)]
Namespace = Annotated[str, AfterValidator(_namespace)]


class Metadata(Fields):
    """Fields that a server adds, such as uid and managedFields, are accepted and ignored."""

    name: Name = field("The resource's name; unique for its kind and namespace.", required=True)
    namespace: Namespace = field(
        "Keeps resources of several teams or projects apart; `default` by default.",
        default="default",
    )
    labels: TextMap = field("Free names and values, kept with the resource.", factory=dict)
    annotations: TextMap = field(
        "Free names and values, kept with the resource. On a Dataset, `penstock.dev/mount-path` "
        "names the folder where it is mounted, and `penstock.dev/shared` the members of a shared "
        "tier, which machines run for it.",
        factory=dict,
        secret=True,
    )
    generate_name: Any = field("Refused: names are not generated.")
    uid: Any = field("Set by a server; ignored.")
    resource_version: Any = field("Set by a server; ignored.")
    generation: Any = field("Set by a server; ignored.")
    creation_timestamp: Any = field("Set by a server; ignored.")
    deletion_timestamp: Any = field("Set by a server; ignored.")
    deletion_grace_period_seconds: Any = field("Set by a server; ignored.")
    self_link: Any = field("Set by a server; ignored.")
    finalizers: list[Any] = field("Set by controllers; ignored.", factory=list)
    owner_references: FreeList = field("Set by controllers; ignored.", factory=list)
    managed_fields: FreeList = field("Set by a server; ignored.", factory=list)

    @field_validator("annotations", mode="before")
    @classmethod
    def _without_copies(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        entries = cast("dict[str, Any]", value)
        return {key: one for key, one in entries.items() if key != LAST_APPLIED}

    @field_validator("generate_name")
    @classmethod
    def _no_generated_names(cls, value: Any) -> Any:
        raise invalid("names are not generated here", "write metadata.name instead")


class Resource(Fields):
    api_version: str = field("data.fluid.io/v1alpha1 or penstock.dev/v1alpha1.", required=True)
    kind: str = field("Kind of the resource.", required=True)
    metadata: Metadata = field("Its name, namespace, labels and annotations.", required=True)
    status: FreeMap | None = Field(
        default=None,
        exclude=True,
        repr=False,
        description="The observed state. Written by Penstock; ignored in a manifest.",
    )

    @property
    def key(self) -> ResourceKey:
        namespaced = self.kind not in KINDS or KINDS[self.kind].namespaced
        namespace = self.metadata.namespace if namespaced else "default"
        return ResourceKey(self.kind, namespace, self.metadata.name)
