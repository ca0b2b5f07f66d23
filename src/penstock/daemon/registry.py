"""Notes which mounts are served on this machine by this user, one small file each."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.daemon.places import mounts_dir, name_of
from penstock.errors import MountpointError
from penstock.fuse.mounting import FILESYSTEM_TYPE
from penstock.mounttable import find_mount


@dataclass(frozen=True, slots=True)
class MountNote:
    mountpoint: str
    source: str
    pid: int
    started_s: float
    log: str | None

    @property
    def socket_path(self) -> Path:
        return mounts_dir() / f"{name_of(Path(self.mountpoint))}.sock"

    @property
    def alive(self) -> bool:
        entry = find_mount(Path(self.mountpoint))
        return entry is not None and entry.kind == FILESYSTEM_TYPE and _runs(self.pid)


def write_note(note: MountNote) -> None:
    path = _file(Path(note.mountpoint))
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(note)))
    fresh.replace(path)


def remove_note(mountpoint: Path) -> None:
    note = _file(mountpoint)
    note.unlink(missing_ok=True)
    note.with_suffix(".sock").unlink(missing_ok=True)


def all_notes() -> list[MountNote]:
    notes = (_read(path) for path in sorted(mounts_dir().glob("*.json")))
    return [note for note in notes if note is not None]


def find_note(mountpoint: Path) -> MountNote:
    note = _read(_file(mountpoint))
    if note is None:
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted by you",
        )
    return note


def absolute(mountpoint: str) -> Path:
    """As the mount table spells it: links resolved, but never the mount point itself, which
    may be dead."""
    path = Path(os.path.abspath(mountpoint))
    while os.path.islink(path):  # which does not mind a dead mount; Path.is_symlink does
        path = Path(os.path.abspath(path.parent / os.readlink(path)))
    return Path(os.path.realpath(path.parent)) / path.name if path.name else path


def _file(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.json"


def _read(path: Path) -> MountNote | None:
    try:
        return MountNote(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # gone, or not a note of this version


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
