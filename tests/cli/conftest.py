"""How a mount is refused: what a person sees, and what must not be left behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

GIVES_UP_AFTER_S = 60


class Refuse(Protocol):
    def __call__(
        self, source: str, *options: str | Path, says: str, code: int = 2,
        mountpoint: Path | None = None, hint: bool | None = True,
    ) -> str: ...  # fmt: skip


@pytest.fixture(params=["foreground", "background"])
def refuse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Refuse]:
    """refuse(source, *options, says=…) runs `penstock mount` and checks that it is refused as it
    must be: one line that says what and where, one hint, the exit code, and nothing is left."""
    background = ("-b",) if request.param == "background" else ()
    empty = tmp_path / "mnt"
    empty.mkdir()

    def check(
        source: str, *options: str | Path, says: str, code: int = 2,
        mountpoint: Path | None = None, hint: bool | None = True,
    ) -> str:  # fmt: skip
        place = mountpoint or empty
        if not any(str(option).startswith(("--cache", "--tier")) for option in options):
            options += ("--cache-dir", tmp_path / "cache")
        before = mounts_below(tmp_path), processes_that_name(place)
        command = ["mount", source, str(place), *background, *map(str, options)]
        refusal = one_refusal(command, says=says, code=code, hint=hint)
        assert (mounts_below(tmp_path), processes_that_name(place)) == before
        return refusal

    yield check
    clear_away(empty)


def one_refusal(command: list[str], *, says: str, code: int = 2, hint: bool | None = True) -> str:
    """Runs a command that must be refused; returns what it said. hint=None: there may be one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command], text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=GIVES_UP_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _, stderr = process.communicate()
        if command[0] == "mount":
            clear_away(Path(command[2]))
        pytest.fail(f"not refused within {GIVES_UP_AFTER_S} s; it said: {stderr}")
    lines = stderr.splitlines()
    assert process.returncode == code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    shape = [line.split(" ", 1)[0] for line in lines]
    assert shape in (["penstock:"], ["penstock:", "hint:"]), stderr
    assert hint is None or len(shape) == 1 + hint, f"{'no' if hint else 'a'} hint: {stderr}"
    assert re.search(says, lines[0]), lines[0]
    assert len(lines[0]) < 400, "a line is not a page"
    return stderr


def clear_away(place: Path) -> None:
    """After a test that failed: ends what it started, so that the next ones can be believed."""
    for process in processes_that_name(place):
        os.kill(int(process.split(":")[0]), signal.SIGKILL)
    if str(place) in mounts_below(place.parent):
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def mounts_below(folder: Path) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return [line.split(" ")[4] for line in table if f" {folder}/" in line]


def processes_that_name(path: Path) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended
        if os.fsencode(path) in words:
            found.append(f"{process.name}: {words!r}")
    return found
