"""Training jobs: submitted, waited for, and nothing of them left."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.api import resources as api
from penstock.jobs.cgroups import group_places, groups_in
from penstock.jobs.job_folder import attempt_path, job_folder, log_path, read_record
from penstock.jobs.processes import marked
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.reconcile.waiting import wait_for_job
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import loops_of, stored
from tests.support.waiting import wait_until, wait_until_gone

_PATIENCE_S = 100.0


def job(name: str, command: str | list[str], **spec: Any) -> dict[str, Any]:
    """A manifest, with the plainest trainer there is unless another is given."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"trainer": "tf", "command": command, **spec},
    }


class Jobs:
    def __init__(self, state: State) -> None:
        self.state = state
        self._uids: set[str] = set()

    def submit(self, name: str, command: str | list[str], **spec: Any) -> Stored:
        api.apply(job(name, command, **spec))
        found = self.see(name)
        self._uids.add(found.uid)
        return found

    def find(self, name: str) -> Stored | None:
        return self.state.find(_key(name))

    def see(self, name: str) -> Stored:
        return stored(self.state, _key(name))

    def run(self, name: str, command: str | list[str], **spec: Any) -> Stored:
        self.submit(name, command, **spec)
        return self.end(name)

    def end(self, name: str) -> Stored:
        return wait_for_job(self.state, _key(name), timeout_s=_PATIENCE_S)

    def wait(self, name: str, holds: Callable[[Stored], bool]) -> Stored:
        wait_until(
            lambda: holds(self.see(name)), lambda: self.see(name).status, timeout_s=_PATIENCE_S
        )
        return self.see(name)

    def running(self, name: str) -> Stored:
        return self.wait(name, lambda found: found.status.get("phase") == "RUNNING")

    def supervisor(self, name: str, other_than: int | None = None) -> int:
        """The process ID of the supervisor, once the job runs and has one."""
        return self.wait(
            name,
            lambda found: (
                found.status.get("phase") == "RUNNING"
                and found.note.get("pid") not in (None, other_than)
            ),
        ).note["pid"]

    def loop(self) -> int:
        """The process ID of the loop."""
        (found,) = loops_of(self.state.folder)
        return found

    def log(self, name: str, instance: str = "worker-0") -> str:
        folder = job_folder(self.state.folder, self.see(name).uid)
        return log_path(folder, f"{name}-{instance}").read_text()

    def record(self, name: str) -> dict[str, Any]:
        folder = job_folder(self.state.folder, self.see(name).uid)
        found = read_record(attempt_path(folder))
        assert found is not None
        return found

    def events(self, name: str) -> dict[str, str]:
        return {one.reason: one.message for one in self.state.events(self.see(name).uid)}

    def assert_nothing_is_left(self) -> None:
        for uid in self._uids:
            assert list(marked(uid)) == []
            assert groups_in(group_places(uid)) == []
            assert not job_folder(self.state.folder, uid).exists()
            assert not Path(f"/dev/shm/penstock-job-{uid[:13]}").exists()


def _key(name: str) -> ResourceKey:
    return ResourceKey("TrainingJob", "default", name)


def kill(pid: int) -> None:
    os.kill(pid, 9)
    wait_until_gone(pid)
