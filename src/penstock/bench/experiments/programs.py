"""Programs that run epochs while this process measures: a gated one, and a real training job.

A gated program waits at a gate (a FIFO) between its epochs. It prints a line of JSON that begins
with `{"epoch"` when an epoch has ended.

A training job is submitted like any other. Its manifest is the plan's own. It gets the arm's folder
in the variable DATA_DIR and the number of epochs in EPOCHS; data sets that it names are left out,
because what is measured is the arm and not a mount of the job's own. It prints a line of JSON for
each epoch, as examples/09-resnet50 does:

    {"epoch": 0, "images_per_s": 506.7, "data_wait_share": 0.18, "seconds": 12.3, "top1": …}

Jobs are driven by the command line, in a state folder of the experiment's own. Main thread only.
"""

import contextlib
import copy
import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.workspace import BenchError, Process, Workspace, tail, wait_until

# A peer that needs three round trips for a file reads 10,000 of them in 2 minutes.
LONGEST_EPOCH_S = 1200.0


@contextlib.contextmanager
def gated_program(
    workspace: Workspace,
    part: str,
    command: Callable[[Path], Sequence[str]],
    *,
    epochs: int,
    extra: Mapping[str, str],
) -> "Iterator[GatedProgram]":
    """Run a program of which no process outlives the context.

    `command` takes the gate's path; `extra` goes into the program's environment.
    """
    gate = workspace.folder / f"gate-{part}"
    os.mkfifo(gate)
    process = workspace.spawn(part, command(gate), workspace.environment(part, extra))
    try:
        yield GatedProgram(process, gate, epochs)
        process.finish()  # it ends by itself after its last line
    finally:
        workspace.end_processes(part)
        process.terminate()
        gate.unlink()


@dataclass(frozen=True)
class GatedProgram:
    _process: Process
    _gate: Path
    _epochs: int

    def wait_for(self, epoch: int) -> dict[str, Any]:
        """Wait for the end of an epoch, and return the line that the program printed."""
        wait_until(
            lambda: len(self._lines()) > epoch,
            timeout_s=LONGEST_EPOCH_S,
            what=f"epoch {epoch + 1}",
        )
        return json.loads(self._lines()[epoch])

    def go_on(self) -> None:
        wait_until(self._open_gate, timeout_s=60, what=f"{self._process.name} at its gate")

    def _lines(self) -> list[str]:
        """Return the lines of figures so far; the log has the program's stderr too."""
        ended = self._process.popen.poll() is not None  # then its log is complete
        text = self._process.log.read_text()
        lines = [line for line in text.splitlines() if line.startswith('{"epoch"')]
        if ended and len(lines) < self._epochs:
            self._process.require_alive()
        return lines

    def _open_gate(self) -> bool:
        # Refused until the program reads: a plain open would wait for ever for one that died.
        self._process.require_alive()
        try:
            os.close(os.open(self._gate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        return True


PART = "job"
_POLL_S = 0.1
_STATUS_POLL_S = 2.0  # each question is a process
_ENDED = ("SUCCEEDED", "FAILED")
_FIGURES = ("epoch", "images_per_s", "data_wait_share", "seconds")


@dataclass(frozen=True, slots=True)
class JobEpoch:
    """What the job reported of an epoch."""

    reported: dict[str, Any]

    @property
    def number(self) -> int:
        return self.reported["epoch"]

    @property
    def images(self) -> int:
        return round(
            self.reported.get("images") or self.reported["images_per_s"] * self.reported["seconds"]
        )

    def figures(self) -> dict[str, Any]:
        reported = self.reported
        wait_share: float = reported["data_wait_share"]
        return {
            "epoch": self.number,
            "readers": 1,
            "seconds": reported["seconds"],
            "samples": self.images,
            "images_per_s": reported["images_per_s"],
            "busy_s": reported["seconds"] * (1 - wait_share),
            "busy_share": 1 - wait_share,
            "first_batch_s": None,
            "top1": reported.get("top1"),
            "top5": reported.get("top5"),
        }


class EpochLines:
    """Finds the epochs that logs report, in the order in which they appear. Reading continues where
    it stopped in each log: reading all of it ten times a second would disturb the measurement. An
    epoch counts once, whichever process reports it: a retried job starts at the first one again."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._seen: set[int] = set()

    def new(self, logs: Iterable[Path], *, ended: bool = False) -> list[dict[str, Any]]:
        """`ended`: nothing more will be printed, so that a line without its end is whole."""
        found: list[dict[str, Any]] = []
        for log in logs:
            for reported in filter(None, map(_epoch_in, self._grown(log, ended))):
                if reported["epoch"] not in self._seen:
                    self._seen.add(reported["epoch"])
                    found.append(reported)
        return found

    def _grown(self, log: Path, ended: bool) -> list[str]:
        at = self._read.get(log, 0)
        with log.open("rb") as file:
            if file.seek(0, os.SEEK_END) < at:  # a part of a long log has been dropped
                at = 0
            file.seek(at)
            data = file.read()
        whole = len(data) if ended else data.rfind(b"\n") + 1
        self._read[log] = at + whole
        return data[:whole].decode(errors="replace").splitlines()


def _epoch_in(line: str) -> dict[str, Any] | None:
    # mpirun may put a rank's name before it.
    _, mark, rest = line.partition('{"epoch"')
    if not mark or not rest.endswith("}"):
        return None
    try:
        reported = json.loads(mark + rest)
    except ValueError as error:
        raise BenchError(
            f"the job printed an epoch that is no JSON: {line}",
            hint="only one of its processes is to print it",
        ) from error
    if missing := [name for name in _FIGURES if not isinstance(reported.get(name), int | float)]:
        raise BenchError(f"the job printed an epoch without {', '.join(missing)}: {line}")
    return reported


class TrainingRun:
    """One job, from its submission to its end. `epochs` yields each one when it is reported."""

    def __init__(
        self, workspace: Workspace, manifest: Mapping[str, Any], state: Path | None
    ) -> None:
        """`state`: the state folder of a Penstock arm, so that a plan finds the mount."""
        self._workspace = workspace
        self._state = state or workspace.folder / "j"
        self._manifest = copy.deepcopy(dict(manifest))
        self._manifest["metadata"] = {"name": "bench"}

    def submit(self, root: Path, epochs: int, *, planned: bool) -> None:
        spec: dict[str, Any] = self._manifest["spec"]
        spec.pop("data", None)
        spec.pop("warm", None)  # the arm decides what is warm
        given: list[dict[str, Any]] = spec.get("env") or []
        ours = {"DATA_DIR": str(root), "EPOCHS": str(epochs)}
        if planned:
            spec["plan"] = True
            ours["PENSTOCK_STATE_DIR"] = str(self._state)
        spec["env"] = [
            *(one for one in given if one["name"] not in ours),
            *({"name": name, "value": value} for name, value in ours.items()),
        ]
        path = self._workspace.folder / "job.json"
        path.write_text(json.dumps(self._manifest))
        self._command("apply", "-f", str(path))

    def epochs(self, count: int) -> Iterator[JobEpoch]:
        """Yield the job's epochs. Raise BenchError if it fails, or ends too early."""
        lines, seen, asked_s = EpochLines(), 0, time.monotonic()
        deadline_s = asked_s + LONGEST_EPOCH_S
        while seen < count:
            phase = ""
            if time.monotonic() - asked_s > _STATUS_POLL_S:
                phase, asked_s = self._phase(), time.monotonic()
            ended = phase in _ENDED  # asked before the logs are read: nothing comes after
            for line in lines.new(self._logs(), ended=ended)[: count - seen]:
                seen += 1
                deadline_s = time.monotonic() + LONGEST_EPOCH_S
                yield JobEpoch(line)
            if ended and seen < count:
                raise BenchError(f"the job {phase.lower()} after {seen} epochs: {self._why(phase)}")
            if time.monotonic() > deadline_s:
                raise BenchError(f"the job: no epoch ended in {LONGEST_EPOCH_S:g} s")
            time.sleep(_POLL_S)

    def wait(self) -> None:
        while (phase := self._phase()) not in _ENDED:
            time.sleep(_POLL_S)
        if phase != "SUCCEEDED":
            raise BenchError(f"the job failed: {self._why(phase)}")

    def end(self, logs: Path) -> None:
        """Delete the job, whatever its state, and keep its logs."""
        for log in self._logs():
            shutil.copy(log, logs / f"job-{log.name}")
        self._command("delete", "job", "bench")

    def _logs(self) -> list[Path]:
        return sorted(self._state.glob("jobs/*/logs/*.log"))

    def _phase(self) -> str:
        return self._status().get("phase", "")

    def _status(self) -> dict[str, Any]:
        return json.loads(self._command("get", "job", "bench", "-o", "json")).get("status", {})

    def _why(self, phase: str) -> str:
        if phase == "SUCCEEDED":
            keys = ", ".join(f'"{name}": …' for name in _FIGURES)
            return f"it has to print a line {{{keys}}} after each"
        status = self._status()
        reported = status.get("message") or status.get("reason") or "without a reason"
        return " | ".join([reported, *(tail(log) for log in self._logs()[:1])])

    def _command(self, *words: str) -> str:
        environment = self._workspace.environment(PART, {"PENSTOCK_STATE_DIR": str(self._state)})
        command = [sys.executable, "-m", "penstock", *words]
        return self._workspace.run(PART, command, environment).decode()
