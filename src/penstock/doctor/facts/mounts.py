"""Facts about one mount: its notes, sockets and /sys, and the disks of its cache.

The mount itself is never touched: a look into one whose server is gone waits with its readers.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cache.tier import TierSpec
from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import MountNote, all_notes, serves, supervisor_socket
from penstock.doctor.facts.machine import Cgroup, look_at_cgroup
from penstock.doctor.findings import TooSlow, within
from penstock.errors import PenstockError
from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.mounttable import filesystem_type, find_mount
from penstock.settings import MountSettings, decode

Json = dict[str, Any]

_ANSWERS_WITHIN_S = 3.0


class Given(NamedTuple):
    """What a mount was started with, keys included."""

    settings: MountSettings
    environment: Mapping[str, str]  # variables that may hold keys


@dataclass(frozen=True, slots=True)
class Mount:
    mountpoint: str
    source: str
    is_mounted: bool
    supervisor_runs: bool
    server_runs: bool
    state: str  # serving, restarting, waiting
    restarts: int = 0
    last_end: str | None = None
    log: str | None = None
    stats: Json | None = None  # None: it did not answer
    doctor_answer: Json | None = None  # its own notes, and the objects that it cannot show
    no_answer: str | None = None  # why it did not answer
    given: Given | None = field(default=None, repr=False)
    server_pid: int | None = None
    read_ahead_kb: int | None = None
    waiting: int | None = None  # requests that the kernel has sent and that are not answered
    device: str | None = None
    cgroup: Cgroup | None = None
    looked_s: float = 0.0


def look_at_mount(note: MountNote, *, limit: int = 0) -> Mount:
    """`limit` is how many hidden objects to fetch."""
    mountpoint = Path(note.mountpoint)
    entry = find_mount(mountpoint)
    is_mounted = entry is not None and entry.kind == FILESYSTEM_TYPE
    device = entry.device if entry is not None and is_mounted else None
    stats, doctor_answer, no_answer = _ask(note, limit)
    pid = note.server_pid
    server_runs = pid is not None and serves(pid, note.mountpoint)
    return Mount(
        note.mountpoint,
        note.source,
        is_mounted,
        serves(note.pid, note.mountpoint),
        server_runs,
        note.state,
        note.restarts,
        note.last_end,
        note.log,
        stats,
        doctor_answer,
        no_answer,
        look_at_given(mountpoint),
        pid,
        _number(f"/sys/class/bdi/{device}/read_ahead_kb") if device else None,
        _number(f"/sys/fs/fuse/connections/{device.split(':')[1]}/waiting") if device else None,
        device,
        look_at_cgroup(pid) if pid is not None and server_runs else None,
        time.monotonic(),
    )


def notes_by_mountpoint() -> dict[str, MountNote]:
    return {note.mountpoint: note for note in all_notes()}


def _ask(note: MountNote, limit: int) -> tuple[Json | None, Json | None, str | None]:
    if not note.processes:
        return None, None, "its processes are gone"
    if note.state == "waiting":
        return None, None, note.last_end
    try:
        stats = ask(note.socket_path, "stats", timeout_s=_ANSWERS_WITHIN_S)
        answer = ask(note.socket_path, "doctor", timeout_s=_ANSWERS_WITHIN_S, limit=limit)
    except (PenstockError, OSError) as error:
        return None, None, str(error)
    return stats, answer, None


def look_at_given(mountpoint: Path) -> Given | None:
    """Ask its supervisor for the settings; None if it does not answer."""
    try:
        answer = ask(supervisor_socket(mountpoint), "settings", timeout_s=_ANSWERS_WITHIN_S)
        return Given(decode(answer["settings"]), answer.get("environment", {}))
    except (PenstockError, OSError, KeyError, TypeError):
        return None


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


# -- tiers ---------------------------------------------------------------------------------------

_DISK_ANSWERS_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of one cache directory."""

    path: str
    error: str | None = None  # why it could not be read
    kind: str = ""  # of the file system
    name: str | None = None  # of the block device, sda1; None where there is none
    rotational: bool | None = None
    with_root: bool = False  # on the same file system as /
    total_bytes: int = 0
    free_bytes: int = 0
    inodes: int = 0  # 0: the file system does not count them
    free_inodes: int = 0


@dataclass(frozen=True, slots=True)
class Tier:
    medium: str
    wanted_bytes: int | None  # the quota in the settings
    quota_bytes: int  # the quota in force
    used_bytes: int
    high: float
    policy: str
    disks: tuple[Disk, ...]
    failed: tuple[tuple[str, str, float], ...] = ()  # directory, why, for how many seconds


def look_at_tiers(
    specs: Sequence[TierSpec], policy: str, reported: Sequence[Mapping[str, Any]] | None
) -> list[Tier]:
    """`reported` is what the server reports about its tiers, if it answers."""
    return [_tier(spec, policy, reported or ()) for spec in specs]


def look_at_disk(path: Path) -> Disk:
    try:
        return within(_DISK_ANSWERS_WITHIN_S, lambda: _disk(path))
    except TooSlow:
        return Disk(str(path), f"no answer within {_DISK_ANSWERS_WITHIN_S:g} s")
    except OSError as error:
        return Disk(str(path), error.strerror or str(error))


def _tier(spec: TierSpec, policy: str, reported: Sequence[Mapping[str, Any]]) -> Tier:
    paths = [str(path) for path in spec.paths]
    report = next((one for one in reported if one["paths"] == paths), dict[str, Any]())
    failed = tuple(
        (one["path"], str(one["error"]), float(one["out_s"] or 0))
        for one in report.get("directories", ())
        if one["state"] == "out"
    )
    return Tier(
        spec.medium,
        spec.quota_bytes,
        report.get("quota_bytes", spec.quota_bytes or 0),
        report.get("used_bytes", 0),
        spec.high,
        policy,
        tuple(map(look_at_disk, spec.paths)),
        failed,
    )


def _disk(path: Path) -> Disk:
    while not path.exists():  # not created yet: look at the folder that will hold it
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
    """Return its name and whether it rotates. A partition shares the queue of its disk."""
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
