"""From the mount command to its supervisor: in its place, or in the background."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from penstock.cli.talk import Listing, say
from penstock.daemon.control import RemoteError
from penstock.daemon.places import name_of, state_dir
from penstock.daemon.settings import MountSettings
from penstock.daemon.settings_codec import encode
from penstock.errors import PenstockError


def become_supervisor(settings: MountSettings) -> NoReturn:
    """This very process serves the mount, in the foreground."""
    told = _written(settings, log=None, report=None)
    sys.stderr.flush()
    os.execv(sys.executable, _command(settings, told))


def start_supervisor(settings: MountSettings) -> None:
    """Starts it detached, and returns when its mount is ready."""
    logs = state_dir() / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    log_path = logs / f"{name_of(settings.mountpoint)}.log"
    reader, writer = os.pipe()
    told = _written(settings, log=log_path, report=writer)
    with open(log_path, "ab", opener=_private) as log:
        child = subprocess.Popen(
            _command(settings, told), pass_fds=(writer, told), stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    os.close(told)
    with os.fdopen(reader) as messages, Listing(str(settings.source)) as listing:
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                listing.update(message["progress"])
            elif "error" in message:
                child.wait()
                raise RemoteError(message)
            else:
                listing.clear()
                for text in message["ready"]:
                    say(text)
                return
    raise PenstockError(
        f"the supervisor ended with status {child.wait()} before the mount was ready",
        hint=f"its log: {log_path}",
    )


def _command(settings: MountSettings, told: int) -> list[str]:
    # -P: a queue.py in the folder where someone stands is not ours to import.
    command = [sys.executable, "-Pm", "penstock.cli.supervise"]
    return [*command, str(settings.mountpoint), str(told)]


def _written(settings: MountSettings, *, log: Path | None, report: int | None) -> int:
    """What the supervisor must know, in a memory file: arguments are read by all."""
    told = {
        "mountpoint": str(settings.mountpoint), "source": str(settings.source),
        "settings": encode(settings), "log": str(log) if log else None, "report": report,
    }  # fmt: skip
    descriptor = os.memfd_create("penstock-settings", 0)  # 0: not closed by exec
    os.write(descriptor, json.dumps(told).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
