"""Processes of a job, found by looking at all of them."""

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
_DIES_WITHIN_S = 5.0


def children_of(pid: int) -> list[int]:
    return [one for one in procfs.pids() if procfs.parent_of(one) == pid]


def inner_pid(pid: int) -> int | None:
    """The number that it has in the innermost namespace that it is in."""
    numbers = procfs.status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if numbers else None


def pids_of(uid: str, init: int | None) -> list[int]:
    """All of a job: those in the namespace of its init, and those that bear its mark."""
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
    """Ends what bears the mark, until two looks find none: it may fork behind our back, and in the
    middle of an exec a process has no environment to be known by. One that waits in the kernel dies
    when that answers, which nobody waits for."""
    until_s, empty_looks = time.monotonic() + _DIES_WITHIN_S, 0
    while empty_looks < 2 and time.monotonic() < until_s:
        found = [pid for pid in marked(uid) if pid not in but and not procfs.is_gone(pid)]
        empty_looks = 0 if found else empty_looks + 1
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


# What an attempt leaves whose keeper was killed, and could clear nothing itself.


def clear(uid: str, record: dict[str, Any]) -> None:
    """Processes, containers, cgroups and files, by what the keeper wrote down at its beginning."""
    end_marked(uid)
    if record["engine"]:
        remove_containers(record["engine"], uid)
    remove_groups(record["groups"])
    shutil.rmtree(record["scratch"], ignore_errors=True)
