"""How a test waits for something that happens elsewhere."""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")
_POLL_S = 0.01
PATIENCE_S = 60.0  # a machine under load is slow, and a test that passes never waits for long


def wait_until(
    ready: Callable[[], T],
    what: object = None,
    *,
    timeout_s: float = PATIENCE_S,
    pause_s: float = _POLL_S,
) -> T:
    """Return the first true value of `ready`; fail with `what` if none comes.

    `what` may be a function: then it is called when the time is over, to say how things are.
    `pause_s`: between attempts; longer for a `ready` that costs something.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := ready()):
        if time.monotonic() > deadline:
            described = what() if callable(what) else what
            raise AssertionError(f"not after {timeout_s:g} s: {described or ready}")
        time.sleep(pause_s)
    return found


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def wait_for_input(source: HasFileno, timeout_s: float) -> bool:
    """Return whether it can be read. `select.select` fails for descriptors above 1023."""
    poll = select.poll()
    poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def runs(pid: int) -> bool:
    """Whether a process is there, and more than a zombie.

    The first thread of a killed process may be a zombie while others still hold files and locks.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not runs(pid), f"process {pid} still runs")
