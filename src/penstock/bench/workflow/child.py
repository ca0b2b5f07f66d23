"""A program that a step waits for: its progress is read line by line, its time is limited, and
whatever it started is gone afterwards.

Its output goes to files and not to pipes: what it leaves behind may hold them open for ever. Every
process that it starts carries the mark of `place`, a folder of its own below the run's.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from penstock.bench.workflow.engine import Stopped, Ticket
from penstock.bench.workspace import BenchError, Workspace, end_below, tail

Progress = Callable[[str, float | None], None]  # a phase, and how much of it is done
_LOOK_S = 0.1
_GRACE_S = 20.0  # to unmount and end its own: a mount that is busy takes some seconds


class Late(BenchError):
    """It took longer than it may."""

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

    def run(self, command: Sequence[str], ticket: Ticket, progress: Progress) -> int:
        """Its exit status. Raises Stopped or Late, when it was ended for that."""
        self.place.mkdir(exist_ok=True)
        output = self.logs / f"{self.name}.progress"
        part = f"{self.place.name}/runner"  # its mark is below its place
        with output.open("wb") as stdout, self.errors.open("ab") as stderr:
            process = self.workspace.start(part, command, stdout=stdout, stderr=stderr)
        try:
            with output.open() as lines:
                self._follow(process, lines.readline, ticket, progress)
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
        ticket: Ticket,
        progress: Progress,
    ) -> None:
        line = ""
        while True:
            ended = process.poll() is not None
            while piece := readline():
                line += piece
                if line.endswith("\n"):
                    _tell(line, progress)
                    line = ""
            if ended:
                return
            if ticket.stopping.is_set():
                raise Stopped("interrupted")
            if ticket.late:
                said = tail(self.errors)
                raise Late(
                    f"took too long and was ended{': ' + said if said else ''}",
                    hint=f"raise timeout in the plan; its log: {self.errors}",
                )
            time.sleep(_LOOK_S)


def _tell(line: str, progress: Progress) -> None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return  # a program below it that prints; its log has it
    if isinstance(value, dict) and "phase" in value:
        said = cast("dict[str, Any]", value)
        done: Any = said.get("done")
        progress(str(said["phase"]), float(done) if isinstance(done, int | float) else None)
