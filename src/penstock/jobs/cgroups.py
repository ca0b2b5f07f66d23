"""CPU and memory limits for each instance of a job, by cgroups.

A group is made next to the group that this process is in, and named after the job. A process that
may not make one (an ordinary user whose session has no delegated group) runs without limits, and
the job's events say so.

Version 1 is supported beside version 2: some containers and sandboxes still offer only v1
controllers (in November 2026 the machine that ran the tests had cpu and memory in v1, and a v2
hierarchy beside it with neither). Without v1, jobs there would run without limits.
"""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000  # the kernel refuses less
_REMOVE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one instance: a folder per controller in v1, one folder for all in v2."""

    folders: tuple[Path, ...]
    memory: Path | None

    def entrances(self) -> list[int]:
        """Return descriptors; a process that writes 0 to one joins the group."""
        return [
            os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders
        ]

    def oom_kills(self) -> int:
        """Return how many processes were killed because the memory limit was reached."""
        if self.memory is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (self.memory / name).read_text().splitlines():
                    word, _, count = line.partition(" ")
                    if word == "oom_kill":
                        return int(count)
        return 0


def make_group(
    uid: str, instance: str, *, cores: float | None, memory_bytes: int | None
) -> tuple[Group, list[str]]:
    """Return the group, and messages about limits that could not be set.

    Without limits the group is empty.
    """
    folders: list[Path] = []
    troubles: list[str] = []
    memory: Path | None = None
    if memory_bytes is not None:
        try:
            memory = _make_folder("memory", uid, instance)
            _limit_memory(memory, memory_bytes)
            folders.append(memory)
        except OSError as error:
            memory = None
            troubles.append(f"memory is not limited: no cgroup can be made ({error.strerror})")
    if cores is not None:
        try:
            cpu = _make_folder("cpu", uid, instance)
            _limit_cpu(cpu, cores)
            if cpu not in folders:
                folders.append(cpu)
        except OSError as error:
            troubles.append(f"cpu is not limited: no cgroup can be made ({error.strerror})")
    return Group(tuple(folders), memory), troubles


def group_places(uid: str) -> list[str]:
    """Return the folders that hold a job's groups, if this process makes any.

    They are recorded: the process that removes them may be in another session, where its own
    group, and so these places, differ.
    """
    places: list[str] = []
    for controller in ("memory", "cpu"):
        with contextlib.suppress(OSError):
            places.append(str(_home(controller) / _name(uid)))
    return list(dict.fromkeys(places))


def remove_groups(places: Iterable[str]) -> None:
    """Remove all groups of a job."""
    remove_folders(groups_in(places))


def remove_folders(folders: Iterable[Path]) -> None:
    """Remove groups whose processes have been killed, once the kernel has reaped these.

    A group that stays busy is left: it holds processes of others too.
    """
    until_s = time.monotonic() + _REMOVE_TIMEOUT_S
    for folder in folders:
        while folder.exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            if time.monotonic() > until_s:
                break
            time.sleep(0.01)


def groups_in(places: Iterable[str]) -> list[Path]:
    """Return the groups' folders, children before parents."""
    found: list[Path] = []
    for place in places:
        with contextlib.suppress(OSError):
            top = Path(place)
            found += [*(entry for entry in top.iterdir() if entry.is_dir()), top]
    return found


def _make_folder(controller: str, uid: str, instance: str) -> Path:
    home = _home(controller)
    top = home / _name(uid)
    folder = top / instance
    is_v2 = (home / "cgroup.controllers").exists()
    if is_v2:
        _enable(home, controller)
    top.mkdir(exist_ok=True)
    if is_v2:
        _enable(top, controller)
    folder.mkdir(exist_ok=True)
    return folder


def _enable(folder: Path, controller: str) -> None:
    enabled = folder / "cgroup.subtree_control"
    if controller not in enabled.read_text().split():
        enabled.write_text(f"+{controller}")


def _home(controller: str) -> Path:
    """Return the folder in which this process may make groups.

    In v2 a group that holds processes may not have child groups with limits, so it is the parent.
    """
    v2_path: str | None = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(",") and (_ROOT / names).is_dir():
            return _ROOT / names / path.lstrip("/")
        if number == "0":
            v2_path = path
    if v2_path is None:
        raise FileNotFoundError(2, f"there is no controller for {controller}")
    for top in (_ROOT, _ROOT / "unified"):
        offered = top / "cgroup.controllers"
        if offered.exists() and controller in offered.read_text().split():
            here = top / v2_path.lstrip("/")
            return here if here == top else here.parent
    raise FileNotFoundError(2, f"there is no controller for {controller}")


def _limit_memory(folder: Path, size_bytes: int) -> None:
    if (folder / "memory.max").exists():  # v2
        (folder / "memory.max").write_text(str(size_bytes))
        with contextlib.suppress(OSError):  # the kernel has no swap
            (folder / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (folder / "memory.oom.group").write_text("1")
        return
    (folder / "memory.limit_in_bytes").write_text(str(size_bytes))
    with contextlib.suppress(OSError):  # this kernel does not account for swap
        (folder / "memory.memsw.limit_in_bytes").write_text(str(size_bytes))


def _limit_cpu(folder: Path, cores: float) -> None:
    quota = max(_LEAST_QUOTA_US, round(cores * _PERIOD_US))
    if (folder / "cpu.max").exists():  # v2
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _name(uid: str) -> str:
    return f"penstock-job-{uid}"
