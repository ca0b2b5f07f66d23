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
from penstock.resources.nudge import is_running, nudge
from penstock.resources.state import State
from tests.cache.test_flights import wait_until
from tests.conftest import penstock
from tests.resources.conftest import kill_mount, of_folder, ours, path_of, phase, processes_of

NAMES = ("one", "two")


@pytest.fixture
def both(declared: State, tmp_path: Path) -> list[Path]:
    """Two data sets, bound, that nobody looks after at the moment."""
    manifests: list[dict[str, Any]] = []
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(name.encode())
        options = {"refresh": "never"}
        manifests += [
            of_folder(name, tmp_path / name), ours(name, tmp_path / "cache", options=options)
        ]  # fmt: skip
    api.apply(manifests)
    wait_until(lambda: not is_running(declared.folder) and not one_off_loops(declared))
    return [path_of(name) for name in NAMES]


def reboot(state: State, paths: list[Path]) -> None:
    """All that a machine forgets."""
    for line in processes_of(state.folder):
        # A loop that has let go of its lock ends by itself.
        if "penstock.resources" in line:
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
    for path in paths:
        kill_mount(path)
        subprocess.run(["umount", path], check=True)
    wait_until(lambda: not processes_of(state.folder))


def all_there(paths: list[Path]) -> None:
    for name, path in zip(NAMES, paths, strict=True):
        assert phase(name) == "Bound"
        assert (path / "file").read_bytes() == name.encode()


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
    declared: State, both: list[Path], tmp_path: Path
) -> None:
    api.load("one", wait=True)
    uids = [one.uid for one in declared.all()]
    reboot(declared, both)
    (tmp_path / "one" / "later").write_bytes(b"not listed")
    assert [phase(name) for name in NAMES] == ["NotBound", "NotBound"]
    done = penstock("up")
    assert (done.returncode, done.stderr) == (0, "")
    all_there(both)
    # The listing is that of before: none was made.
    assert os.listdir(both[0]) == ["file"]
    assert [one.uid for one in declared.all()] == uids
    # What was cached is cached.
    one = api.dataset("one")
    assert (one.cached_bytes, one.total_bytes) == (3, 3)
    # Once more it is nothing.
    before = [find_note(path) for path in both]
    assert penstock("up").returncode == 0
    assert [find_note(path) for path in both] == before


def test_get_alone_notices_and_brings_it_back(declared: State, both: list[Path]) -> None:
    reboot(declared, both)
    shown = penstock("get", "datasets")
    assert shown.returncode == 0
    assert [line.split()[-2] for line in shown.stdout.splitlines()[1:]] == ["NotBound"] * 2
    wait_until(lambda: [phase(name) for name in NAMES] == ["Bound", "Bound"])
    all_there(both)


def test_up_of_one_is_of_that_one(declared: State, both: list[Path]) -> None:
    reboot(declared, both)
    assert penstock("up", "one").returncode == 0
    assert phase("one") == "Bound"
    assert (both[0] / "file").read_bytes() == b"one"


def test_up_tells_what_cannot_be_brought_back_and_brings_the_others(
    declared: State, both: list[Path], tmp_path: Path
) -> None:
    reboot(declared, both)
    os.rename(tmp_path / "one", tmp_path / "away")
    done = penstock("up")
    assert done.returncode != 0
    assert "dataset one: " in done.stderr
    assert phase("two") == "Bound"
    assert (both[1] / "file").read_bytes() == b"two"
    os.rename(tmp_path / "away", tmp_path / "one")
    done = penstock("up")
    assert (done.returncode, done.stderr) == (0, "")
    all_there(both)


def test_serve_ends_when_asked_and_leaves_what_is_mounted(
    declared: State, both: list[Path]
) -> None:
    before = [find_note(path) for path in both]
    with serving(declared):
        # What others want is done by it: no second loop is started.
        (three := both[0].parents[3] / "three").mkdir()
        api.apply([of_folder("three", three), ours("three")])
        assert one_off_loops(declared) == []
        assert is_running(declared.folder)
    assert not is_running(declared.folder)
    assert [find_note(path) for path in both] == before
    assert phase("three") == "Bound"
    all_there(both)


def test_serve_brings_back_what_was_there_before_a_reboot_and_what_vanishes(
    declared: State, both: list[Path]
) -> None:
    reboot(declared, both)
    with serving(declared):
        wait_until(lambda: [phase(name) for name in NAMES] == ["Bound", "Bound"])
        all_there(both)
        subprocess.run(["umount", both[0]], check=True)
        kill_mount(both[1])
        wait_until(lambda: all(map(is_mounted, both)))
        wait_until(lambda: [phase(name) for name in NAMES] == ["Bound", "Bound"])
        all_there(both)


def one_off_loops(state: State) -> list[str]:
    return [one for one in processes_of(state.folder) if "penstock.resources.main" in one]


def is_mounted(path: Path) -> bool:
    return find_mount(path) is not None


def test_a_loop_for_one_wish_makes_room_for_serve(declared: State, both: list[Path]) -> None:
    """While it waits for a reader to go, it would stay for ever."""
    with (both[0] / "file").open("rb"):
        for one in declared.all(["Dataset"]):
            if one.key.name == "one":
                declared.want_deleted(one.uid, {"at_s": time.time(), "force": False})
        nudge(declared.folder)
        wait_until(lambda: is_running(declared.folder))
        with serving(declared):
            wait_until(lambda: not one_off_loops(declared))  # it has let go, and ends
            assert phase("two") == "Bound"


def test_a_second_serve_is_refused_and_the_first_goes_on(declared: State) -> None:
    with serving(declared):
        second = penstock("serve")
        assert second.returncode == 2
        assert "is served already, by process" in second.stderr
        assert is_running(declared.folder)


def test_the_unit_starts_a_program_that_is_there_and_ends_only_that(declared: State) -> None:
    done = penstock("serve", "--unit")
    assert done.returncode == 0
    found = re.search(r"^ExecStart=(\S+)(.*) serve$", done.stdout, re.MULTILINE)
    assert found is not None
    assert os.access(found[1], os.X_OK)
    assert os.path.isabs(found[1])
    assert "KillMode=process\n" in done.stdout
    words = [found[1], *found[2].split()]
    version = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
    assert "penstock" in version.stdout.lower()
    assert declared.all() == []
    # Also where no penstock is in the PATH: by its Python.
    done = penstock("serve", "--unit", env={**os.environ, "PATH": "/nowhere"})
    assert f"ExecStart={sys.executable} -m penstock serve" in done.stdout
