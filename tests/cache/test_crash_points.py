"""Killed at any system call of a fill, the cache comes up clean.

strace kills the process as it enters the Nth call of a kind, for N = 1, 2, 3, … until a fill
gets through: so it dies between any two changes that it makes to the disk.
"""

import itertools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cache_fill import check_comes_up_clean, empty, open_cache

# All that change the disk, and what opens and locks: every call of a kind, or every so manieth.
EVERY = [
    ("pwrite64", 11), ("openat", 11), ("ftruncate", 1), ("unlink", 2),
    *(pytest.param(call, 1, marks=pytest.mark.slow)
      for call in ("pwrite64", "openat", "unlink", "fdatasync", "utimensat")),
]  # fmt: skip
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # the slow ones make hundreds of processes


class Victims:
    """Fills of one directory, each of which is killed or gets through."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fill_and_die", str(path)], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def run(self, inject: str) -> int:
        empty(self._path)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write("\n")
        victim = int(self._server.stdout.readline())
        calls = inject.partition(":")[0]
        with subprocess.Popen(
            ["strace", "-f", "-p", str(victim), "-o", "/dev/null", "-e", f"trace={calls}",
             "-e", f"inject={inject}"], stderr=subprocess.PIPE, text=True,
        ) as tracer:  # fmt: skip
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            assert "attached" in said, said
            self._server.stdin.write("\n")
            tracer.stderr.read()
        return int(self._server.stdout.readline())

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(20)
        assert self._server.stdout is not None
        self._server.stdout.close()


@pytest.mark.parametrize(("call", "step"), EVERY)
def test_killed_at_any_call_of_a_fill_the_cache_comes_up_clean(
    tmp_path: Path, call: str, step: int
) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    path = tmp_path / "cache"
    open_cache(path).close()
    victims = Victims(path)
    survived: list[int] = []
    try:
        for number in itertools.count(1, step):
            if (status := victims.run(f"{call}:signal=KILL:when={number}")) == 0:
                break
            assert status == -signal.SIGKILL
            survived.append(check_comes_up_clean(path))
    finally:
        victims.close()
    assert survived
    if call == "pwrite64":
        assert len(set(survived)) > 2, "each commit makes more survive"
