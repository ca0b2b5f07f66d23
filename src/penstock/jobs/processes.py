"""Find and end the processes of a job.

Where the attempt has a PID namespace, its processes are those in that namespace. Elsewhere they are
found by the mark in their environment, which forks and daemons inherit.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterator
from typing import Any

from penstock import procfs
from penstock.jobs.cgroups import remove_groups
from penstock.jobs.containers import remove_containers

MARK = "PENSTOCK_JOB"
_END_TIMEOUT_S = 5.0


def children_of(pid: int) -> list[int]:
    return [one for one in procfs.pids() if procfs.parent_of(one) == pid]


def inner_pid(pid: int) -> int | None:
    """Return the process's id in its innermost PID namespace."""
    numbers = procfs.status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if numbers else None


def pids_of(uid: str, init: int | None) -> list[int]:
    """Return all processes of a job."""
    namespace = procfs.namespace(init, "pid") if init is not None else None
    if namespace is not None and namespace != procfs.namespace(os.getpid(), "pid"):
        return [pid for pid in procfs.pids() if procfs.namespace(pid, "pid") == namespace]
    return list(marked(uid))


def marked(uid: str) -> Iterator[int]:
    wanted = f"{MARK}={uid}".encode()
    for pid in procfs.pids():
        if wanted in procfs.environment(pid):
            yield pid


def end_marked(uid: str, but: Collection[int] = ()) -> None:
    """Kill the processes that bear the job's mark, until two looks in a row find none.

    One look is not enough: a process may fork meanwhile, and in the middle of an exec it has no
    environment. A process that is stuck in the kernel dies when its call returns; it is not
    awaited beyond the timeout.
    """
    until_s, empty_looks = time.monotonic() + _END_TIMEOUT_S, 0
    while empty_looks < 2 and time.monotonic() < until_s:
        found = [pid for pid in marked(uid) if pid not in but and not procfs.is_gone(pid)]
        empty_looks = 0 if found else empty_looks + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def clear(uid: str, record: dict[str, Any]) -> None:
    """Remove what is left of an attempt whose keeper was killed.

    These are processes, containers, cgroups and files; the keeper recorded them when it started.
    """
    end_marked(uid)
    if record["engine"]:
        remove_containers(record["engine"], uid)
    remove_groups(record["groups"])
    shutil.rmtree(record["scratch"], ignore_errors=True)
