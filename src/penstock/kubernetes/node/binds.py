"""Bind mounts of folders into pods, and the mount table's view of them.

Nothing here touches what is behind a mount: a data set without a server would not answer.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from penstock.errors import MountpointError
from penstock.mounttable import MountEntry, mount_table

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND = 32, 4096
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: Path, target: Path, *, writable: bool) -> None:
    """Bind a folder at `target`, which is created; without effect if something is bound there."""
    if binds_at(target):
        return
    target.mkdir(parents=True, exist_ok=True)
    _mount(source, target, _MS_BIND)
    flags = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV
    try:
        # The flags of a bind mount can only be set by a second call. Programs of a data set may
        # be run, as from any other volume; what a server has written may not.
        _mount(source, target, flags | (_MS_NOEXEC if writable else _MS_RDONLY))
    except MountpointError:
        unbind(target)
        raise


def unbind(target: Path) -> None:
    """Unmount everything at `target`, also dead mounts, and remove it."""
    for _ in binds_at(target):
        if _libc.umount2(os.fsencode(target), _MNT_DETACH) != 0:
            number = ctypes.get_errno()
            if number != errno.EINVAL:  # gone in the meantime
                raise MountpointError(f"cannot unmount {target}: {os.strerror(number)}")
    try:
        target.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise MountpointError(f"cannot remove {target}: {error.strerror}") from error


def binds_at(target: Path) -> list[MountEntry]:
    return [entry for entry in mount_table() if entry.mountpoint == str(target)]


def binds_below(folder: Path) -> list[MountEntry]:
    prefix = f"{folder}/"
    return [entry for entry in mount_table() if entry.mountpoint.startswith(prefix)]


@contextmanager
def folder_below(mountpoint: Path, sub_path: str) -> Iterator[Path]:
    """Yield a path of a folder in a data set that no link can lead out of it."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(mountpoint, flags)
    try:
        for step in PurePosixPath(sub_path).parts:
            try:
                below = os.open(step, flags, dir_fd=descriptor)
            except OSError as error:
                raise MountpointError(
                    f"{sub_path}: {error.strerror}", hint="it must be a folder of the data set"
                ) from error
            os.close(descriptor)
            descriptor = below
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _mount(source: Path, target: Path, flags: int) -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None
    )
    if result != 0:
        number = ctypes.get_errno()
        raise MountpointError(f"cannot bind {source} at {target}: {os.strerror(number)}")
