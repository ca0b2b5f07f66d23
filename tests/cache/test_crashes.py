"""Whatever a kill or a power loss leaves of a cache directory, the cache comes up clean.

strace kills a process as it enters the Nth call of a kind, for N = 1, 2, 3, … until a fill gets
through: so it dies between any two changes that it makes to the disk. After a power loss any part
of what was not synced may be missing.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cache_fill import (
    DATA,
    OBJECTS,
    check_comes_up_clean,
    empty,
    fill,
    let_go_of_connections,
    open_cache,
    use,
)
from tests.support.cache_samples import Disk

FRAME_BYTES = 4096 + 24
pytestmark = pytest.mark.timeout(600)  # the slow ones make hundreds of processes and caches
HEADER_BYTES = 32
EXAMPLES = pytest.mark.parametrize("examples", [12, pytest.param(100, marks=pytest.mark.slow)])
STEADY = settings(deadline=None, derandomize=True)


class Machine:
    """A filled directory whose every row is in the log, and a copy of it to do harm to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cache"
        self._saved = folder / "saved"
        self._saved.mkdir()
        cache = open_cache(self.path)
        fill(cache)
        for file in (*self.path.glob("index.sqlite*"), *self.path.glob("objects/*/*")):
            if not file.name.endswith("-shm"):  # memory: what a power loss takes first
                shutil.copy(file, self._saved)
        cache.close()
        del cache
        self.log = self.path / "index.sqlite-wal"

    def restore(self) -> None:
        let_go_of_connections()
        empty(self.path)
        for file in self._saved.iterdir():
            named = "" if file.name.startswith("index") else f"objects/{file.name[:2]}"
            shutil.copy(file, self.path / named / file.name)

    @property
    def log_bytes(self) -> int:
        return (self._saved / "index.sqlite-wal").stat().st_size

    def file(self, name: str) -> Path:
        digest = OBJECTS[name].digest.hex()
        return self.path / "objects" / digest[:2] / digest


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def keep(_file: Path, _at: int) -> None: ...


def lose(file: Path, _at: int) -> None:
    file.unlink()


def cut(file: Path, at: int) -> None:
    os.truncate(file, at)


def zero(file: Path, at: int) -> None:
    """Blocks that were given to the file, and never written."""
    with open(file, "r+b") as stream:
        stream.seek(at)
        stream.write(bytes(min(4096, file.stat().st_size - at)))


def grow(file: Path, at: int) -> None:
    with open(file, "ab") as stream:
        stream.write(b"x" * (at + 1))


Harm = Callable[[Path, int], None]
HARMS = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.sampled_from([keep, lose, cut, zero, grow]), st.integers(0, len(data) - 1)
        )
        for name, data in DATA.items()
    }
)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_cache_comes_up_clean_with_its_log_cut_at_and_within_any_frame(
    machine: Machine, step: int
) -> None:
    survived: list[int] = []
    frames = (machine.log_bytes - HEADER_BYTES) // FRAME_BYTES
    for frame in (*range(0, frames, step), frames):
        for at in (HEADER_BYTES + frame * FRAME_BYTES, HEADER_BYTES + frame * FRAME_BYTES + 1000):
            machine.restore()
            os.truncate(machine.log, min(at, machine.log_bytes))
            survived.append(check_comes_up_clean(machine.path))
    assert survived == sorted(survived), "a longer log never knows less"
    assert survived[0] == 0
    assert survived[-1] == sum(map(len, DATA.values()))


@EXAMPLES
def test_cache_comes_up_clean_with_any_part_of_its_files_and_log_lost(
    machine: Machine, examples: int
) -> None:
    @settings(STEADY, max_examples=examples)
    @given(harms=HARMS, log=st.none() | st.floats(0, 1), noise=st.integers(0, 2**32))
    def check(harms: dict[str, tuple[Harm, int]], log: float | None, noise: int) -> None:
        machine.restore()
        for name, (harm, at) in harms.items():
            harm(machine.file(name), at)
        if log is not None:
            at = int(log * machine.log_bytes)
            tail = random.Random(noise).randbytes((machine.log_bytes - at) // 2)
            with open(machine.log, "r+b") as stream:
                stream.seek(at)
                stream.write(tail)  # what the disk had there before
                stream.truncate()
        check_comes_up_clean(machine.path)

    check()


DAMAGE = {
    "places": st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
    "length": st.sampled_from([1, 8, 100, 4096]),
    "seed": st.integers(0, 2**32),
    "of_log": st.booleans(),
}


@EXAMPLES
def test_damage_to_the_index_causes_no_failure_and_no_wrong_byte(
    machine: Machine, examples: int
) -> None:
    @settings(STEADY, max_examples=examples)
    @given(**DAMAGE)
    def check(places: list[float], length: int, seed: int, of_log: bool) -> None:
        machine.restore()
        if not of_log:
            check_comes_up_clean(machine.path)  # moves everything into the database
        file = machine.log if of_log else machine.path / "index.sqlite"
        with open(file, "r+b") as stream:
            size = file.stat().st_size
            for place in places:
                stream.seek(int(place * size))
                stream.write(random.Random(seed).randbytes(length))
        disk = Disk(machine.path)
        guarded = disk.guard()
        use(guarded, disk, rounds=3)
        status = guarded.status()
        assert status.state == "ok"
        # Frames of the log have checksums and pages of the database have none: a row may have
        # become another one that is possible too, and then one block more or less is counted.
        assert not of_log or status.used_bytes == sum(map(len, DATA.values()))
        for name, obj in OBJECTS.items():
            whole = guarded.complete_file(obj)
            assert whole is not None
            assert whole.read_bytes() == DATA[name]
        guarded.close()

    check()


# -- kills ---------------------------------------------------------------------------------

# All that change the disk, and what opens and locks: every call of a kind, or every so manieth.
EVERY = [
    ("pwrite64", 11),
    ("openat", 11),
    ("ftruncate", 1),
    ("unlink", 2),
    *(
        pytest.param(call, 1, marks=pytest.mark.slow)
        for call in ("pwrite64", "openat", "unlink", "fdatasync", "utimensat")
    ),
]
ROOT = Path(__file__).parents[2]


class Victims:
    """Fills of one directory, each of which is killed or gets through."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fill_and_die", str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, inject: str) -> int:
        empty(self._path)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write("\n")
        victim = int(self._server.stdout.readline())
        calls = inject.partition(":")[0]
        with subprocess.Popen(
            [
                "strace",
                "-f",
                "-p",
                str(victim),
                "-o",
                "/dev/null",
                "-e",
                f"trace={calls}",
                "-e",
                f"inject={inject}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        ) as tracer:
            assert tracer.stderr is not None
            output = tracer.stderr.readline()
            assert "attached" in output, output
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
def test_cache_comes_up_clean_when_killed_at_any_call_of_a_fill(
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
