"""A short soak, so that the long one works when it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.contents import LARGE, NAMES, describe, make, size_of, stamp_of
from tests.support.mounts import needs_passthrough

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_passthrough
def test_a_short_soak_shows_no_wrong_bytes_and_only_promised_errors(
    tmp_path: Path,
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--seed", "1", "--out", tmp_path],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = (tmp_path / "summary.txt").read_text()
    assert summary == result.stdout
    assert "seed 1: 0 wrong bytes, no name missing, no error that is not promised" in summary
    assert "left behind: nothing" in summary
    for what in (
        "kill -9 (",
        "catalogs damaged ",
        "indexes damaged ",
        "rewritten ",
        "refreshes ",
        "kernel caches dropped ",
        "bits flipped ",
        "outages over the deadline ",
    ):
        assert what in summary, f"{what}did not happen"
    assert "the store failed: none" not in summary
    assert "lost-pages " in summary


def test_a_mix_of_two_versions_is_detected_and_described() -> None:
    name = NAMES[LARGE[0]]
    first, second = [state for state in range(50) if size_of(name, state) is not None][:2]
    mix = make(name, first)[:8192] + make(name, second)[8192:]
    assert stamp_of(mix) == (name, first)
    assert mix != make(name, first)
    assert describe(mix) == f"from 0: {(name, first)}; from 8192: {(name, second)}"
