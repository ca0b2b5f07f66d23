"""What a target is, and how a bug in one of our threads or logs becomes its failure."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

Check = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    promise: str  # what must hold whatever the bytes are
    # Takes a folder of its own; what it yields is called with one input after the other.
    open: Callable[[Path], AbstractContextManager[Check]]
    seeds: Sequence[bytes]  # valid inputs, of which mutations are made
    words: Sequence[bytes] = ()  # what a mutation may insert
    smoke_inputs: int = 300  # how many the normal suite runs: a second's worth


class Bugs(logging.Handler):
    """Collects what must never happen, wherever it happens."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Handlers of requests catch everything, and log what is no error of ours."""
        if record.exc_info and record.exc_info[1] is not None:
            self._found.append(record.exc_info[1])

    def note_dead_thread(self, ended: threading.ExceptHookArgs) -> None:
        self._found.append(ended.exc_value or RuntimeError(f"{ended.thread} ended"))

    def check(self) -> None:
        if self._found:
            first, self._found = self._found[0], []
            raise AssertionError(f"a bug: {first!r}") from first


@contextmanager
def watching() -> Iterator[Bugs]:
    """While our own log is read for bugs, nothing of it is printed."""
    bugs, log, hook = Bugs(), logging.getLogger("penstock"), threading.excepthook
    before = log.handlers, log.propagate, log.level
    log.handlers, log.propagate = [bugs], False
    log.setLevel(logging.ERROR)
    threading.excepthook = bugs.note_dead_thread
    try:
        yield bugs
    finally:
        threading.excepthook = hook
        log.handlers, log.propagate = before[:2]
        log.setLevel(before[2])
