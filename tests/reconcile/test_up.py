"""After a reboot, and whenever something has gone: it comes back. And the loop: when it is woken,
and when it stays."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.api import resources as api
from penstock.api.manifests import read as read_manifests
from penstock.daemon.mount_registry import find_note
from penstock.errors import PenstockError
from penstock.mounttable import find_mount
from penstock.reconcile.admission import apply
from penstock.reconcile.deletion import delete
from penstock.reconcile.loop_control import is_running, serving_pid, wake_loop
from penstock.reconcile.state import State
from tests.support.datasets import (
    condition,
    kill_mount,
    loops_of,
    of_folder,
    ours,
    path_of,
    phase,
    processes_of,
    secret,
    serving,
)
from tests.support.mounts import fail, penstock, succeed
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

Bound = dict[str, Path]


def bring_up(declared: State, folder: Path, *names: str) -> Bound:
    """Where these data sets are mounted. No loop runs any more."""
    manifests: list[dict[str, Any]] = []
    for name in names:
        write_tree(folder / name, {"file": name.encode()})
        runtime = ours(name, folder / "cache", options={"refresh": "never"})
        manifests += [of_folder(name, folder / name), runtime]
    api.apply(manifests)
    wait_until(lambda: not is_running(declared.folder) and not loops_of(declared.folder))
    return {name: path_of(name) for name in names}


@pytest.fixture
def one(declared: State, tmp_path: Path) -> Bound:
    return bring_up(declared, tmp_path, "one")


@pytest.fixture
def both(declared: State, tmp_path: Path) -> Bound:
    return bring_up(declared, tmp_path, "one", "two")


def reboot(state: State, mounts: Bound) -> None:
    """End and unmount all that a machine forgets."""
    for line in processes_of(state.folder):
        # A loop that has let go of its lock ends by itself.
        if "penstock.reconcile" in line:
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
    for path in mounts.values():
        kill_mount(path)
        subprocess.run(["umount", path], check=True)
    wait_until(lambda: not processes_of(state.folder))


def phases(mounts: Bound) -> set[str]:
    return {phase(name) for name in mounts}


def all_there(mounts: Bound) -> None:
    assert phases(mounts) == {"Bound"}
    assert [(path / "file").read_text() for path in mounts.values()] == list(mounts)


def test_up_restores_all_mounts_without_a_new_listing(
    declared: State, both: Bound, tmp_path: Path
) -> None:
    api.load("one", wait=True)
    uids = [stored.uid for stored in declared.all()]
    reboot(declared, both)
    (tmp_path / "one" / "later").write_bytes(b"not listed")
    assert phases(both) == {"NotBound"}
    done = penstock("up")
    assert (done.returncode, done.stderr) == (0, "")
    all_there(both)
    assert os.listdir(both["one"]) == ["file"]  # the listing is that of before: none was made
    assert [stored.uid for stored in declared.all()] == uids
    found = api.dataset("one")
    assert (found.cached_bytes, found.total_bytes) == (3, 3)
    # A second time it does nothing.
    before = [find_note(path) for path in both.values()]
    assert penstock("up").returncode == 0
    assert [find_note(path) for path in both.values()] == before
    # What cannot be brought back is told; the others come.
    reboot(declared, both)
    os.rename(tmp_path / "one", tmp_path / "away")
    assert "dataset one: " in fail("up")
    all_there({"two": both["two"]})


def test_get_detects_a_lost_mount_and_restores_it(declared: State, one: Bound) -> None:
    reboot(declared, one)
    shown = succeed("get", "datasets").splitlines()[1:]
    assert [line.split()[-2] for line in shown] == ["NotBound"]
    wait_until(lambda: phases(one) == {"Bound"})
    all_there(one)


def test_serve_ends_and_leaves_mounts_in_place(declared: State, one: Bound, tmp_path: Path) -> None:
    before = find_note(one["one"])
    with serving(declared):
        # What others want is done by it: no second loop is started.
        (tmp_path / "three").mkdir()
        api.apply([of_folder("three", tmp_path / "three"), ours("three")])
        assert loops_of(declared.folder) == []
        assert "already serves" in fail("serve")
        assert is_running(declared.folder)
    assert not is_running(declared.folder)
    assert find_note(one["one"]) == before
    assert phase("three") == "Bound"
    all_there(one)


def test_serve_restores_mounts_after_a_reboot_and_after_a_loss(
    declared: State, both: Bound
) -> None:
    reboot(declared, both)
    with serving(declared):
        wait_until(lambda: phases(both) == {"Bound"})
        all_there(both)
        subprocess.run(["umount", both["one"]], check=True)
        kill_mount(both["two"])
        wait_until(lambda: all(find_mount(path) is not None for path in both.values()))
        wait_until(lambda: phases(both) == {"Bound"})
        all_there(both)


def test_a_loop_for_one_request_yields_to_serve(declared: State, one: Bound) -> None:
    """While it waits for a reader to go, it would stay for ever."""
    with (one["one"] / "file").open("rb"):
        (dataset,) = declared.all(["Dataset"])
        declared.mark_deleted(dataset.uid, {"at_s": time.time(), "force": False})
        wake_loop(declared.folder)
        wait_until(lambda: is_running(declared.folder))
        with serving(declared):
            wait_until(lambda: not loops_of(declared.folder))  # it has let go, and ends
            assert phase("one") == "Bound"


def test_a_hanging_data_set_delays_no_other(declared: State, source: Path, tmp_path: Path) -> None:
    for name in ("good", "stopped"):
        api.apply([of_folder(name, source), ours(name, tmp_path / "cache")])
    supervisor, server = find_note(path_of("stopped")).processes
    os.kill(supervisor, signal.SIGSTOP)  # or it would replace the other
    os.kill(server, signal.SIGSTOP)
    try:
        assert "5.00B" in succeed("describe", "dataset", "stopped")
        rows = [line.split()[:-1] for line in succeed("get", "datasets").splitlines()[1:]]
        known = ["5.00B", "0.00B", "64.00MiB", "0.0%", "Bound"]
        assert rows == [["good", *known], ["stopped", *known]]
        # Others come and go meanwhile.
        api.apply([of_folder("more", source), ours("more", tmp_path / "cache")])
        api.delete("dataset", "more")
    finally:
        os.kill(server, signal.SIGCONT)
        os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: (path_of("stopped") / "file").read_bytes() == b"bytes")


def test_the_systemd_unit_starts_an_existing_program_and_ends_only_that(declared: State) -> None:
    unit = succeed("serve", "--unit")
    assert "KillMode=process\n" in unit
    ((program, words),) = re.findall(r"^ExecStart=(/\S+)(.*) serve$", unit, re.MULTILINE)
    asked = [program, *words.split(), "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "penstock" in version.stdout.lower()
    # Also where no penstock is in the PATH: by its Python.
    unit = succeed("serve", "--unit", env={**os.environ, "PATH": "/nowhere"})
    assert f"ExecStart={sys.executable} -m penstock serve" in unit


def test_no_second_loop_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock before it has loaded what it is made of."""
    slow, starts = tmp_path / "slow-python", tmp_path / "starts"
    slow.write_text(f"#!/bin/sh\necho $3 >> {starts}\nexec cat {tmp_path}/until\n")
    slow.chmod(0o755)
    os.mkfifo(tmp_path / "until")
    monkeypatch.setattr(sys, "executable", str(slow))
    (tmp_path / "loop.lock").write_text("4711")  # of one that served, and is gone
    wake_loop(tmp_path)
    assert is_running(tmp_path)
    assert serving_pid(tmp_path) is None
    for _ in range(3):
        wake_loop(tmp_path)
    with open(tmp_path / "until", "w"):
        pass
    wait_until(lambda: not is_running(tmp_path), "it has ended")
    assert len(starts.read_text().splitlines()) == 1


def test_get_completes_a_request_whose_caller_was_killed(declared: State, source: Path) -> None:
    apply(declared, read_manifests([of_folder("small", source), ours("small")]))
    folder = declared.folder
    assert not is_running(folder)
    # The state folder may be named as one sees it.
    seen = {**os.environ, "PENSTOCK_STATE_DIR": f"./{folder.name}"}
    penstock("get", "datasets", cwd=folder.parent, env=seen)
    wait_until(lambda: phase("small") == "Bound")
    wait_until(lambda: not is_running(folder))
    delete(declared, declared.all())
    penstock("get", "datasets")
    wait_until(lambda: declared.all() == [])


def test_no_loop_is_started_when_everything_is_done(
    declared: State, source: Path, tmp_path: Path
) -> None:
    api.apply([of_folder("small", source), ours("small"), secret(), ours("lone")])
    api.load("small", wait=True)
    with pytest.raises(PenstockError):
        api.apply([of_folder("lost", tmp_path / "nowhere"), ours("lost")])
    wait_until(lambda: not is_running(declared.folder))
    log = declared.folder / "logs" / "loop.log"
    before = (log.stat().st_mtime_ns, sorted(declared.folder.iterdir()))
    assert penstock("get", "all").returncode == 0
    assert not is_running(declared.folder)
    assert (log.stat().st_mtime_ns, sorted(declared.folder.iterdir())) == before


def test_a_lost_key_of_the_secrets_is_reported(
    declared: State, source: Path, tmp_path: Path
) -> None:
    small = of_folder("small", source)
    small["spec"]["mounts"][0]["options"] = {"aws.secretKey": "hidden-in-the-box"}
    api.apply([small, ours("small", tmp_path / "cache")])
    path = path_of("small")
    wait_until(lambda: not is_running(declared.folder))  # which knows the key
    (declared.folder / "secrets.key").unlink()
    output = fail("up")
    assert "secrets.key is gone" in output
    assert "hint: apply the manifests with their secrets again" in output
    wait_until(lambda: not is_running(declared.folder), "it is tried without end")
    assert penstock("get", "datasets", "-o", "yaml").returncode == 0
    assert (path / "file").read_bytes() == b"bytes"
    # As the hint says.
    succeed("apply", "-f", "-", input=json.dumps(small))
    assert condition("small")["status"] == "True"
    (declared.folder / "secrets.key").unlink()
    api.delete("dataset", "small")
    assert not path.exists()
