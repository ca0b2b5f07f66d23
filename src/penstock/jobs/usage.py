"""The CPU, memory and GPUs that this machine has, and that jobs use at this moment."""

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

_DRIVER = Path("/proc/driver/nvidia/gpus")
# nvidia-smi loads the driver if nothing else has, which may take seconds.
_SMI_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int | None


def machine_gpus() -> list[Gpu]:
    """Return the GPUs of this machine. PENSTOCK_GPUS=n overrides their number."""
    return list(_find_gpus(os.environ.get("PENSTOCK_GPUS")))


@cache  # GPUs do not come and go while a process lives
def _find_gpus(given: str | None) -> tuple[Gpu, ...]:
    if given is not None:
        if not given.isdigit():
            raise UsageError(f"PENSTOCK_GPUS is {given!r}", hint="a number of GPUs, such as 1")
        return tuple(Gpu(index, "GPU", None) for index in range(int(given)))
    lines = query_nvidia_smi("index,name,memory.total")
    if lines:
        return tuple(Gpu(int(index), name, _bytes(memory)) for index, name, memory in lines)
    try:
        count = len(os.listdir(_DRIVER))
    except OSError:
        count = 0
    return tuple(Gpu(index, "NVIDIA GPU", None) for index in range(count))


def query_nvidia_smi(fields: str) -> list[list[str]]:
    """Return the fields of each GPU as nvidia-smi prints them; [] without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        result = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    wanted = fields.count(",") + 1
    rows = ([value.strip() for value in line.split(",")] for line in result.stdout.splitlines())
    return [row for row in rows if len(row) == wanted]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * MIB if mebibytes.isdigit() else None


_PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """The sum over processes; CPU time and bytes since each one started."""

    cpu_s: float
    memory_bytes: int
    processes: int
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class NodeUsage:
    cores: int
    busy_s: float  # of all cores since boot: the difference of two looks gives a share
    load: float  # runnable processes, average of the last minute
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
    """Return the usage of a job; zeros if it does not run."""
    record = read_record(attempt_path(job_folder(state_folder or state_dir(), uid)))
    if record is None or record["outcome"] is not None:
        return Usage(0.0, 0, 0, 0, 0)
    return _sum(pids_of(uid, record["init"]))


def tree_usage(pid: int) -> Usage:
    """Return the usage of a process and its descendants: an instance, without its daemons."""
    return _sum(procfs.descendants([pid]))


def _sum(pids: Iterable[int]) -> Usage:
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
        GpuUsage(int(index), name, _share(busy), _bytes(total), _bytes(used))
        for index, name, busy, total, used in query_nvidia_smi(fields)
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
    # Its own time, and that of children that it has waited for.
    cpu_s = sum(map(int, fields[procfs.CPU_TIMES])) / procfs.TICKS_PER_SECOND
    done = {"rchar": 0, "wchar": 0}
    try:
        for line in (folder / "io").read_text().splitlines():
            name, _, value = line.partition(":")
            done[name] = int(value)
    except OSError:
        pass  # another user's process
    return Usage(cpu_s, memory, 1, done["rchar"], done["wchar"])


def _share(percent: str) -> float | None:
    return int(percent) / 100 if percent.isdigit() else None
