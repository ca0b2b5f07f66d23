"""The one place where our errors become the kernel's. First match wins."""

import errno

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    StaleInode,
)

ERRNO: tuple[tuple[type[Exception], int], ...] = (
    (StaleInode, errno.ESTALE),
    (ObjectNotFound, errno.ENOENT),
    (ObjectChanged, errno.ESTALE),
    (AccessDenied, errno.EACCES),
    (PenstockError, errno.EIO),
    (IsADirectoryError, errno.EISDIR),
    (MemoryError, errno.ENOMEM),
)


def errno_of(error: Exception) -> int:
    return next((number for kind, number in ERRNO if isinstance(error, kind)), errno.EIO)
