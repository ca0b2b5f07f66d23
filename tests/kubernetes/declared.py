"""Datasets and runtimes as the API server has them, and what a server tells of one."""

from typing import Any

Json = dict[str, Any]
FLUID = "data.fluid.io/v1alpha1"
BRIEF = {
    "files": 10,
    "bytes": 2048,
    "cached_bytes": 1024,
    "capacity_bytes": 4096,
    "hit_bytes": {"SSD": 30},
    "store_bytes": 10,
}


def dataset(*mounts: Json, name: str = "demo", namespace: str = "default", **spec: Any) -> Json:
    return {
        "apiVersion": FLUID,
        "kind": "Dataset",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"mounts": list(mounts) or [{"mountPoint": "s3://bucket", "name": name}], **spec},
    }


def runtime(kind: str = "AlluxioRuntime", name: str = "demo", **spec: Any) -> Json:
    group = "penstock.dev/v1alpha1" if kind == "PenstockRuntime" else FLUID
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}


def levels(*found: Json) -> Json:
    return {"levels": list(found)}


def secret_option(name: str, secret: str, key: str) -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
