"""A test that fails while pages are taken back is run again; any other fails."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from tests import taken_back

tries = []
taken_back.taken_back = lambda: len(tries) if {taken} else 7

@pytest.fixture
def fresh():
    return []

def test_counts(fresh):
    fresh.append(1)
    assert len(fresh) == 1
    tries.append(1)
    assert len(tries) == {passes_at}
"""
SAYS = "run again: the kernel took pages back meanwhile"


@pytest.mark.parametrize(
    ("taken", "passes_at", "passes", "again"),
    [
        (True, 1, True, False),
        (True, 3, True, True),
        (True, 4, False, True),
        (False, 2, False, False),
    ],
)
def test_only_what_fails_while_pages_are_taken_is_run_again(
    tmp_path: Path, taken: bool, passes_at: int, passes: bool, again: bool
) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(TESTS.format(taken=taken, passes_at=passes_at))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.taken_back", "-p", "no:cacheprovider",
         tmp_path],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode == 0, SAYS in done.stdout) == (passes, again), done.stdout
    assert ("1 passed" if passes else "1 failed") in done.stdout
