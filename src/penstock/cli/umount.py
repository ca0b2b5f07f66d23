"""penstock umount: the end of a mount, and of its server."""

import os
import select
from pathlib import Path

import click

from penstock.daemon.registry import absolute, all_notes, remove_note
from penstock.errors import MountpointError, PenstockError
from penstock.fuse.mounting import FILESYSTEM_TYPE, unmount
from penstock.mounttable import find_mount

_SERVER_ENDS_WITHIN_S = 60


@click.command()
@click.argument("mountpoint")
@click.option("--lazy", is_flag=True, help="Detach now; end when the last user is gone.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount, and wait until its server has put everything away.

    \b
    Example:
      penstock umount /mnt/imagenet
    """
    path = absolute(mountpoint)
    entry = find_mount(path)
    note = next((note for note in all_notes() if note.mountpoint == str(path)), None)
    if entry is None or entry.kind != FILESYSTEM_TYPE:
        if note is not None:
            remove_note(path)  # its server died, and someone else unmounted it
        raise MountpointError(
            f"{path} is not mounted by Penstock", hint="`penstock stats` lists what is mounted"
        )
    unmount(path, lazy=lazy)
    if note is not None and not lazy:
        for pid in note.processes:
            _wait_for_end(pid, path)
    if note is not None and not note.alive:
        remove_note(path)


def _wait_for_end(pid: int, path: Path) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([process], [], [], _SERVER_ENDS_WITHIN_S)
    finally:
        os.close(process)
    if not ended:
        raise PenstockError(
            f"{path} is unmounted, but its server (pid {pid}) still runs",
            hint="it may be waiting for storage; it ends by itself",
        )
