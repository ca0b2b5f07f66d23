"""Makes the kernel forget what it keeps of one mount, and of nothing else.

`/proc/sys/vm/drop_caches` would do it to the whole machine: another test, in another process, that
counts the messages to its own mount would then count too many; and every program that starts next
is read from the disk again. No state; safe from any thread.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_SYS_OPENAT2, _AT_FDCWD, _RESOLVE_CACHED = 437, -100, 0x20  # the same on x86-64 and arm64

_libc = ctypes.CDLL(None, use_errno=True)


def forget(mountpoint: Path) -> None:
    """Names, inodes and their pages; of a file that is open, the name alone.

    A remount that changes nothing drops all unused names (`shrink_dcache_sb`), and FUSE keeps no
    inode without a name. The server gets the FORGETs, as under memory pressure.
    """
    flags = _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if _libc.mount(None, os.fsencode(mountpoint), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(mountpoint))


def drop_pages(paths: Iterable[Path]) -> None:
    """Their pages, also those of files that others hold open; names and inodes stay.

    What the kernel does not know is left unknown: a name is only taken from its cache. So in
    page-cache mode this sends no message, and waits for no server.
    """
    for path in paths:
        descriptor = _open_known(path)
        if descriptor is not None:
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _open_known(path: Path) -> int | None:
    """None: it is not known, or not there."""
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY | os.O_CLOEXEC, 0, _RESOLVE_CACHED)
    number = _libc.syscall(
        _SYS_OPENAT2, _AT_FDCWD, os.fsencode(path), how, ctypes.c_size_t(ctypes.sizeof(how))
    )
    return number if number >= 0 else None
