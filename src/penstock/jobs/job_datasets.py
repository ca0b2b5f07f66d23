"""The data sets of a job: whether they are ready, and what of them the job mounts. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import did_you_mean
from penstock.reconcile.conditions import BOUND
from penstock.reconcile.snapshot import Served, Stored
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]


def job_datasets(job: Stored) -> list[ResourceKey]:
    return list(dict.fromkeys(dataset_of(job.key, one) for one in _data(job)))


def dataset_of(job: ResourceKey, one: Json) -> ResourceKey:
    """Return the data set that an entry of the job's spec.data names."""
    return ResourceKey("Dataset", one.get("namespace") or job.namespace, one["dataset"])


def missing_data(
    job: Stored, resources: Mapping[ResourceKey, Stored], is_served: Served
) -> str | None:
    """Return why the job has to wait for its data, in words; None if all of it is ready."""
    return next((why for _, why in missing_datasets(job, resources, is_served)), None)


def missing_datasets(
    job: Stored, resources: Mapping[ResourceKey, Stored], is_served: Served
) -> Iterator[tuple[ResourceKey, str]]:
    """Yield the data sets that are not ready, each with the reason."""
    for key in job_datasets(job):
        found = resources.get(key)
        name = _name_for(key, job.key)
        if found is None:
            yield key, describe_missing(key, job.key, resources)
        elif found.deleting is not None:
            yield key, f"data set {name} is being deleted"
        elif found.status.get("phase") != BOUND:
            why = [one["message"] for one in found.status.get("conditions", [])[:1]]
            yield key, ": ".join([f"data set {name} is not bound", *why])
        elif not is_served(Path(found.note["mountpoint"]), key):
            yield key, f"data set {name} is not mounted (hint: penstock up {key.name})"


def describe_missing(key: ResourceKey, job: ResourceKey, known: Iterable[ResourceKey]) -> str:
    """Say that the data set does not exist, and which one may have been meant."""
    return f"there is no data set {_name_for(key, job)}" + _suggestion(key, known)


def what_to_load(job: Stored, resources: Mapping[ResourceKey, Stored]) -> list[list[str]]:
    """Return (uid of the data set, path below it) for each entry of spec.data.

    The result is stored once these are loaded; if it differs later, they must be loaded again.
    """
    return [
        [resources[dataset_of(job.key, one)].uid, (one.get("subPath") or "").strip("/")]
        for one in _data(job)
    ]


def sources(job: Stored, resources: Mapping[ResourceKey, Stored]) -> list[tuple[Path, str, str]]:
    """Return (mount point, path below it, mount path in the job) for each entry of spec.data."""
    found: list[tuple[Path, str, str]] = []
    for one in _data(job):
        mountpoint = Path(resources[dataset_of(job.key, one)].note["mountpoint"])
        found.append((mountpoint, (one.get("subPath") or "").strip("/"), one["mountPath"]))
    return found


def _data(job: Stored) -> list[Json]:
    return job.spec.get("data") or []


def _name_for(key: ResourceKey, job: ResourceKey) -> str:
    return key.name if key.namespace == job.namespace else f"{key.namespace}/{key.name}"


def _suggestion(key: ResourceKey, known: Iterable[ResourceKey]) -> str:
    datasets = [one for one in known if one.kind == "Dataset"]
    names = [one.name for one in datasets if one.namespace == key.namespace]
    if hint := did_you_mean(key.name, names):
        return f" ({hint})"
    others = [one for one in datasets if one.name == key.name]
    return f" (there is one in the namespace {others[0].namespace})" if others else ""
