"""Limits."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Limits of cpu and memory for each instance of a job, by cgroups: version 2, or 1 where that is
# what there is.
#
# A group is made next to where this process is itself, and named after the job. Who may not make
# one (an ordinary user whose session was given none) runs without limits, and is told so.

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000  # the kernel refuses less
_EMPTIES_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Group:
    """Of one instance: a folder for each controller in version 1, one for all in version 2."""

    folders: tuple[Path, ...]
    memory: Path | None

    def entrances(self) -> list[int]:
        """Descriptors; who writes 0 to one is in."""
        return [
            os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders
        ]

    def oom_kills(self) -> int:
        """How many processes were killed because the memory was used up."""
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
    """And what could not be limited, in words. Without limits it is no group at all."""
    folders: list[Path] = []
    troubles: list[str] = []
    memory: Path | None = None
    if memory_bytes is not None:
        try:
            memory = _folder("memory", uid, instance)
            _limit_memory(memory, memory_bytes)
            folders.append(memory)
        except OSError as error:
            memory = None
            troubles.append(f"memory is not limited: {_why(error)}")
    if cores is not None:
        try:
            cpu = _folder("cpu", uid, instance)
            _limit_cpu(cpu, cores)
            if cpu not in folders:
                folders.append(cpu)
        except OSError as error:
            troubles.append(f"cpu is not limited: {_why(error)}")
    return Group(tuple(folders), memory), troubles


def group_places(uid: str) -> list[str]:
    """The folders that hold a job's groups, if any are made from here. Who removes them may be in
    another session, and would look elsewhere."""
    places: list[str] = []
    for controller in ("memory", "cpu"):
        with contextlib.suppress(OSError):
            places.append(str(_home(controller) / _name(uid)))
    return list(dict.fromkeys(places))


def remove_groups(places: Iterable[str]) -> None:
    """All of the job's."""
    remove_folders(groups_in(places))


def remove_folders(folders: Iterable[Path]) -> None:
    """Their processes have been killed; the kernel may still be burying them. One that stays busy
    is left: somebody else's processes are in it too."""
    until_s = time.monotonic() + _EMPTIES_WITHIN_S
    for folder in folders:
        while folder.exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            if time.monotonic() > until_s:
                break
            time.sleep(0.01)


def groups_in(places: Iterable[str]) -> list[Path]:
    """Folders; what lies in another comes before it."""
    found: list[Path] = []
    for place in places:
        with contextlib.suppress(OSError):
            top = Path(place)
            found += [*(entry for entry in top.iterdir() if entry.is_dir()), top]
    return found


def _folder(controller: str, uid: str, instance: str) -> Path:
    home = _home(controller)
    top = home / _name(uid)
    folder = top / instance
    is_second = (home / "cgroup.controllers").exists()
    if is_second:
        _enable(home, controller)
    top.mkdir(exist_ok=True)
    if is_second:
        _enable(top, controller)
    folder.mkdir(exist_ok=True)
    return folder


def _enable(folder: Path, controller: str) -> None:
    wanted = folder / "cgroup.subtree_control"
    if controller not in wanted.read_text().split():
        wanted.write_text(f"+{controller}")


def _home(controller: str) -> Path:
    """The folder in which this process may make groups. In version 2 a group that holds processes
    may not have groups with limits below it, so it is the one above."""
    second: str | None = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(",") and (_ROOT / names).is_dir():
            return _ROOT / names / path.lstrip("/")
        if number == "0":
            second = path
    if second is None:
        raise FileNotFoundError(2, f"there is no controller for {controller}")
    for top in (_ROOT, _ROOT / "unified"):
        offered = top / "cgroup.controllers"
        if offered.exists() and controller in offered.read_text().split():
            here = top / second.lstrip("/")
            return here if here == top else here.parent
    raise FileNotFoundError(2, f"there is no controller for {controller}")


def _limit_memory(folder: Path, size_bytes: int) -> None:
    if (folder / "memory.max").exists():
        (folder / "memory.max").write_text(str(size_bytes))
        with contextlib.suppress(OSError):  # there is no swap
            (folder / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (folder / "memory.oom.group").write_text("1")
        return
    (folder / "memory.limit_in_bytes").write_text(str(size_bytes))
    with contextlib.suppress(OSError):  # swap is not counted here
        (folder / "memory.memsw.limit_in_bytes").write_text(str(size_bytes))


def _limit_cpu(folder: Path, cores: float) -> None:
    quota = max(_LEAST_QUOTA_US, round(cores * _PERIOD_US))
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota))


def _name(uid: str) -> str:
    return f"penstock-job-{uid}"


def _why(error: OSError) -> str:
    return f"no cgroup can be made ({error.strerror})"
