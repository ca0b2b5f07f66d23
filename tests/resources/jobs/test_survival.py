"""Kills of what watches over a job, and of the job itself."""

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from penstock import api
from penstock.resources.jobs.cgroups import group_places, groups_in
from penstock.resources.jobs.places import attempt_path, job_folder
from penstock.resources.jobs.supervise import Supervisor, see_to
from penstock.resources.nudge import is_running
from penstock.resources.state import Stored
from tests.cache.test_flights import wait_until
from tests.conftest import penstock
from tests.resources.conftest import processes_of
from tests.resources.jobs.conftest import Jobs, kill, wait_until_gone


def loop_pid(state: Path) -> int:
    (found,) = [line for line in processes_of(state) if "penstock.resources.main" in line]
    return int(found.split()[0])


def has_supervisor(found: Stored) -> bool:
    return found.status.get("phase") == "RUNNING" and found.note.get("pid") is not None


def test_a_job_goes_on_without_its_supervisor_and_the_loop_and_is_started_once(
    jobs: Jobs, state: Path, tmp_path: Path
) -> None:
    command = "echo started; echo x >> starts; while ! test -e go; do sleep 0.05; done; echo done"
    jobs.submit("net", command, workingDir=str(tmp_path))
    first = jobs.wait("net", has_supervisor).note["pid"]
    kill(first)
    second = jobs.wait("net", lambda found: found.note.get("pid") not in (None, first)).note["pid"]
    kill(loop_pid(state))
    kill(second)
    # Nobody is left but the keeper; it has somebody told.
    (tmp_path / "go").touch()
    jobs.wait("net", lambda found: found.status["phase"] == "SUCCEEDED")
    assert jobs.see("net").status["attempts"] == 1
    assert (tmp_path / "starts").read_text() == "x\n"
    assert jobs.log("net") == "started\ndone\n"


def test_a_job_whose_processes_are_gone_has_failed_or_is_tried_again(
    jobs: Jobs, tmp_path: Path
) -> None:
    script = "echo x >> $0.tries; test $(wc -l < $0.tries) = 2 || sleep 1000"
    (tmp_path / "job").write_text(script)
    tries = tmp_path / "job.tries"
    jobs.submit("again", ["sh", f"{tmp_path}/job"], retries=1)
    jobs.submit("once", "sleep 1000", memory="64Mi")
    for name in ("again", "once"):
        jobs.running(name)
        if name == "again":
            wait_until(lambda: tries.exists() and tries.read_text() == "x\n")
        record = jobs.record(name)
        # Whoever clears it need not be where the keeper was.
        assert record["groups"] == group_places(jobs.see(name).uid)
        instance = record["instances"][0]["pid"]
        os.kill(record["keeper"], signal.SIGKILL)
        wait_until_gone(instance)
    status = jobs.end("once").status
    assert groups_in(jobs.record("once")["groups"]) == []
    assert (status["phase"], status["reason"]) == ("FAILED", "Lost")
    (instance,) = status["instances"]
    assert (instance["phase"], "pid" in instance) == ("FAILED", False)
    assert instance["completionTime"] <= status["completionTime"]
    status = jobs.end("again").status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 2)


def test_the_loop_sleeps_until_a_job_is_to_be_removed_and_comes_again_when_it_was_killed(
    jobs: Jobs, state: Path
) -> None:
    jobs.submit("kept", "true", ttlSecondsAfterFinished=3600)
    jobs.end("kept")
    assert is_running(state)
    kill(loop_pid(state))
    api.delete("job", "kept")
    wait_until(lambda: not is_running(state))


@pytest.mark.parametrize("error", [sqlite3.OperationalError("locked"), OSError(28, "full")])
def test_a_supervisor_that_cannot_write_leaves_the_job_to_the_next(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(_: Supervisor) -> None:
        raise error

    jobs.submit("net", "while ! test -e go; do sleep 0.05; done", workingDir=str(tmp_path))
    found = jobs.running("net")
    monkeypatch.setattr(Supervisor, "run", run)
    assert not see_to(jobs.state, found)
    (tmp_path / "go").touch()
    assert jobs.end("net").status["phase"] == "SUCCEEDED"


def test_a_record_that_cannot_be_written_costs_no_job(jobs: Jobs, tmp_path: Path) -> None:
    waits = "while ! test -e go; do sleep 0.05; done; touch went"
    found = jobs.submit("net", waits, workingDir=str(tmp_path))
    jobs.running("net")
    keeper = jobs.record("net")["keeper"]
    blocked = attempt_path(job_folder(jobs.state.folder, found.uid)).with_suffix(".new")
    blocked.mkdir()
    (tmp_path / "go").touch()
    wait_until((tmp_path / "went").exists)
    os.kill(keeper, 0)  # it is not gone before its word is written
    blocked.rmdir()
    status = jobs.end("net").status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 1)


def test_a_job_whose_supervisors_die_one_after_the_other_has_ended_now(
    jobs: Jobs, state: Path
) -> None:
    found = jobs.submit("net", "sleep 1000")
    supervisor = jobs.wait("net", has_supervisor).note["pid"]
    jobs.state.observe(found.uid, note={"deaths": 99})  # the one that runs has looked before
    kill(supervisor)
    status = jobs.end("net").status
    assert (status["reason"], status["instances"][0]["phase"]) == ("Died", "FAILED")
    assert status["conditions"][0]["type"] == "Failed"
    assert status["startTime"] <= status["completionTime"]
    penstock("prune", "--since", "1h")
    assert jobs.find("net") is not None
