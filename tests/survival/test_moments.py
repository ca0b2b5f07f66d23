"""Servers that die, or hang, at one moment of a hand-over: each by a script."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon.control_socket import ask
from penstock.daemon.mount_registry import supervisor_socket
from penstock.errors import PenstockError
from tests.support.kills import note
from tests.support.scripted_server import WELL, runs_of, script
from tests.support.waiting import PATIENCE_S, wait_until, wait_until_gone

Supervised = Callable[[Path], "subprocess.Popen[bytes]"]
Upgrade = Callable[[Path], "Future[dict[str, Any]]"]


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    (tmp_path / "mnt").mkdir()
    return tmp_path / "mnt"


@pytest.fixture
def supervise(mountpoint: Path, state: Path) -> Iterator[Supervised]:
    """Starts a supervisor with scripted servers; returns once the first one is ready."""
    started: list[subprocess.Popen[bytes]] = []

    def start(server: Path) -> "subprocess.Popen[bytes]":
        module = "tests.support.scripted_server"
        started.append(subprocess.Popen([sys.executable, "-m", module, mountpoint, server]))
        wait_until(supervisor_socket(mountpoint).exists, "ready")
        return started[0]

    yield start
    for process in started:
        process.terminate()
        assert process.wait(PATIENCE_S) in (0, 1)


@pytest.fixture
def upgrade(mountpoint: Path) -> Iterator[Upgrade]:
    with ThreadPoolExecutor() as asker:

        def begin(server: Path) -> "Future[dict[str, Any]]":
            return asker.submit(
                ask,
                supervisor_socket(mountpoint),
                "upgrade",
                python=str(server),
                environment={},
                settings={"watchdog_s": 60.0, "grace_s": 0.0},
            )

        yield begin


NO_UPGRADES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "settings that are none": {"settings": [], "python": "p", "environment": {}},
    "parts that are none": {"settings": {"parts": [5]}, "python": "p", "environment": {}},
    "a time that is none": {"settings": {"grace_s": "x"}, "python": "p", "environment": {}},
    "a time without end": {"settings": {"grace_s": 1e999}, "python": "p", "environment": {}},
    "a program that is none": {"settings": {}, "python": 5, "environment": {}},
    "a NUL": {"settings": {}, "python": "p\0", "environment": {}},
    "a variable that is none": {"settings": {}, "python": "p", "environment": {"A": 1}},
}


def test_an_invalid_upgrade_is_rejected_and_the_mount_continues(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade, mountpoint: Path
) -> None:
    process = supervise(script(tmp_path / "old", WELL))
    for what, request in NO_UPGRADES.items():
        with pytest.raises(PenstockError, match="bad request"):
            ask(supervisor_socket(mountpoint), "upgrade", **request)
        assert process.poll() is None, what
    new = script(tmp_path / "new", WELL)
    assert upgrade(new).result(PATIENCE_S)["pid"] == runs_of(new)[0]


def test_an_upgrade_during_a_restart_is_answered_by_its_own_server(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade, state: Path
) -> None:
    old = script(tmp_path / "old", f"run > 1 and wait_for('restart')\n{WELL}")
    new = script(tmp_path / "new", f"wait_for('upgrade')\n{WELL}")
    supervise(old)
    os.kill(note(state)["server_pid"], signal.SIGKILL)
    wait_until(lambda: len(runs_of(old)) == 2, "restarting")
    answer = upgrade(new)
    wait_until(lambda: len(runs_of(new)) == 1, "upgrading")
    with pytest.raises(PenstockError, match="is being upgraded already"):
        upgrade(new).result(PATIENCE_S)
    (tmp_path / "restart").touch()
    wait_until(lambda: note(state)["server_pid"] == runs_of(old)[1], "the restart is over")
    (tmp_path / "upgrade").touch()
    assert answer.result(PATIENCE_S)["pid"] == runs_of(new)[0]
    assert note(state)["server_pid"] == runs_of(new)[0]


def test_a_restarting_server_is_not_asked_to_flush_for_an_upgrade(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade, state: Path
) -> None:
    old = script(tmp_path / "old", f"run > 1 and wait_for('never')\n{WELL}")
    new = script(tmp_path / "new", WELL)
    supervise(old)
    os.kill(note(state)["server_pid"], signal.SIGKILL)
    wait_until(lambda: len(runs_of(old)) == 2, "restarting")
    assert upgrade(new).result(PATIENCE_S)["pid"] == runs_of(new)[0]


def test_an_upgrade_whose_server_dies_at_its_first_request_is_rolled_back(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade, state: Path
) -> None:
    old = script(tmp_path / "old", WELL)
    new = script(tmp_path / "new", "prepare(); sys.exit(3)")
    supervise(old)
    with pytest.raises(PenstockError, match="the new server could not start"):
        upgrade(new).result(PATIENCE_S)
    wait_until(lambda: note(state)["server_pid"] in runs_of(old)[1:], "the old one is back")
    assert (len(runs_of(old)), len(runs_of(new))) == (2, 1)
    assert upgrade(old).result(PATIENCE_S)["pid"] == runs_of(old)[-1]


def test_a_server_that_dies_while_it_is_replaced_does_not_confuse_the_supervisor(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade
) -> None:
    """That it has flushed and that it has ended are seen in one look."""
    dies = """
def on_flush():
    os.kill(os.getppid(), signal.SIGSTOP)
    link.send({"flushed": True})
    if os.fork():
        os._exit(1)
    link.close()
    while Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)
    os.kill(supervisor, signal.SIGCONT)
    os._exit(0)

supervisor, server = os.getppid(), os.getpid()
serve(prepare(), on_flush)
"""
    old, new = script(tmp_path / "old", dies), script(tmp_path / "new", WELL)
    process = supervise(old)
    assert upgrade(new).result(PATIENCE_S)["pid"] == runs_of(new)[0]
    assert process.poll() is None
    assert upgrade(new).result(PATIENCE_S)["pid"] == runs_of(new)[1]


def test_an_upgrade_that_dies_during_the_flush_leaves_the_supervisor_idle(
    tmp_path: Path, supervise: Supervised, upgrade: Upgrade
) -> None:
    old = script(tmp_path / "old", "serve(prepare(), lambda: (folder / 'flushing').touch())")
    new = script(
        tmp_path / "new", "link.send({'prepared': True})\nwait_for('flushing')\nsys.exit(3)"
    )
    process = supervise(old)
    with pytest.raises(PenstockError, match="the new server could not start"):
        upgrade(new).result(PATIENCE_S)
    assert len(runs_of(old)) == 1
    time.sleep(2)  # the time that a flush may take is over then
    stat, states = Path(f"/proc/{process.pid}/stat"), list[str]()
    for _ in range(100):
        time.sleep(0.01)
        states.append(stat.read_text().rpartition(")")[2].split()[0])
    # A busy one never sleeps, however loaded the machine.
    assert states.count("S") > 20, "it is busy"


def test_a_bug_in_the_supervisor_leaves_the_server_serving(
    tmp_path: Path, supervise: Supervised
) -> None:
    body = """
def run_into_it():
    wait_for("now")
    link.send({"remember": 5})  # what no supervisor can make sense of

threading.Thread(target=run_into_it).start()
serve(prepare())
(folder / "alone").touch()
wait_for("end")
"""
    server = script(tmp_path / "server", f"import threading\n{body}")
    process = supervise(server)
    (tmp_path / "now").touch()
    assert process.wait(PATIENCE_S) == 1
    wait_until((tmp_path / "alone").exists, "it has lost its supervisor, and goes on")
    pid = runs_of(server)[0]
    os.kill(pid, 0)
    (tmp_path / "end").touch()
    # Or it looks for that for ever, where there is no such folder any more.
    wait_until_gone(pid)


@pytest.mark.parametrize(("death", "blamed"), [("sys.exit(3)", 0), ("prepare(); sys.exit(3)", 3)])
def test_only_crashes_of_servers_that_had_taken_requests_are_blamed_on_requests(
    tmp_path: Path, supervise: Supervised, state: Path, death: str, blamed: int
) -> None:
    last = "go = prepare(); (folder / 'go').write_text(json.dumps(go)); serve(go)"
    server = script(tmp_path / "server", f"if 1 < run < 5:\n    {death}\n{last}")
    supervise(server)
    os.kill(note(state)["server_pid"], signal.SIGKILL)
    wait_until(lambda: note(state)["restarts"] == 4 and note(state)["state"] == "serving", "back")
    go = json.loads((tmp_path / "go").read_text())
    assert go["remembered"]["quick_ends"] == blamed
