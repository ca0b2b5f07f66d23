"""Work for operations, over real mounts and stores; in this process or in one that can be killed.

`python -m tests.resources.operations.working`: told on stdin, says each progress as a JSON line.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from penstock.daemon.settings import Part
from penstock.errors import PenstockError
from penstock.resources.operations import RUN
from penstock.specs.load import model_of
from penstock.specs.resource import Resource
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import parse_source

Json = dict[str, Any]


@dataclass
class Bench:
    """What there is: data sets by name, as (mount point, [(path, address, endpoint)])."""

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
        self.told: list[tuple[str, str]] = []

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

    def tell(self, reason: str, message: str) -> None:
        self.told.append((reason, message))


def run(bench: Bench) -> tuple[Json, BenchWork]:
    work = BenchWork(bench)
    return RUN[bench.manifest["kind"]](work), work


def start(bench: Bench) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.resources.operations.working"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(bench)))
    process.stdin.close()
    return process


def kill_when(process: "subprocess.Popen[str]", far: Any) -> Json:
    """Kills it once a progress is far enough; returns that."""
    output: IO[str] | None = process.stdout
    assert output is not None
    with output:
        for line in output:
            told = json.loads(line)
            assert "done" not in told, told
            if far(told["progress"]):
                process.kill()
                process.wait(10)
                return told["progress"]
    raise AssertionError(f"it ended by itself with {process.wait(10)}")


class _Told(BenchWork):
    def report(self, progress: Json) -> None:
        print(json.dumps({"progress": progress}), flush=True)


def main() -> None:
    bench = Bench(**json.load(sys.stdin))
    try:
        print(json.dumps({"done": RUN[bench.manifest["kind"]](_Told(bench))}), flush=True)
    except PenstockError as error:
        print(json.dumps({"done": None, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
