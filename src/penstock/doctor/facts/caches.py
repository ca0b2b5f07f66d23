"""The directories of a mount's cache: on which disk they lie, how full it is."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cache.tier import TierSpec
from penstock.doctor.findings import TooSlow, within
from penstock.mounttable import filesystem_type

Json = Mapping[str, Any]

_DISK_ANSWERS_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Disk:
    """Of one cache directory."""

    path: str
    error: str | None = None  # why it could not be looked at
    kind: str = ""  # of the file system
    name: str | None = None  # of the block device, sda1; None where there is none
    rotational: bool | None = None
    with_root: bool = False  # the same file system as /
    total_bytes: int = 0
    free_bytes: int = 0
    inodes: int = 0  # 0: the file system does not count them
    free_inodes: int = 0


@dataclass(frozen=True, slots=True)
class Tier:
    medium: str
    wanted_bytes: int | None  # the quota that was asked for
    quota_bytes: int  # the one that it has
    used_bytes: int
    high: float
    policy: str
    disks: tuple[Disk, ...]
    out: tuple[tuple[str, str, float], ...] = ()  # directory, why, for how many seconds


def look_at_tiers(
    specs: Sequence[TierSpec], policy: str, described: Sequence[Json] | None
) -> list[Tier]:
    """`described`: what the server says of them, if it said anything."""
    return [_tier(spec, policy, _of(spec, described or ())) for spec in specs]


def look_at_disk(path: Path) -> Disk:
    try:
        return within(_DISK_ANSWERS_WITHIN_S, lambda: _disk(path))
    except TooSlow:
        return Disk(str(path), f"no answer within {_DISK_ANSWERS_WITHIN_S:g} s")
    except OSError as error:
        return Disk(str(path), error.strerror or str(error))


def _of(spec: TierSpec, described: Sequence[Json]) -> Json:
    paths = [str(path) for path in spec.paths]
    found = [one for one in described if one["paths"] == paths]
    return found[0] if found else dict[str, Any]()


def _tier(spec: TierSpec, policy: str, told: Json) -> Tier:
    out = tuple(
        (one["path"], str(one["error"]), float(one["out_s"] or 0))
        for one in told.get("directories", ())
        if one["state"] == "out"
    )
    return Tier(
        spec.medium,
        spec.quota_bytes,
        told.get("quota_bytes", spec.quota_bytes or 0),
        told.get("used_bytes", 0),
        spec.high,
        policy,
        tuple(map(look_at_disk, spec.paths)),
        out,
    )


def _disk(path: Path) -> Disk:
    while not path.exists():  # not made yet: where it would be
        path = path.parent
    status, device = os.statvfs(path), os.stat(path).st_dev
    name, rotational = _block_device(device)
    return Disk(
        str(path),
        None,
        filesystem_type(path),
        name,
        rotational,
        device == os.stat("/").st_dev,
        status.f_blocks * status.f_frsize,
        status.f_bavail * status.f_frsize,
        status.f_files,
        status.f_favail,
    )


def _block_device(device: int) -> tuple[str | None, bool | None]:
    """(name, does it rotate?); a partition's queue is its disk's."""
    link = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    if not os.path.exists(link):
        return None, None
    real = Path(os.path.realpath(link))
    for folder in (real, real.parent):
        try:
            return real.name, (folder / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return real.name, None
