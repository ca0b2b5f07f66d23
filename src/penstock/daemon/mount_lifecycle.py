"""Start a mount in the background or in this process, change it while it is in use, and end it.

Called by the command line and by the reconcile loop. The mount itself is the work of the
supervisor that is started here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from penstock.daemon.control_socket import RemoteError, ask
from penstock.daemon.mount_registry import (
    all_notes,
    claim_mountpoint,
    exits_within,
    find_note,
    remove_note,
    supervisor_socket,
)
from penstock.environment import child_environment
from penstock.errors import MountpointError, PenstockError, UsageError
from penstock.fuse.holders import Holder, holders, mount_copies
from penstock.fuse.mounting import unmount
from penstock.mount_options import cannot_change
from penstock.mounttable import FILESYSTEM_TYPE, MountEntry, find_mount
from penstock.paths import logs_dir, name_of, open_private
from penstock.settings import MountSettings, decode, encode, needs_new_mount

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
    claimed = claim_mountpoint(mountpoint)
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


# -- change -------------------------------------------------------------------------------

_WITHIN_S = 120


def current_settings(mountpoint: Path) -> MountSettings:
    """Those that the mount has now, with the keys that it was given."""
    return decode(ask(_supervisor(mountpoint), "settings")["settings"])


def change_in_place(
    mountpoint: Path, wanted: MountSettings, *, environment: Mapping[str, str | None] | None = None
) -> float:
    """Another server with these settings takes over; returns for how many seconds readers had
    none. It is of this release, and has what `environment` says besides its predecessor's. If it
    cannot start, the old one goes on, and the error is raised."""
    path = _supervisor(mountpoint)
    current = decode(ask(path, "settings")["settings"])
    if fixed := needs_new_mount(current, wanted):
        raise cannot_change(" and ".join(fixed), mountpoint)
    answer = ask(
        path,
        "upgrade",
        timeout_s=_WITHIN_S,
        settings=encode(wanted),
        source=wanted.shown,
        python=sys.executable,
        environment=dict(environment or {}),
    )
    return answer["pause_s"]


def _supervisor(mountpoint: Path) -> Path:
    note = find_note(mountpoint)
    if note.pid not in note.processes:
        raise MountpointError(
            f"{note.mountpoint}: its supervisor is gone, and nobody else can replace its server",
            hint=f"penstock umount {note.mountpoint}, and mount it anew",
        )
    return supervisor_socket(mountpoint)


# -- stop ---------------------------------------------------------------------------------

_SERVER_ENDS_WITHIN_S = 60


def stop_mount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmounts, and returns when its server has put everything away. Raises MountpointError if
    nothing of ours is mounted there, or someone uses it. Lazily: detached now; it ends when the
    last user is gone, and nobody waits for that."""
    entry = find_mount(mountpoint)
    note = next((note for note in all_notes() if note.mountpoint == str(mountpoint)), None)
    if entry is None or entry.kind != FILESYSTEM_TYPE:
        if note is not None:
            remove_note(mountpoint)  # its server died, and someone else unmounted it
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted",
        )
    # Before: a process that is ending has no command line any more, but still its open files.
    processes = note.processes if note is not None and not lazy else []
    unmount(mountpoint, lazy=lazy)
    for pid in processes:
        if not process_ends_within(_SERVER_ENDS_WITHIN_S, pid):
            raise _still_runs(pid, entry)
    if note is not None and not note.alive:
        remove_note(mountpoint)


def holders_of(mountpoint: Path) -> list[Holder]:
    """The processes that use it, as far as this user may see them."""
    return holders(mountpoint).processes


def process_ends_within(seconds: float, pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return exits_within(seconds, process)
    finally:
        os.close(process)


def _still_runs(pid: int, entry: MountEntry) -> PenstockError:
    where = f"{entry.mountpoint} is unmounted"
    # Where mounts are not shared (most containers), what is unmounted here is so nowhere else.
    if elsewhere := mount_copies(entry.device):
        return PenstockError(
            f"{where} here, but not in the mount namespace of {elsewhere[0]}",
            hint=f"its server (pid {pid}) ends when that process has ended",
        )
    return PenstockError(
        f"{where}, but its server (pid {pid}) still runs",
        hint="it may be waiting for storage; it ends by itself",
    )
