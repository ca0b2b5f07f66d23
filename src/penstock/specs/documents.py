"""Manifests as people give them: YAML text to resources, or everything that is wrong. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from penstock.errors import ManifestError, Problem, did_you_mean
from penstock.specs.dataset import Dataset, DatasetSpec
from penstock.specs.jobs import TrainingJob
from penstock.specs.keys import ResourceKey
from penstock.specs.kinds import FLUID, KINDS, OURS
from penstock.specs.models import MODELS
from penstock.specs.nodes import Lines, Tree, read_trees
from penstock.specs.operations import DataMigrate, DataProcess, DataToMigrate, ScheduledSpec
from penstock.specs.resource import Resource
from penstock.specs.runtimes import RuntimeSpec
from penstock.specs.shapes import find
from penstock.specs.tieredstore import Level
from penstock.specs.wording import Mistake, refusals, unknown_fields

# What a model alone cannot see: fields that do not go together. Pure.
#
# Run on what people give, not on what was kept: what was taken once stays readable.

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


@dataclass(frozen=True)
class Document:
    resource: Resource
    raw: dict[str, Any]  # as it was written
    file: str
    lines: Lines

    def where(self, path: str = "") -> str:
        """`dataset.yaml:9`, for a path like spec.mounts.0.mountPoint."""
        return f"{self.file}:{self.lines.of(path)}"


def read(text: str, file: str, *, namespace: str = "default") -> list[Document]:
    """Every resource in one file. Raises ManifestError with everything that is wrong with it."""
    return read_all([(text, file)], namespace=namespace)


def read_all(sources: Iterable[tuple[str, str]], *, namespace: str = "default") -> list[Document]:
    """The same for several: (text, file) each. No resource may stand in two of them.

    `namespace` is for resources that do not say theirs.
    """
    problems: list[Problem] = []
    documents = list(read_each(sources, problems, namespace=namespace))
    if problems:
        raise ManifestError.of(problems)
    return documents


def read_each(
    sources: Iterable[tuple[str, str]], problems: list[Problem], *, namespace: str = "default"
) -> Iterator[Document]:
    """Those that are good; what is wrong with the others is added to the problems."""
    seen: dict[ResourceKey, Document] = {}
    for text, file in sources:
        found_any, known = False, len(problems)
        for tree in read_trees(text, file, problems):
            for one in _items(tree, file, problems):
                found_any = True
                document = _document(one, file, namespace, problems)
                if document is None:
                    continue
                if (first := seen.get(document.resource.key)) is not None:
                    what = f"{document.resource.key} stands twice; first in {first.where()}"
                    problems.append(Problem(document.where(), what, "keep one of them"))
                    continue
                seen[document.resource.key] = document
                yield document
        if not found_any and len(problems) == known:
            hint = "a manifest begins with apiVersion and kind"
            problems.append(Problem(file, "holds no resource", hint))


def decode(data: bytes, file: str) -> str:
    """A file's text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(f"{file}:{line}", "is not text", "a manifest is YAML, in UTF-8")
        raise ManifestError.of([problem]) from error


def _items(tree: Tree, file: str, problems: list[Problem]) -> Iterator[Tree]:
    """The document itself, or what a List holds. An empty document is none."""
    if tree.value is None:
        return
    where = f"{file}:{tree.lines.of('')}"
    if isinstance(tree.value, list):
        hint = "put --- between resources, or name them items of a `kind: List`"
        problems.append(Problem(where, "a list, and not a resource", hint))
        return
    if not isinstance(tree.value, dict):
        hint = "a manifest begins with apiVersion and kind"
        problems.append(Problem(where, "neither a map nor a resource", hint))
        return
    value = cast("dict[str, Any]", tree.value)
    kind = value.get("kind")
    if not (isinstance(kind, str) and kind.endswith("List") and "items" in value):
        yield tree
        return
    items = value["items"]
    if not isinstance(items, list):
        problems.append(Problem(where, "items: must be a list", "begin each item with `- `"))
        return
    for index, item in enumerate(cast("list[Any]", items)):
        prefix = f"items.{index}"
        doubtful = {
            path.removeprefix(prefix + "."): text
            for path, text in tree.doubtful.items()
            if path.startswith(prefix + ".")
        }
        yield from _items(Tree(item, tree.lines.below(prefix), doubtful), file, problems)


def _document(tree: Tree, file: str, namespace: str, problems: list[Problem]) -> Document | None:
    manifest = cast("dict[str, Any]", tree.value)
    if (stranger := _stranger(manifest)) is not None:
        wrong, resource = [stranger], None
    else:
        wrong, resource = _judged(tree, namespace)
    for path, what, hint in sorted(wrong, key=lambda one: tree.lines.of(one[0])):
        problems.append(Problem(f"{file}:{tree.lines.of(path)}", what, hint))
    if wrong or resource is None:
        return None
    return Document(resource, manifest, file, tree.lines)


def _judged(tree: Tree, namespace: str) -> tuple[list[Mistake], Resource | None]:
    manifest = cast("dict[str, Any]", tree.value)
    kind = str(manifest["kind"])
    unknown = list(unknown_fields(kind, manifest))
    try:
        resource = MODELS[kind].model_validate(_placed(manifest, namespace))
    except ValidationError as error:
        refused = [
            (path, what, hint)
            for path, what, hint in refusals(MODELS[kind], error)
            if not (what.endswith(": is missing") and _misspelt(path, manifest, unknown))
        ]
        return unknown + refused, None
    wrong = unknown + list(mistakes(resource, tree.lines.of))
    for path in tree.doubtful:
        if _wants_text(MODELS[kind], path):
            what = f"{path}: is read as a number, or as true or false, and prints otherwise"
            wrong.append((path, what, "put it in quotes"))
    return wrong, resource


def _misspelt(path: str, manifest: dict[str, Any], unknown: list[Mistake]) -> bool:
    """Whether what is missing is there under a wrong name, which is said already."""
    above, _, name = path.rpartition(".")
    if path == "metadata.name" and "generateName" in manifest["metadata"]:
        return True
    return any(
        other.rpartition(".")[0] == above and hint == f"did you mean {name}?"
        for other, _, hint in unknown
    )


def _wants_text(model: type[Resource], path: str) -> bool:
    """Whether it stands in a map of text. Names in such a map may have dots in them."""
    above = path
    while above := above.rpartition(".")[0]:
        if (shape := find(model, above)) is not None:
            return shape.type_name == "map of text"
    return False


def _placed(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("namespace") is not None:
        return manifest
    return {**manifest, "metadata": {**metadata, "namespace": namespace}}


# What stands beside data sets in people's files. Not ours to refuse loudly, nor to apply.
_FLUIDS_OTHERS = (
    "EFCRuntime",
    "VineyardRuntime",
    "GooseFSRuntime",
    "CacheRuntime",
    "CacheRuntimeClass",
)


def _stranger(manifest: dict[str, Any]) -> Mistake | None:
    """Why it is not one of our resources: (path, what, hint)."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    ours = ", ".join(KINDS)
    if not isinstance(kind, str) or not kind:
        return "kind", "kind: is missing", f"one of {ours}"
    if not isinstance(version, str) or not version:
        groups = KINDS[kind].groups if kind in KINDS else (FLUID, OURS)
        return "apiVersion", "apiVersion: is missing", f"write apiVersion: {groups[0]}"
    group = version.partition("/")[0] if "/" in version else ""
    if kind in KINDS:
        groups = KINDS[kind].groups
        if version in groups:
            return None
        if kind == "Secret" and group and group not in (FLUID, OURS):
            return "apiVersion", f"{kind} of {version[:60]!r} is not ours", "kubectl apply it"
        what = f"{kind} is not known as {version[:60]!r}"
        return "apiVersion", what, f"write apiVersion: {' or '.join(groups)}"
    if kind in _FLUIDS_OTHERS:
        hint = "AlluxioRuntime, JindoRuntime, JuiceFSRuntime, ThinRuntime or PenstockRuntime is run"
        return "kind", f"{kind} is not run here", hint
    hint = did_you_mean(kind, KINDS, cutoff=0.75)
    if hint and (group in ("", FLUID.partition("/")[0], OURS.partition("/")[0])):
        return "kind", f"{kind[:60]!r} is not a kind", hint
    if group in (FLUID.partition("/")[0], OURS.partition("/")[0]):
        return "kind", f"{kind[:60]!r} is not a kind", f"kinds: {ours}"
    return (
        "kind",
        f"{kind[:60]} of {version[:60]} is not ours",
        f"kubectl apply it; ours are {ours}",
    )
