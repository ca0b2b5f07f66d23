"""What keeps credentials inside: this process's memory is nobody else's to look at."""

import ctypes
import os

from penstock.errors import PenstockError

_PR_SET_DUMPABLE = 4


def keep_memory_private() -> None:
    """No core files, and no look at our environment or memory for others, of our own user too
    (root remains). Every request that is signed holds keys."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise PenstockError(f"prctl: {os.strerror(ctypes.get_errno())}")
