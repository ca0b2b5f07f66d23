"""After a reboot, and whenever something has gone: it comes back. And the loop that stays."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.registry import find_note
from penstock.mounttable import find_mount
from penstock.resources.nudge import is_running, nudge, served_by
from penstock.resources.state import State
from tests.support.datasets import kill_mount, of_folder, ours, path_of, phase, processes_of
from tests.support.mounts import penstock
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
    wait_until(lambda: not is_running(declared.folder) and not one_off_loops(declared))
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
        if "penstock.resources" in line:
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
    assert {name: (path / "file").read_text() for name, path in mounts.items()} == {
        name: name for name in mounts
    }


@contextmanager
def serving(state: State) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith(f"serving {state.folder}")
            yield process
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_up_brings_all_back_without_a_new_listing(
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
    # The listing is that of before: none was made.
    assert os.listdir(both["one"]) == ["file"]
    assert [stored.uid for stored in declared.all()] == uids
    # What was cached is cached.
    found = api.dataset("one")
    assert (found.cached_bytes, found.total_bytes) == (3, 3)
    # A second time it does nothing.
    before = [find_note(path) for path in both.values()]
    assert penstock("up").returncode == 0
    assert [find_note(path) for path in both.values()] == before
    # What cannot be brought back is told; the others come.
    reboot(declared, both)
    os.rename(tmp_path / "one", tmp_path / "away")
    done = penstock("up")
    assert done.returncode != 0
    assert "dataset one: " in done.stderr
    all_there({"two": both["two"]})


def test_get_alone_notices_and_brings_it_back(declared: State, one: Bound) -> None:
    reboot(declared, one)
    shown = penstock("get", "datasets")
    assert shown.returncode == 0
    assert [line.split()[-2] for line in shown.stdout.splitlines()[1:]] == ["NotBound"]
    wait_until(lambda: phases(one) == {"Bound"})
    all_there(one)


def test_serve_ends_when_asked_and_leaves_what_is_mounted(
    declared: State, one: Bound, tmp_path: Path
) -> None:
    before = find_note(one["one"])
    with serving(declared):
        # What others want is done by it: no second loop is started.
        (tmp_path / "three").mkdir()
        api.apply([of_folder("three", tmp_path / "three"), ours("three")])
        assert one_off_loops(declared) == []
        second = penstock("serve")
        assert second.returncode == 2
        assert "is served already, by process" in second.stderr
        assert is_running(declared.folder)
    assert not is_running(declared.folder)
    assert find_note(one["one"]) == before
    assert phase("three") == "Bound"
    all_there(one)


def test_serve_brings_back_what_was_there_before_a_reboot_and_what_vanishes(
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


def one_off_loops(state: State) -> list[str]:
    return [line for line in processes_of(state.folder) if "penstock.resources.main" in line]


def test_a_loop_for_one_wish_makes_room_for_serve(declared: State, one: Bound) -> None:
    """While it waits for a reader to go, it would stay for ever."""
    with (one["one"] / "file").open("rb"):
        (dataset,) = declared.all(["Dataset"])
        declared.want_deleted(dataset.uid, {"at_s": time.time(), "force": False})
        nudge(declared.folder)
        wait_until(lambda: is_running(declared.folder))
        with serving(declared):
            wait_until(lambda: not one_off_loops(declared))  # it has let go, and ends
            assert phase("one") == "Bound"


def test_one_that_hangs_holds_nobody_up(declared: State, source: Path, tmp_path: Path) -> None:
    for name in ("good", "stopped"):
        api.apply([of_folder(name, source), ours(name, tmp_path / "cache")])
    note = find_note(path_of("stopped"))
    assert note.server_pid is not None
    os.kill(note.pid, signal.SIGSTOP)  # or it would replace the other
    os.kill(note.server_pid, signal.SIGSTOP)
    try:
        described = penstock("describe", "dataset", "stopped")
        assert described.returncode == 0
        assert "5.00B" in described.stdout
        good, stopped = penstock("get", "datasets").stdout.splitlines()[1:]
        for line in (good, stopped):
            assert re.match(r"(good|stopped) +5\.00B +0\.00B +64\.00MiB +0\.0% +Bound ", line)
        # Others come and go meanwhile.
        api.apply([of_folder("more", source), ours("more", tmp_path / "cache")])
        api.delete("dataset", "more")
    finally:
        os.kill(note.server_pid, signal.SIGCONT)
        os.kill(note.pid, signal.SIGCONT)
    wait_until(lambda: (path_of("stopped") / "file").read_bytes() == b"bytes")


def test_the_unit_starts_a_program_that_is_there_and_ends_only_that(declared: State) -> None:
    done = penstock("serve", "--unit")
    assert done.returncode == 0
    found = re.search(r"^ExecStart=(\S+)(.*) serve$", done.stdout, re.MULTILINE)
    assert found is not None
    assert os.path.isabs(found[1])
    assert "KillMode=process\n" in done.stdout
    words = [found[1], *found[2].split()]
    version = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
    assert "penstock" in version.stdout.lower()
    # Also where no penstock is in the PATH: by its Python.
    done = penstock("serve", "--unit", env={**os.environ, "PATH": "/nowhere"})
    assert f"ExecStart={sys.executable} -m penstock serve" in done.stdout


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
