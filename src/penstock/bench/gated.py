"""A program that runs epochs and waits at a gate (a FIFO) between them, while others measure.

It prints a line of JSON that begins with `{"epoch"` when an epoch has ended. Knows nothing of what
it reads. Main thread only, as its workspace.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.bench.workspace import Workspace, wait_until

# A peer that needs three round trips for a file reads 10,000 of them in 2 minutes.
LONGEST_EPOCH_S = 1200.0


class GatedProgram:
    """A context manager: none of its processes outlives it."""

    def __init__(
        self,
        workspace: Workspace,
        part: str,
        command: Callable[[Path], Sequence[str]],
        *,
        epochs: int,
        extra: Mapping[str, str],
    ) -> None:
        """`command` is told the gate; `extra` goes into the program's environment."""
        self._workspace, self._part, self._epochs = workspace, part, epochs
        self._gate = workspace.folder / f"gate-{part}"
        os.mkfifo(self._gate)
        self._process = workspace.spawn(
            part, command(self._gate), workspace.environment(part, extra)
        )

    def __enter__(self) -> "GatedProgram":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends by itself after its last line; what is left reads for nobody.
        if kind is None:
            self._process.finish()
        self._workspace.end_processes(self._part)
        self._process.terminate()
        self._gate.unlink()

    def wait_for(self, epoch: int) -> dict[str, Any]:
        """What the program says of an epoch, once it has ended."""
        wait_until(
            lambda: len(self._lines()) > epoch,
            timeout_s=LONGEST_EPOCH_S,
            what=f"epoch {epoch + 1}",
        )
        return json.loads(self._lines()[epoch])

    def go_on(self) -> None:
        wait_until(self._open_gate, timeout_s=60, what=f"{self._part} at its gate")

    def _lines(self) -> list[str]:
        """The lines of figures so far; the log has what the program says on stderr too."""
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
