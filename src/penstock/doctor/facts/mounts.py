"""One mount, seen from outside: notes, sockets, /sys. The mount itself is never touched, since
whoever looks at one whose server is away waits with its readers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.daemon.control import ask
from penstock.daemon.registry import MountNote, all_notes, serves, supervisor_socket
from penstock.doctor.facts.machine import Cgroup, look_at_cgroup
from penstock.errors import PenstockError
from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.mounttable import find_mount
from penstock.settings import MountSettings, decode

Json = dict[str, Any]

_ANSWERS_WITHIN_S = 3.0


class Given(NamedTuple):
    """What a mount was given, with keys."""

    settings: MountSettings
    environment: Mapping[str, str]  # what of it may be keys


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
    told: Json | None = None  # its own notes, and what it cannot show
    silence: str | None = None  # why it did not answer
    given: Given | None = field(default=None, repr=False)
    server_pid: int | None = None
    read_ahead_kb: int | None = None
    waiting: int | None = None  # requests that the kernel waits for
    device: str | None = None
    cgroup: Cgroup | None = None
    looked_s: float = 0.0


def look_at_mount(note: MountNote, *, limit: int = 0) -> Mount:
    """`limit`: how many hidden objects to bring along."""
    mountpoint = Path(note.mountpoint)
    entry = find_mount(mountpoint)
    is_mounted = entry is not None and entry.kind == FILESYSTEM_TYPE
    device = entry.device if entry is not None and is_mounted else None
    stats, told, silence = _ask(note, limit)
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
        told,
        silence,
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
        return None, None, "it has no process any more"
    if note.state == "waiting":
        return None, None, note.last_end
    try:
        stats = ask(note.socket_path, "stats", timeout_s=_ANSWERS_WITHIN_S)
        told = ask(note.socket_path, "doctor", timeout_s=_ANSWERS_WITHIN_S, limit=limit)
    except (PenstockError, OSError) as error:
        return None, None, str(error)
    return stats, told, None


def look_at_given(mountpoint: Path) -> Given | None:
    """None if its supervisor does not tell."""
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
