"""The one place where our errors become the kernel's errno. First match wins."""

import errno
import struct

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    PenstockError,
    StaleInode,
)

# Raised for a request that is shorter than its struct, or has a number that no row of the catalog
# can have. The kernel sends no such request.
MALFORMED = (struct.error, OverflowError)

ERRNO: tuple[tuple[type[Exception], int], ...] = (
    (StaleInode, errno.ESTALE),
    (ObjectNotFound, errno.ENOENT),
    (ObjectChanged, errno.ESTALE),
    (AccessDenied, errno.EACCES),
    (PenstockError, errno.EIO),
    (IsADirectoryError, errno.EISDIR),
    (MemoryError, errno.ENOMEM),
    *((kind, errno.EINVAL) for kind in MALFORMED),
)


def errno_of(error: Exception) -> int:
    return next((number for kind, number in ERRNO if isinstance(error, kind)), errno.EIO)
