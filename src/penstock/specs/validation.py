"""Find the mistakes in a manifest, and word them: unknown fields, values that the models refuse,
and fields that contradict each other. Pure.

Messages do not quote values, which may be secrets, unless a validator knows that they are not.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from cronsim import CronSim, CronSimError
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import did_you_mean, nearest
from penstock.specs.dataset import CLAIM, Dataset, DatasetSpec, wrong_with
from penstock.specs.fields import INVALID, Fields
from penstock.specs.jobs import TrainingJob
from penstock.specs.models import MODELS
from penstock.specs.operations import DataMigrate, DataProcess, DataToMigrate, ScheduledSpec
from penstock.specs.resource import Resource
from penstock.specs.runtimes import RuntimeSpec
from penstock.specs.schema import find, shapes_of, walk
from penstock.specs.tieredstore import Level

Mistake = tuple[str, str, str | None]  # path, what, hint


def unknown_fields(kind: str, manifest: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield every field that this kind does not have at its place."""
    yield from unknown_in(MODELS[kind], manifest)


def unknown_in(model: type[Fields], written: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the unknown fields of any model: the plan of a benchmark is not a resource."""
    yield from _unknown(model, model, written, "")


def refusals(model: type[Fields], error: ValidationError) -> Iterator[Mistake]:
    """Word the errors of pydantic."""
    for one in error.errors(include_url=False, include_input=True):
        path = ".".join(str(step) for step in one["loc"])
        what, hint = _refusal(model, path, one)
        yield path, f"{path}: {what}" if path else what, hint


def _unknown(whole: type[Fields], model: type[Fields], value: Any, path: str) -> Iterator[Mistake]:
    if not isinstance(value, Mapping):
        return
    shapes = shapes_of(model)
    for key, below in cast("Mapping[str, Any]", value).items():
        deeper = f"{path}.{key}" if path else key
        if key not in shapes:
            yield deeper, f"{deeper[:120]}: unknown field", _instead(whole, model, key, path)
        elif (inner := shapes[key].model) is not None:
            if shapes[key].is_list and isinstance(below, list):
                for index, item in enumerate(cast("list[Any]", below)):
                    yield from _unknown(whole, inner, item, f"{deeper}.{index}")
            else:
                yield from _unknown(whole, inner, below, deeper)


def _instead(whole: type[Fields], model: type[Fields], key: str, path: str) -> str:
    """Return a hint: the nearest name here, else other places of this name, else all names here."""
    names = list(shapes_of(model))
    near = nearest(key, names, cutoff=0.7)
    if near is not None and _same(near, key):
        return f"did you mean {near}?"
    elsewhere = [other for other, shape in walk(whole) if _same(shape.name, key)]
    if elsewhere:
        return f"this field belongs to: {', '.join(elsewhere[:3])}"
    at = ".".join(step for step in path.split(".") if not step.isdigit())
    others = [
        kind
        for kind, other in MODELS.items()
        if issubclass(whole, Resource)
        and other is not whole
        and find(other, f"{at}.{key}" if at else key) is not None
    ]
    if others:
        return f"it is a field of {', '.join(others)}"
    if near is not None:
        return f"did you mean {near}?"
    return f"fields of {path or _called(whole)}: {', '.join(names)}"


def _called(model: type[Fields]) -> str:
    return model.__name__ if issubclass(model, Resource) else "this file"


def _same(one: str, other: str) -> bool:
    return nearest(one, (other,), cutoff=1.0) is not None


_WANTED = {
    "string_type": "must be text",
    "model_type": "must be a map",
    "model_attributes_type": "must be a map",
    "dict_type": "must be a map",
    "list_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number, but is too large",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}
_FOUND: Mapping[type[Any], str] = {
    dict: "a map", list: "a list", str: "text", bool: "true or false", int: "a number",
    float: "a number", type(None): "empty",
}  # fmt: skip


def _refusal(model: type[Fields], path: str, error: ErrorDetails) -> tuple[str, str | None]:
    kind, context = error["type"], error.get("ctx") or {}
    if kind == INVALID:
        return str(context["what"]), cast("str | None", context["hint"])
    if kind == "missing":
        return "is missing", _meaning(model, path)
    if kind == "literal_error":
        return _choice(str(context["expected"]), error["input"])
    if kind == "greater_than_equal":
        return f"must be {context['ge']} or more", None
    if kind in _WANTED:
        found = _FOUND.get(type(cast("object", error["input"])))
        what = f"{_WANTED[kind]}, but is {found}" if found else _WANTED[kind]
        return what, _shape_hint(model, path, kind, error["input"])
    return error["msg"], None


def _choice(expected: str, given: Any) -> tuple[str, str | None]:
    """`expected` is pydantic's text: 'MEM', 'SSD' or 'HDD'."""
    names = [name.strip("' ") for name in expected.replace(" or ", ", ").split(",")]
    names = [name for name in names if name]
    what = f"must be one of {', '.join(names)}"
    if not isinstance(given, str):
        return what, None
    return f"{what}, but is {given[:40]!r}", did_you_mean(given, names, cutoff=0.5)


def _meaning(model: type[Fields], path: str) -> str:
    shape = find(model, path)
    if shape is None or path == "spec":
        return f"`penstock explain {model.__name__.lower()}.spec` shows what there is"
    return f"{path.rpartition('.')[2]}: {shape.description}"


def _shape_hint(model: type[Fields], path: str, kind: str, given: Any) -> str | None:
    above, _, name = path.rpartition(".")
    if kind == "string_type":
        if not isinstance(given, dict | list):
            return "put it in quotes"
        # Options are text, but some users indent encryptOptions into them.
        holder = find(model, above)
        beside = find(model, f"{above.rpartition('.')[0]}.{name}")
        if holder is not None and holder.is_map and beside is not None:
            return f"{name} is a field beside {above.rpartition('.')[2]}: indent it less"
    if kind == "list_type" and isinstance(given, dict):
        return "begin each item with `- `"
    return None


LineOf = Callable[[str], int]

# Files are named after its instances, such as NAME-launcher or NAME-worker-4095.
_LONGEST_JOB_NAME = 63
_MOST_WORKERS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def mistakes(resource: Resource, line_of: LineOf) -> Iterator[Mistake]:
    """Yield contradictions between fields.

    Only manifests are checked, not the stored state: what was accepted once stays readable.
    `line_of` returns the line of a path, for mistakes that concern two places.
    """
    spec = getattr(resource, "spec", None)
    if isinstance(resource, Dataset):
        yield from _dataset(resource.spec, line_of)
    if isinstance(spec, RuntimeSpec):
        for index, level in enumerate(spec.tieredstore.levels):
            yield from _level(level, f"spec.tieredstore.levels.{index}")
    if isinstance(spec, ScheduledSpec):
        yield from _schedule(spec)
    if isinstance(resource, DataMigrate):
        yield from _location(resource.spec.from_, "spec.from")
        yield from _location(resource.spec.to, "spec.to")
    if isinstance(resource, DataProcess):
        yield from _processor(resource)
    if isinstance(resource, TrainingJob):
        yield from _job(resource, line_of)


def _dataset(spec: DatasetSpec, line_of: LineOf) -> Iterator[Mistake]:
    if not spec.mounts:
        yield "spec.mounts", "spec.mounts: is empty", "name at least one source"
    places = [(mount.place, f"spec.mounts.{index}") for index, mount in enumerate(spec.mounts)]
    for index, (place, path) in enumerate(places):
        for other, other_path in places[:index]:
            if place == other:
                where = "the root" if place == "/" else place
                what = f"appears at {where}, like {other_path} in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "give each mount a name or a path of its own"
            elif _inside(place, other) or _inside(other, place):
                inner, outer = sorted((place, other), key=len, reverse=True)
                what = f"{inner} is inside {outer}; {other_path} is in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "only the mount at the root / may contain others"
    for index, mount in enumerate(spec.mounts):
        if mount.mount_point.startswith(CLAIM) and (wrong := wrong_with(mount.mount_point)):
            path = f"spec.mounts.{index}.mountPoint"
            yield path, f"{path}: {wrong[0]}", wrong[1]
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
            yield where, f"{where}: {name!r} is there twice", "keep one of them"


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
        yield "spec.policy", "spec.schedule: is missing, but policy is Cron", 'such as "0 2 * * *"'
    if spec.schedule and spec.policy != "Cron":
        what = f"spec.schedule: needs policy Cron, but policy is {spec.policy}"
        yield "spec.schedule", what, "write policy: Cron, or leave the schedule out"
    if spec.schedule:
        try:
            CronSim(spec.schedule, datetime.now(UTC))
        except CronSimError as error:
            hint = 'five fields: minute hour day month weekday, such as "0 2 * * *"'
            yield "spec.schedule", f"spec.schedule: is not a schedule ({error})", hint


def _location(end: DataToMigrate, path: str) -> Iterator[Mistake]:
    if end.dataset is None and end.external_storage is None:
        yield path, f"{path}: is empty", "give it a dataset or an externalStorage"
    if end.dataset is not None and end.external_storage is not None:
        yield path, f"{path}: names both a dataset and an externalStorage", "keep one of them"


def _processor(resource: DataProcess) -> Iterator[Mistake]:
    processor = resource.spec.processor
    path = "spec.processor"
    if processor.script is None and processor.job is None:
        yield path, f"{path}: is empty", "give it a script or a job"
    if processor.script is not None and processor.job is not None:
        yield path, f"{path}: has both a script and a job", "keep one of them"


def _job(job: TrainingJob, line_of: LineOf) -> Iterator[Mistake]:
    spec = job.spec
    if len(job.metadata.name) > _LONGEST_JOB_NAME:
        what = f"metadata.name: has {len(job.metadata.name)} characters"
        yield "metadata.name", what, f"the name of a job has at most {_LONGEST_JOB_NAME}"
    if spec.workers > _MOST_WORKERS:
        what = f"spec.workers: {spec.workers:,} are too many for one machine"
        yield "spec.workers", what, f"at most {_MOST_WORKERS:,}"
    if spec.launch != "auto" and spec.trainer == "tf":
        yield "spec.launch", "spec.launch: has no effect for tf", "leave it out"
    if spec.ps and spec.trainer != "tf":
        what = f"spec.ps: {spec.trainer} has no parameter servers"
        yield "spec.ps", what, "leave it out, or write trainer: tf"
    if spec.plan and spec.image:
        what = "spec.plan: needs Penstock inside the job, which an image may not have"
        yield "spec.plan", what, "leave out image or plan"
    yield from _data_places(job, line_of)
    for index, variable in enumerate(spec.env):
        path = f"spec.env.{index}"
        if not _VARIABLE.fullmatch(variable.name):
            what = f"{path}: {variable.name[:40]!r} is not the name of a variable"
            yield path, what, "use letters, digits and _"
        elif variable.name.startswith("PENSTOCK_JOB"):
            yield path, f"{path}: Penstock sets {variable.name} for each job", "choose another name"
        elif "\0" in variable.value:
            yield path, f"{path}: its value has a NUL", None


def _data_places(job: TrainingJob, line_of: LineOf) -> Iterator[Mistake]:
    places = [(one.mount_path, f"spec.data.{index}") for index, one in enumerate(job.spec.data)]
    for index, (place, path) in enumerate(places):
        for other, other_path in places[:index]:
            if place == other:
                what = f"is mounted at {place}, like {other_path} in line {line_of(other_path)}"
                yield path, f"{path}: {what}", "give each data set a mountPath of its own"
            elif _inside(place, other) or _inside(other, place):
                inner, outer = sorted((place, other), key=len, reverse=True)
                what = f"{inner} is inside {outer}; {other_path} is in line {line_of(other_path)}"
                yield (
                    path,
                    f"{path}: {what}",
                    "use separate paths: a read-only data set cannot contain another",
                )
