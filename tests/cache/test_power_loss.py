"""After a power loss any part of what was not synced may be missing. The cache comes up clean."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cache.build import open_directory
from penstock.cache.guarded import Guarded
from penstock.cache.policy import Keep
from penstock.metrics import Counters
from tests.support.cache_fill import (
    BLOCK,
    DATA,
    OBJECTS,
    blocks_of,
    check_comes_up_clean,
    empty,
    fill,
    let_go_of_connections,
    open_cache,
)

FRAME_BYTES = 4096 + 24
pytestmark = pytest.mark.timeout(600)  # the slow ones open hundreds of caches
HEADER_BYTES = 32
HERE = [HealthCheck.function_scoped_fixture]
FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=HERE)
MANY = settings(FEW, max_examples=100)


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
def test_with_its_log_cut_at_any_frame_and_within_it_the_cache_comes_up_clean(
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


def check_a_loss(
    machine: Machine, harms: dict[str, tuple[Harm, int]], log: float | None, noise: int
) -> None:
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


def check_damage(
    machine: Machine, places: list[float], length: int, seed: int, of_log: bool
) -> None:
    machine.restore()
    if not of_log:
        check_comes_up_clean(machine.path)  # moves everything into the database
    file = machine.log if of_log else machine.path / "index.sqlite"
    with open(file, "r+b") as stream:
        size = file.stat().st_size
        for place in places:
            stream.seek(int(place * size))
            stream.write(random.Random(seed).randbytes(length))
    now = [0.0]

    def open_again(distrust: object) -> object:
        return open_directory(
            machine.path, name="SSD", quota_bytes=1 << 30, high=1, low=1, policy=Keep(),
            counters=Counters(), distrust=distrust,  # pyright: ignore
        )  # fmt: skip

    guarded = Guarded(
        machine.path, "SSD", open_again, Counters(),  # pyright: ignore
        clock=lambda: now[0], start=lambda work: work(), sweep_pause_s=0,
    )  # fmt: skip
    for _ in range(3):
        for name, what in OBJECTS.items():
            whole = guarded.complete_file(what)
            assert whole is None or whole.read_bytes() == DATA[name]
            for block in blocks_of(what):
                wanted = DATA[name][block.start : block.start + block.length]
                assert guarded.read(block, 0, block.length) in (None, wanted)
                guarded.write(what, BLOCK, block, wanted)
        guarded.source_bytes("s3://b")
        guarded.status()
        now[0] += 60
    status = guarded.status()
    assert status.state == "ok"
    # Frames of the log have checksums and pages of the database have none: a row may have become
    # another one that is possible too, and then one block more or less is counted.
    assert not of_log or status.used_bytes == sum(map(len, DATA.values()))
    for name, what in OBJECTS.items():
        whole = guarded.complete_file(what)
        assert whole is not None
        assert whole.read_bytes() == DATA[name]
    guarded.close()


LOSS = given(harms=HARMS, log=st.none() | st.floats(0, 1), noise=st.integers(0, 2**32))
DAMAGE = given(
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
    length=st.sampled_from([1, 8, 100, 4096]), seed=st.integers(0, 2**32), of_log=st.booleans(),
)  # fmt: skip


@FEW
@LOSS
def test_with_any_part_of_its_files_and_log_lost_the_cache_comes_up_clean(
    machine: Machine, harms: dict[str, tuple[Harm, int]], log: float | None, noise: int
) -> None:
    check_a_loss(machine, harms, log, noise)


@pytest.mark.slow
@MANY
@LOSS
def test_with_many_losses_the_cache_comes_up_clean(
    machine: Machine, harms: dict[str, tuple[Harm, int]], log: float | None, noise: int
) -> None:
    check_a_loss(machine, harms, log, noise)


@FEW
@DAMAGE
def test_with_any_damage_to_its_index_nothing_fails_and_no_byte_is_wrong(
    machine: Machine, places: list[float], length: int, seed: int, of_log: bool
) -> None:
    check_damage(machine, places, length, seed, of_log)


@pytest.mark.slow
@MANY
@DAMAGE
def test_with_much_damage_no_byte_is_wrong(
    machine: Machine, places: list[float], length: int, seed: int, of_log: bool
) -> None:
    check_damage(machine, places, length, seed, of_log)
