"""Run a command inside a running job, where its processes are, with what they see.

`attach_argv` gives the command line: for a container that of its engine, else that of this module.
`python -Pm penstock.jobs.attach FOLDER INSTANCE WORD…` enters the namespaces of the instance, takes
its environment and its working folder, and becomes the command. One thread.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.jobs.containers import container_name
from penstock.jobs.job_folder import attempt_path, job_folder, read_record
from penstock.jobs.job_status import RUNNING

if TYPE_CHECKING:  # so that the process that enters the job starts quickly
    from penstock.reconcile.snapshot import Stored
    from penstock.reconcile.state import State


def attach_argv(
    state: "State", job: "Stored", instance: str | None, command: Sequence[str]
) -> list[str]:
    """Return the arguments of the process that runs the command.

    `instance`: with or without the job's name; None is the first. Without a command it is a shell.
    Raises UsageError if there is no such instance, or it does not run.
    """
    record = read_record(attempt_path(job_folder(state.folder, job.uid)))
    name = job.key.name
    if record is None or record["outcome"] is not None:
        raise UsageError(
            f"job {name} does not run: it is {job.status.get('phase', 'PENDING')}",
            hint=f"penstock logs {name}",
        )
    names = [one["name"] for one in record["instances"]]
    wanted = names[0] if instance is None else instance
    if wanted not in names:
        wanted = f"{name}-{wanted}"
    if wanted not in names:
        raise UsageError(
            f"job {name} has no instance {instance}", hint=f"it has {', '.join(names)}"
        )
    if record["instances"][names.index(wanted)]["phase"] != RUNNING:
        raise UsageError(f"{wanted} does not run any more", hint=f"penstock get job {name}")
    if record["engine"]:
        words = list(command) or ["sh"]
        tty = ["-t"] if sys.stdin.isatty() else []
        return [record["engine"], "exec", "-i", *tty, container_name(job.uid, wanted), *words]
    folder = Path(job_folder(state.folder, job.uid))
    return [sys.executable, "-Pm", "penstock.jobs.attach", str(folder), wanted, *command]


_libc = ctypes.CDLL(None, use_errno=True)
_CANNOT = 126


def main() -> int:
    folder, instance, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    record = read_record(attempt_path(folder))
    found = [one for one in (record or {}).get("instances", []) if one["name"] == instance]
    pid = found[0].get("pid") if found else None
    if pid is None:
        return _fail(f"{instance} does not run")
    try:
        place = Path(f"/proc/{pid}")
        env = _environment(place)
        # All reads come before the first namespace is entered: /proc is another one afterwards.
        cwd = os.readlink(place / "cwd")
        for descriptor in _namespaces(place):
            _join(descriptor)
    except OSError as error:
        return _fail(f"{instance} cannot be entered: {error.strerror}")
    # setns(2) puts only the children of this process into the PID namespace.
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the command
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code >= 0 else 128 - code  # as a shell reports a signal
    try:
        os.chdir(cwd)
        words = command or [env.get("SHELL", "/bin/sh")]
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(words[0], words, {**env, "TERM": os.environ.get("TERM", "dumb")})
    except OSError as error:
        _fail(f"{(command or ['sh'])[0]}: {error.strerror}")
    os._exit(127)


def _environment(place: Path) -> dict[str, str]:
    entries = (place / "environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _namespaces(place: Path) -> list[int]:
    """Open the namespaces that differ from ours, in the order in which they can be entered."""
    kinds = [
        kind
        for kind in ("user", "mnt", "pid")
        if os.readlink(place / "ns" / kind) != os.readlink(f"/proc/self/ns/{kind}")
    ]
    return [os.open(place / "ns" / kind, os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]


def _join(descriptor: int) -> None:
    if _libc.setns(descriptor, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _fail(message: str) -> int:
    print(f"penstock: {message}", file=sys.stderr)
    return _CANNOT


if __name__ == "__main__":
    sys.exit(main())
