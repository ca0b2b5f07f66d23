"""The logs of training jobs in parts, for who shows them elsewhere than in the job's own terminal.

What a job prints is redacted when it is written to its log. Here it is redacted once more, by all
secrets that are known now: one may have been declared after it was printed.
"""

import os
import re
from dataclasses import dataclass
from typing import BinaryIO

from penstock.api.jobs import TrainingJob
from penstock.doctor.redactor import redactor_for
from penstock.reconcile.state import State
from penstock.store.redaction import redact as redact  # for text of others that is not a log

_PART_BYTES = 1 << 16
_MOST_BEHIND = 4  # parts that are still read one after the other
# Colours, cursor movements and titles of terminals.
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines of a log, without what a terminal would not show.

    `rest` is the last line, as far as it is written: a progress bar mostly is. `end` is where the
    next part begins, with that line. `begins_anew`: these lines do not continue those before them,
    because this is the first part, or the log was cut, or far too much was printed meanwhile.
    """

    text: str
    rest: str
    end: int
    begins_anew: bool


def read_log(
    job: TrainingJob,
    instance: str | None = None,
    *,
    start: int | None = None,
    most_bytes: int = _PART_BYTES,
) -> LogPart:
    """Return whole lines of the log of an instance, or of the chief, from `start` on; without it
    the last ones. An empty part if there is none yet."""
    path = job.log_path(instance)
    if path is None:
        return LogPart("", "", 0, begins_anew=start is None)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        begins_anew = start is None or not size - _MOST_BEHIND * most_bytes <= start <= size
        if begins_anew or start is None:
            start = _line_after(file, size - most_bytes)
        file.seek(start)
        data = file.read(most_bytes)
    whole = data.rfind(b"\n") + 1
    if not whole and len(data) == most_bytes:
        whole = most_bytes  # a line that is longer than a part
    redact = redactor_for(State(), (), ()).text
    rest = data[whole:] if start + len(data) == size else b""
    return LogPart(
        redact(_as_shown(data[:whole])), redact(_as_shown(rest)), start + whole, begins_anew
    )


def _line_after(file: BinaryIO, place: int) -> int:
    """Return where the first line begins that begins at `place` or after it."""
    if place <= 0:
        return 0
    file.seek(place - 1)
    return place - 1 + len(file.readline(_PART_BYTES))


def _as_shown(data: bytes) -> str:
    """Return what a terminal shows: of a line that was written over, what was written last."""
    lines = _ESCAPE.sub(b"", data).split(b"\n")
    return b"\n".join(line.rstrip(b"\r").rsplit(b"\r", 1)[-1] for line in lines).decode(
        errors="replace"
    )
