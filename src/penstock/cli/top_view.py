"""What `penstock top` prints, from the objects that its -o json prints. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.resources.tables import aligned
from penstock.units import format_size

Json = Mapping[str, Any]

_JOB = (
    "NAME", "STATUS", "TRAINER", "CPU(cores)", "MEMORY", "PROCESSES", "GPU(Requested)",
    "GPU(Allocated)", "GPU(DutyCycle)", "GPU_MEMORY(Used/Total)", "NODE",
)  # fmt: skip
_INSTANCE = (
    "NAME", "STATUS", "CPU(cores)", "MEMORY", "PROCESSES", "GPU(Requested)", "GPU(DeviceIndex)",
    "GPU(DutyCycle)", "GPU_MEMORY(Used/Total)",
)  # fmt: skip


def job_lines(jobs: Sequence[Json], *, namespaces: bool) -> list[str]:
    rows: list[list[str]] = [[*(["NAMESPACE"] if namespaces else ()), *_JOB]]
    for job in jobs:
        rows.append([
            *([job["namespace"]] if namespaces else ()), job["name"], job["status"],
            job["trainer"], *_use(job), str(job["gpusRequested"]), str(job["gpusAllocated"]),
            *_gpu_use(job["gpus"]), job["node"] or "N/A",
        ])  # fmt: skip
    allocated = sum(job["gpusAllocated"] for job in jobs)
    requested = sum(job["gpusRequested"] for job in jobs)
    return [*aligned(rows), "", f"Allocated/Requested GPUs of these jobs: {allocated}/{requested}"]


def instance_lines(job: Json) -> list[str]:
    """Of one job: below what is said of the whole of it."""
    rows: list[list[str]] = [[*_INSTANCE]]
    for one in job["instances"]:
        rows.append([
            one["name"], one["status"], *_use(one), str(one["gpusRequested"]),
            ",".join(str(gpu["index"]) for gpu in one["gpus"]) or "N/A", *_gpu_use(one["gpus"]),
        ])  # fmt: skip
    return [*job_lines([job], namespaces=False)[:2], "", "Instances:", *_indented(rows)]


def node_lines(node: Json) -> list[str]:
    head = [
        ["NAME", "CPU(Used/Total)", "MEMORY(Used/Total)", "GPU(Total)", "GPU(Allocated)"],
        [
            node["name"], f"{_number(node['coresUsed'])}/{node['cores']}",
            _share(node["memoryUsedBytes"], node["memoryBytes"]), str(len(node["gpus"])),
            str(sum(1 for gpu in node["gpus"] if gpu["job"])),
        ],
    ]  # fmt: skip
    lines = aligned(head)
    if node["gpus"]:
        rows = [["INDEX", "NAME", "DUTY CYCLE", "MEMORY(Used/Total)", "JOB"]]
        for gpu in node["gpus"]:
            rows.append([str(gpu["index"]), gpu["name"], *_gpu_use([gpu]), gpu["job"] or "<none>"])
        lines += ["", "GPUs:", *_indented(rows)]
    if node["jobs"]:
        rows = [["NAMESPACE", "NAME", "STATUS", "CPU(cores)", "MEMORY", "GPU(Allocated)"]]
        for job in node["jobs"]:
            rows.append([
                job["namespace"], job["name"], job["status"], *_use(job)[:2],
                str(job["gpusAllocated"]),
            ])  # fmt: skip
        lines += ["", "Jobs:", *_indented(rows)]
    if node["datasets"]:
        rows = [["NAMESPACE", "NAME", "PHASE", "CACHED", "CACHE CAPACITY", "CACHED PERCENTAGE"]]
        for one in node["datasets"]:
            rows.append([one["namespace"], one["name"], one["phase"], one["cached"],
                         one["cacheCapacity"], one["cachedPercentage"]])  # fmt: skip
        lines += ["", "Data sets:", *_indented(rows)]
    return lines


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]


def _use(one: Json) -> list[str]:
    if one["processes"] is None:
        return ["N/A"] * 3
    return [_number(one["cores"]), format_size(one["memoryBytes"]), str(one["processes"])]


def _gpu_use(gpus: Sequence[Json]) -> list[str]:
    shares = [gpu["dutyCycle"] for gpu in gpus if gpu["dutyCycle"] is not None]
    used = [gpu["memoryUsedBytes"] for gpu in gpus if gpu["memoryUsedBytes"] is not None]
    total = [gpu["memoryBytes"] for gpu in gpus if gpu["memoryBytes"] is not None]
    return [
        f"{sum(shares) / len(shares):.0f}%" if shares else "N/A",
        f"{format_size(sum(used))}/{format_size(sum(total))}" if used and total else "N/A",
    ]


def _share(used: int, total: int) -> str:
    percent = f" ({100 * used / total:.0f}%)" if total else ""
    return f"{format_size(used)}/{format_size(total)}{percent}"


def _number(cores: float) -> str:
    return f"{cores:.1f}"
