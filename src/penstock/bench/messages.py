"""How many messages the kernel sent to a FUSE daemon, counted by the kernel itself.

A perf counter on the tracepoint `fuse:fuse_request_send`, narrowed to one mount: exact, the same
for every system, and free (no record is kept, only a number). So "no message" need not be
believed of the daemon that claims it. Needs root and a kernel with that tracepoint (seen on 6.18);
elsewhere the count is None.

Knows the kernel's interface; nothing of the systems that are measured.
"""

import ctypes
import fcntl
import os
import platform
import struct
from pathlib import Path

from penstock.bench import measure

_SYSCALL_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_TYPE_TRACEPOINT = 2
_ATTRIBUTE_BYTES = 112  # sizeof(struct perf_event_attr) as of its version 5; later ones accept it
_IOC_SET_FILTER = 0x40082406
_TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8

_libc = ctypes.CDLL(None, use_errno=True)


class MessageCounter:
    """Counts from its start to its close, on every processor."""

    def __init__(self, descriptors: list[int]) -> None:
        self._descriptors = descriptors

    def count(self) -> int:
        return sum(struct.unpack("Q", os.read(fd, 8))[0] for fd in self._descriptors)

    def close(self) -> None:
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []


def count_messages(mountpoint: Path, scratch: Path) -> MessageCounter | None:
    """A counter of the messages of the mount at `mountpoint`, or None where there is none.

    `scratch` is an empty folder where the trace file system is mounted for a moment, when the
    machine has it nowhere.
    """
    device = measure.device_of(mountpoint)
    event = _event_id(scratch)
    syscall = _SYSCALL_PERF_EVENT_OPEN.get(platform.machine())
    if device is None or event is None or syscall is None:
        return None
    # struct perf_event_attr: type, size, config; the rest zero: count only, all processes.
    attribute = struct.pack("IIQ", _TYPE_TRACEPOINT, _ATTRIBUTE_BYTES, event).ljust(
        _ATTRIBUTE_BYTES, b"\0"
    )
    descriptors: list[int] = []
    for processor in sorted(_online_processors()):
        fd = _libc.syscall(syscall, attribute, -1, processor, -1, 0)
        if fd < 0:
            MessageCounter(descriptors).close()
            return None
        descriptors.append(fd)
        fcntl.ioctl(fd, _IOC_SET_FILTER, f"connection == {device}\0".encode())
    return MessageCounter(descriptors)


def _event_id(scratch: Path) -> int | None:
    if os.geteuid() != 0:
        return None
    for tracefs in _TRACEFS:
        if (identity := _read_event_id(tracefs)) is not None:
            return identity
    mounted = _libc.mount(
        b"tracefs", os.fsencode(scratch), b"tracefs", _MS_NOSUID_NODEV_NOEXEC, None
    )
    if mounted != 0:
        return None
    try:
        return _read_event_id(scratch)
    finally:
        _libc.umount2(os.fsencode(scratch), 0)


def _read_event_id(tracefs: Path) -> int | None:
    try:
        return int((tracefs / "events/fuse/fuse_request_send/id").read_text())
    except OSError:
        return None


def _online_processors() -> set[int]:
    processors: set[int] = set()
    for span in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = span.partition("-")
        processors.update(range(int(first), int(last or first) + 1))
    return processors
