"""A short soak, so that the long one works when it is needed."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.kinds import Fault
from tests.mount.conftest import needs_passthrough
from tests.soak.contents import LARGE, NAMES, SMALL, describe, make, size_of, state_in
from tests.soak.watch import sparkline

ROOT = Path(__file__).parents[2]


# It fills both cores by itself, and what it judges depends on a deadline.
@pytest.mark.alone
@needs_passthrough
def test_a_short_soak_shows_no_wrong_bytes_and_no_error_that_is_not_promised(
    tmp_path: Path,
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.35", "--seed", "1", "--out", tmp_path],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    summary = (tmp_path / "summary.txt").read_text()
    assert summary == result.stdout
    assert "seed 1: 0 wrong bytes, no error that is not promised" in summary
    assert "left behind  nothing" in summary
    # It did happen.
    happened = (
        "kill -9", "rewritten", "deleted", "refreshes", "kernel caches dropped", "bits flipped",
        "outages over the deadline", Fault.SLOW_DOWN, Fault.REFUSE,
    )  # fmt: skip
    for what in happened:
        assert f"{what} " in summary


def test_a_mix_of_two_versions_is_seen_and_told() -> None:
    name = NAMES[LARGE[0]]
    first, second = (s for s in range(50) if s in (0, 1) and size_of(name, s) is not None)
    mix = make(name, first)[:8192] + make(name, second)[8192:]
    assert state_in(mix) == first
    assert mix != make(name, first)
    assert describe(mix).startswith(f"from 0: {name} {first}; from 8192: {name} {second}")


def test_files_keep_their_size_in_some_rewrites_and_are_absent_in_some_states() -> None:
    name = NAMES[SMALL[0]]
    sizes = [size_of(name, state) for state in range(100)]
    assert sizes[0] is not None
    assert None in sizes
    assert any(one == other for one, other in pairwise(sizes))


def test_a_sparkline_shows_the_greatest_of_each_share() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([1] * 600 + [100]).endswith("█")
    assert len(sparkline(list(range(601)))) == 60
