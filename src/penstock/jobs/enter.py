"""Runs a command inside of a job: `python -Pm penstock.jobs.enter FOLDER INSTANCE WORD…`.

Enters the namespaces of the instance, takes its environment and its folder, and becomes the
command; its exit code is the command's. One thread.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from penstock.jobs.records import attempt_path, read_record

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
