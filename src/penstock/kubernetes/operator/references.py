"""Data sets that only show another one, or a folder of it, possibly of another namespace. Pure.

They have no servers of their own: their claims lead to the mount of the other data set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from penstock.errors import SpecProblem
from penstock.fluid.plan import parse_reference
from penstock.kubernetes.names import ServedKey

Json = dict[str, Any]

SCHEME: Final = "dataset://"


@dataclass(frozen=True, slots=True)
class Reference:
    key: ServedKey
    folder: str  # in it; empty for all of it


def reference_of(dataset: Json, runtime: Json | None) -> Reference | None:
    """Return what a data set refers to if it needs no servers of its own.

    A runtime with a cache of its own makes it one that is served, unless it is of another
    namespace, whose Secrets no server of this one has. A ThinRuntime without a profile is how
    Fluid's users write a reference.
    """
    namespace = dataset["metadata"]["namespace"]
    mounts = cast("list[Json]", dataset["spec"].get("mounts") or [])
    if len(mounts) != 1 or not str(mounts[0].get("mountPoint", "")).startswith(SCHEME):
        return None
    found = _parsed(mounts[0]["mountPoint"], namespace)
    if runtime is None or found.key.namespace != namespace:
        return found
    spec = cast("Json", runtime.get("spec") or {})
    thin = runtime["kind"] == "ThinRuntime" and not spec.get("profileName")
    return found if thin else None


def referenced_keys(dataset: Json) -> set[ServedKey]:
    """Return every data set that some mount refers to."""
    namespace = dataset["metadata"]["namespace"]
    mounts = cast("list[Json]", dataset["spec"].get("mounts") or [])
    addresses = [str(mount.get("mountPoint", "")) for mount in mounts]
    return {_parsed(one, namespace).key for one in addresses if one.startswith(SCHEME)}


def resolve(
    start: ServedKey, reference: Callable[[ServedKey], Reference | None]
) -> tuple[ServedKey, str]:
    """Follow references to the data set that has servers; return it and the folder in it."""
    key, folder, seen = start, "", [start]
    while (found := reference(key)) is not None:
        key = found.key
        folder = "/".join(filter(None, (found.folder, folder)))
        if key in seen:
            chain = " -> ".join(map(str, (*seen, key)))
            raise SpecProblem("spec.mounts", f"data sets refer to each other in a circle: {chain}")
        seen.append(key)
    return key, folder


def _parsed(address: str, namespace: str) -> Reference:
    key, folder = parse_reference(address, namespace)
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise SpecProblem("spec.mounts.0.mountPoint", "leads out of the data set")
    return Reference(ServedKey(key.namespace, key.name), "/".join(parts))
