"""Who has the loop look: one is started, and only one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.resources.nudge import is_running, nudge, served_by
from tests.support.waiting import wait_until


def test_nobody_starts_a_second_one_while_the_first_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock before it has loaded what it is made of."""
    slow, starts = tmp_path / "slow-python", tmp_path / "starts"
    slow.write_text(f"#!/bin/sh\necho $3 >> {starts}\nexec cat {tmp_path}/until\n")
    slow.chmod(0o755)
    os.mkfifo(tmp_path / "until")
    monkeypatch.setattr(sys, "executable", str(slow))
    (tmp_path / "loop.lock").write_text("4711")  # of one that served, and is gone
    nudge(tmp_path)
    assert is_running(tmp_path)
    assert served_by(tmp_path) is None
    for _ in range(3):
        nudge(tmp_path)
    with open(tmp_path / "until", "w"):
        pass
    wait_until(lambda: not is_running(tmp_path), "it has ended")
    assert len(starts.read_text().splitlines()) == 1


def test_one_that_cannot_be_started_leaves_the_lock_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nudge(tmp_path)
    assert not is_running(tmp_path)
