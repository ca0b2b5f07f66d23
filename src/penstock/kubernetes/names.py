"""Names on a cluster: groups, labels, finalizers, paths, ports. Pure; every role uses them.

Names that start with `fluid` are those of Fluid 1.0.8, so that manifests, selectors and habits
stay.
"""

import hashlib
import re
from pathlib import PurePosixPath
from typing import Final, NamedTuple

DRIVER: Final = "fuse.csi.fluid.io"
STORAGE_CLASS: Final = "fluid"
FINALIZER: Final = "fluid-dataset-controller-finalizer"
FIELD_MANAGER: Final = "penstock-operator"

# Volume attributes of a persistent volume, as Fluid writes them.
FLUID_PATH: Final = "fluid_path"
MOUNT_TYPE: Final = "mount_type"
RUNTIME_NAMESPACE: Final = "runtime_namespace"
RUNTIME_NAME: Final = "runtime_name"
SUB_PATH: Final = "fluid_sub_path"

# Volume attributes of the inline volumes of a server pod. The kubelet adds the pod's own names.
ROLE: Final = "penstock.dev/role"  # link, state or cache
DATASET: Final = "penstock.dev/dataset"  # a data set of the pod's own namespace
CACHE_ROOT: Final = "penstock.dev/cache-root"  # of role cache: a folder of the node
POD_NAMESPACE: Final = "csi.storage.k8s.io/pod.namespace"
POD_NAME: Final = "csi.storage.k8s.io/pod.name"
POD_UID: Final = "csi.storage.k8s.io/pod.uid"
EPHEMERAL: Final = "csi.storage.k8s.io/ephemeral"

# Inside a server pod.
LINK_DIR: Final = PurePosixPath("/run/penstock")  # role link; holds the node plugin's socket
LINK_SOCKET: Final = LINK_DIR / "node.sock"
STATE_DIR: Final = PurePosixPath("/var/lib/penstock")  # role state: the catalog
SECRETS_DIR: Final = PurePosixPath("/etc/penstock/secrets")  # SECRET/KEY
SERVED_VARIABLE: Final = "PENSTOCK_SERVED"  # JSON: the Dataset, its runtime, what they refer to
HTTP_PORT: Final = 9180  # /readyz, /status and /metrics
SERVER_USER: Final = 65532

# On a node.
RUNTIME_ROOT: Final = PurePosixPath("/runtime-mnt")
NODE_STATE: Final = PurePosixPath("/var/lib/penstock")
DEFAULT_CACHE: Final = NODE_STATE / "cache"  # for a runtime that names no folder
KUBELET_ROOT: Final = PurePosixPath("/var/lib/kubelet")

MOUNT_TYPE_PATTERN: Final = re.compile(r"[a-z]+")
_LONGEST_LABEL = 63
_HASH_DIGITS = 8


class ServedKey(NamedTuple):
    """A data set on a node: what one FUSE mount, one socket and one server pod belong to."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def volume_name(namespace: str, name: str) -> str:
    return f"{namespace}-{name}"


def server_set_name(name: str) -> str:
    return f"{name}-fuse"


def mount_path(mount_type: str, key: ServedKey) -> PurePosixPath:
    """Return the host path of a data set's mount, as Fluid has it."""
    return RUNTIME_ROOT / mount_type / key.namespace / key.name / f"{mount_type}-fuse"


def parse_mount_path(path: str) -> tuple[str, ServedKey] | None:
    """Return the mount type and data set of a path made by `mount_path`; None for any other."""
    match = re.fullmatch(r"/runtime-mnt/([a-z]+)/([^/]+)/([^/]+)/\1-fuse", path)
    return None if match is None else (match[1], ServedKey(match[2], match[3]))


def mount_type(runtime_kind: str) -> str:
    """`alluxio` for an AlluxioRuntime."""
    return runtime_kind.removesuffix("Runtime").lower()


def node_label(prefix: str, key: ServedKey) -> str:
    """Return the label of a node for a data set: `fluid.io/f-default-imagenet`.

    A label's name has at most 63 characters; a longer one ends in a hash.
    """
    name = f"{prefix}-{key.namespace}-{key.name}"
    if len(name) > _LONGEST_LABEL:
        digest = hashlib.blake2b(name.encode(), digest_size=_HASH_DIGITS // 2).hexdigest()
        name = f"{name[: _LONGEST_LABEL - _HASH_DIGITS - 1].rstrip('-.')}-{digest}"
    return f"fluid.io/{name}"


def cache_folder(root: PurePosixPath, key: ServedKey) -> PurePosixPath:
    """Return the data set's own folder below a cache root of the node."""
    return root / "penstock" / key.namespace / key.name
