"""From settings to a supervisor: in this process's place, or in the background."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from penstock.daemon.claim import claim
from penstock.daemon.control import RemoteError
from penstock.environment import child_environment
from penstock.errors import MountpointError, PenstockError, UsageError
from penstock.paths import logs_dir, name_of, open_private
from penstock.settings import MountSettings, encode

Progress = Callable[[int, int], None]  # objects listed so far, and their bytes


def become_supervisor(settings: MountSettings) -> NoReturn:
    """This very process serves the mount, in the foreground."""
    claimed = _claim(settings.mountpoint)
    os.set_inheritable(claimed, True)
    told = _written(settings, log=None, report=None, claim=claimed)
    sys.stderr.flush()
    with child_environment(os.environ) as (environment, _):
        os.execve(sys.executable, _command(settings, told), environment)


def start_supervisor(
    settings: MountSettings, *, progress: Progress = lambda _files, _bytes: None
) -> list[str]:
    """Starts it detached, and returns when its mount is ready: what a person is to be told."""
    log_path = logs_dir() / f"{name_of(settings.mountpoint)}.log"
    log = _open_log(log_path)
    claimed = _claim(settings.mountpoint)
    reader, writer = os.pipe()
    told = _written(settings, log=log_path, report=writer, claim=claimed)
    with log, child_environment(os.environ) as (environment, keys):
        child = subprocess.Popen(
            _command(settings, told),
            pass_fds=(writer, told, claimed, keys),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for descriptor in (writer, told, claimed):
        os.close(descriptor)
    child.wait()  # it leaves another process behind, which is not ours to bury
    with os.fdopen(reader) as messages:
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                progress(*message["progress"])
            elif "error" in message:
                messages.read()  # until it has put everything away, and is gone
                raise RemoteError(message)
            else:
                return message["ready"]
    raise PenstockError(
        "the supervisor ended before the mount was ready",
        hint=f"its log: {log_path}",
    )


def _open_log(path: Path) -> BinaryIO:
    try:
        return open(path, "ab", opener=open_private)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="a log is a plain file; remove what lies in its place"
        ) from error


def _claim(mountpoint: Path) -> int:
    claimed = claim(mountpoint)
    if claimed is None:
        raise MountpointError(
            f"{mountpoint} is being mounted by another command",
            hint="`penstock stats` shows it once it is ready",
        )
    return claimed


def _command(settings: MountSettings, told: int) -> list[str]:
    # -P: a queue.py in the folder where someone stands is not ours to import.
    command = [sys.executable, "-Pm", "penstock.cli.supervise"]
    return [*command, str(settings.mountpoint), str(told)]


def _written(settings: MountSettings, *, log: Path | None, report: int | None, claim: int) -> int:
    """What the supervisor must know, in a memory file: arguments are read by all."""
    told = {
        "mountpoint": str(settings.mountpoint),
        "source": settings.shown,
        "settings": encode(settings),
        "log": str(log) if log else None,
        "report": report,
        "claim": claim,
    }
    descriptor = os.memfd_create("penstock-settings", 0)  # 0: not closed by exec
    os.write(descriptor, json.dumps(told).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
