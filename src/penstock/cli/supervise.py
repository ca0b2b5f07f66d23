"""The supervisor process: `python -m penstock.cli.supervise MOUNTPOINT FD`, started by `mount`.

The descriptor holds what to run. In the background it reports through a pipe to the command that
started it, and in the foreground it has taken that command's place and talks to the user.
"""

import contextlib
import json
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import Any

from penstock.cli.talk import Listing, report, say
from penstock.daemon.child import Plan
from penstock.daemon.hardening import keep_memory_private
from penstock.daemon.supervisor import Audience, Supervisor
from penstock.errors import PenstockError
from penstock.store.secrets import LOG_FORMAT, RedactingFormatter, remember_environment

_LOG_FORMAT = LOG_FORMAT.replace("%(message)s", "supervisor: %(message)s")


def main() -> None:
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        told: dict[str, Any] = json.load(file)
    plan = Plan(
        Path(told["mountpoint"]), told["source"], told["settings"], sys.executable,
        log=told["log"], watchdog_s=told["settings"]["watchdog_s"],
        grace_s=told["settings"]["grace_s"], give_up_s=told["settings"]["give_up_s"],
    )  # fmt: skip
    remember_environment()
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if plan.log is not None:
        handler = _Log(plan.log)
    handler.setFormatter(RedactingFormatter(_LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "WARNING").upper())
    keep_memory_private()
    audience: Audience = Person(plan.source) if told["report"] is None else Parent(told["report"])
    try:
        sys.exit(Supervisor(plan, audience).run())
    except PenstockError as error:
        logging.error("%s", error)
        sys.exit(error.exit_code)


class _Log(logging.handlers.WatchedFileHandler):
    """Which the server rotates. A log that cannot be written is no reason to end a mount."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it was about to open the file again
            self.handleError(record)


class Person:
    def __init__(self, source: str) -> None:
        self._listing = Listing(source)

    def progress(self, count: int) -> None:
        self._listing.update(count)

    def ready(self, lines: list[str]) -> None:
        with contextlib.suppress(BrokenPipeError):  # `| head -1` has seen enough
            self._listing.clear()
            for line in lines:
                say(line)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._listing.clear()
        report(what, hint, exit_code)


class Parent:
    """The command that was told `--background`: one JSON line for each thing that happens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def progress(self, count: int) -> None:
        self._tell({"progress": count})

    def ready(self, lines: list[str]) -> None:
        self._tell({"ready": lines})
        os.close(self._descriptor)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._tell({"error": what, "hint": hint, "exit_code": exit_code})

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # Ctrl-C while listing: nobody waits for this mount any more.
            raise PenstockError("the command that started this mount is gone") from None


if __name__ == "__main__":
    main()
