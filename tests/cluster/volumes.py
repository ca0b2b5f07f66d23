"""Manifests of data sets, and pods that read them, for tests in the cluster."""

import hashlib
import random
from typing import Any

from tests.cluster.kube import Kube, on_node
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, ObjectPath

Json = dict[str, Any]
DATA = "data.fluid.io/v1alpha1"
GROUPS = {"PenstockRuntime": "penstock.dev/v1alpha1"}
BUSYBOX = "localhost/busybox:1"
KEYS_SECRET = "keys"
_LARGE_BYTES = 3 << 20


def fill(bucket: ObjectPath, *, files: int = 20, seed: int = 1) -> dict[str, str]:
    """Put files into a bucket; return the checksum of each."""
    source = random.Random(seed)
    contents = {
        f"train/n{number % 3}/{number}.bin": source.randbytes(source.randrange(200_000))
        for number in range(files)
    }
    contents["large.bin"] = source.randbytes(_LARGE_BYTES)
    contents["a file with spaces.txt"] = b"text\n"
    for name, content in contents.items():
        (bucket / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def keys_secret(name: str = KEYS_SECRET) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"id": ACCESS_KEY, "secret": SECRET_KEY},
    }


def dataset(name: str, *mounts: Json, **spec: Any) -> Json:
    return {
        "apiVersion": DATA,
        "kind": "Dataset",
        "metadata": {"name": name},
        "spec": {"mounts": list(mounts), **spec},
    }


def bucket_mount(s3: S3, bucket: str, *, path: str = "/", name: str = "bucket") -> Json:
    """A mount of a bucket with the keys in `keys_secret`."""
    return {
        "mountPoint": f"s3://{bucket}",
        "name": name,
        "path": path,
        "options": {"endpoint": s3.endpoint},
        "encryptOptions": [
            {
                "name": option,
                "valueFrom": {"secretKeyRef": {"name": KEYS_SECRET, "key": key}},
            }
            for option, key in (("aws.accessKeyId", "id"), ("aws.secretKey", "secret"))
        ],
    }


def runtime(name: str, kind: str = "AlluxioRuntime", **spec: Any) -> Json:
    level = {"mediumtype": "MEM", "path": "/dev/shm", "quota": "64Mi"}
    return {
        "apiVersion": GROUPS.get(kind, DATA),
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"tieredstore": {"levels": [level]}, **spec},
    }


def pod(name: str, claim: str, command: str, *, node: str = "", **mount: Any) -> Json:
    """A pod that runs a shell command with the claim at /data."""
    spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-ec", command],
                "volumeMounts": [{"name": "data", "mountPath": "/data", **mount}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


READ_EVERYTHING = "cd /data; find . -type f -print0 | xargs -0 sha256sum"


def checksums(output: str) -> dict[str, str]:
    """What `READ_EVERYTHING` printed, by path."""
    lines = (line.split("  ", 1) for line in output.splitlines())
    return {path.removeprefix("./"): digest for digest, path in lines}


def remains_on(node: str, kube: Kube) -> list[str]:
    """Mounts and folders of a namespace's data sets on a node."""
    # Below these the node plugin keeps one folder for each namespace. Deeper in the first are the
    # mounts of other tests, and one without a server does not answer. Folders of other tests may
    # vanish while find looks at them.
    finds = (
        f"find /runtime-mnt -maxdepth 2 -name {kube.namespace}",
        f"find /var/lib/penstock /dev/shm /var/lib/docker /mnt -xdev -name {kube.namespace}",
    )
    folders = "".join(on_node(node, "sh", "-c", f"{one} 2>/dev/null || true") for one in finds)
    mounts = on_node(node, "cat", "/proc/mounts")
    found = [line for line in mounts.splitlines() if f"/{kube.namespace}/" in line]
    return found + folders.split()
