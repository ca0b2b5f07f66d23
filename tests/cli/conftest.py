"""Mounts that are rejected, without the processes that would serve them."""

import logging
from pathlib import Path

import pytest

from penstock.daemon.server import Server
from penstock.daemon.settings import MountSettings
from penstock.daemon.start import Progress
from tests.support.refusals import Refuse, one_refusal
from tests.support.trees import write_tree


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_tree(tmp_path / "source", {"file": b"1"})
    return f"file://{tmp_path}/source"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0")


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """refuse(source, *options, says=…) runs `penstock mount -b` and checks how it is rejected.

    This process prepares the server, which finds the mistake: processes would take 0.5 s each.
    """
    monkeypatch.setattr("penstock.cli.mount.start_supervisor", _prepare)
    monkeypatch.setattr("penstock.daemon.server._yield_to_readers", lambda: None)
    empty = tmp_path / "mnt"
    empty.mkdir()

    def check(
        source: str, *options: str | Path, says: str, code: int = 2,
        mountpoint: Path | None = None,
    ) -> str:  # fmt: skip
        if not any(str(option).startswith(("--cache", "--tier")) for option in options):
            options += ("--cache-dir", tmp_path / "cache")
        command = ["mount", source, str(mountpoint or empty), "-b", *map(str, options)]
        return one_refusal(command, says=says, code=code)

    return check


def _prepare(settings: MountSettings, *, progress: Progress) -> list[str]:
    server = Server(settings)
    logging.disable()  # a server in the background logs to a file
    try:
        server.prepare(progress)
    finally:
        logging.disable(logging.NOTSET)
        for part in {"_cache", "_tree"} & vars(server).keys():
            getattr(server, part).close()
    pytest.fail("the mount was accepted")
