"""What the kernel reports of processes, mounts, memory and FUSE messages.

Read from /proc, and for messages from a perf counter on the tracepoint `fuse:fuse_request_send`,
narrowed to one mount: exact, the same for every system, and free (no record is kept, only a
number). So "no message" does not depend on the daemon that claims it. The counter needs root and a
kernel with that tracepoint (seen on 6.18); elsewhere the count is None.

Knows nothing of the systems that are measured. No state, safe from any thread.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import shutil
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import procfs
from penstock.mounttable import filesystem_type, find_mount, mount_table

# Free blocks of so many pages, as a power of two, and larger ones are handed back to the host.
_REPORTING_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_LARGEST_ORDER = "10"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a group of processes has used so far, and the memory that they hold together."""

    cpu_s: float
    memory_bytes: int  # proportional: a page that several of them share counts once

    def since(self, before: "Usage") -> "Usage":
        """CPU from then to now, and the memory of now."""
        # A process that has ended takes its CPU time with it.
        return Usage(max(0.0, self.cpu_s - before.cpu_s), self.memory_bytes)


def usage(pids: list[int]) -> Usage:
    """CPU and memory of these processes. One that ends meanwhile counts as nothing."""
    return Usage(sum(map(_cpu_s, pids)), sum(map(_memory_bytes, pids)))


def with_descendants(pids: Iterable[int]) -> list[int]:
    """These processes, their children, the children of those, and so on.

    A system may start a process with an environment of its own, which no mark is found in.
    """
    return sorted(procfs.descendants(pids))


def marked_processes(mark: str) -> list[int]:
    """Live processes whose environment has a variable that begins with `mark`, or that is all of
    it where it ends in a NUL."""
    wanted = mark.encode()
    return sorted(
        pid
        for pid in procfs.pids()
        if pid != os.getpid()
        and any((one + b"\0").startswith(wanted) for one in procfs.environment(pid))
    )


def mounts_below(folder: Path) -> list[Path]:
    """Mount points below `folder`, without touching them: a stat on a dead mount fails."""
    prefix = f"{folder}/"
    points = (entry.mountpoint for entry in mount_table())
    return [Path(point) for point in points if point.startswith(prefix)]


def mounted(mountpoint: Path) -> bool:
    return any(entry.mountpoint == str(mountpoint) for entry in mount_table())


def can_drop_pages() -> bool:
    return os.geteuid() == 0 and os.access("/proc/sys/vm/drop_caches", os.W_OK)


def drop_pages() -> None:
    """Empties the page cache of everything clean, and of nothing on tmpfs.

    Only pages (1), not names (3): the state "in the local cache, not in the page cache" is that
    of a node under memory pressure, whose directories stay known.
    """
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def touch_memory(size_bytes: int) -> None:
    """Use so much memory once, or half of what is available, and give it back.

    A virtual machine gets memory that it has not used lately from its host page by page. The first
    reader pays for that: 128 MiB files came at 620 to 690 MB/s the first time and at 890 to
    1,000 the second (2 cores, Firecracker), whichever system read them.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    length = min(size_bytes, available // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    if not length:
        return
    with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for offset in range(0, length, mmap.PAGESIZE):
            memory[offset] = 1


@contextlib.contextmanager
def memory_kept_in_guest(setting: Path = _REPORTING_ORDER) -> Iterator[None]:
    """Let a virtual machine keep memory that is free, as far as the kernel allows. Needs root.

    Free page reporting hands blocks of 2 MiB back to the host within moments, so that touching
    memory has little effect: cold files of 128 MiB came at 570 to 1,070 MB/s with it, and at 910
    to 1,110 when only blocks of 4 MiB are handed back (Linux 6.18, Firecracker).
    """
    if os.geteuid() != 0 or not setting.exists():
        yield
        return
    before = setting.read_text()
    setting.write_text(_LARGEST_ORDER)
    try:
        yield
    finally:
        setting.write_text(before)


def machine() -> dict[str, Any]:
    """Return what figures depend on, as environment.json has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "kernel": platform.release(),
        "cpu": models[-1] if models and models[-1] else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "distribution": _distribution(),
        "python": platform.python_version(),
    }


def free_bytes(folder: Path) -> int:
    """What can still be written below `folder`: on tmpfs no more than there is memory."""
    free = shutil.disk_usage(folder).free
    if filesystem_type(folder) != "tmpfs":
        return free
    return min(free, procfs.available_memory())


def _cpu_s(pid: int) -> float:
    # utime, stime, and the same of children already waited for: a server that was replaced
    # still counts, through its supervisor.
    return sum(map(int, procfs.stat(pid)[procfs.CPU_TIMES])) / procfs.TICKS_PER_SECOND


def _memory_bytes(pid: int) -> int:
    # Proportional, not resident: processes that share pages after a fork are counted once.
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


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
    mount = find_mount(mountpoint)
    event = _event_id(scratch)
    syscall = _SYSCALL_PERF_EVENT_OPEN.get(platform.machine())
    if mount is None or event is None or syscall is None:
        return None
    major, minor = map(int, mount.device.split(":"))
    device = major << 20 | minor  # the kernel's number of the mount
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
