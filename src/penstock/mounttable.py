"""What is mounted where, as the kernel tells it (/proc/self/mountinfo)."""

import os
from pathlib import Path
from typing import NamedTuple

FILESYSTEM_TYPE = "fuse.penstock"  # what a mount of ours is called there


class MountEntry(NamedTuple):
    """A line of the mount table."""

    device: str  # major:minor
    mountpoint: str
    kind: str
    source: str
    mount_id: int = 0  # what /proc/PID/fdinfo calls mnt_id
    parent_id: int = 0  # the mount that this one lies in


def mount_table(process: int | str = "self") -> list[MountEntry]:
    """Of the namespace that a process is in."""
    entries: list[MountEntry] = []
    with open(f"/proc/{process}/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.partition(b" - ")
            fields = left.split(b" ")
            kind, source = right.split(b" ")[:2]
            number, above, device = int(fields[0]), int(fields[1]), fields[2].decode()
            names = _unescape(fields[4]), kind.decode(), _unescape(source)
            entries.append(MountEntry(device, *names, number, above))
    return entries


def find_mount(mountpoint: Path) -> MountEntry | None:
    """The topmost mount at exactly this place. Never touches the place itself: it may be dead."""
    real = os.path.join(os.path.realpath(mountpoint.parent), mountpoint.name)
    here = [entry for entry in mount_table() if entry.mountpoint in (str(mountpoint), real)]
    return here[-1] if here else None


def filesystem_type(path: Path) -> str:
    """The type of the file system that holds `path`."""
    real = os.path.realpath(path)
    best = MountEntry("", "", "", "")
    for entry in mount_table():
        inside = real == entry.mountpoint or real.startswith(entry.mountpoint.rstrip("/") + "/")
        if inside and len(entry.mountpoint) >= len(best.mountpoint):
            best = entry
    return best.kind


def _unescape(field: bytes) -> str:
    """Blanks and the like are written as octal."""
    for code in (b"040", b"011", b"012", b"134"):
        field = field.replace(b"\\" + code, bytes([int(code, 8)]))
    return field.decode("utf-8", "surrogateescape")
