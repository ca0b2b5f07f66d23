"""The GPUs of this machine. PENSTOCK_GPUS=n says that there are n, whatever there is."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.errors import UsageError
from penstock.units import MIB

_DRIVER = Path("/proc/driver/nvidia/gpus")
# It loads the driver where nothing else has, which may take seconds.
_ANSWERS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int | None


def machine_gpus() -> list[Gpu]:
    return list(_found(os.environ.get("PENSTOCK_GPUS")))


@cache  # none is added while a process lives
def _found(given: str | None) -> tuple[Gpu, ...]:
    if given is not None:
        if not given.isdigit():
            raise UsageError(f"PENSTOCK_GPUS is {given!r}", hint="a number of GPUs, such as 1")
        return tuple(Gpu(index, "GPU", None) for index in range(int(given)))
    lines = ask_smi("index,name,memory.total")
    if lines:
        return tuple(Gpu(int(index), name, _bytes(memory)) for index, name, memory in lines)
    try:
        count = len(os.listdir(_DRIVER))
    except OSError:
        count = 0
    return tuple(Gpu(index, "NVIDIA GPU", None) for index in range(count))


def ask_smi(fields: str) -> list[list[str]]:
    """The values of each GPU, as nvidia-smi gives them; [] where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    wanted = fields.count(",") + 1
    rows = ([value.strip() for value in line.split(",")] for line in told.stdout.splitlines())
    return [row for row in rows if len(row) == wanted]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * MIB if mebibytes.isdigit() else None
