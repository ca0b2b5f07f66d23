"""The progress of a run on stderr: a live table on a terminal, else a line for each change, or
nothing. Called from the threads of steps.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.bench.plans.experiments import Experiment
from penstock.bench.workflow.engine import Record, StepRecord
from penstock.units import format_duration

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

_SIGNS = {"waiting": "·", "running": "▸", "done": "✓", "failed": "✗", "skipped": "–"}
_COLOURS = {"waiting": "dim", "running": "cyan", "done": "green", "failed": "red", "skipped": "dim"}
_BAR = 12  # characters
_MOST_ROWS = 16  # of experiments: what is over scrolls away


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


class Table(View):
    """All steps, and the experiments around the running one, redrawn as they change."""

    def __init__(self) -> None:
        self._record: Record | None = None
        self._experiments: Sequence[Experiment] = ()
        self._phases: dict[str, tuple[str, float | None]] = {}
        self._began: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._start_s = time.monotonic()
        self._live: Live | None = None

    def begin(self, record: Record, experiments: Sequence[Experiment]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._record, self._experiments = record, experiments
        console = Console(stderr=True)
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)
        self._live.start()

    def changed(self) -> None:
        if self._record is None:
            return
        now_s = time.monotonic()
        for step in self._record.steps():
            if step.state == "running":
                self._began.setdefault(step.name, now_s)
            elif step.name in self._began:
                self._took.setdefault(step.name, now_s - self._began[step.name])

    def progress(self, step: str, phase: str, done: float | None) -> None:
        self._phases[step] = (phase, done)

    def notify(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            super().notify(line)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> "Text":
        from rich.text import Text

        assert self._record is not None
        steps = self._record.steps()
        ids = {one.id for one in self._experiments}
        whole = Text(no_wrap=True, overflow="ellipsis")
        for step in steps:
            if step.name not in ids:
                whole.append(f" {_SIGNS[step.state]} {step.name} ", _COLOURS[step.state])
                if step.name == "upload-dataset":
                    whole.append("\n")
        measured = [step for step in steps if step.name in ids]
        over = sum(step.state in ("done", "failed", "skipped") for step in measured)
        lasted = format_duration(time.monotonic() - self._start_s)
        whole.append(f"\n {over} of {len(measured)} experiments, {lasted}", "bold")
        width = max(map(len, ids), default=0)
        for step in _around(measured):
            phase, done = self._phases.get(step.name, ("", None))
            running = step.state == "running"
            name = f"\n {_SIGNS[step.state]} {step.name:{width}}"
            whole.append(name, _COLOURS[step.state])
            whole.append(f" {self._time(step):>6} ")
            if running and done is not None:
                full = round(max(0.0, min(1.0, done)) * _BAR)
                whole.append("━" * full, "cyan")
                whole.append("━" * (_BAR - full) + " ", "dim")
            detail = phase if running else next(iter((step.error or "").splitlines()), "")
            whole.append(detail, "red" if step.state == "failed" else "dim")
        return whole

    def _time(self, step: StepRecord) -> str:
        if step.name in self._took:
            return f"{self._took[step.name]:.1f}s"
        if step.state == "running" and step.name in self._began:
            return f"{time.monotonic() - self._began[step.name]:.0f}s"
        return ""


def view_for(*, quiet: bool) -> View:
    if quiet:
        return View()
    return Table() if sys.stderr.isatty() else Lines()


def _around(steps: list[StepRecord]) -> list[StepRecord]:
    if len(steps) <= _MOST_ROWS:
        return steps
    running = [number for number, step in enumerate(steps) if step.state == "running"]
    waiting = [number for number, step in enumerate(steps) if step.state == "waiting"]
    middle = (running or waiting or [len(steps)])[0]
    first = max(0, min(middle - _MOST_ROWS // 2, len(steps) - _MOST_ROWS))
    return steps[first : first + _MOST_ROWS]


def _after(seconds: float) -> str:
    return f" after {seconds:.1f}s" if seconds >= 0.05 else ""
