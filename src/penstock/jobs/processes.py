"""Processes of a job, found by looking at all of them."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from penstock.jobs.cgroups import remove_groups
from penstock.jobs.containers import remove_containers

MARK = "PENSTOCK_JOB"
_DIES_WITHIN_S = 5.0


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children_of(pid: int) -> list[int]:
    return [one for one in all_pids() if parent_of(one) == pid]


def inner_pid(pid: int) -> int | None:
    """The number that it has in the innermost namespace that it is in."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except OSError:
        return None
    return None


def pids_of(uid: str, init: int | None) -> list[int]:
    """All of a job: those in the namespace of its init, and those that bear its mark."""
    namespace = _namespace(init) if init is not None else None
    if namespace is not None and namespace != _namespace(os.getpid()):
        return [pid for pid in all_pids() if _namespace(pid) == namespace]
    return list(marked(uid))


def marked(uid: str) -> Iterator[int]:
    wanted = f"{MARK}={uid}".encode()
    for pid in all_pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if wanted in variables:
            yield pid


def end_marked(uid: str, but: Collection[int] = ()) -> None:
    """Ends what bears the mark, until two looks find none: it may fork behind our back, and in the
    middle of an exec a process has no environment to be known by. One that waits in the kernel dies
    when that answers, which nobody waits for."""
    until_s, empty_looks = time.monotonic() + _DIES_WITHIN_S, 0
    while empty_looks < 2 and time.monotonic() < until_s:
        found = [pid for pid in marked(uid) if pid not in but and not is_gone(pid)]
        empty_looks = 0 if found else empty_looks + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def is_gone(pid: int) -> bool:
    """Or dead, and not buried yet."""
    fields = _stat(pid)
    return not fields or fields[0] == "Z"


def _stat(pid: int) -> list[str]:
    """Of /proc/PID/stat, what comes after the name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


# What an attempt leaves whose keeper was killed, and could clear nothing itself.


def clear(uid: str, record: dict[str, Any]) -> None:
    """Processes, containers, cgroups and files, by what the keeper wrote down at its beginning."""
    end_marked(uid)
    if record["engine"]:
        remove_containers(record["engine"], uid)
    remove_groups(record["groups"])
    shutil.rmtree(record["scratch"], ignore_errors=True)
