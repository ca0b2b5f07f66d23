"""`penstock warm` in the client: sends what to warm, and receives progress and the result.

If the server is replaced in the middle, the client sends the same request to the next server,
which skips what is cached already. So a client that was killed can simply be run again, too.

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

# Give up after so many servers in a row that ended without any progress.
_MOST_SERVERS = 5
_SILENT_AT_MOST_S = 300


def _ignore(_message: Answer) -> None:
    pass


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """What to do with the files, and how."""

    action: str = "load"  # or check, verify, evict, list
    order: str = "name"
    page_cache: bool = False
    concurrency: int | None = None
    bytes_per_s: int | None = None
    skip_missing: bool = False  # of the listed paths: pass over those that are not there
    started: Callable[[Answer], None] = field(default=_ignore)  # whether it all fits
    progress: Callable[[Answer], None] = field(default=_ignore)  # a few times a second


class WarmClient:
    """A context manager, since it holds a file. Patterns and listed paths are below the mount
    point; listed paths are literal. With neither, all files are meant."""

    def __init__(self, mountpoint: Path, wish: WarmRequest) -> None:
        self._mountpoint = mountpoint
        self._options = wish
        find_served(mountpoint)  # raise before anything is read if there is no mount
        self._list = os.memfd_create("penstock-paths", os.MFD_CLOEXEC)
        self._patterns = self._listed = 0
        # What earlier servers had fetched: each server counts from zero.
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
        """`everything`: by default if no path was added. `output`: where `list` writes."""
        if everything is None:
            everything = not self._patterns and not self._listed
        wish = self._options
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
            before = self._position()
            if (answer := self._ask(request, descriptors)) is not None:
                return self._add_earlier_counts(answer)
            failures = failures + 1 if self._position() == before else 1
            for name in self._before:
                self._before[name] += self._last.get(name, 0)
        raise PenstockError(
            f"the server of {self._mountpoint} went away {failures} times",
            hint=f"`penstock stats {self._mountpoint}` shows how it ended",
        )

    def _position(self) -> tuple[int, int]:
        return self._last.get("looked_files", 0), self._last.get("done_bytes", 0)

    def _ask(self, request: Answer, descriptors: list[int]) -> Answer | None:
        """Return the answer; None if the server ended before it gave one."""
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
                self._options.started(message["start"])
            if "progress" in message:
                self._last = message["progress"]
                self._options.progress(self._last)
        return None

    def _add_earlier_counts(self, answer: Answer) -> Answer:
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
