"""Jobs for tests: submitted, waited for, and nothing of them left."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.resources.jobs.cgroups import group_places, groups_in
from penstock.resources.jobs.places import attempt_path, job_folder, log_path
from penstock.resources.jobs.processes import marked
from penstock.resources.jobs.records import read_record
from penstock.resources.state import State, Stored
from penstock.resources.watching import wait_for_job
from penstock.specs.keys import ResourceKey

_PATIENCE_S = 100.0


def job(name: str, command: str | list[str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "penstock.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {"trainer": "tf", "command": command, **spec},
    }  # fmt: skip


class Jobs:
    def __init__(self, state: State) -> None:
        self.state = state
        self._uids: set[str] = set()

    def submit(self, name: str, command: str | list[str], **spec: Any) -> Stored:
        """With the plainest trainer there is, unless another is said."""
        api.apply(job(name, command, **spec))
        found = self.find(name)
        assert found is not None
        self._uids.add(found.uid)
        return found

    def find(self, name: str) -> Stored | None:
        return self.state.find(_key(name))

    def see(self, name: str) -> Stored:
        found = self.find(name)
        assert found is not None
        return found

    def run(self, name: str, command: str | list[str], **spec: Any) -> Stored:
        self.submit(name, command, **spec)
        return self.end(name)

    def end(self, name: str) -> Stored:
        return wait_for_job(self.state, _key(name), timeout_s=_PATIENCE_S)

    def wait(self, name: str, holds: Callable[[Stored], bool]) -> Stored:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds(found := self.see(name)):
            assert time.monotonic() < deadline, found.status
            time.sleep(0.02)
        return found

    def running(self, name: str) -> Stored:
        return self.wait(name, lambda found: found.status.get("phase") == "RUNNING")

    def log(self, name: str, instance: str = "worker-0") -> str:
        folder = job_folder(self.state.folder, self.see(name).uid)
        return log_path(folder, f"{name}-{instance}").read_text()

    def record(self, name: str) -> dict[str, Any]:
        folder = job_folder(self.state.folder, self.see(name).uid)
        found = read_record(attempt_path(folder))
        assert found is not None
        return found

    def events(self, name: str) -> list[tuple[str, str]]:
        return [(one.reason, one.message) for one in self.state.events(self.see(name).uid)]

    def assert_nothing_is_left(self) -> None:
        for uid in self._uids:
            assert list(marked(uid)) == []
            assert groups_in(group_places(uid)) == []
            assert not job_folder(self.state.folder, uid).exists()
            assert not Path(f"/dev/shm/penstock-job-{uid[:13]}").exists()


def _key(name: str) -> ResourceKey:
    return ResourceKey("TrainingJob", "default", name)


@pytest.fixture
def cleared() -> Iterator[list[Jobs]]:
    """Looks when `declared`, which comes after it, has deleted all that is there."""
    made: list[Jobs] = []
    yield made
    for one in made:
        one.assert_nothing_is_left()


@pytest.fixture
def jobs(cleared: list[Jobs], declared: State) -> Jobs:
    cleared.append(Jobs(declared))
    return cleared[0]


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    os.kill(pid, 9)
    wait_until_gone(pid)
