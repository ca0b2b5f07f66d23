"""The supervisor process: `python -m penstock.cli.supervise MOUNTPOINT FD`, started by `mount`.

The descriptor holds the settings. In the background, the process reports through a pipe to the
command that started it; in the foreground, it has replaced that command and prints for the user.
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
from penstock.daemon.log_file import open_log
from penstock.daemon.mount_registry import release_claim, sign_claim
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import Requester, Supervisor
from penstock.environment import keep_memory_private, take_inherited_keys
from penstock.errors import PenstockError
from penstock.store.credentials import remember_settings
from penstock.store.redaction import remember_environment, set_up_logging


def main() -> None:
    with os.fdopen(int(sys.argv[2]), "rb") as file:
        launch: dict[str, Any] = json.load(file)
    if launch["report"] is not None and os.fork():
        os._exit(0)  # detached: the parent may run for months, and need not reap this process
    keys = take_inherited_keys()  # only the servers get them, no other child process
    spec = LaunchSpec(
        Path(launch["mountpoint"]),
        launch["source"],
        launch["settings"],
        sys.executable,
        environment={**keys},
        log=launch["log"],
        watchdog_s=launch["settings"]["watchdog_s"],
        grace_s=launch["settings"]["grace_s"],
        give_up_s=launch["settings"]["give_up_s"],
    )
    remember_environment(keys)
    remember_settings(spec.settings)
    set_up_logging(open_log(spec.log), prefix="supervisor: ")
    keep_memory_private()
    claim: int = launch["claim"]
    sign_claim(claim)
    report_to: int | None = launch["report"]
    release = partial(release_claim, spec.mountpoint, claim)
    requester: Requester = _Terminal(spec.source, release)
    if report_to is not None:
        requester = _Parent(report_to, release)
    try:
        exit_code = Supervisor(spec, requester).run()
    except PenstockError as error:
        logging.error("%s", error)
        exit_code = error.exit_code
    logging.shutdown()
    sys.stderr.flush()
    # At once: while Python exits, its signal handlers are gone, and one more Ctrl-C would change
    # the exit code.
    os._exit(exit_code)


class _Terminal:
    """Shows the progress and the outcome of a mount in the foreground."""

    end = None

    def __init__(self, source: str, release: Callable[[], None]) -> None:
        self._listing = Listing(source)
        self._release_claim = release

    def progress(self, files: int, size_bytes: int) -> None:
        self._listing.update(files, size_bytes)

    def ready(self, lines: list[str]) -> None:
        self._release_claim()
        with contextlib.suppress(BrokenPipeError):  # `| head -1` has read enough
            self._listing.clear()
            for line in lines:
                notify(line)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._release_claim()
        self._listing.clear()
        print_error(what, hint, exit_code)


class _Parent:
    """Reports to the command that was given `--background`: one JSON line for each event."""

    def __init__(self, descriptor: int, release: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._release_claim = release
        os.set_inheritable(descriptor, False)

    @property
    def end(self) -> int:
        return self._descriptor  # a pipe: poll reports an error once its reader is gone

    def progress(self, files: int, size_bytes: int) -> None:
        self._send({"progress": [files, size_bytes]})

    def ready(self, lines: list[str]) -> None:
        self._release_claim()  # before the message: the mount and its note exist by now
        self._send({"ready": lines})
        os.close(self._descriptor)

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._release_claim()
        self._send({"error": what, "hint": hint, "exit_code": exit_code})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            # Ctrl-C during the listing: nothing waits for this mount any more.
            raise PenstockError("the command that started this mount is gone") from None


if __name__ == "__main__":
    main()
