"""Processes that work for one resource each, and hold its lock for as long as they live.

The lock, not a process id, tells whether such a process runs. The loop takes the lock and passes it
to the child, so that two can never run at once.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock import procfs
from penstock.environment import child_environment, take_inherited_keys
from penstock.paths import open_private
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.store.redaction import set_up_logging

_END_TIMEOUT_S = 5.0


def start_resource_process(
    module: str, uid: str, lock: int, log: Path
) -> "subprocess.Popen[bytes]":
    """Start `python -Pm MODULE UID` in a session of its own, and pass it the lock."""
    try:
        with (
            open(log, "ab", opener=open_private) as out,
            child_environment(os.environ) as (environment, keys),
        ):
            return subprocess.Popen(
                [sys.executable, "-Pm", module, uid],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(lock, keys),
                env=environment,
                start_new_session=True,
                cwd="/",
            )
    finally:
        os.close(lock)


def log_to_stderr() -> None:
    """Log without secrets, at the level that PENSTOCK_LOG names."""
    set_up_logging(level="INFO")


def enter_resource_process() -> tuple[State, Stored] | None:
    """Set up this process as the worker of the resource in its arguments, and return that.

    None: the resource was deleted meanwhile.
    """
    os.environ.update(take_inherited_keys())
    log_to_stderr()
    signal.signal(signal.SIGTERM, _exit)
    state = State()
    found = state.by_uid(sys.argv[1])
    if found is None:
        return None
    # Recorded by the worker itself: its parent may be dead, and it must be possible to end it.
    state.record(found.uid, note={"pid": os.getpid()})
    return state, found


def _exit(_number: int, _frame: object) -> None:
    sys.exit(143)


def release_lock(lock: Path) -> None:
    """Release this worker's lock before it ends, so that the loop that it wakes finds it free."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == os.path.realpath(lock):
                os.close(int(name))


def end_resource_process(uid: str, pid: int | None) -> None:
    """End the worker, and everything that it started in its session."""
    if pid is None or not is_resource_process(uid, pid):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        until_s = time.monotonic() + _END_TIMEOUT_S
        while is_resource_process(uid, pid) and time.monotonic() < until_s:
            time.sleep(0.02)


def is_resource_process(uid: str, pid: int) -> bool:
    """Does this process work for the resource? Its id may have been reused; its module may have had
    another name in the release that started it."""
    return uid.encode() in procfs.command_line(pid)
