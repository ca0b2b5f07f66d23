"""The server's handle on the process that looks at files through the mount (see `look`).

Threading: one thread at a time asks, and waits for the answer.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.warm import look

log = logging.getLogger(__name__)

# More would fill the pipe while the other side fills ours.
MOST_AT_ONCE = 128
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")  # what an interpreter may need to start


class PageCacheProbe:
    """One looks, or counts: the first question decides what its process is for."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, names: Sequence[bytes]) -> bytes:
        """One of look.MISSING, HELD, RESIDENT for each; HELD for all if it cannot be told. The
        kernel holds them from now on."""
        if not names:
            return b""
        try:
            return self._ask(names, len(names))
        except OSError as error:
            log.warning("files cannot be looked at through the mount: %s", error)
            self.close()
            return look.HELD * len(names)

    def resident_bytes(self, names: Sequence[bytes]) -> list[int]:
        """How much of each the page cache holds; below 0 if that cannot be told. The kernel holds
        them from now on."""
        if not names:
            return []
        size = look.NUMBER_BYTES
        try:
            answer = self._ask(names, len(names) * size, "bytes")
        except OSError as error:
            log.warning("files cannot be looked at through the mount: %s", error)
            self.close()
            return [-1] * len(names)
        return [
            int.from_bytes(answer[at : at + size], "little", signed=True)
            for at in range(0, len(answer), size)
        ]

    def _ask(self, names: Sequence[bytes], count: int, *words: str) -> bytes:
        question = b"\0".join(names) + b"\0\0"
        process = self._process
        if process is None:
            process = self._process = self._start(*words)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question)
        answer = b""
        while len(answer) < count:
            received = process.stdout.read(count - len(answer))
            if not received:
                raise OSError("the process that looks has ended")
            answer += received
        return answer

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-IS", look.__file__, str(self._mountpoint), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
            # Keys are in ours, and its own can be looked at (see daemon.hardening).
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )

    def close(self) -> None:
        """From any thread; whoever waits for an answer is told that there is none."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.poll()  # it may wait for the mount, and dies when that answers
