"""What commands print when something is interrupted, refused, long, or just one."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.api import mounts, resources
from penstock.api.tables import describe
from penstock.units import counted
from tests.support.mounts import fail, penstock, succeed
from tests.support.waiting import wait_until

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_ctrl_c_while_a_foreground_mount_starts_prints_no_traceback(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = ["mount", "s3://b", tmp_path / "here", "--no-cache", "--endpoint", endpoint]
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
        )
        # It has just become the supervisor, and imports its modules.
        command = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: b"penstock.cli.supervise" in command.read_bytes())
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_ctrl_c_reports_that_a_command_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(resources, "apply", interrupted)
    ended = penstock("apply", "-f", tmp_path)
    assert (ended.returncode, ended.stderr.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("address", "shown", "hint"),
    [
        ("http://127.0.0.1", "http://127.0.0.1", "check --endpoint and the network"),
        # Without a scheme: http on this machine, https elsewhere, which is stderr.
        ("127.0.0.1", "http://127.0.0.1", "check --endpoint and the network"),
        ("127.0.0.2", "https://127.0.0.2", "write http:// before the endpoint if the store has no"),
    ],
)
def test_a_refused_connection_is_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, shown: str, hint: str
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as unused:  # bound and not listening: a connection is refused
        unused.bind(("0.0.0.0", 0))
        port = unused.getsockname()[1]
        options = ("--no-cache", "--deadline", "1s", "--endpoint", f"{address}:{port}")
        stderr = fail("mount", "s3://b", tmp_path, "-b", *options, code=3).splitlines()
    place = f"s3://b?endpoint={shown}:{port}"
    assert stderr[0] == f"penstock: {place}: no server accepts connections at its endpoint"
    assert stderr[1].startswith(f"hint: {hint}")


def test_a_long_condition_is_described_in_several_lines() -> None:
    message = "; ".join(f"reason {number} (spec.worker.field{number})" for number in range(100))
    shown = {
        "apiVersion": "v1",
        "kind": "Dataset",
        "metadata": {"name": "x", "namespace": "default"},
        "status": {"conditions": [{"message": message}]},
    }
    output = describe(shown, [])
    assert max(map(len, output.splitlines())) < 130
    assert re.sub(r"\s+", " ", output).count(message) == 1


def test_paths_stay_whole_in_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/mnt/" + "a-folder-with-a-long-name/" * 5 + "imagenet"
    row = {"mountpoint": path, "source": "s3://" + "b" * 60, "state": "restarting"}
    monkeypatch.setattr(mounts, "all_stats", lambda **_: [row])
    title, line = succeed("stats").splitlines()
    assert title.startswith("MOUNTPOINT ")
    assert line.split()[:3] == [path, row["source"], "restarting"]


def test_a_counted_noun_is_singular_for_one() -> None:
    output = [counted(number, "file") for number in (0, 1, 2, 1_234)]
    assert output == ["0 files", "1 file", "2 files", "1,234 files"]
