"""`penstock mount -b`: the same command again in a process of its own, which reports back.

The child is told by the number of a pipe in its environment. It writes one JSON line for each
thing that happens; the parent shows them, and leaves with the child's exit code if it failed.
"""

import json
import logging
import logging.handlers
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.cli.talk import Listing, say
from penstock.daemon.control import RemoteError
from penstock.daemon.places import name_of, state_dir
from penstock.errors import PenstockError
from penstock.store.secrets import LOG_FORMAT, RedactingFormatter

_PIPE = "PENSTOCK_REPORT_FD"
_LOG = "PENSTOCK_REPORT_LOG"

_parent: "Parent | None" = None


class Parent:
    """What a background child sees of the command that started it."""

    def __init__(self, descriptor: int, log_path: str) -> None:
        self._descriptor = descriptor
        self.log_path = log_path

    def progress(self, count: int) -> None:
        self._tell({"progress": count})

    def ready(self, lines: list[str]) -> None:
        self._tell({"ready": lines})
        os.close(self._descriptor)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        try:
            yield
        except PenstockError as error:
            self._tell({"error": str(error), "hint": error.hint, "exit_code": error.exit_code})
            raise

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # Ctrl-C while listing: nobody waits for this mount any more.
            raise PenstockError("the command that started this mount is gone") from None


def is_child() -> bool:
    return _PIPE in os.environ or _parent is not None


def parent() -> Parent | None:
    global _parent
    if _PIPE in os.environ:
        descriptor = int(os.environ.pop(_PIPE))
        os.set_inheritable(descriptor, False)
        _parent = Parent(descriptor, os.environ.pop(_LOG))
        _bound_log(_parent.log_path)
    return _parent


def _bound_log(path: str) -> None:
    """A store that fails for a week must not fill the disk with it."""
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=4 << 20, backupCount=1)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.getLogger().handlers = [handler]


def launch(mountpoint: Path, source: str) -> None:
    """Starts this very command again, detached, and waits until its mount is ready."""
    logs = state_dir() / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    log_path = logs / f"{name_of(mountpoint)}.log"
    reader, writer = os.pipe()
    with open(log_path, "ab", opener=_private) as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "penstock", *sys.argv[1:]],
            env={**os.environ, _PIPE: str(writer), _LOG: str(log_path)},
            pass_fds=(writer,), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    ready: list[str] | None = None
    with os.fdopen(reader) as messages, Listing(source) as listing:
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                listing.update(message["progress"])
            elif "error" in message:
                child.wait()
                raise RemoteError(message)
            else:
                ready = message["ready"]
                break
    if ready is not None:
        for text in ready:
            say(text)
        return
    raise PenstockError(
        f"the server ended with status {child.wait()} before it was ready",
        hint=f"its log: {log_path}",
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
