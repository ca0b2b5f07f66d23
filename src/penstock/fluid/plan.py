"""A Dataset and its runtime, translated to the settings of one mount. Pure.

This is the only translation. What it finds travels in a MountPlan: the settings, the options
without effect, and the values that were adjusted.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from penstock.cache.tier import TierSpec
from penstock.errors import OptionError, PenstockError, SpecProblem, did_you_mean
from penstock.fluid.members import MemberPlan, plan_members, with_members
from penstock.fluid.options import Choices, choose, is_mount_option
from penstock.fluid.properties import CACHE_DIR, CACHE_SIZE, READAHEAD
from penstock.fluid.sources import locate
from penstock.fluid.stores import FAMILIES, family_of
from penstock.fluid.tiers import Folders, cache_dir_tiers, default_tiers, plan_tiers
from penstock.fluid.values import Report, Written
from penstock.mount_options import make_settings, read_texts, store_options
from penstock.settings import OPTIONS, MountSettings, Part
from penstock.specs.dataset import Dataset, EncryptOption, wrong_with
from penstock.specs.kinds import ResourceKey
from penstock.specs.models import Runtime
from penstock.specs.reasons import ONE_WORKER
from penstock.specs.runtimes import PenstockRuntime
from penstock.specs.schema import NoEffect, fields_without_effect
from penstock.units import format_size, parse_size

JUICEFS = "JuiceFSRuntime"
# Options of the store, not of the mount: in a runtime they hold for all parts.
_STORE_OPTIONS = ("endpoint", "region", "anonymous", "manifest", "verify-store")
_TIER_OPTIONS = ("tier", "cache-dir", "cache-size", "no-cache")
_DATASET_PATHS = ("metadata.", "spec.mounts", "spec.shared", "spec.owner")
_LARGEST_ID = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Referenced:
    """Another data set as declared, and the runtime of its name."""

    dataset: Dataset
    runtime: Runtime | None


Secret = Callable[[str, str, str], str]  # namespace, name, key


@dataclass(frozen=True, slots=True)
class Lookup:
    """Finds what the manifests refer to."""

    secret: Secret
    referenced: Callable[[ResourceKey], Referenced | None]
    read_file: Callable[[Path], str]
    # Where a volume claim of a namespace is mounted; None: one machine has no claims.
    claim: Callable[[str, str], str] | None = None
    host: str = ""  # where the folders of the machine are, for local:///folder


@dataclass(frozen=True, slots=True)
class MountPlan:
    dataset: Dataset
    runtime: Runtime
    settings: MountSettings
    without_effect: list[NoEffect]  # options, properties and arguments
    notes: list[str]
    members: MemberPlan | None = None  # of a shared tier, that machines run for the data set

    @property
    def of_dataset(self) -> list[NoEffect]:
        """Everything in the Dataset that has no effect: fields and options."""
        options = [one for one in self.without_effect if is_of_dataset(one.path)]
        return fields_without_effect(self.dataset) + options

    @property
    def of_runtime(self) -> list[NoEffect]:
        """Everything in the runtime that has no effect: fields, options, arguments."""
        options = [one for one in self.without_effect if not is_of_dataset(one.path)]
        fields = fields_without_effect(self.runtime)
        if self.members is not None:
            fields = [one for one in fields if one.reason != ONE_WORKER]
        return fields + options


def is_of_dataset(path: str) -> bool:
    """Whether a path of a problem or a note is in the Dataset; else it is in its runtime."""
    return path.startswith(_DATASET_PATHS)


def plan_mount(
    dataset: Dataset,
    runtime: Runtime,
    lookup: Lookup,
    folders: Folders,
    *,
    mountpoint: Path,
    allow_other: bool = False,
    runs_members: bool = False,
) -> MountPlan:
    """Translate a Dataset and its runtime. Raises SpecProblem for what cannot be mounted.

    `allow_other` lets users read who did not make the mount, as Fluid always does. `runs_members`:
    machines can run the members of the shared tier that the Dataset names.
    """
    report = Report()
    parts, mount_options = plan_parts(dataset, runtime, lookup, report)
    choices = choose(runtime, mount_options, report)
    _report_unused(choices.store, dataset, report)
    members = plan_members(dataset, runtime, report) if runs_members else None
    tiers = () if members else _tiers(dataset, runtime, choices, lookup, folders, report)
    settings = _settings(parts, mountpoint, choices, tiers, report)
    if members is not None:
        settings = with_members(settings, dataset)
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
    return MountPlan(dataset, runtime, settings, report.without_effect, report.notes, members)


# -- the parts: each mount of the Dataset, with its keys, at its path --------------------------


def plan_parts(
    dataset: Dataset,
    runtime: Runtime | None,
    lookup: Lookup,
    report: Report,
    seen: tuple[ResourceKey, ...] = (),
) -> tuple[tuple[Part, ...], Written]:
    """Return the parts, and the options that are the mount's own.

    `seen` are the data sets whose references led here.
    """
    if dataset.key in seen:
        chain = " -> ".join(map(str, (*seen, dataset.key)))
        raise SpecProblem("spec.mounts", f"data sets refer to each other in a circle: {chain}")
    juicefs = runtime is not None and runtime.kind == JUICEFS
    defaults = Written() if runtime is None else _store_defaults(runtime)
    mount_options = Written()
    found: dict[str, Part] = {}
    for number, mount in enumerate(dataset.spec.mounts):
        path = f"spec.mounts.{number}"
        # A JuiceFS volume is the whole data set, whatever its name is.
        whole = juicefs and len(dataset.spec.mounts) == 1 and not mount.path
        below = "" if whole else mount.place.strip("/")
        options = _options(dataset, number, lookup.secret)
        if mount.mount_point.startswith("dataset://"):
            parts = _referenced(dataset, number, below, lookup, seen)
            for name in options.values:
                reason = "the options of the referenced data set are used"
                report.no_effect(options.paths[name], reason)
        else:
            place = locate(
                _address(dataset, number, lookup),
                options,
                path,
                report,
                defaults=defaults,
                read_file=_file_reader(dataset, runtime, lookup),
                is_mount_option=partial(is_mount_option, JUICEFS),
                volume=mount.name,
            )
            parts = [Part(below, place.source, place.store)]
            if juicefs:
                mount_options = place.mount_options.over(mount_options)
            else:
                for where in place.mount_options.paths.values():
                    report.no_effect(where, f"it is for a {JUICEFS}")
        for part in parts:
            if part.path in found:
                what = f"two mounts at /{part.path}"
                raise SpecProblem(path, what, hint="give each mount a path of its own")
            found[part.path] = part
    return tuple(found.values()), mount_options


def _address(dataset: Dataset, number: int, lookup: Lookup) -> str:
    """Return the mountPoint; folders and claims as the folders where a server finds them."""
    address = dataset.spec.mounts[number].mount_point
    scheme, _, rest = address.partition("://")
    if scheme in ("local", "file"):
        return f"{scheme}://{lookup.host}{rest}"
    if scheme != "pvc":
        return address
    path = f"spec.mounts.{number}.mountPoint"
    if lookup.claim is None:
        what, hint = wrong_with(address) or ("is not supported", None)
        raise SpecProblem(path, what, hint=hint)
    name, _, folder = rest.partition("/")
    try:
        root = lookup.claim(dataset.metadata.namespace, name)
    except PenstockError as error:
        raise SpecProblem(path, str(error), hint=error.hint) from error
    return f"local://{root}/{folder}".rstrip("/")


def _referenced(
    dataset: Dataset, number: int, below: str, lookup: Lookup, seen: tuple[ResourceKey, ...]
) -> list[Part]:
    path = f"spec.mounts.{number}"
    namespace = dataset.metadata.namespace
    key, folder = parse_reference(dataset.spec.mounts[number].mount_point, namespace)
    other = lookup.referenced(key)
    if other is None:
        hint = "apply it first"
        # The first name is a namespace; people write the data set there, then a folder of it.
        if key.namespace != namespace and lookup.referenced(
            ResourceKey("Dataset", namespace, key.namespace)
        ):
            meant = "/".join(filter(None, (namespace, key.namespace, key.name, folder)))
            hint = f"did you mean dataset://{meant}?"
        raise SpecProblem(f"{path}.mountPoint", f"there is no {key}", hint=hint)
    parts, _ = plan_parts(other.dataset, other.runtime, lookup, Report(), (*seen, dataset.key))
    return move_parts(parts, folder, below, key, path)


def _options(dataset: Dataset, number: int, secret: Secret) -> Written:
    """Return the options of one mount: its own win over shared ones, Secrets over plain text."""
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


def _file_reader(dataset: Dataset, runtime: Runtime | None, lookup: Lookup) -> Callable[[str], str]:
    """Read a file, or the value of the Secret that a pod would have mounted at its path."""
    mounted = {} if runtime is None else mounted_secrets(runtime)

    def read(text: str) -> str:
        folder, _, name = text.rpartition("/")
        if folder in mounted:
            return lookup.secret(dataset.metadata.namespace, mounted[folder], name)
        return lookup.read_file(Path(text))

    return read


def mounted_secrets(runtime: Runtime) -> dict[str, str]:
    """Return the Secrets that a pod of this runtime would mount, by folder."""
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


# -- `dataset://namespace/name/folder`: parts of another data set --------------------------------


def parse_reference(mount_point: str, namespace: str) -> tuple[ResourceKey, str]:
    """Return the data set and the folder in it. A single name is in the same namespace."""
    names = mount_point.partition("://")[2].strip("/").split("/")
    if len(names) == 1:
        return ResourceKey("Dataset", namespace, names[0]), ""
    return ResourceKey("Dataset", names[0], names[1]), "/".join(names[2:])


def move_parts(
    parts: tuple[Part, ...], folder: str, below: str, key: ResourceKey, path: str
) -> list[Part]:
    """Return the parts inside `folder`, moved to `below`. `path` is the mount's in the manifest."""
    inside = [part for part in parts if _is_in(part.path, folder)]
    found = [replace(part, path=_joined(below, _rest(part.path, folder))) for part in inside]
    around = [part for part in parts if part.path != folder and _is_in(folder, part.path)]
    if around and not any(part.path == folder for part in inside):
        # The deepest part hides the others.
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


# -- the settings --------------------------------------------------------------------------------


def _store_defaults(runtime: Runtime) -> Written:
    """Return the keys and endpoints in a runtime's own settings: they hold for all mounts."""
    if isinstance(runtime, PenstockRuntime):
        return Written.at("spec.options", runtime.spec.options).only(_STORE_OPTIONS)
    return choose(runtime, Written(), Report()).store


def _report_unused(written: Written, dataset: Dataset, report: Report) -> None:
    families = {
        FAMILIES.get(mount.mount_point.partition("://")[0], "") for mount in dataset.spec.mounts
    }
    for name in written.values:
        family = family_of(name)
        if name not in _STORE_OPTIONS and family is not None and family not in families:
            report.no_effect(written.paths[name], f"no mount of this data set is {family}://")


def _tiers(
    dataset: Dataset,
    runtime: Runtime,
    choices: Choices,
    lookup: Lookup,
    folders: Folders,
    report: Report,
) -> tuple[TierSpec, ...] | None:
    """Return the tiers of the cache; None if the mount's own options name them."""
    key, store = dataset.key, runtime.spec.tieredstore
    tier_options = [name for name in _TIER_OPTIONS if name in choices.options]
    if isinstance(runtime, PenstockRuntime):
        if tier_options and store.levels:
            name = tier_options[0]
            what = f"{name} and tieredstore exclude each other"
            raise SpecProblem(choices.options[name][1], what)
        if tier_options:
            return None
    elif tier_options:
        directory = choices.options.pop(CACHE_DIR, None)
        size = choices.options.pop(CACHE_SIZE, None)
        if store.levels:
            for _, path in filter(None, (directory, size)):
                report.no_effect(path, "tieredstore sets it")
        else:
            quota = None if size is None else parse_size(size[0])
            path = (directory or size or ("", "spec"))[1]
            return cache_dir_tiers(directory and directory[0], quota, key, folders, path)
    if store.levels:
        return plan_tiers(store, key, folders, report, juicefs=runtime.kind == JUICEFS)
    for mount in dataset.spec.mounts:
        if not mount.mount_point.startswith("dataset://"):
            continue
        other_key, _ = parse_reference(mount.mount_point, dataset.metadata.namespace)
        other = lookup.referenced(other_key)
        if other is not None and other.runtime is not None:
            chosen = choose(other.runtime, Written(), Report())
            return _tiers(other.dataset, other.runtime, chosen, lookup, folders, Report())
    return default_tiers(key, folders)


def _settings(
    parts: tuple[Part, ...],
    mountpoint: Path,
    choices: Choices,
    tiers: tuple[TierSpec, ...] | None,
    report: Report,
) -> MountSettings:
    for option, kernel in (("attr-cache", "attr_timeout_s"), ("entry-cache", "entry_timeout_s")):
        if kernel in choices.fields:  # a kernel option wins over a general setting
            choices.options.pop(option, None)
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
        raise _with_path(error, choices) from error
    if readahead is not None and "prefetch" not in texts:
        wanted = parse_size(readahead[0]) // settings.block_bytes
        blocks = max(1, OPTIONS["prefetch"].clamp(wanted))
        settings = replace(settings, prefetch_blocks=blocks)
        shown = f"{blocks} blocks of {format_size(settings.block_bytes)}"
        report.note(f"{readahead[1]}: {shown} are read ahead")
    return replace(
        settings,
        parts=tuple(
            replace(part, store=replace(part.store, deadline_s=deadline_s)) for part in parts
        ),
        **{name: value for name, (value, _) in choices.fields.items()},
    )


def _with_path(error: OptionError, choices: Choices) -> SpecProblem:
    """Return the error of an option as a problem at the path where the option is written."""
    match = re.match(r"--([a-z-]+)[: ]+(.*)", str(error), re.DOTALL)
    if match is None or match[1] not in choices.options:
        return SpecProblem("spec", str(error), hint=error.hint)
    return SpecProblem(choices.options[match[1]][1], match[2], hint=error.hint)


def _owner(dataset: Dataset, runtime: Runtime, choices: Choices) -> dict[str, int]:
    """Return uid and gid: the Dataset's owner wins over `-o uid=`, and that over runAs."""
    found: dict[str, int] = {}
    for path, user in (("spec.runAs", runtime.spec.run_as), ("spec.owner", dataset.spec.owner)):
        for name in ("uid", "gid"):
            number = None if user is None else getattr(user, name)
            if number is None or (path == "spec.runAs" and name in choices.fields):
                continue
            if number > _LARGEST_ID:
                raise SpecProblem(f"{path}.{name}", f"{number} is not a valid {name}")
            found[name] = number
    return found
