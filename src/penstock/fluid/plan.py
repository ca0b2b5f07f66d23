"""From a Dataset and its runtime to the settings of one mount. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from penstock.cache.tier import TierSpec
from penstock.errors import OptionError, PenstockError, SpecProblem, did_you_mean
from penstock.fluid.options import Choices, choose, is_mount_option
from penstock.fluid.properties import CACHE_DIR, CACHE_SIZE, READAHEAD
from penstock.fluid.sources import locate
from penstock.fluid.stores import FAMILIES, family_of
from penstock.fluid.tiers import Folders, cache_dir_tier, plan_tiers, usual_tier
from penstock.fluid.values import Said, Written
from penstock.mount_options import make_settings, read_texts, store_options
from penstock.settings import OPTIONS, MountSettings, Part
from penstock.specs.dataset import Dataset, EncryptOption
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import Runtime
from penstock.specs.runtimes import PenstockRuntime
from penstock.specs.schema import NoEffect
from penstock.units import format_size, parse_size

# `dataset://namespace/name/folder`: parts of another data set, seen from this one. Pure.


@dataclass(frozen=True, slots=True)
class Referenced:
    """Another data set, as it is declared, and the runtime that it is bound to."""

    dataset: Dataset
    runtime: Runtime | None


def parse_reference(mount_point: str, namespace: str) -> tuple[ResourceKey, str]:
    """The data set, and the folder in it. A single name is one of the same namespace."""
    names = mount_point.partition("://")[2].strip("/").split("/")
    if len(names) == 1:
        return ResourceKey("Dataset", namespace, names[0]), ""
    return ResourceKey("Dataset", names[0], names[1]), "/".join(names[2:])


def move_parts(
    parts: tuple[Part, ...], folder: str, below: str, key: ResourceKey, path: str
) -> list[Part]:
    """What of `parts` lies in `folder`, as seen from `below`. `path` is that of the mount."""
    inside = [part for part in parts if _is_in(part.path, folder)]
    found = [replace(part, path=_joined(below, _rest(part.path, folder))) for part in inside]
    around = [part for part in parts if part.path != folder and _is_in(folder, part.path)]
    if around and not any(part.path == folder for part in inside):
        # The deepest hides the others.
        part = max(around, key=lambda one: len(one.path))
        prefix = _joined(part.source.prefix, _rest(folder, part.path))
        if part.source.scheme == "file":
            prefix = "/" + prefix.strip("/")
        found.append(replace(part, path=below, source=replace(part.source, prefix=prefix)))
    if not found:
        raise SpecProblem(
            f"{path}.mountPoint",
            f"{key} has nothing in {folder}",
            hint="its parts are at " + (", ".join(f"/{part.path}" for part in parts) or "no path"),
        )
    return found


def _is_in(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _rest(path: str, folder: str) -> str:
    return path[len(folder) :].strip("/")


def _joined(*names: str) -> str:
    return "/".join(name.rstrip("/") for name in names if name)


# The parts of a Dataset: each of its mounts, with its keys, at its path. Pure.

Secret = Callable[[str, str, str], str]  # namespace, name, key
JUICEFS = "JuiceFSRuntime"


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is looked up elsewhere."""

    secret: Secret
    referenced: Callable[[ResourceKey], Referenced | None]
    read_file: Callable[[Path], str]
    store_settings: Callable[[Runtime], Written]  # what a runtime says for the stores of all mounts


def plan_parts(
    dataset: Dataset,
    runtime: Runtime | None,
    look: Lookup,
    said: Said,
    seen: tuple[ResourceKey, ...] = (),
) -> tuple[tuple[Part, ...], Written]:
    """The parts, and options that are the mount's own. `seen` are the data sets that led here."""
    if dataset.key in seen:
        chain = " -> ".join(map(str, (*seen, dataset.key)))
        raise SpecProblem("spec.mounts", f"data sets refer to each other in a circle: {chain}")
    of_juicefs = runtime is not None and runtime.kind == JUICEFS
    defaults = Written({}, {}) if runtime is None else look.store_settings(runtime)
    of_mounts = Written({}, {})
    found: dict[str, Part] = {}
    for number, mount in enumerate(dataset.spec.mounts):
        path = f"spec.mounts.{number}"
        # A volume of JuiceFS is the whole of a data set, whatever its name is.
        whole = of_juicefs and len(dataset.spec.mounts) == 1 and not mount.path
        below = "" if whole else mount.place.strip("/")
        options = _options(dataset, number, look.secret)
        if mount.mount_point.startswith("dataset://"):
            parts = _referenced(dataset, number, below, look, seen)
            for name in options.values:
                reason = "the options of the data set that it refers to are used"
                said.no_effect(options.paths[name], reason)
        else:
            place = locate(
                mount.mount_point,
                options,
                path,
                said,
                defaults=defaults,
                read_file=_file_reader(dataset, runtime, look),
                mount_option=lambda name: is_mount_option(JUICEFS, name),
            )
            parts = [Part(below, place.source, place.store)]
            if of_juicefs:
                of_mounts = place.mount_options.over(of_mounts)
            else:
                for where in place.mount_options.paths.values():
                    said.no_effect(where, f"it is for a {JUICEFS}")
        for part in parts:
            if part.path in found:
                what = f"two mounts at /{part.path}"
                raise SpecProblem(path, what, hint="give each a path of its own")
            found[part.path] = part
    return tuple(found.values()), of_mounts


def _referenced(
    dataset: Dataset, number: int, below: str, look: Lookup, seen: tuple[ResourceKey, ...]
) -> list[Part]:
    path = f"spec.mounts.{number}"
    namespace = dataset.metadata.namespace
    key, folder = parse_reference(dataset.spec.mounts[number].mount_point, namespace)
    other = look.referenced(key)
    if other is None:
        hint = "apply it first"
        # The first name is a namespace; people write the data set there, and a folder of it.
        if key.namespace != namespace and look.referenced(
            ResourceKey("Dataset", namespace, key.namespace)
        ):
            meant = "/".join(filter(None, (namespace, key.namespace, key.name, folder)))
            hint = f"did you mean dataset://{meant}?"
        raise SpecProblem(f"{path}.mountPoint", f"there is no {key}", hint=hint)
    parts, _ = plan_parts(other.dataset, other.runtime, look, Said(), (*seen, dataset.key))
    return move_parts(parts, folder, below, key, path)


def _options(dataset: Dataset, number: int, secret: Secret) -> Written:
    """Of one mount: its own before those of all, and Secrets before plain text."""
    spec, mount = dataset.spec, dataset.spec.mounts[number]
    path = f"spec.mounts.{number}"
    written = Written.at(f"{path}.options", mount.options).over(
        Written.at("spec.sharedOptions", spec.shared_options)
    )
    for at, encrypted in (
        ("spec.sharedEncryptOptions", spec.shared_encrypt_options),
        (f"{path}.encryptOptions", mount.encrypt_options),
    ):
        written = _decrypted(dataset, encrypted, at, secret).over(written)
    return written


def _decrypted(
    dataset: Dataset, options: list[EncryptOption], path: str, secret: Secret
) -> Written:
    values: dict[str, str] = {}
    paths: dict[str, str] = {}
    for number, option in enumerate(options):
        reference = option.value_from.secret_key_ref
        paths[option.name] = f"{path}.{number}"
        try:
            values[option.name] = secret(
                dataset.metadata.namespace, reference.name, reference.key or option.name
            )
        except PenstockError as error:
            raise SpecProblem(paths[option.name], str(error), hint=error.hint) from error
    return Written(values, paths)


def _file_reader(dataset: Dataset, runtime: Runtime | None, look: Lookup) -> Callable[[str], str]:
    """Reads a file of this machine, or what a Secret would have put in its place in a pod."""
    mounted = {} if runtime is None else _mounted_secrets(runtime)

    def read(text: str) -> str:
        folder, _, name = text.rpartition("/")
        if folder in mounted:
            return look.secret(dataset.metadata.namespace, mounted[folder], name)
        return look.read_file(Path(text))

    return read


def _mounted_secrets(runtime: Runtime) -> dict[str, str]:
    """By folder: the Secret that a pod of this runtime would see there."""
    secrets: dict[str, str] = {}
    for volume in cast("list[dict[str, Any]]", getattr(runtime.spec, "volumes", [])):
        source = cast("dict[str, Any]", volume.get("secret") or {})
        if "secretName" in source:
            secrets[str(volume.get("name"))] = str(source["secretName"])
    found: dict[str, str] = {}
    for component in ("master", "worker", "fuse"):
        pod: Any = getattr(runtime.spec, component, None)
        for mount in cast("list[dict[str, Any]]", getattr(pod, "volume_mounts", [])):
            name = str(mount.get("name"))
            if name in secrets:
                found[str(mount.get("mountPath", "")).rstrip("/")] = secrets[name]
    return found


# Of a store, and not of the mount: what a runtime says of them holds for all parts.
_OF_STORE = ("endpoint", "region", "anonymous", "manifest", "verify-store")
_OF_TIERS = ("tier", "cache-dir", "cache-size", "no-cache")
_OF_DATASET = ("metadata.", "spec.mounts", "spec.shared", "spec.owner")
_LARGEST_ID = 2**32 - 2


@dataclass(frozen=True, slots=True)
class MountPlan:
    """`without_effect` has options, properties and arguments; specs.effects has the fields."""

    settings: MountSettings
    without_effect: list[NoEffect]
    notes: list[str]

    @property
    def of_dataset(self) -> list[NoEffect]:
        return [one for one in self.without_effect if is_of_dataset(one.path)]

    @property
    def of_runtime(self) -> list[NoEffect]:
        return [one for one in self.without_effect if not is_of_dataset(one.path)]


def is_of_dataset(path: str) -> bool:
    """Or of the runtime?"""
    return path.startswith(_OF_DATASET)


def plan_mount(
    dataset: Dataset,
    runtime: Runtime,
    *,
    secret: Secret,
    referenced: Callable[[ResourceKey], Referenced | None],
    mountpoint: Path,
    is_tmpfs: Callable[[Path], bool],
    cache_dir: Path,
    scratch: Path,
    allow_other: bool = False,
    read_file: Callable[[Path], str] = Path.read_text,
) -> MountPlan:
    """Raises SpecProblem for what no mount can be made of. `cache_dir` is where a runtime without
    tiers has its cache, `scratch` where an emptyDir is; each gets a folder of its own below.
    `allow_other`: whether others than who mounts may read, as in Fluid they always may."""
    said = Said()
    look = Lookup(secret, referenced, read_file, _for_all_stores)
    parts, of_mounts = plan_parts(dataset, runtime, look, said)
    choices = choose(runtime, of_mounts, said)
    _report_unused(choices.store, dataset, said)
    folders = Folders(cache_dir, scratch, is_tmpfs)
    tiers = _tiers(dataset, runtime, choices, referenced, folders, said)
    settings = _settings(parts, mountpoint, choices, tiers, said)
    # Files of this machine have owners and modes of their own, which a mount does not carry over.
    remote = all(part.source.scheme != "file" for part in parts)
    if allow_other and remote and "allow-other" not in choices.options:
        settings = replace(settings, allow_other=True)
    settings = replace(
        settings,
        catalog=f"{dataset.metadata.namespace}.{dataset.metadata.name}",
        title=str(dataset.key),
        **_owner(dataset, runtime, choices),
    )
    return MountPlan(settings, said.without_effect, said.notes)


def _for_all_stores(runtime: Runtime) -> Written:
    """Keys and endpoints that stand in the runtime's own settings: for all mounts."""
    if isinstance(runtime, PenstockRuntime):
        written = Written.at("spec.options", runtime.spec.options)
        values = {name: text for name, text in written.values.items() if name in _OF_STORE}
        return Written(values, written.paths)
    return choose(runtime, Written({}, {}), Said()).store


def _report_unused(written: Written, dataset: Dataset, said: Said) -> None:
    families = {
        FAMILIES.get(mount.mount_point.partition("://")[0], "") for mount in dataset.spec.mounts
    }
    for name in written.values:
        family = family_of(name)
        if name not in _OF_STORE and family is not None and family not in families:
            said.no_effect(written.paths[name], f"no mount of this data set is {family}://")


def _tiers(
    dataset: Dataset,
    runtime: Runtime,
    choices: Choices,
    referenced: Callable[[ResourceKey], Referenced | None],
    folders: Folders,
    said: Said,
) -> tuple[TierSpec, ...] | None:
    """None: as the options say."""
    key, store = dataset.key, runtime.spec.tieredstore
    said_of_tiers = [name for name in _OF_TIERS if name in choices.options]
    if isinstance(runtime, PenstockRuntime):
        if said_of_tiers and store.levels:
            name = said_of_tiers[0]
            raise SpecProblem(
                choices.options[name][1], f"{name} and tieredstore exclude each other"
            )
        if said_of_tiers:
            return None
    elif said_of_tiers:
        directory, size = (
            choices.options.pop(CACHE_DIR, None),
            choices.options.pop(CACHE_SIZE, None),
        )
        if store.levels:
            for _, path in filter(None, (directory, size)):
                said.no_effect(path, "tieredstore says it")
        else:
            quota = None if size is None else parse_size(size[0])
            path = (directory or size or ("", "spec"))[1]
            return cache_dir_tier(directory and directory[0], quota, key, folders, path)
    if store.levels:
        return plan_tiers(store, key, folders, said, of_juicefs=runtime.kind == JUICEFS)
    for mount in dataset.spec.mounts:
        if not mount.mount_point.startswith("dataset://"):
            continue
        other_key, _ = parse_reference(mount.mount_point, dataset.metadata.namespace)
        other = referenced(other_key)
        if other is not None and other.runtime is not None:
            chosen = choose(other.runtime, Written({}, {}), Said())
            return _tiers(other.dataset, other.runtime, chosen, referenced, folders, Said())
    return usual_tier(key, folders)


def _settings(
    parts: tuple[Part, ...],
    mountpoint: Path,
    choices: Choices,
    tiers: tuple[TierSpec, ...] | None,
    said: Said,
) -> MountSettings:
    for mine, theirs in (("attr-cache", "attr_timeout_s"), ("entry-cache", "entry_timeout_s")):
        if theirs in choices.fields:  # what the kernel was told comes before a general setting
            choices.options.pop(mine, None)
    readahead = choices.options.pop(READAHEAD, None)
    for name, (_, path) in choices.options.items():
        if name not in OPTIONS:
            raise SpecProblem(
                path,
                f"{name} is not an option of a mount",
                hint=did_you_mean(name, OPTIONS, "`penstock mount --help` lists them"),
            )
    texts = {name: text for name, (text, _) in choices.options.items()}
    try:
        options = read_texts(texts)
        settings = make_settings(parts, mountpoint, options, tiers)
        deadline_s = store_options(options).deadline_s
    except OptionError as error:
        raise _at_its_place(error, choices) from error
    if readahead is not None and "prefetch" not in texts:
        wanted = parse_size(readahead[0]) // settings.block_bytes
        blocks = max(1, OPTIONS["prefetch"].clamp(wanted))
        settings = replace(settings, prefetch_blocks=blocks)
        shown = f"{blocks} blocks of {format_size(settings.block_bytes)}"
        said.note(f"{readahead[1]}: readers are kept ahead by {shown}")
    return replace(
        settings,
        parts=tuple(
            replace(part, store=replace(part.store, deadline_s=deadline_s)) for part in parts
        ),
        **{name: value for name, (value, _) in choices.fields.items()},
    )


def _at_its_place(error: OptionError, choices: Choices) -> SpecProblem:
    """The error of an option, told of what was written for it."""
    match = re.match(r"--([a-z-]+)[: ]+(.*)", str(error), re.DOTALL)
    if match is None or match[1] not in choices.options:
        return SpecProblem("spec", str(error), hint=error.hint)
    return SpecProblem(choices.options[match[1]][1], match[2], hint=error.hint)


def _owner(dataset: Dataset, runtime: Runtime, choices: Choices) -> dict[str, int]:
    """The Dataset's owner, then `-o uid=`, then whom the runtime runs as."""
    found: dict[str, int] = {}
    for path, user in (("spec.runAs", runtime.spec.run_as), ("spec.owner", dataset.spec.owner)):
        for name in ("uid", "gid"):
            number = None if user is None else getattr(user, name)
            if number is None or (path == "spec.runAs" and name in choices.fields):
                continue
            if number > _LARGEST_ID:
                raise SpecProblem(
                    f"{path}.{name}", f"{number} is not the number of a user or group"
                )
            found[name] = number
    return found
