"""One experiment as a run starts it: a process, over a small data set in a real S3 server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.bench.plans.model import (
    ArmPlan,
    DatasetAccess,
    DatasetPlan,
    Experiment,
    ExperimentConfig,
    Shape,
    StoreAccess,
    WorkloadPlan,
)
from penstock.bench.s3server import S3Server
from tests.support.bench_ground import assert_nothing_left

FILES = 20
READ = WorkloadPlan("read", "read", epochs=1, readers=2)
# A fiftieth of an H100: 8 samples in a step of 0.224 s.
TRAIN = WorkloadPlan("resnet50", "emulated", "resnet50", "h100", epochs=1, scale=0.02)


@dataclass
class Outcome:
    status: int
    result: dict[str, Any]
    phases: list[str]
    errors: str
    folder: Path

    def proof(self, name: str) -> dict[str, Any]:
        return next(proof for proof in self.result["proofs"] if proof["name"] == name)

    def other(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / "output" / f"{name}.json").read_text())


@dataclass
class Bench:
    """A bucket with a data set, and what experiments on it need."""

    server: S3Server
    bucket: str
    folder: Path
    medium: Path
    runs: int = 0
    environment: dict[str, str] = field(default_factory=dict[str, str])
    prefix: list[str] = field(default_factory=list[str])  # of the command

    def config(self, arm: ArmPlan, workload: WorkloadPlan, shape: Shape) -> ExperimentConfig:
        self.runs += 1
        place = self.folder / str(self.runs)
        for name in ("output", "logs"):
            (place / name).mkdir(parents=True)
        keys = self.folder / "keys.json"
        keys.touch(mode=0o600)
        keys.write_text(
            json.dumps({"access_key": self.server.access_key, "secret_key": self.server.secret_key})
        )
        return ExperimentConfig(
            run="test",
            experiment=Experiment(f"{arm.name}-{self.runs}", arm, workload, shape, 0, 0, 7),
            store=StoreAccess(
                True, self.server.endpoint, self.server.region, self.bucket, "", str(keys),
                f"{self.bucket}-scratch", f"volume{self.runs}",
            ),
            dataset=DatasetAccess(str(self.folder / "dataset.json"), str(self.root)),
            output=str(place / "output"),
            logs=str(place / "logs"),
            medium=str(self.medium),
        )  # fmt: skip

    @property
    def root(self) -> Path:
        """The files. The folder above could be served as a store with this one bucket."""
        return self.folder / "served" / self.bucket

    def start(self, config: ExperimentConfig) -> subprocess.Popen[str]:
        path = Path(config.output).parent / "config.json"
        path.write_text(json.dumps(config.to_json()))
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-Pm", "penstock.bench.experiments", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.environment,
        )

    def run(
        self, arm: ArmPlan, workload: WorkloadPlan = READ, shape: Shape | None = None,
        endpoint: str | None = None,
    ) -> Outcome:  # fmt: skip
        config = self.config(arm, workload, shape or Shape("plain"))
        if endpoint is not None:
            config = replace(config, store=replace(config.store, endpoint=endpoint))
        with self.start(config) as process:
            output, errors = process.communicate(timeout=100)
        return self.outcome(config, process.returncode, output, errors)

    def outcome(self, config: ExperimentConfig, status: int, output: str, errors: str) -> Outcome:
        assert_nothing_left(self.medium)
        folder = Path(config.output).parent
        result = json.loads((folder / "output" / "result.json").read_text())
        phases = [json.loads(line)["phase"] for line in output.splitlines()]
        return Outcome(status, result, phases, errors, folder)


BenchMaker = Callable[[DatasetPlan], Bench]
