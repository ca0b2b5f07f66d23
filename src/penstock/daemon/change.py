"""Other settings for a mount that is in use: what can be changed in place, and doing it.

In place means that another server takes over, as in an upgrade: readers see a pause.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.daemon.control import ask
from penstock.daemon.registry import find_note, supervisor_socket
from penstock.errors import MountpointError, OptionError
from penstock.settings import MountSettings, Part, decode, encode

# What the kernel was told once and for all, or what the mount is.
FIXED = {
    "mountpoint": "the mount point", "mode": "the mode", "allow_other": "who may read it",
    "max_read_bytes": "the largest read", "kernel_resend": "whether the kernel sends again",
    "name": "its name in the mount table", "title": "its title", "catalog": "its catalog",
}  # fmt: skip
WHERE = "where the store is"
_WITHIN_S = 120


def current_settings(mountpoint: Path) -> MountSettings:
    """Those that the mount has now, with the keys that it was given."""
    return decode(ask(_supervisor(mountpoint), "settings")["settings"])


def what_needs_restart(current: MountSettings, wanted: MountSettings) -> list[str]:
    """What is wanted otherwise and cannot be had without unmounting, in a person's words. Empty:
    it can all be changed in place. Keys, quotas and tiers always can; parts can if the catalog has
    a name of its own, for otherwise it is found, and shared, by what the parts are."""
    found = [
        words for name, words in FIXED.items() if getattr(current, name) != getattr(wanted, name)
    ]
    if wanted.catalog is None and _places(current) != _places(wanted):
        found.append(WHERE)
    return found


def change_in_place(
    mountpoint: Path, wanted: MountSettings, *, environment: Mapping[str, str | None] | None = None
) -> float:
    """Another server with these settings takes over; returns for how many seconds readers had
    none. It is of this release, and has what `environment` says besides its predecessor's. If it
    cannot start, the old one goes on, and the error is raised."""
    path = _supervisor(mountpoint)
    current = decode(ask(path, "settings")["settings"])
    if fixed := what_needs_restart(current, wanted):
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


def cannot_change(what: str, mountpoint: Path) -> OptionError:
    return OptionError(
        f"{what} cannot change while it is mounted",
        hint=f"penstock umount {mountpoint}, and mount it anew",
    )


class _Place(NamedTuple):
    path: str
    source: Any
    endpoint: str | None
    region: str | None
    anonymous: bool
    manifest: Path | None
    account: str | None


def _places(settings: MountSettings) -> set[_Place]:
    return set(map(_place, settings.parts))


def _place(part: Part) -> _Place:
    store = part.store
    account = store.keys.account_name if store.keys is not None else None
    return _Place(
        part.path,
        part.source,
        store.endpoint,
        store.region,
        store.anonymous,
        store.manifest,
        account,
    )


def _supervisor(mountpoint: Path) -> Path:
    note = find_note(mountpoint)
    if note.pid not in note.processes:
        raise MountpointError(
            f"{note.mountpoint}: its supervisor is gone, and nobody else can replace its server",
            hint=f"penstock umount {note.mountpoint}, and mount it anew",
        )
    return supervisor_socket(mountpoint)
