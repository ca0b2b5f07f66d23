"""Bind mounts of folders into pods, and the mount table's view of them.

Only `open_folder` touches what is behind a mount: a data set without a server would not answer.
"""

import ctypes
import errno
import os
import threading
from concurrent.futures import Future
from pathlib import Path, PurePosixPath

from penstock.errors import MountpointError, NotServedInTime
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


def open_folder(mountpoint: Path, sub_path: str, *, timeout_s: float) -> int:
    """Return a descriptor of a folder in a data set, to which no link led.

    Raises NotServedInTime if its server does not look it up in time: it may end at any moment, and
    then a lookup waits for the next one.
    """
    if not sub_path:
        return _open_below(mountpoint, sub_path)  # nothing is looked up behind the mount
    opened: Future[int] = Future()

    def look_up() -> None:
        try:
            descriptor = _open_below(mountpoint, sub_path)
        except (OSError, MountpointError) as error:
            if opened.set_running_or_notify_cancel():
                opened.set_exception(error)
            return
        if opened.set_running_or_notify_cancel():
            opened.set_result(descriptor)
        else:  # nobody waits any more
            os.close(descriptor)

    threading.Thread(target=look_up, name="sub path", daemon=True).start()
    try:
        return opened.result(timeout_s)
    except TimeoutError:
        if opened.cancel():
            raise NotServedInTime(
                f"its server has not looked up {sub_path} within {timeout_s:.0f} s"
            ) from None
        return opened.result()


def _open_below(mountpoint: Path, sub_path: str) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(mountpoint, flags)
    for step in PurePosixPath(sub_path).parts:
        try:
            below = os.open(step, flags, dir_fd=descriptor)
        except OSError as error:
            raise MountpointError(
                f"{sub_path}: {error.strerror}", hint="it must be a folder of the data set"
            ) from error
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _mount(source: Path, target: Path, flags: int) -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None
    )
    if result != 0:
        number = ctypes.get_errno()
        raise MountpointError(f"cannot bind {source} at {target}: {os.strerror(number)}")
