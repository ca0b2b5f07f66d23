"""Start a member of a shared tier on this machine, find those that run, and stop them.

Called by the command line and by the reconcile loop. The member itself is the work of the
supervisor that is started here.
"""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from penstock import file_locks, procfs
from penstock.daemon.control_socket import RemoteError
from penstock.daemon.mount_registry import end_process
from penstock.environment import without_keys
from penstock.errors import PenstockError, UsageError
from penstock.member.note import (
    SUPERVISOR,
    MemberNote,
    all_notes,
    lock_path,
    log_path,
    note_path,
    read_note,
    write_note,
)
from penstock.member.options import MemberOptions
from penstock.member.supervisor import find_memcached
from penstock.paths import open_private
from penstock.units import format_size

_NOTED_WITHIN_S = 5.0


class Started(NamedTuple):
    note: MemberNote
    fresh: bool  # False: it ran already, with the same options


def start_member(options: MemberOptions, *, owner: str | None = None) -> Started:
    """Start a member in the background, and return once it answers.

    `owner` is the data set that it is for. Raises UsageError if its port is taken, by a program or
    by a member with other options, or if memcached or its flash cannot be used.
    """
    with _claimed(options, owner) as claimed:
        if isinstance(claimed, MemberNote):
            return Started(claimed, fresh=False)
        _check(options)
        log = log_path(options.port)
        path = note_path(options.port)
        write_note(path, MemberNote(options, owner, str(log)))
        reader, writer = os.pipe()
        with open(log, "ab", opener=open_private) as output:
            child = subprocess.Popen(
                _command(path, claimed, writer),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(claimed, writer),
                env=without_keys(os.environ),
                cwd="/",
                start_new_session=True,
            )
        os.close(writer)
        child.wait()  # it forks the supervisor, and ends
    with os.fdopen(reader) as messages:
        answer: dict[str, Any] = json.loads(messages.readline() or "{}")
        if "error" in answer:
            messages.read()  # until it has cleaned up and is gone
            raise RemoteError(answer)
    found = read_note(note_path(options.port))
    if "ready" not in answer or found is None:
        raise PenstockError("the member's supervisor ended at once", hint=f"its log: {log}")
    return Started(found, fresh=True)


def become_member(options: MemberOptions) -> Started:
    """Replace this process with the supervisor: the member is in the foreground.

    Returns only if it runs already, with the same options."""
    with _claimed(options, None) as claimed:
        if not isinstance(claimed, MemberNote):
            _check(options)
            write_note(note_path(options.port), MemberNote(options))
            _become_supervisor(_command(note_path(options.port), claimed, -1), claimed)
        return Started(claimed, fresh=False)


def _become_supervisor(command: list[str], lock: int) -> NoReturn:
    os.set_inheritable(lock, True)
    sys.stderr.flush()
    # The supervisor waits for signals by itself: until then Ctrl-C would print a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    os.execve(command[0], command, without_keys(os.environ))


def stop_member(note: MemberNote) -> None:
    """End the member and its supervisor, and wait for that."""
    if (pid := note.supervisor_pid) is not None:
        end_process(pid, gently=True)
    if note.runs:
        raise PenstockError(
            f"the supervisor of {note.address} has not ended",
            hint=f"its log: {note.log}" if note.log else None,
        )
    note_path(note.port).unlink(missing_ok=True)  # of a supervisor that was killed


def find_member(port: int) -> MemberNote | None:
    return read_note(note_path(port))


def members_here() -> list[MemberNote]:
    """Return the members of this user on this machine, also those whose supervisor was killed."""
    return all_notes()


# -- starting ------------------------------------------------------------------------------------


@contextmanager
def _claimed(options: MemberOptions, owner: str | None) -> Iterator[int | MemberNote]:
    """Yield the lock of the port, to be passed on; or the note of the member that has it."""
    path, until_s = lock_path(options.port), time.monotonic() + _NOTED_WITHIN_S
    while (lock := file_locks.acquire(path)) is None:
        # Between its lock and its note, a member that starts has an old note or none.
        note = read_note(note_path(options.port))
        if note is not None and note.state != "starting":
            yield _same(note, options, owner)
            return
        if time.monotonic() > until_s:
            raise UsageError(
                f"a member on port {options.port} is being started by another command",
                hint="`penstock shared status` shows it once it is ready",
            )
        time.sleep(0.02)
    try:
        yield lock
    except BaseException:
        os.close(lock)
        if not file_locks.is_held(path):  # no supervisor has inherited it yet
            note_path(options.port).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        raise
    os.close(lock)


def _same(note: MemberNote, options: MemberOptions, owner: str | None) -> MemberNote:
    """Return the note if it is of the member that is wanted; raise UsageError if not."""
    if note.owner != owner:
        whose = f"the member of {note.owner}" if note.owner else "a member that a person started"
        raise UsageError(
            f"port {note.port} belongs to {whose}", hint="choose another port for this member"
        )
    wanted = replace(options, threads=options.threads or note.options.threads)
    if note.options != wanted:
        given, mine = wanted.encode(), note.options.encode()
        names = ", ".join(
            "--" + name.removesuffix("_bytes") for name in given if given[name] != mine[name]
        )
        raise UsageError(
            f"a member runs on port {note.port} already, with other options ({names})",
            hint=f"`penstock shared stop --port {note.port}` first, or choose another --port",
        )
    return note


def _check(options: MemberOptions) -> None:
    """Raise UsageError for what memcached would fail at later, or the machine with it."""
    find_memcached()
    total = procfs.memory()["MemTotal"]
    if options.memory_bytes > total:
        raise UsageError(
            f"--memory: the machine has {format_size(total)}",
            hint="leave room for the programs that run here; --flash holds more",
        )
    if (flash := options.flash) is not None:
        try:
            free = shutil.disk_usage(flash.folder).free
        except OSError as error:
            raise UsageError(
                f"--flash {flash.folder}: {error.strerror}", hint="make the folder first"
            ) from error
        if flash.size_bytes > free:
            raise UsageError(
                f"--flash {flash.folder}: only {format_size(free)} are free there",
                hint="give a smaller size, or another disk",
            )
    _check_port(options)


def _check_port(options: MemberOptions) -> None:
    family = socket.AF_INET6 if ":" in options.listen else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as memcached does
            probe.bind((options.listen, options.port))
    except OSError as error:
        hint = {
            errno.EADDRINUSE: f"choose another --port; `ss -ltnp sport = {options.port}` shows it",
            errno.EADDRNOTAVAIL: "`ip address` shows the addresses of this machine",
            errno.EACCES: "only root may use ports below 1024",
        }
        what = f"{options.listen} port {options.port}"
        if error.errno == errno.EADDRINUSE:
            what += " is in use by another program"
        else:
            what += f": {error.strerror}"
        raise UsageError(what, hint=hint.get(error.errno or 0)) from error


def _command(note: Path, lock: int, report: int) -> list[str]:
    # -P: do not import a queue.py from the working directory.
    return [sys.executable, "-Pm", SUPERVISOR, str(note), str(lock), str(report)]
