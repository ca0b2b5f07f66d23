"""Which mounts this user has on this machine, one small file each, and which are being made.

The notes and the mount table know mounts that are there. Before a mount is there lies a listing,
which may take minutes; for that time a lock on the mount point (a claim) keeps a second command
from starting a second mount.
"""

import contextlib
import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock import file_locks, procfs
from penstock.errors import MountpointError, PenstockError
from penstock.fuse.mounting import is_disconnected, unmount
from penstock.mounttable import FILESYSTEM_TYPE, find_mount
from penstock.paths import mounts_dir, name_of


@dataclass(frozen=True, slots=True)
class MountNote:
    mountpoint: str
    source: str
    pid: int  # of the supervisor
    started_s: float
    log: str | None
    state: str = "serving"  # or restarting, or waiting before the next restart
    server_pid: int | None = None
    restarts: int = 0
    last_end: str | None = None  # when and how a server ended last

    @property
    def socket_path(self) -> Path:
        return control_socket(Path(self.mountpoint))

    @property
    def alive(self) -> bool:
        entry = find_mount(Path(self.mountpoint))
        return entry is not None and entry.kind == FILESYSTEM_TYPE and bool(self.processes)

    @property
    def processes(self) -> list[int]:
        """Supervisor and server, if they run. A server goes on serving without a supervisor."""
        return [
            pid
            for pid in (self.pid, self.server_pid)
            if pid is not None and serves(pid, self.mountpoint)
        ]


def control_socket(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.sock"


def supervisor_socket(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.supervisor.sock"


def write_note(note: MountNote) -> None:
    path = _file(Path(note.mountpoint))
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(note)))
    fresh.replace(path)


def update_note(note: MountNote) -> None:
    """Update the note, unless another mount has replaced it after a lazy unmount."""
    present = _read(_file(Path(note.mountpoint)))
    if present is not None and present.pid == note.pid:
        write_note(note)


def remove_own_note(mountpoint: Path) -> None:
    note = _read(_file(mountpoint))
    if note is not None and note.pid == os.getpid():
        remove_note(mountpoint)


def remove_note(mountpoint: Path) -> None:
    note = _file(mountpoint)
    note.unlink(missing_ok=True)
    note.with_suffix(".sock").unlink(missing_ok=True)
    supervisor_socket(mountpoint).unlink(missing_ok=True)


def all_notes() -> list[MountNote]:
    notes = (_read(path) for path in sorted(mounts_dir().glob("*.json")))
    return [note for note in notes if note is not None]


def find_note(mountpoint: Path) -> MountNote:
    note = _read(_file(mountpoint))
    if note is None:
        raise MountpointError(
            f"{mountpoint} is not mounted by Penstock",
            hint="`penstock stats` lists what is mounted by you",
        )
    if note.state != "serving" and not note.processes:
        raise MountpointError(
            f"{mountpoint}: its supervisor and its server are gone",
            hint=f"penstock umount {mountpoint} clears the mount away",
        )
    return note


def find_served(mountpoint: Path) -> MountNote:
    """Return the note of a mount that has a server, or will have one at once."""
    note = find_note(mountpoint)
    if note.state == "waiting":
        raise PenstockError(
            f"{mountpoint} has no server at the moment; the last one: {note.last_end}",
            hint=f"its log: {note.log}" if note.log else None,
        )
    return note


def clear_dead_mount(mountpoint: Path) -> bool:
    """Remove a mount whose supervisor and server were both killed; return whether there was one."""
    note = _read(_file(mountpoint))
    if note is not None and note.alive:
        return False
    entry = find_mount(mountpoint)
    dead = entry is not None and entry.kind == FILESYSTEM_TYPE and is_disconnected(mountpoint)
    if dead:
        unmount(mountpoint, lazy=True)
    if dead or (note is not None and entry is None):
        remove_note(mountpoint)
    return dead


def resolve_mountpoint(mountpoint: str) -> Path:
    """Return the path as the mount table has it: links resolved, without touching the mount point
    itself, where even a stat hangs while the mount has no server."""
    path = Path(os.path.abspath(mountpoint))
    while find_mount(path) is None and os.path.islink(path):
        path = Path(os.path.abspath(path.parent / os.readlink(path)))
    return Path(os.path.realpath(path.parent)) / path.name if path.name else path


def _file(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.json"


def _read(path: Path) -> MountNote | None:
    try:
        return MountNote(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None  # gone, or written by another version


def serves(pid: int, mountpoint: str) -> bool:
    """Return whether the process belongs to that mount: another one may have got its pid by now. A
    zombie does not, since it has no arguments any more."""
    words = procfs.command_line(pid)
    ours = (b"penstock.cli.supervise", b"penstock.daemon.serve")
    return os.fsencode(mountpoint) in words and any(word in ours for word in words)


# -- claims -------------------------------------------------------------------------------

_ENDS_WITHIN_S = 10.0


def claim_mountpoint(mountpoint: Path) -> int | None:
    """Return a descriptor for the supervisor to inherit; None if another command has the claim."""
    return file_locks.acquire(_claim_file(mountpoint))


def sign_claim(descriptor: int) -> None:
    """Write the supervisor's pid into the claim, and keep servers from inheriting it."""
    os.set_inheritable(descriptor, False)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def release_claim(mountpoint: Path, descriptor: int) -> None:
    """Called once there is a mount, and a note of it."""
    file_locks.release(_claim_file(mountpoint), descriptor)


def claimed_by(mountpoint: Path) -> int | None:
    """Return the pid of the supervisor that has it; 0 before it started, None if unclaimed."""
    path = _claim_file(mountpoint)
    if not file_locks.is_held(path):
        return None
    try:
        return int(path.read_bytes() or b"0")
    except FileNotFoundError:
        return None


def signal_claimant(mountpoint: Path) -> None:
    """Send SIGTERM to a supervisor whose mount is not there yet, without waiting."""
    pid = claimed_by(mountpoint)
    if pid and serves(pid, str(mountpoint)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def end_claimant(mountpoint: Path, pid: int) -> None:
    """End a supervisor whose mount is not there yet."""
    if pid and serves(pid, str(mountpoint)):
        end_process(pid, gently=True)


def end_process(pid: int, *, gently: bool = False) -> None:
    """Kill it and wait, but not forever: it may hang on a dead disk."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if exits_within(_ENDS_WITHIN_S, process):
                return
    finally:
        os.close(process)


def exits_within(seconds: float, process: int) -> bool:
    """Return whether the process of this pidfd ends in time. Uses `poll`: a program that uses this
    library may have more descriptors than `select` supports."""
    ends = select.poll()
    ends.register(process, select.POLLIN)
    return bool(ends.poll(seconds * 1000))


def _claim_file(mountpoint: Path) -> Path:
    return mounts_dir() / f"{name_of(mountpoint)}.lock"
