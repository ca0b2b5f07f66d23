"""The step of one experiment: its folder, its process, and whether a result came of it."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.bench.plans.model import Experiment, ExperimentConfig, config_path
from penstock.bench.workflow.child import Child, Progress
from penstock.bench.workflow.engine import Ticket
from penstock.bench.workflow.parts import Parts
from penstock.bench.workflow.record import write_json
from penstock.bench.workflow.site import Site
from penstock.bench.workspace import BenchError, Workspace, tail

SCHEMA = 1  # of result.json


class ExperimentFailed(BenchError):
    """It ended without a result. Its exit code says of what kind: see errors.py."""

    def __init__(self, what: str, *, hint: str | None, exit_code: int) -> None:
        super().__init__(what, hint=hint)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Measuring:
    run: str
    results: Path
    workspace: Workspace
    site: Site
    parts: Parts

    def measure(self, experiment: Experiment, ticket: Ticket, progress: Progress) -> None:
        output, logs = self._folders(experiment)
        access = self.site.access(experiment)
        # Short: the paths of sockets below it may have 107 bytes.
        place = self.workspace.folder / f"e{experiment.order}"
        config = ExperimentConfig(
            run=self.run,
            experiment=experiment,
            store=access,
            dataset=self.site.dataset_access(),
            output=str(output),
            logs=str(logs),
            medium=str(place),
        )
        path = config_path(self.results, experiment.id)
        write_json(path, config.to_json())
        writes = experiment.arm.system == "juicefs"
        scratch = self.site.lend_scratch(access) if writes else None
        child = Child(self.workspace, place, logs, "experiment")
        try:
            status = child.run([*self.parts.experiment_command, str(path)], ticket, progress)
        finally:
            if writes:
                self.site.clear_scratch(access, scratch)
        self._judge(output, status, child.errors)

    def _folders(self, experiment: Experiment) -> tuple[Path, Path]:
        folder = self.results / "experiments" / experiment.id
        if folder.exists():  # an attempt that failed, or that was killed
            shutil.rmtree(folder)
        for name in ("config", "output", "logs"):
            (folder / name).mkdir(parents=True)
        return folder / "output", folder / "logs"

    def _judge(self, output: Path, status: int, errors: Path) -> None:
        result = read_result(output)
        failure = None if result is None else cast("dict[str, Any] | None", result.get("failure"))
        if status == 0 and result is not None and failure is None:
            return
        if failure is not None:
            what, hint = str(failure.get("what")), failure.get("hint")
        else:
            ended = f"signal {-status}" if status < 0 else f"status {status}"
            said = tail(errors)
            what = f"ended with {ended} and without a result{': ' + said if said else ''}"
            hint = f"its log: {errors}"
        raise ExperimentFailed(what, hint=hint, exit_code=status if status in (2, 3) else 2)


def read_result(output: Path) -> dict[str, Any] | None:
    """None: there is none, or it is not whole."""
    try:
        result = cast("dict[str, Any]", json.loads((output / "result.json").read_text()))
    except (FileNotFoundError, ValueError):
        return None
    return result if result.get("schema") == SCHEMA else None


def has_result(results: Path, experiment_id: str) -> bool:
    """Whether it was measured: a run that is resumed does not measure it again."""
    result = read_result(results / "experiments" / experiment_id / "output")
    return result is not None and result.get("failure") is None
