"""A process that sees folders of this machine at other places, and nobody else does.

It gets a mount namespace of its own, in which each source is bound to its target, read-only. Root
makes one directly, others inside of a user namespace in which they are who they are. Where a target
does not exist, no folder is made on the machine: the nearest folder above it is shown through a
small tmpfs that holds all that is there, and the target besides; nothing can be made directly in
it. That hides and protects nothing: it is a view, not a prison.

A program of its own does all that (`penstock.reconcile.namespace_child`) and then becomes the
command: between fork and exec a process with threads may do next to nothing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from penstock.environment import without_keys
from penstock.errors import UsageError


def run_with_data(
    argv: Sequence[str],
    binds: Sequence[tuple[Path, Path]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
) -> "subprocess.Popen[bytes]":
    """Starts it, and returns once it runs with all its folders in place; raises if it cannot.

    It dies with the thread that has started it. stderr goes where stdout goes. `cwd` is looked up
    among the folders as the process sees them.
    """
    told = {
        "argv": list(argv),
        "binds": [[str(source), str(target)] for source, target in binds],
        "env": dict(env),
        "cwd": None if cwd is None else str(cwd),
        "parent": os.getpid(),
    }
    # In a memory file: arguments are read by all, and an environment by whoever is inside.
    descriptor = os.memfd_create("penstock-process", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(json.dumps(told).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    reader, writer = os.pipe()
    try:
        child = subprocess.Popen(
            [
                sys.executable,
                "-Pm",
                "penstock.reconcile.namespace_child",
                str(descriptor),
                str(writer),
            ],
            pass_fds=(descriptor, writer),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=without_keys(os.environ),
        )
    finally:
        os.close(writer)
        os.close(descriptor)
    with os.fdopen(reader, "rb") as report:
        said = report.read()  # ends when the command has taken the program's place
    if said:
        child.wait()
        error = json.loads(said)
        raise UsageError(error["what"], hint=error["hint"])
    return child
