"""A run with stand-ins, as a program of its own that can be killed.

    python -m tests.support.bench_runner PLAN.yaml OUT MEDIUM STORE [KILL_AT]

Kills itself, as with kill -9, when the step KILL_AT begins, or when an experiment says that phase.
STORE is the local S3 server: seaweedfs, as in a real run, or rclone, which starts in no time.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.bench.plans.experiments import Experiment
from penstock.bench.plans.reading import read_plan_file
from penstock.bench.s3server import PART, S3Server, reclaim_space, serve_s3
from penstock.bench.workflow import checks, run
from penstock.bench.workflow.engine import Record
from penstock.bench.workflow.site import Parts
from penstock.bench.workflow.view import Lines, View
from penstock.bench.workspace import Workspace, find_program, free_port
from tests.support.processes import listens
from tests.support.waiting import wait_until


@contextlib.contextmanager
def serve_rclone(workspace: Workspace) -> Iterator[S3Server]:
    port, keys = free_port(), ("AKIASTANDIN", "a-secret-for-loopback-only")
    command = [
        find_program("rclone"),
        "serve",
        "s3",
        "--config=/dev/null",
        f"--addr=127.0.0.1:{port}",
        f"--auth-key={','.join(keys)}",
        "--dir-cache-time=0s",
        workspace.folder_for("s3"),
    ]
    process = workspace.spawn(PART, command)
    try:
        wait_until(lambda: listens(port), "rclone listens")
        yield S3Server(f"http://127.0.0.1:{port}", *keys)
    finally:
        process.kill()


PARTS = Parts(
    dataset_command=(sys.executable, "-m", "tests.support.bench_standin", "dataset"),
    experiment_command=(sys.executable, "-m", "tests.support.bench_standin", "experiment"),
    report=lambda results: (results / "report.md").touch(),
    serve=serve_rclone,
    reclaim=lambda workspace: None,
)
REAL_STORE = replace(PARTS, serve=serve_s3, reclaim=reclaim_space)


class Deadly(View):
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


def main(plan: Path, out: Path, medium: Path, store: str, kill_at: str) -> int:
    parts = {"rclone": PARTS, "seaweedfs": REAL_STORE}[store]
    settings = run.Settings(out, "penstock bench run", medium, parts=parts)
    if kill_at == "check":
        checks.check_writable = lambda found, places: os.kill(os.getpid(), signal.SIGKILL)
    view = Deadly(kill_at) if kill_at else Lines()
    outcome = run.run_plan(read_plan_file(plan), plan.read_text(), settings, view)
    print(outcome.results)
    return outcome.exit_code


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(*map(Path, words[:3]), words[3], "".join(words[4:])))
