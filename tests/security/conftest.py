"""Hostile servers, and folders that other users can reach, so that only our own modes protect."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.security.hostile import Hostile, hostile_s3

NOBODY = 65534


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with hostile_s3() as server:
        yield server


@pytest.fixture
def in_the_open() -> Iterator[Path]:
    """A folder that everyone can walk into: pytest's own are closed to others by themselves."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


AsNobody = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def as_nobody() -> AsNobody:
    """Runs Python code as another user, who has no rights here but those of everyone."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    # Imported first: that user may not be able to reach this Python at all.
    become = f"""
import errno, json, os, pathlib, signal, socket, sys
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
"""

    def run(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", become + code, *map(str, words)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run
