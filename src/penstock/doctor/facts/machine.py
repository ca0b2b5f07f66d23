"""Facts about this machine: its kernel, what FUSE needs, its memory."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.fuse.mounting import kernel_release
from penstock.mounttable import mount_table

# cgroup v1 writes "no limit" as the largest number of pages.
_NO_LIMIT = 1 << 60
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int
    stalled_share: float | None  # of the last 10 s in which some program waited for memory
    refaults: int | None  # file pages since boot that were read again soon after they were dropped


@dataclass(frozen=True, slots=True)
class Machine:
    release: str
    kernel: tuple[int, int]
    is_root: bool
    fuse_error: str | None  # why /dev/fuse cannot be opened
    fusermount: str | None
    user_allow_other: bool
    memory: Memory


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Memory of a server's cgroup."""

    limit_bytes: int | None
    used_bytes: int
    oom_kills: int


def look_at_machine() -> Machine:
    return Machine(
        release=os.uname().release,
        kernel=kernel_release(),
        is_root=os.geteuid() == 0,
        fuse_error=_why_no_fuse(),
        fusermount=shutil.which("fusermount3") or shutil.which("fusermount"),
        user_allow_other=allows_other(_text("/etc/fuse.conf")),
        memory=look_at_memory(),
    )


def look_at_memory() -> Memory:
    total, available = meminfo(_text("/proc/meminfo"))
    return Memory(
        total,
        available,
        stalled_share(_text("/proc/pressure/memory")),
        refaults(_text("/proc/vmstat")),
    )


def look_at_cgroup(pid: int) -> Cgroup | None:
    """Return the memory cgroup of a process; None where it cannot be read."""
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            found = _version_2(_group("cgroup2", "", path))
        elif "memory" in controllers.split(","):
            found = _version_1(_group("cgroup", "memory", path))
        else:
            continue
        if found is not None:
            return found
    return None


# -- parsers of the kernel's files ---------------------------------------------------------------


def meminfo(text: str) -> tuple[int, int]:
    """Return the total and the available bytes."""
    values = {line.split(":")[0]: line.split() for line in text.splitlines() if ":" in line}
    return tuple(  # pyright: ignore[reportReturnType]
        int(values[name][1]) * 1024 if name in values else 0
        for name in ("MemTotal", "MemAvailable")
    )


def stalled_share(text: str) -> float | None:
    """Parse /proc/pressure/memory; None on a kernel that does not measure it."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "some":
            return float(words[1].removeprefix("avg10=")) / 100
    return None


def refaults(text: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "workingset_refault_file":
            return int(value)
    return None


def allows_other(text: str) -> bool:
    return any(line.strip() == "user_allow_other" for line in text.splitlines())


def _why_no_fuse() -> str | None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _group(kind: str, controller: str, path: str) -> Path | None:
    """Return the folder of a cgroup. In a cgroup namespace the root may be a cgroup itself."""
    for entry in mount_table():
        if entry.kind == kind and (not controller or controller in entry.mountpoint.split("/")[-1]):
            below = Path(entry.mountpoint + path)
            return below if below.is_dir() else Path(entry.mountpoint)
    return None


def _version_2(folder: Path | None) -> Cgroup | None:
    if folder is None or not (folder / "memory.current").exists():
        return None
    limit = _text(folder / "memory.max").strip()
    return Cgroup(
        int(limit) if limit.isdigit() else None,
        int(_text(folder / "memory.current") or 0),
        _field(_text(folder / "memory.events"), "oom_kill"),
    )


def _version_1(folder: Path | None) -> Cgroup | None:
    if folder is None or not (folder / "memory.usage_in_bytes").exists():
        return None
    limit = int(_text(folder / "memory.limit_in_bytes") or _NO_LIMIT)
    return Cgroup(
        limit if limit < _NO_LIMIT else None,
        int(_text(folder / "memory.usage_in_bytes") or 0),
        _field(_text(folder / "memory.oom_control"), "oom_kill"),
    )


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return 0


def _text(path: str | Path) -> str:
    """Return "" for a file that cannot be read: every kernel lacks some."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def refaulted_bytes(before: Memory, after: Memory) -> int | None:
    if before.refaults is None or after.refaults is None:
        return None
    return (after.refaults - before.refaults) * _PAGE
