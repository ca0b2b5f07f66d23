"""The progress of a run on stderr: bars on a terminal, else a line for each change, or
nothing. Called from the threads of steps.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.bench.plans.experiments import Experiment
from penstock.bench.workflow.engine import Record, StepRecord

if TYPE_CHECKING:
    from rich.progress import TaskID

OPEN = ("waiting", "running")


class View:
    """Shows nothing but messages about failures; the others show more."""

    def begin(self, record: Record, experiments: Sequence[Experiment]) -> None:
        return

    def changed(self) -> None:
        """Handle a change of some step's state."""

    def progress(self, step: str, phase: str, done: float | None) -> None:
        return

    def notify(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        return


class Lines(View):
    """A line when a step begins and when it is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._record: Record | None = None
        self._seen: dict[str, StepRecord] = {}
        self._began: dict[str, float] = {}
        self._number: dict[str, str] = {}

    def begin(self, record: Record, experiments: Sequence[Experiment]) -> None:
        self._record = record
        self._seen = {step.name: step for step in record.steps()}
        for number, one in enumerate(experiments, 1):
            self._number[one.id] = f"[{number}/{len(experiments)}] "

    def changed(self) -> None:
        if self._record is None:
            return
        with self._lock:
            for step in self._record.steps():
                if step != self._seen.get(step.name):
                    self._seen[step.name] = step
                    self._print_step(step)

    def _print_step(self, step: StepRecord) -> None:
        name = f"{self._number.get(step.name, '')}{step.name}"
        if step.state == "running":
            self._began[step.name] = time.monotonic()
            again = f" (attempt {step.attempts})" if step.attempts > 1 else ""
            self.notify(f"{name}: running{again}")
            return
        took = time.monotonic() - self._began.get(step.name, time.monotonic())
        self.notify(f"{name}: {step.state}{_after(took)}{': ' + step.error if step.error else ''}")
        if step.state == "failed" and step.hint:
            self.notify(f"  hint: {step.hint}")


class Bars(View):
    """A bar for the whole run, and one for each step that runs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn()
        self._progress = Progress(
            *columns, TextColumn("{task.fields[phase]}"), console=Console(stderr=True)
        )
        self._record: Record | None = None
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._whole = self._progress.add_task("experiments", phase="")
        self._experiments: set[str] = set()

    def begin(self, record: Record, experiments: Sequence[Experiment]) -> None:
        self._record, self._experiments = record, {one.id for one in experiments}
        self._progress.update(self._whole, total=len(experiments))
        self._progress.start()

    def changed(self) -> None:
        if self._record is None:
            return
        over = 0
        with self._lock:
            for step in self._record.steps():
                over += step.name in self._experiments and step.state not in OPEN
                task = self._tasks.get(step.name)
                if step.state == "running" and task is None:
                    task = self._progress.add_task(f"  {step.name}", total=None, phase="")
                    self._tasks[step.name] = task
                elif step.state != "running" and task is not None:
                    self._progress.remove_task(self._tasks.pop(step.name))
                    if step.state == "failed":
                        self.notify(f"{step.name}: failed: {step.error}")
            self._progress.update(self._whole, completed=over)

    def progress(self, step: str, phase: str, done: float | None) -> None:
        with self._lock:
            if (task := self._tasks.get(step)) is not None:
                total = None if done is None else 1.0
                self._progress.update(task, phase=phase, completed=done or 0.0, total=total)

    def notify(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False)

    def end(self) -> None:
        self._progress.stop()


def view_for(*, quiet: bool) -> View:
    if quiet:
        return View()
    return Bars() if sys.stderr.isatty() else Lines()


def _after(seconds: float) -> str:
    return f" after {seconds:.1f}s" if seconds >= 0.05 else ""
