"""The init of an attempt: PID 1 of everything that it runs.

`python -Pm penstock.jobs.attempt_init PAYLOAD REPORT CONTROL`, three descriptors.

    keeper ── outer ── init (PID 1 of its namespace) ── instances ── whatever they start

The init has a PID and a mount namespace of its own, with the job's data sets bound read-only, the
key of sealed Secrets covered, and a /proc of its own. When the init ends, however it ends, the
kernel kills everything in the namespace, also daemons that left their session. It ends when the
instances have ended, when one of them fails, when the keeper asks (a byte on CONTROL) and when the
keeper is gone (end of file on CONTROL).

It reports lines of JSON: {"cannot"} start, {"without"} namespaces, {"started"}, {"ended"}, {"left"}
processes behind. One thread. It does not know where the state is.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, NoReturn

from penstock import procfs
from penstock.reconcile.mount_namespace import Cannot, bind_all, enter, hide_all, mount_proc

Json = dict[str, Any]

# Between SIGTERM and the end: time to finish writing a checkpoint.
GRACE_S = 5.0
_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_SHELL = ["/bin/sh", "-c"]
_libc = ctypes.CDLL(None)


def main() -> NoReturn:
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        payload: Json = json.load(file)
    report, control = int(sys.argv[2]), int(sys.argv[3])
    passed: list[int] = [report, control, *payload["outputs"]]
    for descriptor in (*passed, *chain.from_iterable(payload["entrances"])):
        os.set_inheritable(descriptor, False)
    try:
        isolated = _isolate(payload, report)
    except (Cannot, OSError) as error:
        _send(report, _cannot(error))
        os._exit(126)
    # Only now: entering a user namespace clears the setting.
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != payload["parent"]:
        os._exit(126)
    child = os.fork()
    if child:
        for descriptor in (report, control, *payload["outputs"]):
            os.close(descriptor)  # end of file must mean that the init is gone
        os.waitpid(child, 0)
        os._exit(0)
    _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    os.setsid()
    try:
        if isolated:
            bind_all(payload["binds"])
            hide_all(payload["hidden"])
            mount_proc()
        _go_to(payload["cwd"])
        if not payload["contained"]:
            _check_command(payload["command"], payload["instances"][0]["env"])
        Init(payload, report, control).run()
    except (Cannot, OSError) as error:
        _send(report, _cannot(error))
    os._exit(0)


def _isolate(payload: Json, report: int) -> bool:
    if payload["contained"]:
        return False  # the container has its own namespaces
    try:
        enter(pids=True)
    except Cannot as error:
        if payload["binds"]:
            raise
        _send(report, {"without": str(error)})
        return False
    return True


def _go_to(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        hint = "the folder must exist where the job runs, data sets included"
        raise Cannot(f"workingDir {folder}: {error.strerror}", hint) from error


def _check_command(words: list[str], env: Mapping[str, str]) -> None:
    """Raise Cannot if the command does not exist, before anything is started.

    A shell or mpirun would report it too, but with many words and only in a log.
    """
    word = words[0]
    if words[:2] == _SHELL:
        try:
            parsed = shlex.split(words[2], comments=True)
        except ValueError:
            return  # a syntax error, which the shell describes better
        variables = list(takewhile(lambda one: "=" in one, parsed))
        found = parsed[len(variables) :]
        if not found or not set(found[0]) <= _PLAIN:
            return
        if any(one.startswith("PATH=") for one in variables):
            return  # the command sets its own PATH
        word = found[0]
        if "/" not in word and _shell_knows(word, env):
            return
    if "/" in word:
        if not os.path.exists(word):
            raise Cannot(f"{word}: no such command", f"it was looked up in {os.getcwd()}")
        if os.path.isdir(word) or not os.access(word, os.X_OK):
            raise Cannot(f"{word} is not executable", f"chmod +x {word}, or name its interpreter")
    elif shutil.which(word, path=env.get("PATH")) is None:
        raise Cannot(f"{word}: no such command", "it was looked up in the PATH of the job")


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+@:-")


def _shell_knows(word: str, env: Mapping[str, str]) -> bool:
    """Is it a command, a builtin or a keyword of the shell?"""
    result = subprocess.run(
        ["/bin/sh", "-c", 'command -v -- "$0"', word],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return result.returncode == 0


class Init:
    def __init__(self, payload: Json, report: int, control: int) -> None:
        self._payload = payload
        self._report = report
        self._control = control
        self._running: dict[int, int] = {}  # pid: index of the instance
        self._awaited = {i for i, one in enumerate(payload["instances"]) if one["awaited"]}
        self._stop_at_s: float | None = None
        self._has_children = True
        self._wakes, writer = os.pipe()
        os.set_blocking(writer, False)
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        try:
            for index in range(len(self._payload["instances"])):
                self._start(index)
        except Cannot:
            self._end_all(signal.SIGKILL)
            raise
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while self._is_running():
            left_s = None if self._stop_at_s is None else self._stop_at_s - time.monotonic()
            events = poll.poll(None if left_s is None else max(0, left_s * 1000))
            for descriptor, _ in events:
                if descriptor == self._control:
                    if not os.read(self._control, 16):
                        return  # end of file: the keeper is gone
                    self._stop()
                else:
                    os.read(self._wakes, 4096)
            self._reap()
        self._report_leftovers()

    def _is_running(self) -> bool:
        if self._stop_at_s is not None:
            # Wait for adopted orphans too: a rank without its shell may be saving its work.
            return self._has_children and time.monotonic() < self._stop_at_s
        return bool(self._awaited)

    def _start(self, index: int) -> None:
        instance: Json = self._payload["instances"][index]
        entrances: list[int] = self._payload["entrances"][index]

        def enter_groups() -> None:
            for entrance in entrances:
                os.write(entrance, b"0")

        try:
            process = subprocess.Popen(
                instance["argv"],
                env=instance["env"],
                stdin=subprocess.DEVNULL,
                stdout=self._payload["outputs"][index],
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=enter_groups if entrances else None,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            word = instance["argv"][0]
            raise Cannot(f"{word}: no such command", _HINTS.get(word)) from error
        except OSError as error:
            raise Cannot(f"{instance['argv'][0]}: {error.strerror}", None) from error
        except subprocess.SubprocessError as error:
            raise Cannot(f"the limits of {instance['name']} cannot be set", None) from error
        # `_reap` waits for all children; this keeps the object from waiting for its own.
        process.returncode = 0
        os.close(self._payload["outputs"][index])
        self._running[process.pid] = index
        _send(self._report, {"started": index, "pid": process.pid})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            index = self._running.pop(pid, None)
            if index is None:
                continue  # an orphan
            code = os.waitstatus_to_exitcode(status)
            stopped = self._stop_at_s is not None
            _send(self._report, {"ended": index, "code": code, "stopped": stopped})
            self._awaited.discard(index)
            if code != 0 and self._payload["instances"][index]["awaited"]:
                self._stop()

    def _stop(self) -> None:
        if self._stop_at_s is None:
            self._stop_at_s = time.monotonic() + GRACE_S
            self._end_all(signal.SIGTERM)

    def _end_all(self, number: signal.Signals) -> None:
        if os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)  # everything in the namespace
            return
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _report_leftovers(self) -> None:
        if os.getpid() != 1 or self._stop_at_s is not None:
            return
        left = set(procfs.pids()) - {1, *self._running}
        if left and Path("/proc/self").readlink().name == "1":  # a /proc of our own
            _send(self._report, {"left": len(left)})


_HINTS = {
    "mpirun": "install Open MPI: apt install openmpi-bin",
    "torchrun": "install torch where the PATH of the job finds it",
    "docker": None,
}


def _cannot(error: Cannot | OSError) -> Json:
    if isinstance(error, Cannot):
        return {"cannot": str(error), "hint": error.hint}
    where = f"{error.filename}: " if error.filename else ""
    return {"cannot": f"{where}{error.strerror}", "hint": None}


def _send(report: int, message: Json) -> None:
    try:
        os.write(report, json.dumps(message).encode() + b"\n")
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise


if __name__ == "__main__":
    main()
