"""Mount and unmount: mount(2) for root, fusermount3 for other users."""

import array
import ctypes
import errno
import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

from penstock.environment import without_keys
from penstock.errors import MountpointError
from penstock.fuse.holders import holders
from penstock.mounttable import FILESYSTEM_TYPE, MountEntry, find_mount

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 1, 2, 4, 1024
_MNT_DETACH = 2
# Four requests of the largest size, so that several workers serve one reader. The kernel's default
# is 128.
READAHEAD_KB = 4096
# The page-cache probe opens each file for some microseconds, and should not count as a user. But it
# has one open most of the time, so unmount retries, at uneven intervals to avoid going in step with
# it. It counts tries instead of using a deadline: on a busy machine each try takes longer, and is
# worth no less.
_BUSY_TRIES, _BUSY_S = 66, (0.001, 0.008)

_libc = ctypes.CDLL(None, use_errno=True)


def open_and_mount(mountpoint: Path, name: str, *, max_read_bytes: int, allow_other: bool) -> int:
    """Mount, and return the descriptor of /dev/fuse."""
    if os.geteuid() == 0:
        return _mount_as_root(mountpoint, name, max_read_bytes, allow_other)
    return _mount_as_user(mountpoint, name, max_read_bytes, allow_other)


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount. Raises MountpointError if the mount is in use (never when lazy)."""
    for _ in range(_BUSY_TRIES):
        if _try_unmount(mountpoint, lazy=lazy):
            return
        time.sleep(random.uniform(*_BUSY_S))
    raise busy(mountpoint)


def _try_unmount(mountpoint: Path, *, lazy: bool) -> bool:
    """False if the mount is in use."""
    if os.geteuid() == 0:
        if _libc.umount2(os.fsencode(mountpoint), _MNT_DETACH if lazy else 0) == 0:
            return True
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            return False
        raise MountpointError(f"{mountpoint}: {os.strerror(number)}")
    command = [_fusermount(), "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    result = subprocess.run(
        command, env=without_keys(os.environ), capture_output=True, text=True, check=False
    )
    if result.returncode and "busy" not in result.stderr.lower():
        raise MountpointError(f"{mountpoint}: {result.stderr.strip()}")
    return not result.returncode


def busy(mountpoint: Path) -> MountpointError:
    users = "".join(f"\n  {line}" for line in holders(mountpoint).lines())
    return MountpointError(
        f"{mountpoint} is in use{users}", hint="end the programs that use it, or add --lazy"
    )


def check_mountpoint(mountpoint: Path, *, nonempty: bool) -> None:
    """Raise MountpointError for problems that mounting would meet."""
    entry = find_mount(mountpoint)  # first: a mount without a server does not answer
    if entry is not None and (entry.kind == FILESYSTEM_TYPE or not nonempty):
        raise MountpointError(
            f"{mountpoint} is already a mount point ({entry.kind}, {entry.source})",
            hint=f"penstock umount {mountpoint}, or give another directory",
        )
    try:
        entries = os.listdir(mountpoint)
    except FileNotFoundError:
        raise MountpointError(
            f"mount point {mountpoint} does not exist", hint=f"mkdir -p {mountpoint}"
        ) from None
    except NotADirectoryError:
        raise MountpointError(
            f"mount point {mountpoint} is not a directory", hint="give an empty directory"
        ) from None
    except OSError as error:
        hint = None
        if error.errno == errno.ENOTCONN:
            hint = f"a dead mount is there: penstock umount {mountpoint}"
        raise MountpointError(f"mount point {mountpoint}: {error.strerror}", hint=hint) from error
    if entries and not nonempty:
        raise MountpointError(
            f"mount point {mountpoint} is not empty",
            hint="give an empty directory, or -o nonempty to hide what is there",
        )


def is_disconnected(mountpoint: Path) -> bool:
    """Whether the mount has no server any more. Blocks if a server holds it and does not answer."""
    try:
        os.statvfs(mountpoint)  # always sends a message; attributes and names may be cached
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def raise_readahead(entry: MountEntry) -> bool:
    """Make the kernel read `READAHEAD_KB` ahead. Needs root; INIT alone can only lower it."""
    try:
        Path(f"/sys/class/bdi/{entry.device}/read_ahead_kb").write_text(str(READAHEAD_KB))
    except OSError:
        return False
    return True


def kernel_release() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


# -- the two ways -------------------------------------------------------------------------


def _mount_as_root(mountpoint: Path, name: str, max_read_bytes: int, allow_other: bool) -> int:
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountpointError(
            f"/dev/fuse: {error.strerror}",
            hint="load the module (modprobe fuse); in a container add --device /dev/fuse "
            "--cap-add SYS_ADMIN",
        ) from error
    options = [
        f"fd={descriptor}",
        "rootmode=40000",
        f"user_id={os.geteuid()}",
        f"group_id={os.getegid()}",
        f"max_read={max_read_bytes}",
        "default_permissions",
        *(["allow_other"] if allow_other else []),
    ]
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOATIME
    result = _libc.mount(
        name.encode(),
        os.fsencode(mountpoint),
        FILESYSTEM_TYPE.encode(),
        ctypes.c_ulong(flags),
        ",".join(options).encode(),
    )
    if result != 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        hint = "in a container add --cap-add SYS_ADMIN" if number == errno.EPERM else None
        raise MountpointError(f"cannot mount at {mountpoint}: {os.strerror(number)}", hint=hint)
    return descriptor


def _mount_as_user(mountpoint: Path, name: str, max_read_bytes: int, allow_other: bool) -> int:
    options = [
        "ro",
        "nosuid",
        "nodev",
        "noatime",
        f"fsname={name.replace(',', '_')}",
        "subtype=penstock",
        "default_permissions",
        f"max_read={max_read_bytes}",
        *(["allow_other"] if allow_other else []),
    ]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        result = subprocess.run(
            [_fusermount(), "-o", ",".join(options), "--", str(mountpoint)],
            env={**without_keys(os.environ), "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            message = result.stderr.strip().removeprefix("fusermount3: ")
            hint = "put user_allow_other into /etc/fuse.conf" if "allow_other" in message else None
            raise MountpointError(f"cannot mount at {mountpoint}: {message}", hint=hint)
        descriptors = array.array("i")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_LEN(descriptors.itemsize))
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: descriptors.itemsize])
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]


def _fusermount() -> str:
    found = shutil.which("fusermount3") or shutil.which("fusermount")
    if found is None:
        raise MountpointError(
            "an ordinary user needs fusermount3 to mount", hint="apt-get install fuse3, or be root"
        )
    return found
