"""The demo as a person runs it: one table, a true sentence, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bench import measure
from penstock.bench.workspace import MARK


@pytest.fixture
def medium() -> Iterator[Path]:
    # Not pytest's own folder, whose long name leaves a control socket no room: 108 bytes.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


def start(medium: Path, files: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.bench.demo"]
    return subprocess.Popen(
        [*command, "--files", str(files), "--readers", "2", "--cache-medium", str(medium), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_nothing_left(medium: Path) -> None:
    assert measure.mounts_below(medium) == []
    assert measure.marked_processes(f"{MARK}={medium}/") == []
    assert os.listdir(medium) == []


def test_the_demo_prints_a_row_for_each_epoch_and_a_conclusion(medium: Path) -> None:
    with start(medium, 60, "--rounds", "1") as demo:
        output, talk = demo.communicate(timeout=60)
    assert demo.returncode == 0, talk
    rows = re.findall(r"│ (native|penstock|rclone) +│ (cold|warm) ", output)
    assert rows == [
        ("native", "warm"),
        ("penstock", "cold"),
        ("penstock", "warm"),
        ("rclone", "cold"),
        ("rclone", "warm"),
    ]
    assert "A warm epoch through Penstock reads at" in output
    assert_nothing_left(medium)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("making", signal.SIGINT),
        ("serving", signal.SIGTERM),
        ("penstock: a cold", signal.SIGTERM),
        ("rclone: a cold", signal.SIGINT),
    ],
)
def test_an_interrupted_demo_leaves_nothing(
    medium: Path, moment: str, number: signal.Signals
) -> None:
    with start(medium, 100) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith(moment):
                break
        else:
            pytest.fail(f"the demo ended before {moment!r}")
        demo.send_signal(number)
        output, talk = demo.communicate(timeout=30)
    assert demo.returncode == 130, talk
    assert output == ""
    assert "nothing is left behind" in talk
    assert_nothing_left(medium)
