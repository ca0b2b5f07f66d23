"""Reads the kernel's mount table (/proc/self/mountinfo)."""

import os
from pathlib import Path
from typing import NamedTuple

FILESYSTEM_TYPE = "fuse.penstock"  # the type of our mounts


class MountEntry(NamedTuple):
    """A line of the mount table."""

    device: str  # major:minor
    mountpoint: str
    kind: str
    source: str
    mount_id: int = 0  # mnt_id in /proc/PID/fdinfo
    parent_id: int = 0  # the mount that contains this one
    root: str = "/"  # which folder of the file system is mounted


def mount_table(process: int | str = "self") -> list[MountEntry]:
    """Return the mounts in the namespace of a process."""
    entries: list[MountEntry] = []
    with open(f"/proc/{process}/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.partition(b" - ")
            fields = left.split(b" ")
            kind, source = right.split(b" ")[:2]
            number, above, device = int(fields[0]), int(fields[1]), fields[2].decode()
            names = _unescape(fields[4]), kind.decode(), _unescape(source)
            entries.append(MountEntry(device, *names, number, above, _unescape(fields[3])))
    return entries


def find_mount(mountpoint: Path) -> MountEntry | None:
    """Return the topmost mount at exactly this path. Never accesses the path: it may hang."""
    real = os.path.join(os.path.realpath(mountpoint.parent), mountpoint.name)
    here = [entry for entry in mount_table() if entry.mountpoint in (str(mountpoint), real)]
    return here[-1] if here else None


def filesystem_type(path: Path) -> str:
    """Return the type of the file system that contains `path`."""
    real = os.path.realpath(path)
    best = MountEntry("", "", "", "")
    for entry in mount_table():
        inside = real == entry.mountpoint or real.startswith(entry.mountpoint.rstrip("/") + "/")
        if inside and len(entry.mountpoint) >= len(best.mountpoint):
            best = entry
    return best.kind


def _unescape(field: bytes) -> str:
    """Decode spaces and the like, which are escaped as octal."""
    for code in (b"040", b"011", b"012", b"134"):
        field = field.replace(b"\\" + code, bytes([int(code, 8)]))
    return field.decode("utf-8", "surrogateescape")
