"""The process that makes the kernel load regions: what it takes, and how it ends.

That the kernel loads them is in tests/mount/test_random_reads.py.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache.identity import identify
from penstock.errors import StaleInode
from penstock.metrics import Counters
from penstock.units import KIB, MIB
from penstock.vfs.random_reads import Extent
from penstock.warm import regions
from penstock.warm.regions import AdviceProcess, LoadBudget, RegionLoader
from tests.support.waiting import wait_until

STEP = 128 * KIB


@pytest.fixture
def process(tmp_path: Path) -> Iterator[AdviceProcess]:
    process = AdviceProcess(tmp_path)
    yield process
    process.close()


def started(process: AdviceProcess) -> int:
    assert process.request(b"missing", Extent(0, MIB), STEP)
    return wait_until(lambda: process.pid)


def test_a_process_that_is_behind_takes_no_more(process: AdviceProcess) -> None:
    pid = started(process)
    os.kill(pid, signal.SIGSTOP)
    path = b"a" * 4000
    taken = 0
    while process.request(path, Extent(0, MIB), STEP):
        taken += 1
    assert 0 < taken <= 64, "what a pipe holds"
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: process.request(b"large", Extent(0, MIB), STEP))


def test_a_path_that_could_be_written_in_part_is_not_requested(process: AdviceProcess) -> None:
    assert not process.request(b"a" * 4096, Extent(0, MIB), STEP)


def test_a_process_that_was_killed_is_not_asked_again(process: AdviceProcess) -> None:
    pid = started(process)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not process.request(b"large", Extent(0, MIB), STEP))
    assert process.pid is None
    assert not process.request(b"large", Extent(0, MIB), STEP)


def test_closing_ends_the_process_and_starts_no_other(process: AdviceProcess) -> None:
    pid = started(process)
    process.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not process.request(b"large", Extent(0, MIB), STEP)


def test_a_budget_is_measured_once_a_second_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = iter([30, 20])
    monkeypatch.setattr(regions, "spare_bytes", lambda: next(measured))
    assert LoadBudget(7).current_bytes() == 7
    now_s = 5.0
    budget = LoadBudget(None, lambda: now_s)
    assert [budget.current_bytes(), budget.current_bytes()] == [30, 30]
    now_s = 6.0
    assert [budget.current_bytes(), budget.current_bytes()] == [20, 20]


def test_a_stale_inode_costs_one_region_and_no_read(tmp_path: Path) -> None:
    def path_of(_ino: int) -> bytes:
        raise StaleInode("gone")

    counters = Counters()
    loader = RegionLoader(tmp_path, 8 * MIB, 64 * MIB, path_of, counters)
    obj = identify("s3://b", "large", "1", 64 * MIB, 8 * MIB)
    for unit in range(0, 64, 2):
        loader.observe(7, obj, unit * 128 * KIB, 4096)
    assert counters.total("loaded_regions") == 0
    loader.close()
