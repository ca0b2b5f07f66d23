"""The end of a mount, and of its processes; and who is in the way of it."""

import os
from pathlib import Path

from penstock.daemon.claim import is_over_within
from penstock.daemon.registry import all_notes, remove_note
from penstock.errors import MountpointError, PenstockError
from penstock.fuse.holders import Holder, holders, mount_copies
from penstock.fuse.mounting import unmount
from penstock.mounttable import FILESYSTEM_TYPE, MountEntry, find_mount

_SERVER_ENDS_WITHIN_S = 60


def stop_mount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmounts, and returns when its server has put everything away. Raises MountpointError if
    nothing of ours is mounted there, or someone uses it. Lazily: detached now; it ends when the
    last user is gone, and nobody waits for that."""
    entry = find_mount(mountpoint)
    note = next((note for note in all_notes() if note.mountpoint == str(mountpoint)), None)
    if entry is None or entry.kind != FILESYSTEM_TYPE:
        if note is not None:
            remove_note(mountpoint)  # its server died, and someone else unmounted it
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted",
        )
    # Before: a process that is ending has no command line any more, but still its open files.
    processes = note.processes if note is not None and not lazy else []
    unmount(mountpoint, lazy=lazy)
    for pid in processes:
        if not ends_within(_SERVER_ENDS_WITHIN_S, pid):
            raise _still_runs(pid, entry)
    if note is not None and not note.alive:
        remove_note(mountpoint)


def holders_of(mountpoint: Path) -> list[Holder]:
    """The processes that use it, as far as this user may see them."""
    return holders(mountpoint).processes


def ends_within(seconds: float, pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return is_over_within(seconds, process)
    finally:
        os.close(process)


def _still_runs(pid: int, entry: MountEntry) -> PenstockError:
    where = f"{entry.mountpoint} is unmounted"
    # Where mounts are not shared (most containers), what is unmounted here is so nowhere else.
    if elsewhere := mount_copies(entry.device):
        return PenstockError(
            f"{where} here, but not in the mount namespace of {elsewhere[0]}",
            hint=f"its server (pid {pid}) ends when that process has ended",
        )
    return PenstockError(
        f"{where}, but its server (pid {pid}) still runs",
        hint="it may be waiting for storage; it ends by itself",
    )
