"""`penstock warm` on the asker's side: what to warm is handed over, and what comes back is heard.

One warming is a conversation with as many servers as it takes: when one is replaced in the middle,
the next is asked again, and passes over what is cached already. So whoever asks may be killed
too, and asks again later.

Threading: one thread.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from penstock.daemon.control_socket import Answer, Connection, RemoteError, connect
from penstock.daemon.mount_registry import find_served
from penstock.errors import PenstockError

# Servers that go away without having got any further, one after the other.
_MOST_SERVERS = 5
_SILENT_AT_MOST_S = 300


def _ignore(_told: Answer) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """What is to be done with the files, and how."""

    action: str = "load"  # or check, verify, evict, list
    order: str = "name"
    page_cache: bool = False
    concurrency: int | None = None
    bytes_per_s: int | None = None
    skip_missing: bool = False  # of the listed paths: pass over those that are not there
    started: Callable[[Answer], None] = field(default=_ignore)  # whether it all fits
    progress: Callable[[Answer], None] = field(default=_ignore)  # a few times a second


class WarmClient:
    """A context, since it holds a file. `patterns` and `listed` are paths below the mount point;
    in the second no character means anything but itself. With neither, everything is meant."""

    def __init__(self, mountpoint: Path, wish: WarmRequest) -> None:
        self._mountpoint = mountpoint
        self._wish = wish
        find_served(mountpoint)  # who is not mounted is told so before anything is read
        self._list = os.memfd_create("penstock-paths", os.MFD_CLOEXEC)
        self._patterns = self._listed = 0
        # What servers that died had fetched; the next one counts anew.
        self._before = {"fetched_files": 0, "fetched_bytes": 0}
        self._last: Answer = {}

    def __enter__(self) -> "WarmClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._list)

    def add_patterns(self, paths: Iterable[str]) -> None:
        assert not self._listed, "patterns come first"
        self._patterns += self._write(paths)

    def add_listed(self, paths: Iterable[str]) -> None:
        self._listed += self._write(paths)

    def run(self, *, everything: bool | None = None, output: int | None = None) -> Answer:
        """`everything`: None if nothing that was added means it. `output`: where `list` writes."""
        if everything is None:
            everything = not self._patterns and not self._listed
        wish = self._wish
        request = {
            "verb": "warm",
            "action": wish.action,
            "order": wish.order,
            "page_cache": wish.page_cache,
            "concurrency": wish.concurrency,
            "bytes_per_s": wish.bytes_per_s,
            "skip_missing": wish.skip_missing,
            "patterns": self._patterns,
            "everything": everything,
        }
        descriptors = [self._list] if output is None else [self._list, output]
        failures = 0
        while failures < _MOST_SERVERS:
            far = self._far()
            if (answer := self._ask(request, descriptors)) is not None:
                return self._with_what_was_before(answer)
            failures = failures + 1 if self._far() == far else 1
            for name in self._before:
                self._before[name] += self._last.get(name, 0)
        raise PenstockError(
            f"the server of {self._mountpoint} went away {failures} times",
            hint=f"`penstock stats {self._mountpoint}` says how it ended last",
        )

    def _far(self) -> tuple[int, int]:
        return self._last.get("looked_files", 0), self._last.get("done_bytes", 0)

    def _ask(self, request: Answer, descriptors: list[int]) -> Answer | None:
        """The answer; None if the server went away before it gave one."""
        line = connect(find_served(self._mountpoint).socket_path, _SILENT_AT_MOST_S)
        try:
            line.send(request, descriptors)
            return self._listen(line)
        except (ConnectionResetError, BrokenPipeError):
            return None
        except TimeoutError as error:
            raise PenstockError(f"the server of {self._mountpoint} does not answer") from error
        finally:
            line.close()

    def _listen(self, line: Connection) -> Answer | None:
        while (received := line.receive()) is not None:
            message = received[0]
            if "error" in message:
                raise RemoteError(message)
            if "done" in message:
                return message["done"]
            if "start" in message:
                self._wish.started(message["start"])
            if "progress" in message:
                self._last = message["progress"]
                self._wish.progress(self._last)
        return None

    def _with_what_was_before(self, answer: Answer) -> Answer:
        return {
            name: value + self._before.get(name, 0) if name in self._before else value
            for name, value in answer.items()
        }

    def _write(self, paths: Iterable[str]) -> int:
        count = 0
        with os.fdopen(os.dup(self._list), "wb") as file:
            for path in paths:
                file.write(os.fsencode(path) + b"\0")
                count += 1
        return count
