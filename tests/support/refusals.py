"""How a command is rejected: what a person sees, and what must not be left behind."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.support.mounts import penstock
from tests.support.processes import commands


def one_refusal(command: list[str], *, says: str, code: int = 2, hint: bool | None = True) -> str:
    """Run a command that must be rejected, and return its stderr. hint=None: there may be one."""
    return check_refusal(penstock(*command), says=says, code=code, hint=hint)


def check_refusal(
    result: subprocess.CompletedProcess[str], *, says: str, code: int = 2, hint: bool | None = True
) -> str:
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    shape = [line.split(" ", 1)[0] for line in lines]
    assert shape in (["penstock:"], ["penstock:", "hint:"]), result.stderr
    assert hint is None or len(shape) == 1 + hint, f"{'no' if hint else 'a'} hint: {result.stderr}"
    assert re.search(says, lines[0]), lines[0]
    assert len(lines[0]) < 400, "a line is not a page"
    return result.stderr


def clear_away(place: Path) -> None:
    """End what a failed test has started, so that the next tests can be trusted."""
    for process in processes_that_name(place):
        os.kill(int(process.split(":")[0]), signal.SIGKILL)
    if str(place) in mounts_below(place.parent):
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def mounts_below(folder: Path) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return [line.split(" ")[4] for line in table if f" {folder}/" in line]


def processes_that_name(path: Path) -> list[str]:
    return [f"{pid}: {words!r}" for pid, words in commands().items() if os.fsencode(path) in words]
