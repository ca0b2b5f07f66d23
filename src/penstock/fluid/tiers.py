"""The tiers of a runtime's cache as tiers of ours. Pure.

Each data set has a folder of its own below each path. So two data sets with the same path have two
quotas and two indexes, and one can be removed without the other.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.cache.tier import DEFAULT_HIGH, DEFAULT_LOW, MEDIA, TierSpec
from penstock.errors import SpecProblem
from penstock.fluid.values import Report
from penstock.specs.kinds import ResourceKey
from penstock.specs.tieredstore import Level, TieredStore
from penstock.units import MIB, format_size

_LEVELS = "spec.tieredstore.levels"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where caches may be on the machine that mounts."""

    cache: Path  # for a runtime that names no folder
    scratch: Path  # for folders that are removed with their runtime
    memory: Path  # a tmpfs
    owner: str  # folder below shared paths such as /dev/shm; each user has another one
    is_tmpfs: Callable[[Path], bool]
    # Whether an emptyDir in memory is a scratch folder too, and not a folder of all memory.
    scratch_in_memory: bool = False

    def below(self, root: Path, key: ResourceKey) -> Path:
        return root / self.owner / key.namespace / key.name

    def in_memory(self, key: ResourceKey) -> Path:
        return self.below(self.memory, key)


def plan_tiers(
    store: TieredStore, key: ResourceKey, folders: Folders, report: Report, *, juicefs: bool = False
) -> tuple[TierSpec, ...]:
    """Return the tiers, fastest first; empty if there are no levels."""
    found: list[TierSpec] = []
    for number, level in enumerate(store.levels):
        path = f"{_LEVELS}.{number}"
        shares = _shares(level, number, key, folders, report, path, juicefs)
        high, low = _marks(level, path, report, juicefs)
        quotas = set(shares.values())
        groups = [list(shares)] if len(quotas) == 1 else [[folder] for folder in shares]
        for group in groups:
            given = [quota for folder in group if (quota := shares[folder]) is not None]
            quota = sum(given) if given else None
            found.append(TierSpec(level.mediumtype, tuple(group), quota, high, low, clamp=True))
    seen: set[Path] = set()
    for folder in (folder for tier in found for folder in tier.paths):
        if folder in seen:
            hint = "give each level folders of its own"
            raise SpecProblem(_LEVELS, f"{folder} is in two levels", hint=hint)
        seen.add(folder)
    return tuple(sorted(found, key=lambda tier: MEDIA.index(tier.medium)))


def default_tiers(key: ResourceKey, folders: Folders) -> tuple[TierSpec, ...]:
    """Return the tier of a runtime that names none."""
    # Beside a cache that plain mounts have in the same place, never inside it.
    folder = folders.cache / "datasets" / key.namespace / key.name
    medium = "MEM" if folders.is_tmpfs(folders.cache) else "SSD"
    return (TierSpec(medium, (folder,), None, clamp=True),)


def cache_dir_tiers(
    paths: str | None, quota_bytes: int | None, key: ResourceKey, folders: Folders, path: str
) -> tuple[TierSpec, ...]:
    """Return the tier of JuiceFS' cache-dir and cache-size, for a runtime without levels."""
    if quota_bytes == 0:
        return ()
    if paths is None:
        (tier,) = default_tiers(key, folders)
        return (TierSpec(tier.medium, tier.paths, quota_bytes, clamp=True),)
    if paths.strip() == "memory":
        return (TierSpec("MEM", (folders.in_memory(key),), quota_bytes, clamp=True),)
    roots = [_absolute(text, path) for text in _split(paths)]
    medium = "MEM" if all(map(folders.is_tmpfs, roots)) else "SSD"
    places = tuple(folders.below(root, key) for root in roots)
    return (TierSpec(medium, places, quota_bytes, clamp=True),)


def _shares(
    level: Level,
    number: int,
    key: ResourceKey,
    folders: Folders,
    report: Report,
    path: str,
    juicefs: bool,
) -> dict[Path, int | None]:
    """Return the folders of a level, each with its quota."""
    roots = [_absolute(text, f"{path}.path") for text in _split(level.path)]
    count = max(len(roots), 1)
    scratch = [
        folders.scratch / key.namespace / key.name / f"{number}-{index}" for index in range(count)
    ]
    is_scratch = level.volume_type == "emptyDir"
    if level.mediumtype == "MEM" and not (is_scratch and folders.scratch_in_memory):
        places = [_in_memory(root, key, folders, report, path) for root in roots]
        if is_scratch or not places:
            places = [folders.in_memory(key)] * count
    elif is_scratch:
        places = scratch
    elif roots:
        places = [folders.below(root, key) for root in roots]
    else:
        places = list(default_tiers(key, folders)[0].paths)
    # Several paths may become one folder: all memory is one.
    merged: dict[Path, int | None] = {}
    for place, quota in zip(places, _quotas(level, count, path, report, juicefs), strict=True):
        before = merged.get(place, 0)
        merged[place] = None if quota is None or before is None else before + quota
    return merged


def _in_memory(root: Path, key: ResourceKey, folders: Folders, report: Report, path: str) -> Path:
    if folders.is_tmpfs(root):
        return folders.below(root, key)
    place = folders.in_memory(key)
    report.note(f"{path}.path: {root} is not in memory; {place} is used instead")
    return place


def _quotas(level: Level, count: int, path: str, report: Report, juicefs: bool) -> list[int | None]:
    if level.quota_list:
        quotas = level.quota_list_bytes
        if len(quotas) != count:
            hint = "give one quota for each path, in the same order"
            what = f"{len(quotas)} quotas for {count} paths"
            raise SpecProblem(f"{path}.quotaList", what, hint=hint)
    elif (total := level.quota_bytes) is None:
        return [None] * count
    else:
        if juicefs and level.quota is not None and level.quota.isdigit() and total < MIB:
            # As in Fluid's own samples, where 40960 gives a cache of 40 GiB.
            total *= MIB
            report.note(f"{path}.quota: a number without a unit counts MiB: {format_size(total)}")
        quotas = [total // count] * count
    if 0 in quotas:
        what = "a quota of 0 caches nothing"
        raise SpecProblem(f"{path}.quota", what, hint="leave the level out")
    return list(quotas)


def _marks(level: Level, path: str, report: Report, juicefs: bool) -> tuple[float, float]:
    """Return the shares of the quota at which eviction begins and ends."""
    if juicefs and level.low:
        reason = "in JuiceFS it is the share of the disk that stays free; quota limits the cache"
        report.no_effect(f"{path}.low", reason)
    given_low = None if juicefs or not level.low else float(level.low)
    high = float(level.high) if level.high else max(DEFAULT_HIGH, given_low or 0)
    low = given_low if given_low is not None else min(DEFAULT_LOW, high)
    if low > high:
        what = f"low ({level.low}) is above high ({level.high})"
        hint = "eviction begins at high and ends at low"
        raise SpecProblem(f"{path}.low", what, hint=hint)
    return high, low


def _split(paths: str) -> list[str]:
    """Alluxio and Jindo separate paths with commas, JuiceFS with colons."""
    return [path.strip() for path in re.split(r"[,:]", paths) if path.strip()]


def _absolute(text: str, path: str) -> Path:
    if not text.startswith("/"):
        what = f"{text!r} is not an absolute path"
        raise SpecProblem(path, what, hint="write it like /nvme/cache")
    return Path(text)
