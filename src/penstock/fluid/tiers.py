"""The tiers of a runtime's cache, on this machine. Pure.

Each data set has a folder of its own below each path that was written, so that two of them with the
same path have two quotas and two indexes, and one can be removed without the other.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.cache.tier import DEFAULT_HIGH, DEFAULT_LOW, MEDIA, TierSpec
from penstock.errors import SpecProblem
from penstock.fluid.values import Said
from penstock.specs.kinds import ResourceKey
from penstock.specs.tieredstore import Level, TieredStore
from penstock.units import MIB, format_size

_MEMORY = Path("/dev/shm")
_LEVELS = "spec.tieredstore.levels"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where caches may be on this machine."""

    cache: Path  # for a runtime that names none
    scratch: Path  # for what goes with its runtime
    is_tmpfs: Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class _Share:
    """One folder of a level, and what it may hold."""

    folder: Path
    quota_bytes: int | None


def plan_tiers(
    store: TieredStore, key: ResourceKey, folders: Folders, said: Said, *, of_juicefs: bool = False
) -> tuple[TierSpec, ...]:
    """Fastest first, in whatever order they were written. None if no level is."""
    found: list[TierSpec] = []
    for number, level in enumerate(store.levels):
        path = f"{_LEVELS}.{number}"
        shares = _shares(level, number, key, folders, said, path, of_juicefs)
        high, low = _marks(level, path, said, of_juicefs)
        quotas = [share.quota_bytes for share in shares]
        groups = [shares] if len(set(quotas)) == 1 else [[share] for share in shares]
        for group in groups:
            given = [share.quota_bytes for share in group if share.quota_bytes is not None]
            places = tuple(share.folder for share in group)
            quota = sum(given) if given else None
            found.append(TierSpec(level.mediumtype, places, quota, high, low, clamp=True))
    seen: set[Path] = set()
    for tier in found:
        for folder in tier.paths:
            if folder in seen:
                hint = "each level has folders of its own"
                raise SpecProblem(_LEVELS, f"{folder} is in two levels", hint=hint)
            seen.add(folder)
    return tuple(sorted(found, key=lambda tier: MEDIA.index(tier.medium)))


def usual_tier(key: ResourceKey, folders: Folders) -> tuple[TierSpec, ...]:
    """For a runtime that says nothing of tiers."""
    # Beside a cache that plain mounts have in the same place, and never inside.
    folder = folders.cache / "datasets" / key.namespace / key.name
    medium = "MEM" if folders.is_tmpfs(folders.cache) else "SSD"
    return (TierSpec(medium, (folder,), None, clamp=True),)


def cache_dir_tier(
    paths: str | None, quota_bytes: int | None, key: ResourceKey, folders: Folders, path: str
) -> tuple[TierSpec, ...]:
    """JuiceFS' cache-dir and cache-size, for a runtime without levels."""
    if quota_bytes == 0:
        return ()
    if paths is None:
        (tier,) = usual_tier(key, folders)
        return (TierSpec(tier.medium, tier.paths, quota_bytes, clamp=True),)
    if paths.strip() == "memory":
        return (TierSpec("MEM", (_below(_MEMORY, key),), quota_bytes, clamp=True),)
    roots = [_absolute(text, path) for text in _split(paths)]
    medium = "MEM" if all(map(folders.is_tmpfs, roots)) else "SSD"
    return (TierSpec(medium, tuple(_below(root, key) for root in roots), quota_bytes, clamp=True),)


def _shares(
    level: Level,
    number: int,
    key: ResourceKey,
    folders: Folders,
    said: Said,
    path: str,
    of_juicefs: bool,
) -> list[_Share]:
    roots = [_absolute(text, f"{path}.path") for text in _split(level.path)]
    quotas = _quotas(level, max(len(roots), 1), path, said, of_juicefs)
    if level.mediumtype == "MEM":
        places = [_in_memory(root, key, folders, said, path) for root in roots or [_MEMORY]]
        if level.volume_type == "emptyDir":
            places = [_below(_MEMORY, key) for _ in places]
    elif level.volume_type == "emptyDir":
        base = folders.scratch / key.namespace / key.name
        places = [base / f"{number}-{index}" for index in range(max(len(roots), 1))]
    elif roots:
        places = [_below(root, key) for root in roots]
    else:
        places = list(usual_tier(key, folders)[0].paths)
    # Several paths may have come to be one: memory is memory.
    merged: dict[Path, int | None] = {}
    for place, quota in zip(places, quotas, strict=True):
        before = merged.get(place, 0)
        merged[place] = None if quota is None or before is None else before + quota
    return [_Share(place, quota) for place, quota in merged.items()]


def _in_memory(root: Path, key: ResourceKey, folders: Folders, said: Said, path: str) -> Path:
    if folders.is_tmpfs(root):
        return _below(root, key)
    place = _below(_MEMORY, key)
    said.note(f"{path}.path: {root} is not in memory; {place} is used instead")
    return place


def _quotas(level: Level, count: int, path: str, said: Said, of_juicefs: bool) -> list[int | None]:
    if level.quota_list:
        quotas = level.quota_list_bytes
        if len(quotas) != count:
            raise SpecProblem(
                f"{path}.quotaList",
                f"{len(quotas)} quotas for {count} paths",
                hint="one for each path, in the same order",
            )
    elif (total := level.quota_bytes) is None:
        return [None] * count
    else:
        if of_juicefs and level.quota is not None and level.quota.isdigit() and total < MIB:
            # As in Fluid's own samples, where 40960 gives a cache of 40 GiB.
            total *= MIB
            said.note(f"{path}.quota: a bare number counts MiB: {format_size(total)}")
        quotas = [total // count] * count
    if 0 in quotas:
        raise SpecProblem(
            f"{path}.quota", "a quota of 0 caches nothing", hint="leave the level out"
        )
    return list(quotas)


def _marks(level: Level, path: str, said: Said, of_juicefs: bool) -> tuple[float, float]:
    if of_juicefs and level.low:
        reason = "for JuiceFS it is the share of the disk that stays free; here quota says it"
        said.no_effect(f"{path}.low", reason)
    low_said = None if of_juicefs or not level.low else float(level.low)
    high = float(level.high) if level.high else max(DEFAULT_HIGH, low_said or 0)
    low = low_said if low_said is not None else min(DEFAULT_LOW, high)
    if low > high:
        raise SpecProblem(
            f"{path}.low",
            f"low ({level.low}) is above high ({level.high})",
            hint="a tier is thinned out from high down to low",
        )
    return high, low


def _split(paths: str) -> list[str]:
    """Alluxio and Jindo have commas between paths, JuiceFS colons."""
    return [path.strip() for path in re.split(r"[,:]", paths) if path.strip()]


def _absolute(text: str, path: str) -> Path:
    if not text.startswith("/"):
        what = f"{text!r} is not an absolute path"
        raise SpecProblem(path, what, hint="write it like /nvme/cache")
    return Path(text)


def _below(root: Path, key: ResourceKey) -> Path:
    return root / folder_name() / key.namespace / key.name


def folder_name() -> str:
    """Of each user another: in /dev/shm and the like all users' are side by side."""
    return "penstock" if os.geteuid() == 0 else f"penstock-{os.geteuid()}"
