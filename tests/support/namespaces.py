"""A mount namespace of one's own for whoever runs tests."""

import ctypes
import os

from penstock.mounttable import FILESYSTEM_TYPE, mount_table

_NEW_MOUNTS, _PRIVATE_BELOW, _DETACH = 0x00020000, (1 << 18) | 16384, 2


def leave_others_mounts() -> None:
    """Namespaces that tests make (jobs have one) hold copies of the mounts that there are, and a
    mount does not end before its copies: those of several workers would wait for each other."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_NEW_MOUNTS) != 0:
        return
    if libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE_BELOW), None) != 0:
        raise OSError(ctypes.get_errno(), "mounts of tests would be seen by others")
    for entry in mount_table():
        if entry.kind == FILESYSTEM_TYPE:
            libc.umount2(os.fsencode(entry.mountpoint), _DETACH)
