"""penstock top: what training jobs and this machine use right now."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from penstock.api import jobs as api
from penstock.api.tables import aligned
from penstock.cli.arena import GoFlags, cluster_options
from penstock.cli.options import (
    all_namespaces_option,
    namespace_option,
    type_option,
)
from penstock.cli.output import as_text, notify
from penstock.errors import OptionError
from penstock.units import format_size

_REFRESH_S = 2.0
_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
)
_refresh_option = click.option("-r", "--refresh", is_flag=True, help="Repeat until Ctrl-C.")


@click.group()
def top() -> None:
    """Show what jobs and this machine use: CPU, memory, GPUs.

    \b
    Example:
      penstock top job
      penstock top node
    """


@top.command(cls=GoFlags)
@click.argument("name", required=False)
@click.option("-i", "--instance", metavar="INSTANCE", help="Only this instance of job NAME.")
@namespace_option
@type_option
@all_namespaces_option
@_output_option
@_refresh_option
@cluster_options
def job(
    name: str | None,
    instance: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    refresh: bool,
) -> None:
    """Show what training jobs use, or each instance of one job.

    Without NAME, all jobs that have not ended. CPU use is measured over half a second.

    \b
    Example:
      penstock top job
      penstock top job resnet -r
    """
    place = None if all_namespaces else namespace or "default"
    if instance is not None and name is None:
        raise OptionError("--instance is for one job", hint="penstock top job NAME -i worker-1")

    def look() -> list[str]:
        if name is not None:
            found = api.job(name, namespace=namespace or "default")
            whole = None if instance is None else found.instance_name(instance)
            (usage,) = api.job_usage([found])
            if whole is not None:
                usage["instances"] = [one for one in usage["instances"] if one["name"] == whole]
            return _as_asked(usage, output) or instance_lines(usage)
        active = [one for one in api.jobs(namespace=place) if not one.has_ended]
        if output in ("json", "yaml"):
            return _as_asked(api.job_usage(active), output)
        if not active:
            notify("no job runs or waits" + (f" in the namespace {place}" if place else ""))
            return []
        return job_lines(api.job_usage(active), namespaces=place is None)

    _print(look, refresh=refresh)


@top.command(cls=GoFlags)
@_output_option
@_refresh_option
@click.option("-n", "--namespace", hidden=True, expose_value=False)
@click.option("-d", "--details", is_flag=True, hidden=True, expose_value=False)
@cluster_options
def node(output: str, refresh: bool) -> None:
    """Show what this machine has, and what jobs use of it.

    \b
    Example:
      penstock top node
    """

    def look() -> list[str]:
        usage = api.node_usage()
        return _as_asked(usage, output) or node_lines(usage)

    _print(look, refresh=refresh)


def _as_asked(usage: Any, output: str) -> list[str]:
    return [as_text(usage, output)] if output in ("json", "yaml") else []


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


# -- tables, from the objects that -o json prints ---------------------------------------------

Row = Mapping[str, Any]

_JOB = (
    "NAME", "STATUS", "TRAINER", "CPU(cores)", "MEMORY", "PROCESSES", "GPU(Requested)",
    "GPU(Allocated)", "GPU(DutyCycle)", "GPU_MEMORY(Used/Total)", "NODE",
)  # fmt: skip
_INSTANCE = (
    "NAME", "STATUS", "CPU(cores)", "MEMORY", "PROCESSES", "GPU(Requested)", "GPU(DeviceIndex)",
    "GPU(DutyCycle)", "GPU_MEMORY(Used/Total)",
)  # fmt: skip


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
    """One job, and below it each of its instances."""
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
