"""The supervisor process: `python -m penstock.cli.supervise MOUNTPOINT FD`, started by `mount`.

The descriptor holds what to run. In the background it reports through a pipe to the command that
started it, and in the foreground it has taken that command's place and talks to the user.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cli.output import Listing, notify, print_error
from penstock.daemon.logging_setup import WatchedLog
from penstock.daemon.mount_registry import release_claim, sign_claim
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import Audience, Supervisor
from penstock.environment import keep_memory_private, take_inherited_keys
from penstock.errors import PenstockError
from penstock.store.credentials import remember_settings
from penstock.store.redaction import LOG_FORMAT, RedactingFormatter, remember_environment

_LOG_FORMAT = LOG_FORMAT.replace("%(message)s", "supervisor: %(message)s")


def main() -> None:
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        told: dict[str, Any] = json.load(file)
    if told["report"] is not None and os.fork():
        os._exit(0)  # whoever started us may live for months, and should not have to bury us
    keys = (
        take_inherited_keys()
    )  # for its servers; nothing else that is started from here sees them
    plan = LaunchSpec(
        Path(told["mountpoint"]),
        told["source"],
        told["settings"],
        sys.executable,
        environment={**keys},
        log=told["log"],
        watchdog_s=told["settings"]["watchdog_s"],
        grace_s=told["settings"]["grace_s"],
        give_up_s=told["settings"]["give_up_s"],
    )
    remember_environment(keys)
    remember_settings(plan.settings)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if plan.log is not None:
        handler = WatchedLog(plan.log)
    handler.setFormatter(RedactingFormatter(_LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "WARNING").upper())
    keep_memory_private()
    claimed: int = told["claim"]
    sign_claim(claimed)
    report_to: int | None = told["report"]
    no_claim = partial(release_claim, plan.mountpoint, claimed)
    audience: Audience = Person(plan.source, no_claim)
    if report_to is not None:
        audience = Parent(report_to, no_claim)
    try:
        exit_code = Supervisor(plan, audience).run()
    except PenstockError as error:
        logging.error("%s", error)
        exit_code = error.exit_code
    logging.shutdown()
    sys.stderr.flush()
    # At once: while Python ends, its signal handlers are gone, and one more Ctrl-C would change the
    # exit code.
    os._exit(exit_code)


class Person:
    end = None

    def __init__(self, source: str, no_claim: Callable[[], None]) -> None:
        self._listing = Listing(source)
        self._no_claim = no_claim

    def progress(self, files: int, size_bytes: int) -> None:
        self._listing.update(files, size_bytes)

    def ready(self, lines: list[str]) -> None:
        self._no_claim()
        with contextlib.suppress(BrokenPipeError):  # `| head -1` has seen enough
            self._listing.clear()
            for line in lines:
                notify(line)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._no_claim()
        self._listing.clear()
        print_error(what, hint, exit_code)


class Parent:
    """The command that was told `--background`: one JSON line for each thing that happens."""

    def __init__(self, descriptor: int, no_claim: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._no_claim = no_claim
        os.set_inheritable(descriptor, False)

    @property
    def end(self) -> int:
        return self._descriptor  # of a pipe: an error once nobody reads it

    def progress(self, files: int, size_bytes: int) -> None:
        self._tell({"progress": [files, size_bytes]})

    def ready(self, lines: list[str]) -> None:
        self._no_claim()  # before it is told: there is a note by now, and a mount
        self._tell({"ready": lines})
        os.close(self._descriptor)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._no_claim()
        self._tell({"error": what, "hint": hint, "exit_code": exit_code})

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # Ctrl-C while listing: nobody waits for this mount any more.
            raise PenstockError("the command that started this mount is gone") from None


if __name__ == "__main__":
    main()
