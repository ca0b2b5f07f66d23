"""/proc: processes by their ids, and the memory of this machine.

A process may end at any moment. What is read of one that has ended, or that another user's
permissions hide, is empty; nothing here raises for it.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Positions in what `stat` returns: proc_pid_stat(5) counts from one, and two more for id and name.
STATE, PARENT = 0, 1
CPU_TIMES = slice(11, 15)  # utime, stime, and those of children that were waited for
START_TIME = 19  # ticks since boot: nothing else has the same id and this


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. The name before it may hold spaces
    and parentheses."""
    return _parse_stat(_read(f"/proc/{pid}/stat"))


def is_gone(pid: int) -> bool:
    """Has it ended? Also true of one that its parent has not waited for yet (a zombie)."""
    fields = stat(pid)
    return not fields or fields[STATE] == "Z"


def parent_of(pid: int) -> int | None:
    fields = stat(pid)
    return int(fields[PARENT]) if fields else None


def descendants(roots: Iterable[int]) -> set[int]:
    """Return these processes, their children, the children of those, and so on."""
    parents = {pid: parent_of(pid) for pid in pids()}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def thread_states(pid: int) -> list[str]:
    """Return the state letter of a process's first thread, then those of all its threads."""
    folder = Path(f"/proc/{pid}")
    try:
        texts = [path.read_bytes() for path in (folder / "stat", *folder.glob("task/*/stat"))]
    except OSError:  # one ended meanwhile
        return []
    return [_parse_stat(text)[STATE] for text in texts]


def scheduled_s(pid: int) -> float:
    """Return for how long its first thread ran, or waited for a processor; 0 on a kernel that does
    not count that."""
    ran_ns, waited_ns, *_ = map(int, _read(f"/proc/{pid}/schedstat").split() or (0, 0))
    return (ran_ns + waited_ns) / 1e9


def memory_pages(pid: int) -> tuple[int, int]:
    """Return how many pages it holds, and how many of these are shared."""
    _, resident, shared, *_ = map(int, _read(f"/proc/{pid}/statm").split() or (0, 0, 0))
    return resident, shared


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = _read(f"/proc/{pid}/status").decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def command_line(pid: int) -> list[bytes]:
    """Return its arguments. Kernel threads and zombies have none."""
    return _words(_read(f"/proc/{pid}/cmdline"))


def environment(pid: int) -> list[bytes]:
    """Return `NAME=value` as it was at exec, inherited by forks: a process cannot lose it by
    becoming a daemon. In the middle of an exec there is none."""
    return _words(_read(f"/proc/{pid}/environ"))


def namespace(pid: int, kind: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def memory() -> dict[str, int]:
    """Return /proc/meminfo in bytes: MemTotal, MemAvailable and the others."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) * 1024 for name, _, value in pairs}


def available_memory() -> int:
    return memory()["MemAvailable"]


def oom_score() -> int:
    with open("/proc/self/oom_score_adj") as file:
        return int(file.read())


def set_oom_score(score: int) -> None:
    """Raise OSError to make it better than it was without CAP_SYS_RESOURCE."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def _parse_stat(text: bytes) -> list[str]:
    return text.rpartition(b")")[2].decode().split()


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def _words(text: bytes) -> list[bytes]:
    return text.rstrip(b"\0").split(b"\0") if text else []
