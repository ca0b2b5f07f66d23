"""A run with stand-ins, as a program of its own that can be killed.

    python -m tests.bench.runner PLAN.yaml OUT MEDIUM [KILL_AT]

Kills itself, as with kill -9, when the step KILL_AT begins, or when an experiment says that phase.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.bench.plans.model import Experiment
from penstock.bench.plans.reading import read_plan_file
from penstock.bench.workflow import checks, run
from penstock.bench.workflow.parts import Parts
from penstock.bench.workflow.record import Record
from penstock.bench.workflow.view import Lines, Quiet

PARTS = Parts(
    dataset_command=(sys.executable, "-m", "tests.bench.standin", "dataset"),
    experiment_command=(sys.executable, "-m", "tests.bench.standin", "experiment"),
    report=lambda results: (results / "report.md").touch(),
)


class Deadly(Quiet):
    """Kills its own process at a step, or at a phase of an experiment."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._record: Record | None = None

    def begin(self, record: Record, experiments: Sequence[Experiment]) -> None:
        self._record = record

    def changed(self) -> None:
        assert self._record is not None
        if any(step.name == self._at and step.state == "running" for step in self._record.steps()):
            os.kill(os.getpid(), signal.SIGKILL)

    def progress(self, step: str, phase: str, done: float | None) -> None:
        if phase == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(plan: Path, out: Path, medium: Path, kill_at: str) -> int:
    settings = run.Settings(out, "penstock bench run", medium, parts=PARTS)
    if kill_at == "check":
        checks.check_writable = lambda found, places: os.kill(os.getpid(), signal.SIGKILL)
    view = Deadly(kill_at) if kill_at else Lines()
    outcome = run.run_plan(read_plan_file(plan), plan.read_text(), settings, view)
    print(outcome.results)
    return outcome.exit_code


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(*map(Path, words[:3]), "".join(words[3:])))
