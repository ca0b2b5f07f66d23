"""The data sets of a job: whether they are there, and from where they are bound. Mostly pure."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import did_you_mean
from penstock.reconcile.conditions import BOUND
from penstock.reconcile.snapshot import Served, Stored
from penstock.specs.kinds import ResourceKey

Json = dict[str, Any]


def job_datasets(job: Stored) -> list[ResourceKey]:
    data: list[Json] = job.spec.get("data") or []
    return list(dict.fromkeys(dataset_of(job.key, one) for one in data))


def dataset_of(job: ResourceKey, one: Json) -> ResourceKey:
    """Which data set this entry of the job's spec.data means."""
    return ResourceKey("Dataset", one.get("namespace") or job.namespace, one["dataset"])


def missing_data(
    job: Stored, resources: Mapping[ResourceKey, Stored], is_served: Served
) -> str | None:
    """What the job waits for, in words; None if all of it is there."""
    return next((why for _, why in missing_datasets(job, resources, is_served)), None)


def missing_datasets(
    job: Stored, resources: Mapping[ResourceKey, Stored], is_served: Served
) -> Iterator[tuple[ResourceKey, str]]:
    """The data sets that the job waits for, each with why."""
    for key in job_datasets(job):
        found = resources.get(key)
        name = _named(key, job.key)
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
    """Return that there is no such data set, with what may have been meant."""
    return f"there is no data set {_named(key, job)}" + _near(key, known)


def _named(key: ResourceKey, job: ResourceKey) -> str:
    return key.name if key.namespace == job.namespace else f"{key.namespace}/{key.name}"


def _near(key: ResourceKey, known: Iterable[ResourceKey]) -> str:
    datasets = [one for one in known if one.kind == "Dataset"]
    names = [one.name for one in datasets if one.namespace == key.namespace]
    if hint := did_you_mean(key.name, names):
        return f" ({hint})"
    others = [one for one in datasets if one.name == key.name]
    return f" (there is one in the namespace {others[0].namespace})" if others else ""


def what_to_load(job: Stored, resources: Mapping[ResourceKey, Stored]) -> list[list[str]]:
    """(uid of the data set, path below it) of each; they are there. What was loaded for another
    list than this is not what the job will read."""
    data: list[Json] = job.spec.get("data") or []
    return [
        [resources[dataset_of(job.key, one)].uid, (one.get("subPath") or "").strip("/")]
        for one in data
    ]


def sources(job: Stored, resources: Mapping[ResourceKey, Stored]) -> list[tuple[Path, str, str]]:
    """(mount point, path below it, mount path in the job) of each; they are there."""
    data: list[Json] = job.spec.get("data") or []
    found: list[tuple[Path, str, str]] = []
    for one in data:
        mountpoint = Path(resources[dataset_of(job.key, one)].note["mountpoint"])
        found.append((mountpoint, (one.get("subPath") or "").strip("/"), one["mountPath"]))
    return found
