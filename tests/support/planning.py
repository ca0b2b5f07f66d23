"""Manifests to plans, with everything around them made up and nothing looked up."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.fluid.plan import Lookup, MountPlan, Referenced, plan_mount
from penstock.fluid.tiers import Folders
from penstock.specs.dataset import Dataset
from penstock.specs.documents import read
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import model_of

MOUNTPOINT = Path("/mnt/penstock/default/imagenet")
CACHE, SCRATCH = Path("/var/cache/penstock"), Path("/var/lib/penstock/scratch")
OWNER = "penstock"

S3_DATASET = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: imagenet}
spec:
  mounts:
    - mountPoint: s3://bucket/imagenet
      name: imagenet
"""


def plan(
    text: str,
    *,
    secrets: Mapping[str, str] | None = None,
    checked: bool = True,
    read_file: Callable[[Path], str] = Path.read_text,
    allow_other: bool = False,
) -> MountPlan:
    """The Dataset called `imagenet` (or the first one) with its runtime; the others can be
    referred to. Secrets by `NAME/KEY`. Not `checked`: as from the state, where nothing is checked
    but types."""
    if checked:
        resources = [document.resource for document in read(text, "test.yaml")]
    else:
        resources = [model_of(one) for one in yaml.safe_load_all(text)]
    by_key = {resource.key: resource for resource in resources}

    def runtime_of(dataset: Any) -> Any:
        of = [one for one in resources if one.key.kind.endswith("Runtime")]
        return next((one for one in of if one.key[1:] == dataset.key[1:]), None)

    def secret(_namespace: str, name: str, key: str) -> str:
        return (secrets or {})[f"{name}/{key}"]

    def referenced(key: ResourceKey) -> Referenced | None:
        dataset: Any = by_key.get(key)
        return None if dataset is None else Referenced(dataset, runtime_of(dataset))

    datasets: list[Any] = [one for one in resources if isinstance(one, Dataset)]
    return plan_mount(
        datasets[0],
        runtime_of(datasets[0]),
        Lookup(secret, referenced, read_file),
        Folders(
            cache=CACHE,
            scratch=SCRATCH,
            memory=Path("/dev/shm"),
            owner=OWNER,
            is_tmpfs=lambda path: str(path).startswith("/dev/shm"),
        ),
        mountpoint=MOUNTPOINT,
        allow_other=allow_other,
        runs_members=True,
    )


def runtime(kind: str, spec: str, name: str = "imagenet") -> str:
    """`spec` is YAML, indented by two."""
    group = "penstock.dev" if kind == "PenstockRuntime" else "data.fluid.io"
    head = f"---\napiVersion: {group}/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\n"
    return head + ("spec:\n" + spec.strip("\n") if spec.strip() else "spec: {}") + "\n"


def no_effects(found: MountPlan) -> dict[str, str]:
    return {one.path: one.reason for one in found.without_effect}
