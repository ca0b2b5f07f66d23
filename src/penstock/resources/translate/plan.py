"""From a Dataset and its runtime to the settings of one mount. Pure."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.cache.tier import TierSpec
from penstock.daemon.mount_options import OPTIONS, make_settings, read_texts, store_options
from penstock.daemon.settings import MountSettings, Part
from penstock.errors import OptionError, SpecProblem
from penstock.resources.translate.choices import Choices, choose
from penstock.resources.translate.parts import JUICEFS, Lookup, Secret, plan_parts
from penstock.resources.translate.problems import Said, Written
from penstock.resources.translate.properties import CACHE_DIR, CACHE_SIZE, READAHEAD
from penstock.resources.translate.references import Referenced, parse_reference
from penstock.resources.translate.spelling import nearest
from penstock.resources.translate.stores import FAMILIES, family_of
from penstock.resources.translate.tiers import Folders, cache_dir_tier, plan_tiers, usual_tier
from penstock.resources.translate.values import MOST_PREFETCH
from penstock.specs.dataset import Dataset
from penstock.specs.effects import NoEffect
from penstock.specs.keys import ResourceKey
from penstock.specs.models import Runtime
from penstock.specs.runtimes import PenstockRuntime
from penstock.units import format_size, parse_size

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
    dataset: Dataset, runtime: Runtime, *, secret: Secret,
    referenced: Callable[[ResourceKey], Referenced | None], mountpoint: Path,
    is_tmpfs: Callable[[Path], bool], cache_dir: Path, scratch: Path, allow_other: bool = False,
    read_file: Callable[[Path], str] = Path.read_text,
) -> MountPlan:  # fmt: skip
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
    dataset: Dataset, runtime: Runtime, choices: Choices,
    referenced: Callable[[ResourceKey], Referenced | None], folders: Folders, said: Said,
) -> tuple[TierSpec, ...] | None:  # fmt: skip
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
    parts: tuple[Part, ...], mountpoint: Path, choices: Choices,
    tiers: tuple[TierSpec, ...] | None, said: Said,
) -> MountSettings:  # fmt: skip
    for mine, theirs in (("attr-cache", "attr_timeout_s"), ("entry-cache", "entry_timeout_s")):
        if theirs in choices.fields:  # what the kernel was told comes before a general setting
            choices.options.pop(mine, None)
    readahead = choices.options.pop(READAHEAD, None)
    for name, (_, path) in choices.options.items():
        if name not in OPTIONS or name == "o":
            near = nearest(name, OPTIONS)
            raise SpecProblem(
                path, f"{name} is not an option of a mount",
                hint=f"did you mean {near}?" if near else "`penstock mount --help` lists them",
            )  # fmt: skip
    texts = {name: text for name, (text, _) in choices.options.items()}
    try:
        options = read_texts(texts)
        settings = make_settings(parts, mountpoint, options, tiers)
        deadline_s = store_options(options).deadline_s
    except OptionError as error:
        raise _at_its_place(error, choices) from error
    if readahead is not None and "prefetch" not in texts:
        blocks = max(1, min(parse_size(readahead[0]) // settings.block_bytes, MOST_PREFETCH))
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
