"""How far each step of a workflow is, kept in workflow.json: what a reader and --resume see.

Written anew after each change, beside and then in place of the old one, so that a kill at any
moment leaves a whole file. What cannot be written (a full disk) stays in memory, and is written
with the next change that can be: the steps that clean up must go on. Safe from any thread.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

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
        self, name: str, state: StepState, *, error: str | None = None, hint: str | None = None,
        exit_code: int | None = None,
    ) -> None:  # fmt: skip
        self._change(
            name, state=state, ended=now(), error=error, hint=hint, exit_code=exit_code
        )  # fmt: skip

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
    """Of a run that was killed: what says running does not run any more."""
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
