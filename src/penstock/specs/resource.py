"""What all resources share: apiVersion, kind, metadata. Pure."""

import re
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, field_validator

from penstock.specs.fields import Fields, FreeList, FreeMap, TextMap, field, invalid
from penstock.specs.kinds import KINDS, ResourceKey

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# kubectl keeps the whole manifest in it, secrets included.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _name(text: str) -> str:
    """A DNS-1123 subdomain: it becomes a folder's name, and in a cluster a host's."""
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
    rule = f"it is of a-z, 0-9, {also}, and begins and ends with a letter or digit"
    near = re.sub(r"[^a-z0-9.]+" if dots else r"[^a-z0-9]+", "-", text.lower()).strip("-.")[:63]
    return f"{rule}; did you mean {near}?" if near and near != text else rule


Name = Annotated[str, AfterValidator(_name)]
Namespace = Annotated[str, AfterValidator(_namespace)]


class Metadata(Fields):
    """What a server would add (uid, managedFields and the like) is taken, and not looked at."""

    name: Name = field("The resource's name; unique for its kind and namespace.", required=True)
    namespace: Namespace = field(
        "Keeps resources of several teams or projects apart; `default` if not said.",
        default="default",
    )
    labels: TextMap = field("Free names and values, kept with the resource.", factory=dict)
    annotations: TextMap = field(
        "Free names and values, kept with the resource. On a Dataset, `penstock.dev/mount-path` "
        "names the folder where it is mounted.",
        factory=dict,
        secret=True,
    )
    generate_name: Any = field("Refused: a resource is known by its name.")
    uid: Any = field("Given by a server; not looked at.")
    resource_version: Any = field("Given by a server; not looked at.")
    generation: Any = field("Given by a server; not looked at.")
    creation_timestamp: Any = field("Given by a server; not looked at.")
    deletion_timestamp: Any = field("Given by a server; not looked at.")
    deletion_grace_period_seconds: Any = field("Given by a server; not looked at.")
    self_link: Any = field("Given by a server; not looked at.")
    finalizers: list[Any] = field("Given by controllers; not looked at.", factory=list)
    owner_references: FreeList = field("Given by controllers; not looked at.", factory=list)
    managed_fields: FreeList = field("Given by a server; not looked at.", factory=list)

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
        raise invalid("a name is not made up here", "write metadata.name instead")


class Resource(Fields):
    api_version: str = field("data.fluid.io/v1alpha1 or penstock.dev/v1alpha1.", required=True)
    kind: str = field("What sort of resource this is.", required=True)
    metadata: Metadata = field("Its name, namespace, labels and annotations.", required=True)
    status: FreeMap | None = Field(
        default=None,
        exclude=True,
        repr=False,
        description="What was observed. Written by Penstock; in a manifest it is not looked at.",
    )

    @property
    def key(self) -> ResourceKey:
        namespaced = self.kind not in KINDS or KINDS[self.kind].namespaced
        namespace = self.metadata.namespace if namespaced else "default"
        return ResourceKey(self.kind, namespace, self.metadata.name)
