"""Work for operations, over real mounts and stores; in this process or in one that can be killed.

`python -m tests.support.operation_work BENCH` prints each progress report as a JSON line.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.operations import RUN
from penstock.settings import Part
from penstock.specs.models import model_of
from penstock.specs.resource import Resource
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys
from penstock.store.source import parse_source

Json = dict[str, Any]


@dataclass
class Bench:
    """An operation and its surroundings: data sets by name, as (mount point, [(path, address,
    endpoint)])."""

    manifest: Json
    folder: str
    datasets: dict[str, tuple[str, list[tuple[str, str, str | None]]]] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    catalogs: dict[str, str] = field(default_factory=dict)


class BenchWork:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.resource: Resource = model_of(bench.manifest)
        self.folder = Path(bench.folder)
        self.reports: list[Json] = []
        self.events: list[tuple[str, str]] = []

    def mountpoint(self, name: str, namespace: str) -> Path:
        return Path(self._bench.datasets[f"{namespace}/{name}"][0])

    def parts(self, name: str, namespace: str) -> tuple[Part, ...]:
        return tuple(
            Part(path, parse_source(address), StoreOptions(endpoint=endpoint))
            for path, address, endpoint in self._bench.datasets[f"{namespace}/{name}"][1]
        )

    def external(self, uri: str, options: dict[str, str]) -> Part:
        keys = None
        if "access-key" in options:
            keys = Keys(options["access-key"], options["secret-key"])
        store = StoreOptions(endpoint=options.get("endpoint"), keys=keys)
        return Part("", parse_source(uri.replace("local://", "file://")), store)

    def catalog(self, name: str, namespace: str) -> Path:
        return Path(self._bench.catalogs[f"{namespace}/{name}"])

    def secret(self, namespace: str, name: str, key: str) -> str:
        return self._bench.secrets[f"{namespace}/{name}/{key}"]

    def report(self, progress: Json) -> None:
        self.reports.append(progress)

    def add_event(self, reason: str, message: str) -> None:
        self.events.append((reason, message))


class _PrintingWork(BenchWork):
    def report(self, progress: Json) -> None:
        print(json.dumps(progress), flush=True)


def operation(kind: str, spec: Json, name: str = "one") -> Json:
    fluid = "data.fluid.io/v1alpha1"
    return {"apiVersion": fluid, "kind": kind, "metadata": {"name": name}, "spec": spec}


def run(bench: Bench) -> tuple[Json, BenchWork]:
    work = BenchWork(bench)
    return RUN[bench.manifest["kind"]](work), work


def kill_when(bench: Bench, far_enough: Callable[[Json], bool]) -> None:
    """Run the operation in a process, and kill it once a progress report is far enough."""
    argv = [sys.executable, "-m", "tests.support.operation_work", json.dumps(asdict(bench))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if far_enough(json.loads(line)):
                    return
            raise AssertionError(f"it ended by itself with {process.wait()}")
        finally:
            process.kill()


if __name__ == "__main__":
    given = Bench(**json.loads(sys.argv[1]))
    RUN[given.manifest["kind"]](_PrintingWork(given))
