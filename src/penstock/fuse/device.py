"""The calls on /dev/fuse that need privileges.

Root makes them itself (`OwnCalls`). A server without privileges asks the process that keeps its
mount (`penstock.daemon.keeper_mount`). Each call raises OSError.
"""

import fcntl
import os
from typing import Protocol

from penstock.fuse.protocol import BACKING_MAP, IOC_BACKING_CLOSE, IOC_BACKING_OPEN, IOC_CLONE


class DeviceCalls(Protocol):
    def clone(self, fuse: int) -> int:
        """Return a clone of the descriptor for another process: requests that are read from a clone
        are answered on it."""
        ...

    def open_backing(self, fuse: int, file: int) -> int:
        """Register an open file as a backing file; return its number."""
        ...

    def close_backing(self, fuse: int, number: int) -> None:
        """Unregister a backing file."""
        ...


class OwnCalls:
    def clone(self, fuse: int) -> int:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, IOC_CLONE, fuse.to_bytes(4, "little"))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def open_backing(self, fuse: int, file: int) -> int:
        return fcntl.ioctl(fuse, IOC_BACKING_OPEN, bytearray(BACKING_MAP.pack(file, 0, 0)))

    def close_backing(self, fuse: int, number: int) -> None:
        fcntl.ioctl(fuse, IOC_BACKING_CLOSE, number.to_bytes(4, "little"))
