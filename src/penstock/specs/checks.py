"""What a model alone cannot see: fields that do not go together. Pure.

Run on what people give, not on what was kept: what was taken once stays readable.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from penstock.specs.dataset import Dataset, DatasetSpec
from penstock.specs.jobs import TrainingJob
from penstock.specs.operations import DataMigrate, DataProcess, DataToMigrate, ScheduledSpec
from penstock.specs.resource import Resource
from penstock.specs.runtimes import RuntimeSpec
from penstock.specs.tieredstore import Level
from penstock.specs.wording import Mistake

LineOf = Callable[[str], int]

# Its instances, whose names end in -launcher or -worker-4095, have files named after them.
_LONGEST_JOB_NAME = 63
_MOST_WORKERS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def mistakes(resource: Resource, line_of: LineOf) -> Iterator[Mistake]:
    """`line_of` gives the line of a path, for mistakes that are made in two places."""
    spec = getattr(resource, "spec", None)
    if isinstance(resource, Dataset):
        yield from _dataset(resource.spec, line_of)
    if isinstance(spec, RuntimeSpec):
        for index, level in enumerate(spec.tieredstore.levels):
            yield from _level(level, f"spec.tieredstore.levels.{index}")
    if isinstance(spec, ScheduledSpec):
        yield from _schedule(spec)
    if isinstance(resource, DataMigrate):
        yield from _end(resource.spec.from_, "spec.from")
        yield from _end(resource.spec.to, "spec.to")
    if isinstance(resource, DataProcess):
        yield from _processor(resource)
    if isinstance(resource, TrainingJob):
        yield from _job(resource, line_of)


def _dataset(spec: DatasetSpec, line_of: LineOf) -> Iterator[Mistake]:
    if not spec.mounts:
        yield "spec.mounts", "spec.mounts: there is none", "a data set is made of its mounts"
    places = [(mount.place, f"spec.mounts.{index}") for index, mount in enumerate(spec.mounts)]
    for index, (place, path) in enumerate(places):
        for other, other_path in places[:index]:
            if place == other:
                where = "the root" if place == "/" else place
                what = f"is seen at {where}, and so is {other_path} in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "give each mount a name or a path of its own"
            elif _inside(place, other) or _inside(other, place):
                inner, outer = sorted((place, other), key=len, reverse=True)
                what = f"{inner} lies inside {outer}; {other_path} is in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "only mounts below the root / may lie in another"
    for index, mount in enumerate(spec.mounts):
        path = f"spec.mounts.{index}.encryptOptions"
        yield from _encrypted([one.name for one in mount.encrypt_options], path)
    yield from _encrypted(
        [one.name for one in spec.shared_encrypt_options], "spec.sharedEncryptOptions"
    )


def _inside(place: str, other: str) -> bool:
    return other != "/" and place.startswith(other + "/")


def _encrypted(names: list[str], path: str) -> Iterator[Mistake]:
    for index, name in enumerate(names):
        if name in names[:index]:
            where = f"{path}.{index}"
            yield where, f"{where}: {name!r} stands twice", "keep one of them"


def _level(level: Level, path: str) -> Iterator[Mistake]:
    count = len(level.quota_list_bytes)
    if count and count != len(level.paths):
        what = f"{count} quotas for {len(level.paths)} paths"
        yield f"{path}.quotaList", f"{path}.quotaList: {what}", "give one for each path"
    if level.high and level.low and float(level.low) > float(level.high):
        what = f"low ({level.low}) is above high ({level.high})"
        yield f"{path}.low", f"{path}.low: {what}", None
    if level.volume_type == "hostPath":
        for one in level.paths:
            if not one.startswith("/"):
                what = f"{one!r} is not an absolute path"
                yield f"{path}.path", f"{path}.path: {what}", "write it like /mnt/ssd/cache"


def _schedule(spec: ScheduledSpec) -> Iterator[Mistake]:
    if spec.policy == "Cron" and not spec.schedule:
        yield "spec.policy", "spec.schedule: is missing; policy is Cron", 'such as "0 2 * * *"'
    if spec.schedule and spec.policy != "Cron":
        what = f"spec.schedule: needs policy Cron, and policy is {spec.policy}"
        yield "spec.schedule", what, "write policy: Cron, or leave the schedule out"
    if spec.schedule:
        try:
            CronSim(spec.schedule, datetime.now(UTC))
        except CronSimError as error:
            hint = 'five fields: minute hour day month weekday, such as "0 2 * * *"'
            yield "spec.schedule", f"spec.schedule: not a schedule ({error})", hint


def _end(end: DataToMigrate, path: str) -> Iterator[Mistake]:
    if end.dataset is None and end.external_storage is None:
        yield path, f"{path}: names nothing", "give it a dataset or an externalStorage"
    if end.dataset is not None and end.external_storage is not None:
        yield path, f"{path}: names both a dataset and an externalStorage", "keep one of them"


def _processor(resource: DataProcess) -> Iterator[Mistake]:
    processor = resource.spec.processor
    path = "spec.processor"
    if processor.script is None and processor.job is None:
        yield path, f"{path}: has nothing to run", "give it a script or a job"
    if processor.script is not None and processor.job is not None:
        yield path, f"{path}: has both a script and a job", "keep one of them"


def _job(job: TrainingJob, line_of: LineOf) -> Iterator[Mistake]:
    spec = job.spec
    if len(job.metadata.name) > _LONGEST_JOB_NAME:
        what = f"metadata.name: has {len(job.metadata.name)} letters"
        yield "metadata.name", what, f"a job's name has {_LONGEST_JOB_NAME} at most"
    if spec.workers > _MOST_WORKERS:
        what = f"spec.workers: {spec.workers:,} are more than one machine runs"
        yield "spec.workers", what, f"{_MOST_WORKERS:,} at most"
    if spec.launch != "auto" and spec.trainer == "tf":
        yield "spec.launch", "spec.launch: has no meaning for tf", "leave it out"
    if spec.ps and spec.trainer != "tf":
        what = f"spec.ps: {spec.trainer} has no parameter servers"
        yield "spec.ps", what, "leave it out, or write trainer: tf"
    if spec.plan and spec.image:
        what = "spec.plan: what the image holds is not known, and it needs Penstock"
        yield "spec.plan", what, "leave out one of image and plan"
    yield from _data_places(job, line_of)
    for index, variable in enumerate(spec.env):
        path = f"spec.env.{index}"
        if not _VARIABLE.fullmatch(variable.name):
            what = f"{path}: {variable.name[:40]!r} is not a variable's name"
            yield path, what, "it is of letters, digits and _"
        elif variable.name.startswith("PENSTOCK_JOB"):
            yield path, f"{path}: {variable.name} is set for each job", "choose another name"
        elif "\0" in variable.value:
            yield path, f"{path}: its value has a NUL in it", None


def _data_places(job: TrainingJob, line_of: LineOf) -> Iterator[Mistake]:
    places = [(one.mount_path, f"spec.data.{index}") for index, one in enumerate(job.spec.data)]
    for index, (place, path) in enumerate(places):
        for other, other_path in places[:index]:
            if place == other:
                what = f"is seen at {place}, and so is {other_path} in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "give each data set a mountPath of its own"
            elif _inside(place, other) or _inside(other, place):
                inner, outer = sorted((place, other), key=len, reverse=True)
                what = f"{inner} lies inside {outer}; {other_path} is in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "data sets are read-only: put them side by side"
