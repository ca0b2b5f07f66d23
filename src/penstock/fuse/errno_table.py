"""The one place where our errors become the kernel's. First match wins."""

import errno
import struct

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    StaleInode,
)

# What a request raises that is shorter than its kind, or has a number that no row of the catalog
# can have. The kernel sends none.
NO_REQUEST = (struct.error, OverflowError)

ERRNO: tuple[tuple[type[Exception], int], ...] = (
    (StaleInode, errno.ESTALE),
    (ObjectNotFound, errno.ENOENT),
    (ObjectChanged, errno.ESTALE),
    (AccessDenied, errno.EACCES),
    (PenstockError, errno.EIO),
    (IsADirectoryError, errno.EISDIR),
    (MemoryError, errno.ENOMEM),
    *((kind, errno.EINVAL) for kind in NO_REQUEST),
)


def errno_of(error: Exception) -> int:
    return next((number for kind, number in ERRNO if isinstance(error, kind)), errno.EIO)
