"""Processes that do the work of one resource each, and hold a lock for as long as they live.

That lock, not a process number, says whether one runs: the loop takes it and hands it to the child,
so there is no moment at which two could be begun.
"""

import contextlib
import logging
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
from penstock.store.redaction import LOG_FORMAT, RedactingFormatter

_ENDS_WITHIN_S = 5.0


def start_worker(module: str, uid: str, lock: int, log: Path) -> "subprocess.Popen[bytes]":
    """`python -Pm MODULE UID`, in a session of its own. The lock is the child's from then on."""
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


def start_as_worker() -> tuple[State, Stored] | None:
    """In the worker itself, first: whose work it does. None if that was deleted meanwhile."""
    os.environ.update(take_inherited_keys())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", "INFO").upper())
    signal.signal(signal.SIGTERM, _leave)
    state = State()
    found = state.by_uid(sys.argv[1])
    if found is None:
        return None
    # Said by itself: whoever started it may be dead, and someone will want to end it.
    state.observe(found.uid, note={"pid": os.getpid()})
    return state, found


def _leave(_number: int, _frame: object) -> None:
    sys.exit(143)


def release_lock(lock: Path) -> None:
    """Of the lock that this worker was handed, before it ends: who is woken now finds it free."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == os.path.realpath(lock):
                os.close(int(name))


def end_worker(module: str, uid: str, pid: int | None) -> None:
    """And all that it started in its session."""
    if pid is None or not is_worker(module, uid, pid):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        until_s = time.monotonic() + _ENDS_WITHIN_S
        while is_worker(module, uid, pid) and time.monotonic() < until_s:
            time.sleep(0.02)


def is_worker(module: str, uid: str, pid: int) -> bool:
    """Its number may be another's by now."""
    words = procfs.command_line(pid)
    return uid.encode() in words and module.encode() in words
