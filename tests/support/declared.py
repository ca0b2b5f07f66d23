"""Declared resources for tests: made real, and all of it gone afterwards."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.api import resources as api
from penstock.errors import NoSuchResource
from penstock.mounttable import mount_table
from penstock.reconcile import loop_control
from penstock.reconcile.loop_control import is_running
from penstock.reconcile.state import State
from tests.support.datasets import of_folder, ours, path_of, processes_of
from tests.support.jobs import Jobs
from tests.support.loop_server import serve_loops
from tests.support.s3 import KEYS, S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def forked_loops() -> Iterator[Callable[[Path, int], None]]:
    with serve_loops() as start:
        yield start


@pytest.fixture
def loop_process() -> None:
    """For tests whose loops must be started as a user's are."""


@pytest.fixture
def declared(
    state: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[State]:
    """A state of its own. At the end everything is deleted; no mount, no process is left."""
    if "loop_process" not in request.fixturenames:
        monkeypatch.setattr(loop_control, "_start", request.getfixturevalue("forked_loops"))
    for name in KEYS:  # they come with the manifests: what is in the environment must not help
        monkeypatch.delenv(name, raising=False)
    resources = State()
    yield resources
    while keys := [one.key for one in resources.all()]:
        with suppress(NoSuchResource):  # a loop was at it, and has just done it
            api.delete_keys(keys, force=True, wait=True)
    wait_until(lambda: not is_running(state), "the loop does not end")
    left = [entry.mountpoint for entry in mount_table() if entry.mountpoint.startswith(str(state))]
    assert left == []
    wait_until(lambda: not processes_of(state), lambda: processes_of(state))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with one file of five bytes."""
    write_tree(tmp_path / "source", {"file": b"bytes"})
    return tmp_path / "source"


@pytest.fixture
def bound(declared: State, source: Path, tmp_path: Path) -> Path:
    """Where the data set `small`, of that folder, is mounted."""
    api.apply([of_folder("small", source), ours("small", tmp_path / "cache")])
    return path_of("small")


@pytest.fixture
def server(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """Whose keys are in no environment, in whatever order fixtures come."""
    for name in KEYS:
        monkeypatch.delenv(name)
    return s3


@pytest.fixture
def cleared() -> Iterator[list[Jobs]]:
    """Checks after `declared`, which comes later, has deleted everything."""
    made: list[Jobs] = []
    yield made
    for one in made:
        one.assert_nothing_is_left()


@pytest.fixture
def jobs(cleared: list[Jobs], declared: State) -> Jobs:
    cleared.append(Jobs(declared))
    return cleared[0]
