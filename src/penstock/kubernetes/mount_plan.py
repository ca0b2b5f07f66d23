"""The plan of a mount in a server pod, and where its caches lie on the node. Pure.

Both sides use it: the operator with placeholders for secret values, to check a Dataset and to know
its volumes; the server pod with the values from its mounted Secrets, to mount.
"""

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from penstock.errors import OptionError, PenstockError, SpecProblem
from penstock.fluid.plan import Lookup, MountPlan, Referenced, plan_mount
from penstock.fluid.tiers import Folders
from penstock.fluid.values import UNKNOWN
from penstock.kubernetes import names
from penstock.mount_options import change_settings
from penstock.settings import OPTIONS, MountSettings
from penstock.specs.dataset import Dataset
from penstock.specs.fields import parse_quantity
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import Runtime
from penstock.units import MIB

# Inside a server pod.
CACHES_DIR: Final = PurePosixPath("/cache")
CLAIMS_DIR: Final = PurePosixPath("/claims")  # pvc://NAME is at CLAIMS_DIR/NAME
HOST_DIR: Final = PurePosixPath("/host")  # local:///folder is at HOST_DIR/folder
SCRATCH_DIR: Final = PurePosixPath("/scratch")  # stands for emptyDirs until they have a place

MEMORY_LIMIT: Final = "spec.fuse.resources.limits.memory"

_OWNER = "penstock"
_MEMORY_ROOTS = (Path("/dev/shm"), Path("/run/shm"))
# What a pod needs beside its server and workers: the supervisor, and the kernel's own records.
_BESIDE_SERVER_BYTES = 64 * MIB

Secret = Callable[[str, str, str], str]  # namespace, name, key


class Placeholders:
    """Stands for all Secrets, and keeps the names of those that were asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, _namespace: str, name: str, _key: str) -> str:
        self.names.add(name)
        return UNKNOWN


def plan_in_cluster(
    dataset: Dataset,
    runtime: Runtime,
    secret: Secret,
    references: Mapping[ResourceKey, Referenced],
) -> MountPlan:
    """Translate a Dataset and its runtime for a server pod. Raises SpecProblem.

    The paths of its tiers are those of the node: `in_container` gives the pod's own.
    """
    own = dataset.metadata.namespace

    def own_secret(namespace: str, name: str, key: str) -> str:
        if namespace != own:
            raise PenstockError(
                f"Secret {name} is in namespace {namespace}, and a server pod has those of {own}",
                hint="mount only dataset://NAMESPACE/NAME, without other mounts and runtime: "
                "that data set's own servers are used",
            )
        return secret(namespace, name, key)

    def own_claim(namespace: str, name: str) -> str:
        if namespace != own:
            raise PenstockError(
                f"volume claim {name} is in namespace {namespace}, and a server pod has those of "
                f"{own}",
                hint="use a claim of the data set's own namespace",
            )
        return str(CLAIMS_DIR / name)

    plan = plan_mount(
        dataset,
        runtime,
        Lookup(own_secret, references.get, _read_file, own_claim, str(HOST_DIR)),
        Folders(
            cache=Path(names.DEFAULT_CACHE),
            scratch=Path(SCRATCH_DIR),
            memory=_MEMORY_ROOTS[0],
            owner=_OWNER,
            is_tmpfs=_is_in_memory,
            scratch_in_memory=True,
        ),
        mountpoint=Path(
            names.mount_path(
                names.mount_type(runtime.kind), names.ServedKey(own, dataset.metadata.name)
            )
        ),
        allow_other=True,
    )
    # Pods that read run as any user, also where the data is a folder of the node.
    settings = replace(_fit_limit(plan.settings, runtime), allow_other=True)
    return replace(plan, settings=settings)


def memory_limit(runtime: Runtime) -> int | None:
    """Return how many bytes the runtime lets a server's container hold."""
    resources = runtime.spec.fuse.resources or {}
    limits = cast("dict[str, Any]", resources.get("limits") or {})
    if "memory" not in limits:
        return None
    try:
        return parse_quantity(str(limits["memory"]))
    except PenstockError as error:
        raise SpecProblem(MEMORY_LIMIT, str(error), hint=error.hint) from error


# -- caches --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CacheMount:
    """A folder of a tier: where the plan has it, and where the server pod has it."""

    planned: Path
    container: PurePosixPath
    host_root: PurePosixPath | None  # the node's folder for all data sets; None: an emptyDir
    in_memory: bool
    quota_bytes: int | None  # of this folder; None: not known


def cache_mounts(settings: MountSettings) -> tuple[CacheMount, ...]:
    found: list[CacheMount] = []
    for tier in settings.tiers:
        for path in tier.paths:
            quota = None if tier.quota_bytes is None else tier.quota_bytes // len(tier.paths)
            container = CACHES_DIR / f"{tier.medium.lower()}-{len(found)}"
            found.append(CacheMount(path, container, _host_root(path), tier.medium == "MEM", quota))
    return tuple(found)


def in_container(settings: MountSettings) -> MountSettings:
    """Return the settings with the paths of tiers as the server pod has them."""
    places = {one.planned: Path(one.container) for one in cache_mounts(settings)}
    tiers = tuple(
        replace(tier, paths=tuple(places[path] for path in tier.paths)) for tier in settings.tiers
    )
    return replace(settings, tiers=tiers)


def capacity_bytes(settings: MountSettings) -> int | None:
    """Return what the tiers of one server may hold; None if a quota is that of the disk."""
    quotas = [tier.quota_bytes for tier in settings.tiers]
    known = [quota for quota in quotas if quota is not None]
    return sum(known) if len(known) == len(quotas) else None


# -- what a plan reads beside stores -------------------------------------------------------------


def claims_of(settings: MountSettings) -> list[str]:
    """Return the volume claims that the parts read."""
    inside = _folders_below(settings, CLAIMS_DIR)
    return sorted({path.parts[0] for path in inside if path.parts})


def host_folders_of(settings: MountSettings) -> list[PurePosixPath]:
    """Return the folders of the node that the parts read."""
    return sorted({PurePosixPath("/") / path for path in _folders_below(settings, HOST_DIR)})


def _folders_below(settings: MountSettings, root: PurePosixPath) -> Iterable[PurePosixPath]:
    for part in settings.parts:
        path = PurePosixPath(part.source.prefix)
        if part.source.scheme == "file" and path.is_relative_to(root):
            yield path.relative_to(root)


def _host_root(path: Path) -> PurePosixPath | None:
    """Return the folder of the node below which the node plugin makes the data set's own."""
    place = PurePosixPath(path)
    if place.is_relative_to(SCRATCH_DIR):
        return None
    if place.is_relative_to(names.DEFAULT_CACHE / "datasets"):
        return names.DEFAULT_CACHE
    if len(place.parts) > 3 and place.parts[-3] == _OWNER:
        return place.parents[2]
    return place  # an option of a PenstockRuntime names it


def _fit_limit(settings: MountSettings, runtime: Runtime) -> MountSettings:
    """Let the option memory follow the container's limit, unless it is set."""
    limit = memory_limit(runtime)
    option = OPTIONS["memory"]
    assert option.default is not None
    if limit is None or settings.memory_bytes != option.read(option.default):
        return settings
    try:
        return change_settings(settings, {"memory": max(1, limit - _BESIDE_SERVER_BYTES)})
    except OptionError as error:
        raise SpecProblem(MEMORY_LIMIT, str(error), hint=error.hint) from error


def _is_in_memory(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _MEMORY_ROOTS)


def _read_file(path: Path) -> str:
    if str(path) == UNKNOWN:
        return UNKNOWN
    raise FileNotFoundError(errno.ENOENT, "a server pod has no such file", str(path))
