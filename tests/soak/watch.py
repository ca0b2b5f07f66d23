"""The servers' memory and descriptors over time, as /proc tells them."""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.stage import MODES, Stage

_SAMPLES = 600
_BARS = "▁▂▃▄▅▆▇█"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Course:
    """One server's numbers, oldest first."""

    memory_bytes: list[int] = field(default_factory=lambda: list[int]())
    descriptors: list[int] = field(default_factory=lambda: list[int]())
    supervisor_bytes: list[int] = field(default_factory=lambda: list[int]())
    pids: set[int] = field(default_factory=lambda: set[int]())


class Watch(threading.Thread):
    def __init__(self, stage: Stage, minutes: float, stop: threading.Event) -> None:
        super().__init__(name="Watch")
        self._stage, self._stop_asked = stage, stop
        self._interval_s = max(0.5, minutes * 60 / _SAMPLES)
        self.courses = {mode: Course() for mode in MODES}
        self.began_s = time.monotonic()

    def run(self) -> None:
        while not self._stop_asked.wait(self._interval_s):
            for mount, mode in enumerate(MODES):
                try:
                    self._sample(mount, self.courses[mode])
                except (OSError, IndexError):
                    continue  # killed between the question and the look

    def _sample(self, mount: int, course: Course) -> None:
        note = self._stage.note(mount)
        course.supervisor_bytes.append(_look(note.pid)[0])
        if note.server_pid is None:
            return  # being restarted
        memory, descriptors = _look(note.server_pid)
        course.memory_bytes.append(memory)
        course.descriptors.append(descriptors)
        course.pids.add(note.server_pid)


def _look(pid: int) -> tuple[int, int]:
    process = Path("/proc") / str(pid)
    pages = int((process / "statm").read_text().split()[1])
    return pages * _PAGE_BYTES, len(os.listdir(process / "fd"))


def sparkline(values: list[int], width: int = 60) -> str:
    """Each column the greatest of its share of the values; from nothing to the greatest of all."""
    if not values:
        return ""
    columns = min(width, len(values))
    shares = [
        values[i * len(values) // columns : (i + 1) * len(values) // columns]
        for i in range(columns)
    ]
    most = max(values) or 1
    return "".join(_BARS[max(share) * (len(_BARS) - 1) // most] for share in shares)
