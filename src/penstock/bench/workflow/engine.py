"""Steps that need each other, their record in workflow.json, and programs that they wait for.

The record is rewritten after each change, beside the old file and then in its place, so that a kill
at any moment leaves a whole file. A record that cannot be written (a full disk) stays in memory,
and is written with the next change: the steps that clean up must go on. Safe from any thread.

A program of a step writes to files and not to pipes: what it leaves behind may hold them open
forever. Every process that it starts carries the mark of `place`, a folder of its own below the
run's.
"""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from penstock.bench.workspace import BenchError, Workspace, end_below, tail
from penstock.errors import PenstockError

FILE = "workflow.json"

StepState = Literal["waiting", "running", "done", "failed", "skipped"]
RunState = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    name: str
    needs: tuple[str, ...]
    state: StepState = "waiting"
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    error: str | None = None
    hint: str | None = None
    exit_code: int | None = None  # of what failed
    last: bool = False  # of the exit handler


class Record:
    def __init__(
        self, run: str, path: Path, steps: Iterable[StepRecord], changed: Callable[[], None]
    ) -> None:
        self._run, self._path, self._changed = run, path, changed
        self._lock = threading.Lock()
        self._steps = {step.name: step for step in steps}
        self.state: RunState = "running"
        self.unwritten: OSError | None = None  # why the file is behind
        self._write()

    def steps(self) -> list[StepRecord]:
        with self._lock:
            return list(self._steps.values())

    def of(self, name: str) -> StepRecord:
        with self._lock:
            return self._steps[name]

    def begin(self, name: str) -> None:
        attempts = self.of(name).attempts + 1
        self._change(
            name, state="running", attempts=attempts, started=now(), ended=None, error=None
        )

    def end(
        self,
        name: str,
        state: StepState,
        *,
        error: str | None = None,
        hint: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        self._change(name, state=state, ended=now(), error=error, hint=hint, exit_code=exit_code)

    def finish(self, state: RunState) -> None:
        with self._lock:
            self.state = state
            self._write()
        self._changed()

    def _change(self, name: str, **changes: Any) -> None:
        with self._lock:
            self._steps[name] = replace(self._steps[name], **changes)
            self._write()
        self._changed()

    def _write(self) -> None:
        steps = [asdict(step) for step in self._steps.values()]
        try:
            write_json(self._path, {"run": self._run, "state": self.state, "steps": steps})
        except OSError as error:
            self.unwritten = error
        else:
            self.unwritten = None


def mark_interrupted(run: Path) -> None:
    """Record that a run was killed: set its running steps to failed, and the run to interrupted."""
    path = run / FILE
    if not path.exists():
        return
    whole = json.loads(path.read_text())
    if whole["state"] != "running":
        return
    whole["state"] = "interrupted"
    for step in whole["steps"]:
        if step["state"] == "running":
            step.update(state="failed", error="the runner was killed")
    write_json(path, whole)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    os.replace(beside, path)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_POLL_S = 0.1  # how soon an interrupt is seen


class StepSkipped(Exception):
    """Raised by a step that finds nothing to do, with the reason."""


class StepStopped(PenstockError):
    """Raised by a step that was asked to stop."""


@dataclass(frozen=True)
class StepContext:
    """What a step is given: how long it may take, and whether it should stop."""

    attempt: int
    deadline_s: float | None  # by the monotonic clock
    stopping: threading.Event

    def check(self) -> None:
        """Raise StepStopped if the step should stop; for steps that work for long by themselves."""
        if self.stopping.is_set():
            raise StepStopped("interrupted")

    @property
    def late(self) -> bool:
        return self.deadline_s is not None and time.monotonic() > self.deadline_s


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[StepContext], None]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    retries: int = 0
    timeout_s: float | None = None


@dataclass
class Engine:
    record: Record
    parallel: int
    logs: Path  # of tracebacks, where a step's failure is a bug
    interrupt: threading.Event
    _begun: list[Future[None]] = field(default_factory=list[Future[None]])

    def run(self, steps: Sequence[Step], last: Sequence[Step]) -> None:
        with ThreadPoolExecutor(self.parallel, "step") as pool, contextlib.ExitStack() as exits:
            # Its callbacks run all, in the opposite order, whatever is raised here or by them: a
            # view that cannot be drawn must not keep a store running and a bucket full.
            for step in reversed(last):
                exits.callback(self._run_last, pool, step)
            try:
                self._run_steps(pool, steps)
            except BaseException:
                self.interrupt.set()
                wait(self._begun)
                raise

    def _run_last(self, pool: ThreadPoolExecutor, step: Step) -> None:
        try:
            while self._settle(step, self._begin(pool, step, threading.Event())):
                pass
        finally:
            wait(self._begun)

    def _run_steps(self, pool: ThreadPoolExecutor, steps: Sequence[Step]) -> None:
        running: dict[Future[None], Step] = {}
        while True:
            if self.interrupt.is_set():
                for step in steps:
                    if self.record.of(step.name).state == "waiting":
                        self.record.end(step.name, "skipped", error="interrupted")
            for step in steps:
                if len(running) < self.parallel and self._is_due(step):
                    running[self._begin(pool, step, self.interrupt)] = step
            if not running:
                return
            for future in wait(running, _POLL_S, FIRST_COMPLETED).done:
                step = running.pop(future)
                if self._settle(step, future):
                    running[self._begin(pool, step, self.interrupt)] = step

    def _is_due(self, step: Step) -> bool:
        if self.record.of(step.name).state != "waiting":
            return False
        for name in step.needs:
            state = self.record.of(name).state
            if state in ("failed", "skipped"):
                self.record.end(step.name, "skipped", error=f"needs {name}, which was {state}")
                return False
            if state != "done":
                return False
        return all(self.record.of(name).state not in ("waiting", "running") for name in step.after)

    def _begin(
        self, pool: ThreadPoolExecutor, step: Step, stopping: threading.Event
    ) -> Future[None]:
        deadline_s = None if step.timeout_s is None else time.monotonic() + step.timeout_s
        context = StepContext(self.record.of(step.name).attempts + 1, deadline_s, stopping)
        try:
            self.record.begin(step.name)
        finally:  # a step of the exit handler runs even if its record cannot be written
            future = pool.submit(step.run, context)
            self._begun.append(future)
        return future

    def _settle(self, step: Step, future: Future[None]) -> bool:
        """Record the outcome of a step; return whether it should be retried."""
        error = future.exception()
        if error is None:
            self.record.end(step.name, "done")
        elif isinstance(error, StepSkipped):
            self.record.end(step.name, "skipped", error=str(error))
        elif isinstance(error, PenstockError):
            tries_left = self.record.of(step.name).attempts <= step.retries
            if tries_left and not isinstance(error, StepStopped):
                return True
            self.record.end(
                step.name, "failed", error=str(error), hint=error.hint, exit_code=error.exit_code
            )
        else:
            log = self.logs / f"{step.name}.traceback"
            detail, hint = f"{type(error).__name__}: {error}", f"see {log}"
            try:
                log.write_text("".join(traceback.format_exception(error)))
            except OSError as unwritten:  # a full disk, which may be what the step failed of
                hint = str(unwritten)
            self.record.end(step.name, "failed", error=detail, hint=hint, exit_code=1)
        return False


def records_of(steps: Sequence[Step], last: Sequence[Step]) -> list[StepRecord]:
    # Both relations are shown as needs: a reader wants to know what waits for what.
    before = [StepRecord(step.name, (*step.needs, *step.after)) for step in steps]
    return before + [StepRecord(step.name, (), last=True) for step in last]


Progress = Callable[[str, float | None], None]  # a phase, and how much of it is done
_CHILD_POLL_S = 0.1
_GRACE_S = 20.0  # to unmount and end its own: a mount that is busy takes some seconds


class StepTimeout(BenchError):
    """The program took longer than its timeout."""

    exit_code = 2


@dataclass(frozen=True)
class Child:
    """One program. `logs` gets its standard output and its standard error."""

    workspace: Workspace
    place: Path
    logs: Path
    name: str

    @property
    def errors(self) -> Path:
        return self.logs / f"{self.name}.log"

    def run(self, command: Sequence[str], context: StepContext, progress: Progress) -> int:
        """Run it and return its exit status. Raise StepStopped or StepTimeout if it was ended."""
        self.place.mkdir(exist_ok=True)
        output = self.logs / f"{self.name}.progress"
        part = f"{self.place.name}/runner"  # its mark is below its place
        with output.open("wb") as stdout, self.errors.open("ab") as stderr:
            process = self.workspace.start(part, command, stdout=stdout, stderr=stderr)
        try:
            with output.open() as lines:
                self._follow(process, lines.readline, context, progress)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            end_below(self.place)
            shutil.rmtree(self.place)
        return process.returncode

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        readline: Callable[[], str],
        context: StepContext,
        progress: Progress,
    ) -> None:
        line = ""
        while True:
            ended = process.poll() is not None
            while piece := readline():
                line += piece
                if line.endswith("\n"):
                    _report_progress(line, progress)
                    line = ""
            if ended:
                return
            if context.stopping.is_set():
                raise StepStopped("interrupted")
            if context.late:
                detail = tail(self.errors)
                raise StepTimeout(
                    f"took too long and was ended{': ' + detail if detail else ''}",
                    hint=f"raise timeout in the plan; its log: {self.errors}",
                )
            time.sleep(_CHILD_POLL_S)


def _report_progress(line: str, progress: Progress) -> None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return  # a program below it that prints; its log has it
    if isinstance(value, dict) and "phase" in value:
        detail = cast("dict[str, Any]", value)
        done: Any = detail.get("done")
        progress(str(detail["phase"]), float(done) if isinstance(done, int | float) else None)
