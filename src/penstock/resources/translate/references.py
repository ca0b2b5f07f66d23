"""`dataset://namespace/name/folder`: parts of another data set, seen from this one. Pure."""

from dataclasses import dataclass, replace

from penstock.daemon.settings import Part
from penstock.errors import SpecProblem
from penstock.specs.dataset import Dataset
from penstock.specs.keys import ResourceKey
from penstock.specs.models import Runtime


@dataclass(frozen=True, slots=True)
class Referenced:
    """Another data set, as it is declared, and the runtime that it is bound to."""

    dataset: Dataset
    runtime: Runtime | None


def parse_reference(mount_point: str, namespace: str) -> tuple[ResourceKey, str]:
    """The data set, and the folder in it. A single name is one of the same namespace."""
    names = mount_point.partition("://")[2].strip("/").split("/")
    if len(names) == 1:
        return ResourceKey("Dataset", namespace, names[0]), ""
    return ResourceKey("Dataset", names[0], names[1]), "/".join(names[2:])


def move_parts(
    parts: tuple[Part, ...], folder: str, below: str, key: ResourceKey, path: str
) -> list[Part]:
    """What of `parts` lies in `folder`, as seen from `below`. `path` is that of the mount."""
    inside = [part for part in parts if _is_in(part.path, folder)]
    found = [replace(part, path=_joined(below, _rest(part.path, folder))) for part in inside]
    around = [part for part in parts if part.path != folder and _is_in(folder, part.path)]
    if around and not any(part.path == folder for part in inside):
        # The deepest hides the others.
        part = max(around, key=lambda one: len(one.path))
        prefix = _joined(part.source.prefix, _rest(folder, part.path))
        if part.source.scheme == "file":
            prefix = "/" + prefix.strip("/")
        found.append(replace(part, path=below, source=replace(part.source, prefix=prefix)))
    if not found:
        raise SpecProblem(
            f"{path}.mountPoint", f"{key} has nothing in {folder}",
            hint="its parts are at " + (", ".join(f"/{part.path}" for part in parts) or "no path"),
        )  # fmt: skip
    return found


def _is_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _rest(path: str, folder: str) -> str:
    return path[len(folder) :].strip("/")


def _joined(*names: str) -> str:
    return "/".join(name.rstrip("/") for name in names if name)
