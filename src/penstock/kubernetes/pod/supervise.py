"""The supervisor in a server pod: `python -m penstock.kubernetes.pod.supervise SETTINGS REPORT`.

Both arguments are descriptors: a file with what `settings` wrote, and a pipe that gets one JSON
line for each event: waiting, restart_for, progress, ready, error.
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from penstock.daemon.keeper_mount import KeeperMount
from penstock.daemon.server_process import LaunchSpec
from penstock.daemon.supervisor import Supervisor
from penstock.environment import keep_memory_private, take_inherited_keys
from penstock.errors import PenstockError
from penstock.kubernetes import names
from penstock.store.credentials import remember_settings
from penstock.store.redaction import remember_environment, set_up_logging


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `main` blocks some
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        launch: dict[str, Any] = json.load(file)
    report = _Report(int(sys.argv[2]))
    keys = take_inherited_keys()
    settings: dict[str, Any] = launch["settings"]
    spec = LaunchSpec(
        Path(settings["mountpoint"]),
        launch["shown"],
        settings,
        sys.executable,
        environment={**keys},
        watchdog_s=settings["watchdog_s"],
        grace_s=settings["grace_s"],
        give_up_s=settings["give_up_s"],
    )
    remember_environment(keys)
    remember_settings(spec.settings)
    set_up_logging(prefix="supervisor: ")
    keep_memory_private()
    mount = KeeperMount(
        spec.mountpoint,
        launch["mount_type"],
        Path(names.LINK_SOCKET),
        # Written when the pod was made, and not when its container was restarted.
        since_s=os.stat("/etc/hostname").st_mtime,
    )
    try:
        mount.attach(report.waiting)
        report.send({"restart_for": _waits_for_new_mount(settings, mount.remembered)})
        exit_code = Supervisor(spec, _Requester(report, mount), mount).run()
    except PenstockError as error:
        report.failed(str(error), error.hint, error.exit_code)
        exit_code = error.exit_code
    logging.shutdown()
    sys.stderr.flush()
    os._exit(exit_code)


def _waits_for_new_mount(settings: dict[str, Any], remembered: dict[str, Any]) -> list[str]:
    """Return the options that differ from what the kernel was told when the mount was made."""
    made_in = remembered.get("mode")
    differs = made_in is not None and settings["mode"] not in ("auto", made_in)
    return ["the mode"] if differs else []


class _Report:
    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._waits_for: str | None = None

    def send(self, message: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def waiting(self, what: str) -> None:
        if what != self._waits_for:
            self._waits_for = what
            self.send({"waiting": what})

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self.send({"error": what, "hint": hint, "exit_code": exit_code})


class _Requester:
    """Tells `main` and the node plugin how the first server fares."""

    end = None

    def __init__(self, report: _Report, mount: KeeperMount) -> None:
        self._report = report
        self._mount = mount

    def progress(self, files: int, size_bytes: int) -> None:
        self._report.send({"progress": [files, size_bytes]})

    def ready(self, lines: list[str]) -> None:
        self._mount.set_serving(True)
        self._report.send({"ready": lines})

    def failed(self, what: str, hint: str | None, exit_code: int) -> None:
        self._mount.set_serving(False, what)
        self._report.failed(what, hint, exit_code)


if __name__ == "__main__":
    main()
