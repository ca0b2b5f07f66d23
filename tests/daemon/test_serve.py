"""The server process beside its supervisor, with a server that only prepares."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from penstock.daemon import serve
from penstock.daemon.channel import Channel
from penstock.daemon.server import Server
from penstock.daemon.server_process import OVER_LIMITS
from penstock.settings import MountSettings

WHY = "it held 2 GiB, more than --memory allows"


@pytest.mark.parametrize("attached", [False, True])
def test_memory_is_limited_before_and_after_mounting(
    monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    ours, end = Channel.pair()
    supervisor = Channel(end)
    free_memory = SimpleNamespace(count=0)

    def note() -> None:
        free_memory.count += 1

    def why_to_end(free: Callable[[], None], _workers: object) -> str:
        free()
        return WHY

    server = SimpleNamespace(
        why_to_end=None,
        limits=SimpleNamespace(why_to_end=why_to_end),
        free_memory=note,
        worker_pids=[],
    )
    codes: list[int] = []

    def end_process(code: int) -> NoReturn:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(serve, "_exit", end_process)
    settings = MountSettings(parts=(), mountpoint=Path("/mnt"), watchdog_s=0.01)
    process = serve._Process(ours, settings, cast(Server, server))
    process._attached = attached
    with pytest.raises(SystemExit):
        process._send_pulses()
    received = supervisor.receive()
    assert received is not None
    code, hint = (OVER_LIMITS, None) if attached else (2, "--memory allows more")
    assert received[0] == {"error": {"error": WHY, "hint": hint, "exit_code": code}}
    assert codes == [code]
    assert free_memory.count == attached, "there is no cache yet while it lists"
    ours.close()
    supervisor.close()


@pytest.mark.parametrize("module", ["serve", "refuse"])
def test_supervisors_of_earlier_releases_find_their_modules_by_name(module: str) -> None:
    """They outlive an installation: their next server is the new release's."""
    assert importlib.util.find_spec(f"penstock.daemon.{module}") is not None
