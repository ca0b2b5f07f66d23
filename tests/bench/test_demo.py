"""The demo as a person runs it: one table, a true sentence, and nothing left behind."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bench_ground import assert_nothing_left

pytestmark = pytest.mark.slow


def start(medium: Path, files: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.bench.demo"]
    return subprocess.Popen(
        [*command, "--files", str(files), "--readers", "2", "--cache-medium", str(medium), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_demo_prints_a_row_for_each_epoch_and_a_conclusion(medium: Path) -> None:
    with start(medium, 60, "--rounds", "1") as demo:
        output, talk = demo.communicate(timeout=200)
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
    [("making", signal.SIGINT), ("putting", signal.SIGTERM), ("rclone: a cold", signal.SIGINT)],
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
        output, talk = demo.communicate(timeout=100)
    assert demo.returncode == 130, talk
    assert output == ""
    assert "nothing is left behind" in talk
    assert_nothing_left(medium)
