"""What jobs, this machine and its GPUs use at this moment. Looks, and keeps nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock import procfs
from penstock.errors import UsageError
from penstock.jobs.job_folder import attempt_path, job_folder, read_record
from penstock.jobs.processes import pids_of
from penstock.paths import state_dir
from penstock.units import MIB

# The GPUs of this machine. PENSTOCK_GPUS=n says that there are n, whatever there is.

_DRIVER = Path("/proc/driver/nvidia/gpus")
# It loads the driver where nothing else has, which may take seconds.
_ANSWERS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int | None


def machine_gpus() -> list[Gpu]:
    return list(_found(os.environ.get("PENSTOCK_GPUS")))


@cache  # none is added while a process lives
def _found(given: str | None) -> tuple[Gpu, ...]:
    if given is not None:
        if not given.isdigit():
            raise UsageError(f"PENSTOCK_GPUS is {given!r}", hint="a number of GPUs, such as 1")
        return tuple(Gpu(index, "GPU", None) for index in range(int(given)))
    lines = ask_smi("index,name,memory.total")
    if lines:
        return tuple(Gpu(int(index), name, _bytes(memory)) for index, name, memory in lines)
    try:
        count = len(os.listdir(_DRIVER))
    except OSError:
        count = 0
    return tuple(Gpu(index, "NVIDIA GPU", None) for index in range(count))


def ask_smi(fields: str) -> list[list[str]]:
    """The values of each GPU, as nvidia-smi gives them; [] where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    wanted = fields.count(",") + 1
    rows = ([value.strip() for value in line.split(",")] for line in told.stdout.splitlines())
    return [row for row in rows if len(row) == wanted]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * MIB if mebibytes.isdigit() else None


_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all its processes together; cpu and bytes since each began."""

    cpu_s: float
    memory_bytes: int
    processes: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class NodeUsage:
    cores: int
    busy_s: float  # of all cores, since the machine was started: two looks make a share
    load: float  # processes that run or wait, over the last minute
    memory_bytes: int
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class GpuUsage:
    index: int
    name: str
    busy_share: float | None
    memory_bytes: int | None
    memory_used_bytes: int | None


def job_usage(uid: str, state_folder: Path | None = None) -> Usage:
    """Nothing at all of one that does not run."""
    record = read_record(attempt_path(job_folder(state_folder or state_dir(), uid)))
    if record is None or record["outcome"] is not None:
        return Usage(0.0, 0, 0, 0, 0)
    return _together(pids_of(uid, record["init"]))


def tree_usage(pid: int) -> Usage:
    """Of a process and all that is below it: an instance, but for what has forked away."""
    parents = {one: procfs.parent_of(one) for one in procfs.pids()}
    below = {pid}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    return _together(below)


def _together(pids: Iterable[int]) -> Usage:
    cpu_s, memory, count, read, written = 0.0, 0, 0, 0, 0
    for pid in pids:
        if (used := _process(pid)) is None:
            continue
        count += 1
        cpu_s += used.cpu_s
        memory += used.memory_bytes
        read += used.read_bytes
        written += used.write_bytes
    return Usage(cpu_s, memory, count, read, written)


def node_usage() -> NodeUsage:
    sizes = procfs.memory()
    # user nice system idle iowait irq softirq steal
    times = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    busy_s = (sum(times) - times[3] - times[4]) / procfs.TICKS_PER_SECOND
    total = sizes["MemTotal"]
    used = total - sizes.get("MemAvailable", sizes["MemFree"])
    return NodeUsage(os.cpu_count() or 1, busy_s, os.getloadavg()[0], total, used)


def gpu_usage() -> list[GpuUsage]:
    fields = "index,name,utilization.gpu,memory.total,memory.used"
    return [
        GpuUsage(int(index), name, _share(busy), _mebibytes(total), _mebibytes(used))
        for index, name, busy, total, used in ask_smi(fields)
    ]


def _process(pid: int) -> Usage | None:
    folder = Path(f"/proc/{pid}")
    try:
        fields = procfs.stat(pid)
        memory = int((folder / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return None  # it has ended
    if fields[procfs.STATE] == "Z":
        return None
    # Its own, and those of children that it has buried.
    cpu_s = sum(map(int, fields[procfs.CPU_TIMES])) / procfs.TICKS_PER_SECOND
    done = {"rchar": 0, "wchar": 0}
    try:
        for line in (folder / "io").read_text().splitlines():
            name, _, value = line.partition(":")
            done[name] = int(value)
    except OSError:
        pass  # somebody else's
    return Usage(cpu_s, memory, 1, done["rchar"], done["wchar"])


def _share(percent: str) -> float | None:
    return int(percent) / 100 if percent.isdigit() else None


def _mebibytes(text: str) -> int | None:
    return int(text) * MIB if text.isdigit() else None
