"""Start a mount in the background or in this process, change it while it is in use, and end it.

Called by the command line and by the reconcile loop. The mount itself is the work of the
supervisor that is started here.
"""

import json
import os
import signal
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
from penstock.daemon.server_process import END_SIGNALS
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
    """Replace this process with the supervisor: the mount is in the foreground."""
    claim = _claim(settings.mountpoint)
    os.set_inheritable(claim, True)
    launch = _launch_file(settings, log=None, report=None, claim=claim)
    sys.stderr.flush()
    # The supervisor unblocks them once it handles them: until then Ctrl-C would print a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    with child_environment(os.environ) as (environment, _):
        os.execve(sys.executable, _command(settings, launch), environment)


def start_supervisor(
    settings: MountSettings, *, progress: Progress = lambda _files, _bytes: None
) -> list[str]:
    """Start a supervisor in the background; return the lines for the user once it is mounted."""
    log_path = logs_dir() / f"{name_of(settings.mountpoint)}.log"
    log = _open_log(log_path)
    claim = _claim(settings.mountpoint)
    reader, writer = os.pipe()
    launch = _launch_file(settings, log=log_path, report=writer, claim=claim)
    with log, child_environment(os.environ) as (environment, keys):
        child = subprocess.Popen(
            _command(settings, launch),
            pass_fds=(writer, launch, claim, keys),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for descriptor in (writer, launch, claim):
        os.close(descriptor)
    child.wait()  # it forks the supervisor, and ends
    with os.fdopen(reader) as messages:
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                progress(*message["progress"])
            elif "error" in message:
                messages.read()  # until it has cleaned up and is gone
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
            f"{path}: {error.strerror}", hint="a log is a plain file; remove what is in its place"
        ) from error


def _claim(mountpoint: Path) -> int:
    claim = claim_mountpoint(mountpoint)
    if claim is None:
        raise MountpointError(
            f"{mountpoint} is being mounted by another command",
            hint="`penstock stats` shows it once it is ready",
        )
    return claim


def _command(settings: MountSettings, launch: int) -> list[str]:
    # -P: do not import a queue.py from the working directory.
    command = [sys.executable, "-Pm", "penstock.cli.supervise"]
    return [*command, str(settings.mountpoint), str(launch)]


def _launch_file(
    settings: MountSettings, *, log: Path | None, report: int | None, claim: int
) -> int:
    """Write what the supervisor needs to a memory file: every user can read arguments."""
    launch = {
        "mountpoint": str(settings.mountpoint),
        "source": settings.shown,
        "settings": encode(settings),
        "log": str(log) if log else None,
        "report": report,
        "claim": claim,
    }
    descriptor = os.memfd_create("penstock-settings", 0)  # 0: not closed by exec
    os.write(descriptor, json.dumps(launch).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


# -- change -------------------------------------------------------------------------------

_WITHIN_S = 120


def current_settings(mountpoint: Path) -> MountSettings:
    """Return the settings of a mount in use, with its keys."""
    return decode(ask(_supervisor(mountpoint), "settings")["settings"])


def change_in_place(
    mountpoint: Path, wanted: MountSettings, *, environment: Mapping[str, str | None] | None = None
) -> float:
    """Have a server with these settings take over; return for how many seconds readers waited.

    It is of this release, and gets `environment` on top of its predecessor's. If it cannot start,
    the old server goes on, and the error is raised.
    """
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
            f"{note.mountpoint}: its supervisor is gone, and only that can replace a server",
            hint=f"penstock umount {note.mountpoint}, and mount it again",
        )
    return supervisor_socket(mountpoint)


# -- stop ---------------------------------------------------------------------------------

_SERVER_ENDS_WITHIN_S = 60


def stop_mount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount, and return when the processes of the mount have ended.

    Raises MountpointError if no mount of ours is there, or it is in use. With `lazy` it is detached
    at once and ends with its last user; this function does not wait for that.
    """
    entry = find_mount(mountpoint)
    note = next((note for note in all_notes() if note.mountpoint == str(mountpoint)), None)
    if entry is None or entry.kind != FILESYSTEM_TYPE:
        if note is not None:
            remove_note(mountpoint)  # its server died, and the mount was removed by hand
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted",
        )
    # Before unmounting: a process that ends has no command line any more, by which to find it.
    processes = note.processes if note is not None and not lazy else []
    unmount(mountpoint, lazy=lazy)
    for pid in processes:
        if not process_ends_within(_SERVER_ENDS_WITHIN_S, pid):
            raise _still_runs(pid, entry)
    if note is not None and not note.alive:
        remove_note(mountpoint)


def holders_of(mountpoint: Path) -> list[Holder]:
    """Return the processes that use the mount, as far as this user may see them."""
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
    # Without shared propagation, as in most containers, other namespaces keep the mount.
    if elsewhere := mount_copies(entry.device):
        return PenstockError(
            f"{where} here, but not in the mount namespace of {elsewhere[0]}",
            hint=f"its server (pid {pid}) ends when that process has ended",
        )
    return PenstockError(
        f"{where}, but its server (pid {pid}) still runs",
        hint="it may be waiting for storage; it ends by itself",
    )
