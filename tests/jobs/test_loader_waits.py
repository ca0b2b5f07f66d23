"""How long the loops of a job waited: recorded by each process, and read by anyone."""

import os
from pathlib import Path

import pytest

from penstock.jobs.loader_waits import LoaderWaits, WaitRecord, read_waits

SECOND = 1_000_000_000


def test_the_records_of_all_processes_are_summed(tmp_path: Path) -> None:
    one, other = WaitRecord(tmp_path), WaitRecord(tmp_path)
    assert read_waits(tmp_path) is None  # nobody has got a batch yet
    one.add(10 * SECOND, 12 * SECOND)
    one.add(20 * SECOND, 21 * SECOND)
    other.add(5 * SECOND, 6 * SECOND)
    assert read_waits(tmp_path) == LoaderWaits(2, 3, waited_s=4.0, elapsed_s=12.0)
    assert LoaderWaits(2, 3, 4.0, 12.0).share == pytest.approx(1 / 3)
    assert LoaderWaits(1, 1, 0.0, 0.0).share == 0.0


def test_records_outlive_their_process_and_other_files_are_ignored(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        WaitRecord(tmp_path).add(1, 3)
        os._exit(0)
    os.waitpid(child, 0)
    for name, content in (("a.waits", b""), ("b.waits", b"x" * 40), ("c", b"x")):
        (tmp_path / name).write_bytes(content)
    found = read_waits(tmp_path)
    assert found is not None
    assert (found.processes, found.batches) == (1, 1)
    assert read_waits(tmp_path / "missing") is None
