"""Other settings for a mount that is in use: what can be changed in place, and doing it.

In place means that another server takes over, as in an upgrade: readers see a pause.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.daemon.control import ask
from penstock.daemon.registry import find_note, supervisor_socket
from penstock.errors import MountpointError
from penstock.mount_options import cannot_change
from penstock.settings import MountSettings, decode, encode, needs_new_mount

_WITHIN_S = 120


def current_settings(mountpoint: Path) -> MountSettings:
    """Those that the mount has now, with the keys that it was given."""
    return decode(ask(_supervisor(mountpoint), "settings")["settings"])


def change_in_place(
    mountpoint: Path, wanted: MountSettings, *, environment: Mapping[str, str | None] | None = None
) -> float:
    """Another server with these settings takes over; returns for how many seconds readers had
    none. It is of this release, and has what `environment` says besides its predecessor's. If it
    cannot start, the old one goes on, and the error is raised."""
    path = _supervisor(mountpoint)
    current = decode(ask(path, "settings")["settings"])
    if fixed := needs_new_mount(current, wanted):
        raise cannot_change(" and ".join(fixed), mountpoint)
    answer = ask(
        path,
        "upgrade",
        timeout_s=_WITHIN_S,
        settings=encode(wanted),
        source=wanted.shown,
        python=sys.executable,
        environment=dict(environment or {}),
    )
    return answer["pause_s"]


def _supervisor(mountpoint: Path) -> Path:
    note = find_note(mountpoint)
    if note.pid not in note.processes:
        raise MountpointError(
            f"{note.mountpoint}: its supervisor is gone, and nobody else can replace its server",
            hint=f"penstock umount {note.mountpoint}, and mount it anew",
        )
    return supervisor_socket(mountpoint)
