"""A command in the middle of a job that runs: where its processes are, and sees what they see."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import UsageError
from penstock.jobs.containers import container_name
from penstock.jobs.job_folder import attempt_path, job_folder, read_record
from penstock.jobs.job_status import RUNNING
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State


def attach_argv(
    state: State, job: Stored, instance: str | None, command: Sequence[str]
) -> list[str]:
    """The arguments of a process that does it; `instance` may be left out, or be without the
    job's name; without a command it is a shell. Raises UsageError if there is no such, or it does
    not run."""
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
        return _say(f"{instance} does not run")
    try:
        place = Path(f"/proc/{pid}")
        env = _environment(place)
        # All of it before the first namespace is entered: afterwards /proc is another.
        cwd = os.readlink(place / "cwd")
        for descriptor in _namespaces(place):
            _join(descriptor)
    except OSError as error:
        return _say(f"{instance} cannot be entered: {error.strerror}")
    # Its children are in the PID namespace, it is not.
    child = os.fork()
    if child:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # the terminal's are the command's
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code >= 0 else 128 - code  # as a shell tells a signal
    try:
        os.chdir(cwd)
        words = command or [env.get("SHELL", "/bin/sh")]
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(words[0], words, {**env, "TERM": os.environ.get("TERM", "dumb")})
    except OSError as error:
        _say(f"{(command or ['sh'])[0]}: {error.strerror}")
    os._exit(127)


def _environment(place: Path) -> dict[str, str]:
    entries = (place / "environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _namespaces(place: Path) -> list[int]:
    """Those that are not our own, in the order in which they can be entered."""
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


def _say(what: str) -> int:
    print(f"penstock: {what}", file=sys.stderr)
    return _CANNOT


if __name__ == "__main__":
    sys.exit(main())
