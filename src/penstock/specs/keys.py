"""What a resource is called: its kind, its namespace and its name. Pure."""

from typing import NamedTuple


class ResourceKey(NamedTuple):
    kind: str  # as it is written in a manifest: Dataset
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.namespace}/{self.name}"
