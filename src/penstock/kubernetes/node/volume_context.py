"""What a volume asks for: the attributes that the kubelet hands to the node plugin, checked. Pure.

Whoever may create pods chooses the attributes of inline volumes, and whoever may create persistent
volumes chooses theirs. So nothing is taken on trust: a claim binds the mount of its data set and no
other path, and an inline volume belongs to a data set of its pod's own namespace. What the kubelet
itself adds (`csi.storage.k8s.io/…`) replaces what a user wrote there.
"""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, cast, get_args

from penstock.errors import VolumeProblem
from penstock.kubernetes import names
from penstock.kubernetes.names import ServedKey

Role = Literal["link", "state", "cache"]

_ROLES: Final = get_args(Role)
_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMESPACE: Final = re.compile(_LABEL)
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# Folders of the node that hold its system, devices, or what other programs trust.
_SYSTEM: Final = re.compile(
    r"/(proc|sys|etc|boot|usr|bin|sbin|lib[x0-9]*|root|dev|run|var/run)(/|$)"
)
_SHARED_MEMORY: Final = PurePosixPath("/dev/shm")


@dataclass(frozen=True, slots=True)
class Claim:
    """A volume of a pod that reads a data set."""

    mount_type: str
    key: ServedKey
    sub_path: str  # relative, without `..`; empty for the whole data set

    @property
    def mount_path(self) -> PurePosixPath:
        return names.mount_path(self.mount_type, self.key)

    def __str__(self) -> str:
        return f"{self.key}/{self.sub_path}" if self.sub_path else str(self.key)


@dataclass(frozen=True, slots=True)
class Inline:
    """A folder for the server pod of a data set."""

    role: Role
    key: ServedKey
    cache_root: PurePosixPath | None  # of role cache only
    pod_name: str
    pod_uid: str

    def __str__(self) -> str:
        return f"the {self.role} of {self.key} for pod {self.pod_name}"


PublishedVolume = Claim | Inline


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    total_bytes: int
    used_bytes: int
    files: int
    abnormal: str | None  # why the volume cannot be read; None if it can


def parse(
    context: Mapping[str, str], *, kubelet_dir: PurePosixPath = names.KUBELET_ROOT
) -> PublishedVolume:
    """Return what a volume's attributes ask for; raise VolumeProblem if they may not.

    No folder below `kubelet_dir` can hold a cache: it has the volumes of all pods.
    """
    if context.get(names.EPHEMERAL) == "true":
        return _inline(context, kubelet_dir)
    return _claim(context)


def _claim(context: Mapping[str, str]) -> Claim:
    mount_type = _matching(context, names.MOUNT_TYPE, names.MOUNT_TYPE_PATTERN)
    key = ServedKey(
        _matching(context, names.RUNTIME_NAMESPACE, _NAMESPACE),
        _matching(context, names.RUNTIME_NAME, _NAME),
    )
    path = _required(context, names.FLUID_PATH)
    expected = str(names.mount_path(mount_type, key))
    if path != expected:
        raise VolumeProblem(names.FLUID_PATH, f"{path!r} is not the mount of {key}, {expected}")
    sub_path = context.get(names.SUB_PATH, "")
    if sub_path and not _is_plain_relative(sub_path):
        raise VolumeProblem(
            names.SUB_PATH, f"{sub_path!r} is not a relative path without `.`, `..` and `//`"
        )
    return Claim(mount_type, key, sub_path)


def _inline(context: Mapping[str, str], kubelet_dir: PurePosixPath) -> Inline:
    role = _required(context, names.ROLE)
    if role not in _ROLES:
        raise VolumeProblem(names.ROLE, f"{role!r} is none of {', '.join(_ROLES)}")
    key = ServedKey(
        _matching(context, names.POD_NAMESPACE, _NAMESPACE),
        _matching(context, names.DATASET, _NAME),
    )
    root = None
    if role == "cache":
        root = _cache_root(_required(context, names.CACHE_ROOT), kubelet_dir)
    elif names.CACHE_ROOT in context:
        raise VolumeProblem(names.CACHE_ROOT, f"a volume of role {role} has no cache")
    pod_name, pod_uid = _required(context, names.POD_NAME), _required(context, names.POD_UID)
    return Inline(cast("Role", role), key, root, pod_name, pod_uid)


def _cache_root(text: str, kubelet_dir: PurePosixPath) -> PurePosixPath:
    """Return the root of a cache; the data sets' folders in it must lie in no folder of others."""
    # normpath keeps two slashes at the start.
    if not text.startswith("/") or text.startswith("//") or posixpath.normpath(text) != text:
        raise VolumeProblem(names.CACHE_ROOT, f"{text!r} is not an absolute, normalised path")
    if "\0" in text:
        raise VolumeProblem(names.CACHE_ROOT, "contains a NUL character")
    root = PurePosixPath(text)
    # The root itself is not written to, only this folder in it: /var/lib would be our own state.
    folder = names.cache_folder(root, ServedKey("namespace", "name")).parent.parent
    ours = (kubelet_dir, names.KUBELET_ROOT, names.NODE_STATE, names.RUNTIME_ROOT)
    shared_memory = root.is_relative_to(_SHARED_MEMORY)
    if root != names.DEFAULT_CACHE and (
        root == PurePosixPath("/")
        or (_SYSTEM.match(text) and not shared_memory)
        or any(folder.is_relative_to(one) for one in ours)
    ):
        raise VolumeProblem(
            names.CACHE_ROOT,
            f"{text} belongs to the node's system",
            hint="give the tier a folder on a data disk, or /dev/shm",
        )
    return root


def _is_plain_relative(path: str) -> bool:
    parts = path.split("/")
    return "\0" not in path and all(part not in ("", ".", "..") for part in parts)


def _required(context: Mapping[str, str], name: str) -> str:
    value = context.get(name, "")
    if not value:
        raise VolumeProblem(name, "the volume lacks this attribute")
    return value


def _matching(context: Mapping[str, str], name: str, pattern: re.Pattern[str]) -> str:
    value = _required(context, name)
    if not pattern.fullmatch(value):
        raise VolumeProblem(name, f"{value!r} is not a valid value")
    return value
