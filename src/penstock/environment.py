"""What a process of ours hands on of its environment to the next.

/proc/PID/environ shows what a process was started with, for as long as it lives. So variables that
may be keys are not among that: they go in a memory file beside it. Who needs them as variables, as
the libraries of the stores do, sets them anew; that changes memory only.

Functions only; may be called from any thread.
"""

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.errors import PenstockError
from penstock.specs.secret_fields import is_secret

# All of a cloud's variables go together: keys, and where and how they are used.
CLOUDS = ("AWS_", "OSS_", "BOS_", "BCE_", "ALIBABA_", "GOOGLE_", "AZURE_")
_VARIABLE = "PENSTOCK_HANDED_OVER"
_PR_SET_DUMPABLE = 4


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """For programs that have nothing to do with stores."""
    return {name: value for name, value in environment.items() if not _may_be_key(name, value)}


@contextmanager
def child_environment(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], int]]:
    """The environment to start a process of ours with, and a descriptor that it must inherit."""
    keys = {name: value for name, value in environment.items() if _may_be_key(name, value)}
    descriptor = os.memfd_create("penstock-environment", 0)  # 0: not closed by exec
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(json.dumps(keys).encode())
        yield {**without_keys(environment), _VARIABLE: str(descriptor)}, descriptor
    finally:
        os.close(descriptor)


def take_inherited_keys() -> dict[str, str]:
    """In the process that was started so, once: the variables that came beside its environment."""
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
