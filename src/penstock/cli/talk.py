"""What is said to a person on stderr: plain lines, and progress while something takes long."""

import sys
import time
from types import TracebackType


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report(what: str, hint: str | None, exit_code: int) -> int:
    say(f"penstock: {what}")
    if hint:
        say(f"hint: {hint}")
    return exit_code


class Listing:
    """`listing s3://bucket: 120,000 objects`, kept current on a terminal, silent elsewhere."""

    _QUIET_S = 0.3  # a listing that is over at once needs no progress

    def __init__(self, source: str) -> None:
        self._source = source
        self._started_s = time.monotonic()
        self._drawn_s = 0.0

    def update(self, count: int, _size_bytes: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._started_s < self._QUIET_S:
            return
        if now - self._drawn_s >= 0.1:
            self._drawn_s = now
            sys.stderr.write(f"\r\x1b[Klisting {self._source}: {count:,} objects")
            sys.stderr.flush()

    def __enter__(self) -> "Listing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.clear()

    def clear(self) -> None:
        if self._drawn_s:
            self._drawn_s = 0.0
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
