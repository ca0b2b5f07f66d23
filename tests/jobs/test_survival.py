"""Kills of what watches over a job, and of the job itself."""

import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.api import resources as api
from penstock.jobs.cgroups import group_places, groups_in
from penstock.jobs.job_folder import attempt_path, job_folder
from penstock.jobs.job_supervisor import Supervisor, run_job
from penstock.reconcile.loop_control import is_running
from tests.support.jobs import Jobs, kill
from tests.support.waiting import wait_until, wait_until_gone

UNTIL_GO = "until test -e go; do sleep 0.05; done"


def test_a_job_survives_its_supervisor_and_the_loop_and_is_started_once(
    jobs: Jobs, tmp_path: Path
) -> None:
    command = f"echo started; echo x >> starts; {UNTIL_GO}; echo done"
    jobs.submit("net", command, workingDir=str(tmp_path))
    first = jobs.supervisor("net")
    kill(first)
    second = jobs.supervisor("net", other_than=first)
    kill(jobs.loop())
    kill(second)
    # Only the keeper is left. When the job ends, the keeper starts a loop.
    (tmp_path / "go").touch()
    jobs.wait("net", lambda found: found.status["phase"] == "SUCCEEDED")
    assert jobs.see("net").status["attempts"] == 1
    assert (tmp_path / "starts").read_text() == "x\n"
    assert jobs.log("net") == "started\ndone\n"


def test_a_job_whose_processes_are_gone_fails_or_is_retried(jobs: Jobs, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    script = "echo x >> tries; test $(wc -l < tries) = 2 || sleep 1000"
    jobs.submit("again", script, retries=1, workingDir=str(tmp_path))
    jobs.submit("once", "sleep 1000", memory="64Mi")
    wait_until(lambda: tries.exists() and tries.read_text() == "x\n")
    for name in ("again", "once"):
        jobs.running(name)
        record = jobs.record(name)
        # Another process than the keeper can find them.
        assert record["groups"] == group_places(jobs.see(name).uid)
        kill(record["keeper"])
        wait_until_gone(record["instances"][0]["pid"])
    status = jobs.end("once").status
    (instance,) = status["instances"]
    assert groups_in(jobs.record("once")["groups"]) == []
    assert (status["phase"], status["reason"], instance["phase"]) == ("FAILED", "Lost", "FAILED")
    assert "pid" not in instance
    assert instance["completionTime"] <= status["completionTime"]
    status = jobs.end("again").status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 2)


def test_the_loop_stays_for_a_job_that_expires_and_comes_back(jobs: Jobs, state: Path) -> None:
    jobs.submit("kept", "true", ttlSecondsAfterFinished=3600)
    jobs.end("kept")
    assert is_running(state)
    kill(jobs.loop())
    api.delete("job", "kept")
    assert jobs.find("kept") is None
    wait_until(lambda: not is_running(state))


def test_an_unwritable_state_or_record_costs_no_job(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.submit("net", UNTIL_GO, workingDir=str(tmp_path))
    found = jobs.running("net")
    for error in (sqlite3.OperationalError("locked"), OSError(28, "full")):
        monkeypatch.setattr(Supervisor, "run", Mock(side_effect=error))
        assert not run_job(jobs.state, found)  # the next supervisor sees to it
    scratch = Path(jobs.record("net")["scratch"])
    blocked = attempt_path(job_folder(jobs.state.folder, found.uid)).with_suffix(".new")
    blocked.mkdir()
    (tmp_path / "go").touch()
    wait_until(lambda: not scratch.exists())  # the keeper is done but for its record
    blocked.rmdir()
    status = jobs.end("net").status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 1)


def test_a_job_whose_supervisors_die_one_after_the_other_fails(jobs: Jobs) -> None:
    found = jobs.submit("net", "sleep 1000")
    supervisor = jobs.supervisor("net")
    jobs.state.record(found.uid, note={"deaths": 99})  # as if many had died before this one
    kill(supervisor)
    status = jobs.end("net").status
    assert (status["reason"], status["instances"][0]["phase"]) == ("Died", "FAILED")
    assert status["conditions"][0]["type"] == "Failed"
