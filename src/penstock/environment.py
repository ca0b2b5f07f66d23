"""Passes environment variables to child processes without exposing keys.

/proc/PID/environ shows the initial environment of a process for as long as it lives. So variables
that may be keys are passed in a memory file instead. A child whose libraries need them as variables
sets them in its own environment; that changes memory only.

May be called from any thread.
"""

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.errors import PenstockError
from penstock.specs.secret_fields import is_secret

# All variables of a cloud are passed together: keys, endpoints and options.
CLOUDS = ("AWS_", "OSS_", "BOS_", "BCE_", "ALIBABA_", "GOOGLE_", "AZURE_")
_VARIABLE = "PENSTOCK_HANDED_OVER"
_PR_SET_DUMPABLE = 4


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for programs that do not access stores."""
    return {name: value for name, value in environment.items() if not _may_be_key(name, value)}


@contextmanager
def child_environment(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the environment for a Penstock child, and the descriptor that it must inherit."""
    keys = {name: value for name, value in environment.items() if _may_be_key(name, value)}
    descriptor = os.memfd_create("penstock-environment", 0)  # 0: not closed by exec
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(json.dumps(keys).encode())
        yield {**without_keys(environment), _VARIABLE: str(descriptor)}, descriptor
    finally:
        os.close(descriptor)


def take_inherited_keys() -> dict[str, str]:
    """Return the variables passed by `child_environment`. Call it once, in the child."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return {}  # started by an older release, or by hand
    with os.fdopen(int(number), "rb") as file:
        file.seek(0)
        return json.load(file)


def keep_memory_private() -> None:
    """Forbid core files, and keep other processes of the same user (not root's) from reading this
    one's environment and memory: every signed request holds keys."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise PenstockError(f"prctl: {os.strerror(ctypes.get_errno())}")


def _may_be_key(name: str, value: str) -> bool:
    return name.startswith(CLOUDS) or is_secret(name, value)
