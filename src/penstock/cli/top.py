"""penstock top: what training jobs and this machine use right now."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.api.tables import aligned
from penstock.cli.declared import namespace_option
from penstock.cli.job_view import KIND, find_job, phase_of, requested_gpus, trainer_of, type_option
from penstock.cli.output import notify
from penstock.jobs.job_status import ENDED
from penstock.units import format_size

# What `penstock top` prints, from the objects that its -o json prints. Pure.

Row = Mapping[str, Any]

_JOB = (
    "NAME",
    "STATUS",
    "TRAINER",
    "CPU(cores)",
    "MEMORY",
    "PROCESSES",
    "GPU(Requested)",
    "GPU(Allocated)",
    "GPU(DutyCycle)",
    "GPU_MEMORY(Used/Total)",
    "NODE",
)
_INSTANCE = (
    "NAME",
    "STATUS",
    "CPU(cores)",
    "MEMORY",
    "PROCESSES",
    "GPU(Requested)",
    "GPU(DeviceIndex)",
    "GPU(DutyCycle)",
    "GPU_MEMORY(Used/Total)",
)


def job_lines(jobs: Sequence[Row], *, namespaces: bool) -> list[str]:
    rows: list[list[str]] = [[*(["NAMESPACE"] if namespaces else ()), *_JOB]]
    for job in jobs:
        rows.append(
            [
                *([job["namespace"]] if namespaces else ()),
                job["name"],
                job["status"],
                job["trainer"],
                *_use_columns(job),
                str(job["gpusRequested"]),
                str(job["gpusAllocated"]),
                *_gpu_use(job["gpus"]),
                job["node"] or "N/A",
            ]
        )
    allocated = sum(job["gpusAllocated"] for job in jobs)
    requested = sum(job["gpusRequested"] for job in jobs)
    return [*aligned(rows), "", f"Allocated/Requested GPUs of these jobs: {allocated}/{requested}"]


def instance_lines(job: Row) -> list[str]:
    """Of one job: below what is said of the whole of it."""
    rows: list[list[str]] = [[*_INSTANCE]]
    for one in job["instances"]:
        rows.append(
            [
                one["name"],
                one["status"],
                *_use_columns(one),
                str(one["gpusRequested"]),
                ",".join(str(gpu["index"]) for gpu in one["gpus"]) or "N/A",
                *_gpu_use(one["gpus"]),
            ]
        )
    return [*job_lines([job], namespaces=False)[:2], "", "Instances:", *_indented(rows)]


def node_lines(node: Row) -> list[str]:
    head = [
        ["NAME", "CPU(Used/Total)", "MEMORY(Used/Total)", "GPU(Total)", "GPU(Allocated)"],
        [
            node["name"],
            f"{_number(node['coresUsed'])}/{node['cores']}",
            _share(node["memoryUsedBytes"], node["memoryBytes"]),
            str(len(node["gpus"])),
            str(sum(1 for gpu in node["gpus"] if gpu["job"])),
        ],
    ]
    lines = aligned(head)
    if node["gpus"]:
        rows = [["INDEX", "NAME", "DUTY CYCLE", "MEMORY(Used/Total)", "JOB"]]
        for gpu in node["gpus"]:
            rows.append([str(gpu["index"]), gpu["name"], *_gpu_use([gpu]), gpu["job"] or "<none>"])
        lines += ["", "GPUs:", *_indented(rows)]
    if node["jobs"]:
        rows = [["NAMESPACE", "NAME", "STATUS", "CPU(cores)", "MEMORY", "GPU(Allocated)"]]
        for job in node["jobs"]:
            rows.append(
                [
                    job["namespace"],
                    job["name"],
                    job["status"],
                    *_use_columns(job)[:2],
                    str(job["gpusAllocated"]),
                ]
            )
        lines += ["", "Jobs:", *_indented(rows)]
    if node["datasets"]:
        rows = [["NAMESPACE", "NAME", "PHASE", "CACHED", "CACHE CAPACITY", "CACHED PERCENTAGE"]]
        for one in node["datasets"]:
            rows.append(
                [
                    one["namespace"],
                    one["name"],
                    one["phase"],
                    one["cached"],
                    one["cacheCapacity"],
                    one["cachedPercentage"],
                ]
            )
        lines += ["", "Data sets:", *_indented(rows)]
    return lines


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]


def _use_columns(one: Row) -> list[str]:
    if one["processes"] is None:
        return ["N/A"] * 3
    return [_number(one["cores"]), format_size(one["memoryBytes"]), str(one["processes"])]


def _gpu_use(gpus: Sequence[Row]) -> list[str]:
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


if TYPE_CHECKING:
    from penstock.jobs.usage import GpuUsage, Usage
    from penstock.reconcile.snapshot import Stored
    from penstock.reconcile.state import State

Json = dict[str, Any]

# Two looks make a share of the processors; a shorter time would count single ticks.
_BETWEEN_S = 0.5
_REFRESH_S = 2.0
_FORM = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
_REFRESH = click.option("-r", "--refresh", is_flag=True, help="Again and again; Ctrl-C ends it.")


@click.group()
def top() -> None:
    """Show what jobs and this machine use: processors, memory, GPUs.

    \b
    Example:
      penstock top job
      penstock top node
    """


@top.command()
@click.argument("name", required=False)
@namespace_option
@type_option
@click.option("-A", "--all-namespaces", is_flag=True, help="In every namespace.")
@_FORM
@_REFRESH
def job(
    name: str | None, namespace: str | None, all_namespaces: bool, output: str, refresh: bool
) -> None:
    """Show what training jobs use; of one that is named, each instance.

    Without a name, of all that have not ended. Processors are counted over half a second.

    \b
    Example:
      penstock top job
      penstock top job resnet -r
    """
    # merged
    from penstock.reconcile.state import State

    state = State()
    place = None if all_namespaces else namespace or "default"

    def look() -> list[str]:
        if name is not None:
            (found,) = _measured(state, [find_job(state, name, namespace)])
            return [json.dumps(found, indent=2)] if output == "json" else instance_lines(found)
        jobs = [one for one in state.all([KIND], place) if phase_of(one.status) not in ENDED]
        if output == "json":
            return [json.dumps(_measured(state, jobs), indent=2)]
        if not jobs:
            notify("no job runs or waits" + (f" in the namespace {place}" if place else ""))
            return []
        return job_lines(_measured(state, jobs), namespaces=place is None)

    _print(look, refresh=refresh)


@top.command()
@_FORM
@_REFRESH
def node(output: str, refresh: bool) -> None:
    """Show what this machine has, what is used of it, and by whom.

    \b
    Example:
      penstock top node
    """
    # merged
    from penstock.reconcile.state import State

    state = State()

    def look() -> list[str]:
        found = _this_node(state)
        return [json.dumps(found, indent=2)] if output == "json" else node_lines(found)

    _print(look, refresh=refresh)


def _print(look: Callable[[], list[str]], *, refresh: bool) -> None:
    try:
        while True:
            for line in look():
                click.echo(line)
            if not refresh:
                return
            sys.stdout.flush()
            time.sleep(_REFRESH_S)
            notify(f"--- {datetime.now().isoformat(' ', 'seconds')} ---")
    except KeyboardInterrupt:
        return


def _measured(state: "State", jobs: "list[Stored]") -> list[Json]:
    """Each of them with what it uses; two looks at all of them, and one pause."""
    from penstock.jobs.usage import gpu_usage, job_usage, tree_usage
    from penstock.reconcile import live_status

    running = {one.uid for one in jobs if phase_of(one.status) == "RUNNING"}
    before = {uid: job_usage(uid, state.folder) for uid in running}
    pids = [
        one["pid"]
        for job in jobs
        if job.uid in running
        for one in job.status.get("instances") or ()
        if "pid" in one
    ]
    trees_before = {pid: tree_usage(pid) for pid in pids}
    began_s = time.monotonic()
    if running:
        time.sleep(_BETWEEN_S)
    elapsed_s = time.monotonic() - began_s
    gpus = {gpu.index: gpu for gpu in gpu_usage()} if running else {}

    def instance(shown: Json, one: Json) -> Json:
        pid: int | None = one.get("pid")
        used = (None, None)
        if pid is not None and pid in trees_before:
            used = (trees_before[pid], tree_usage(pid))
        return {
            "name": one["name"],
            "status": one.get("phase") or "PENDING",
            **_use(*used, elapsed_s),
            "gpusRequested": requested_gpus(shown, one),
            "gpus": [_gpu(index, gpus) for index in one.get("gpus") or () if pid is not None],
        }

    found: list[Json] = []
    for stored, shown in zip(jobs, live_status.show(jobs), strict=True):
        status = stored.status
        used = (None, None)
        if stored.uid in running:
            used = (before[stored.uid], job_usage(stored.uid, state.folder))
        instances = [instance(shown, one) for one in status.get("instances") or ()]
        found.append(
            {
                "name": stored.key.name,
                "namespace": stored.key.namespace,
                "status": phase_of(status),
                "trainer": trainer_of(shown),
                **_use(*used, elapsed_s),
                "gpusRequested": status.get("gpusRequested", 0),
                "gpusAllocated": status.get("gpusAllocated", 0),
                "gpus": [gpu for one in instances for gpu in one["gpus"]],
                "node": status.get("node"),
                "instances": instances,
            }
        )
    return found


def _use(before: "Usage | None", after: "Usage | None", elapsed_s: float) -> Json:
    if before is None or after is None:
        return {"cores": None, "memoryBytes": None, "processes": None}
    # One that has ended takes its seconds along.
    cores = max(0.0, after.cpu_s - before.cpu_s) / elapsed_s
    return {
        "cores": round(cores, 2),
        "memoryBytes": after.memory_bytes,
        "processes": after.processes,
    }


def _gpu(index: int, gpus: "dict[int, GpuUsage]") -> Json:
    found = gpus.get(index)
    share = None if found is None else found.busy_share
    return {
        "index": index,
        "dutyCycle": None if share is None else round(100 * share),
        "memoryUsedBytes": None if found is None else found.memory_used_bytes,
        "memoryBytes": None if found is None else found.memory_bytes,
    }


def _this_node(state: "State") -> Json:
    from penstock.jobs.usage import gpu_usage, machine_gpus, node_usage
    from penstock.reconcile import live_status

    jobs = [one for one in state.all([KIND]) if phase_of(one.status) not in ENDED]
    before, began_s = node_usage(), time.monotonic()
    measured = _measured(state, jobs)  # sleeps, if something runs
    if time.monotonic() - began_s < _BETWEEN_S:
        time.sleep(_BETWEEN_S)
    after = node_usage()
    used_cores = (after.busy_s - before.busy_s) / (time.monotonic() - began_s)
    holders = {gpu["index"]: job["name"] for job in measured for gpu in job["gpus"]}
    used = {gpu.index: gpu for gpu in gpu_usage()}
    datasets: list[Json] = []
    for one in live_status.show(state.all(["Dataset"])):
        cache = one["status"].get("cacheStates", {})
        datasets.append(
            {
                "namespace": one["metadata"]["namespace"],
                "name": one["metadata"]["name"],
                "phase": one["status"].get("phase", ""),
                "cached": cache.get("cached", ""),
                "cacheCapacity": cache.get("cacheCapacity", ""),
                "cachedPercentage": cache.get("cachedPercentage", ""),
            }
        )
    return {
        "name": os.uname().nodename,
        "cores": after.cores,
        "coresUsed": round(used_cores, 2),
        "memoryBytes": after.memory_bytes,
        "memoryUsedBytes": after.memory_used_bytes,
        "gpus": [
            {"name": gpu.name, **_gpu(gpu.index, used), "job": holders.get(gpu.index)}
            for gpu in machine_gpus()
        ],
        "jobs": measured,
        "datasets": datasets,
    }
