"""Jobs that run, each with real processes. All begin at once, and each test looks at its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.api import resources as api
from penstock.doctor.bundle import write_bundle
from penstock.doctor.examination import examine
from penstock.errors import ManifestError, NoSuchResource, UsageError
from penstock.jobs.attach import attach_argv
from penstock.jobs.attempt_setup import scratch_place
from penstock.jobs.processes import pids_of
from penstock.jobs.usage import job_usage
from penstock.reconcile import loop_control
from penstock.reconcile.state import State
from tests.support.datasets import processes_of
from tests.support.isolation import isolate
from tests.support.jobs import Jobs, job
from tests.support.leaks import texts_of_bundle
from tests.support.mounts import penstock
from tests.support.waiting import wait_until, wait_until_gone

FORKS_AWAY = "setsid sh -c 'sleep 1000 & touch forked' & until test -e forked; do sleep 0.02; done"
BECOMES_A_DAEMON = """
import os, time
if os.fork(): time.sleep(1000)
os.setsid()
if os.fork(): os._exit(0)
os.environ.clear(); open('ready', 'w'); time.sleep(1000)
"""
TAKES_300_MIB = "x = bytearray(300 << 20); x[::4096] = b'x' * len(x[::4096])"
SHOWS_SECRETS = """
test "$API_TOKEN" = "open-"sesame-1 && env; tr "\\0" "\\n" < /proc/1/environ
echo "$DB_PASSPHRASE ${QUEUE#*//:}"; exit 3
"""
ONE_OF_TWO_FAILS = "case $TF_CONFIG in *'\"index\": 1'*) exit 7;; esac; sleep 100"
NEEDS_MENDING: dict[str, Any] = {"command": "test -e mended", "retries": 1}
PYTHON = [sys.executable, "-c"]


def begin(jobs: Jobs, folder: Path) -> None:
    tool, here = folder / "mytool", {"workingDir": str(folder)}
    tool.write_text('#!/bin/sh\necho "$PENSTOCK_JOB_NAME $CUDA_VISIBLE_DEVICES."; pwd\n')
    tool.chmod(0o755)
    jobs.submit("net", f"PATH={folder}:$PATH mytool", workers=2)
    jobs.submit(
        "first", "echo $CUDA_VISIBLE_DEVICES; until test -e go; do sleep 0.05; done", gpus=1, **here
    )
    jobs.submit("second", "echo $CUDA_VISIBLE_DEVICES", gpus=1)
    jobs.submit("fails", "echo oh no; exit 3")
    jobs.submit("missing", "./train.sh --epochs 3", retries=5)
    jobs.submit("nameless", "kill -40 $$")
    jobs.submit("lost", "true", workingDir="/no/such")
    jobs.submit("hangs", "sleep 100", timeoutSeconds=1)
    jobs.submit("other", ONE_OF_TWO_FAILS, workers=2)
    jobs.submit(
        "fat",
        [*PYTHON, TAKES_300_MIB],
        trainer="mpi",
        launch="launcher",
        workers=2,
        memory="32Mi",
        cpu="500m",
    )
    jobs.submit("never", **NEEDS_MENDING, **here)
    jobs.submit("forks", FORKS_AWAY)
    jobs.submit("daemon", [*PYTHON, BECOMES_A_DAEMON], **here)
    jobs.submit("loud", "yes | head -c 20000000; echo end", maxLogSize="64Ki")
    jobs.submit("brief", "true", ttlSecondsAfterFinished=1)
    jobs.submit("attached", "sleep 1000", **here)
    variables = {
        "API_TOKEN": "open-sesame-1",
        "DB_PASSPHRASE": "open-sesame-2",
        "QUEUE": "redis://:open-sesame-3@localhost/1",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    jobs.submit("secret", SHOWS_SECRETS, env=env)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where some of the jobs work."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def begun(
    forked_loops: Callable[[Path, int], None],
    tmp_path_factory: pytest.TempPathFactory,
    folder: Path,
) -> Iterator[Jobs]:
    state = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, state)
        patch.setattr(loop_control, "_start", forked_loops)
        patch.setenv("PENSTOCK_GPUS", "1")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-one-who-applied")
        jobs = Jobs(State())
        begin(jobs, folder)
        yield jobs
        while keys := [one.key for one in jobs.state.all()]:
            with suppress(NoSuchResource):  # one whose time was over
                api.delete_keys(keys, force=True, wait=True)
        wait_until(lambda: not processes_of(state), lambda: processes_of(state))
        jobs.assert_nothing_is_left()


@pytest.fixture
def jobs(begun: Jobs, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(begun.state.folder))
    monkeypatch.setenv("PENSTOCK_GPUS", "1")
    return begun


def test_a_finished_job_has_its_exit_codes_times_and_log(jobs: Jobs) -> None:
    status = jobs.end("net").status
    assert (status["phase"], status["reason"], status["attempts"]) == ("SUCCEEDED", "Completed", 1)
    assert status["startTime"] <= status["completionTime"]
    assert status["node"] == os.uname().nodename
    shown = [(one["name"], one["phase"], one["exitCode"]) for one in status["instances"]]
    assert shown == [("net-worker-0", "SUCCEEDED", 0), ("net-worker-1", "SUCCEEDED", 0)]
    assert jobs.log("net", "worker-1").startswith("net .\n/")


def test_gpus_are_assigned_and_other_jobs_queue(jobs: Jobs, folder: Path) -> None:
    jobs.running("first")
    waits = jobs.wait("second", lambda found: found.status.get("phase") == "QUEUING").status
    assert waits["message"] == "waits for 1 GPU; taken by job first"
    assert (waits["gpusRequested"], waits["gpusAllocated"]) == (1, 0)
    assert jobs.see("first").status["gpusAllocated"] == 1
    (folder / "go").touch()
    assert jobs.end("second").status["phase"] == "SUCCEEDED"
    assert jobs.log("first") == jobs.log("second") == "0\n"
    assert jobs.see("second").status["startTime"] >= jobs.see("first").status["completionTime"]


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [("fails", "Error", "worker-0 ended with exit code 3; its last output: oh no"),
     ("missing", "CannotStart", "./train.sh: no such command (hint: it was looked up in "),
     ("nameless", "Killed", "worker-0 was killed by signal 40"),
     ("lost", "CannotStart", "workingDir /no/such: No such file"),
     ("hangs", "Timeout", "timeout after 1s"),
     ("other", "Error", "worker-1 ended with exit code 7"),
     ("fat", "OutOfMemory", "launcher was killed by SIGKILL: out of memory (limit 64.0 MiB) "
      "(hint: give it more with --memory)")],
)  # fmt: skip
def test_a_failed_job_reports_why(jobs: Jobs, name: str, reason: str, message: str) -> None:
    status = jobs.end(name).status
    assert (status["phase"], status["reason"]) == ("FAILED", reason)
    assert status["message"].startswith(message)
    if name == "other":
        assert status["instances"][0]["signal"] == "SIGTERM"


def test_a_job_is_retried_up_to_its_limit_or_when_applied_again(jobs: Jobs, folder: Path) -> None:
    status = jobs.end("never").status
    assert (status["phase"], status["attempts"]) == ("FAILED", 2)
    (folder / "mended").touch()
    status = jobs.run("never", **NEEDS_MENDING, workingDir=str(folder)).status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 1)


def test_forked_processes_end_with_the_job(jobs: Jobs) -> None:
    found = jobs.end("forks")
    assert found.status["phase"] == "SUCCEEDED"
    assert "processes that it had left were ended" in jobs.events("forks")["LeftRunning"]
    wait_until(lambda: job_usage(found.uid).processes == 0)


def test_deletion_kills_a_daemon_that_left_its_session(jobs: Jobs, folder: Path) -> None:
    found = jobs.running("daemon")
    wait_until((folder / "ready").exists)
    # The init, the command, and the daemon.
    wait_until(lambda: job_usage(found.uid).processes == 3)
    record = jobs.record("daemon")
    pids = pids_of(found.uid, record["init"])
    assert len(pids) >= 3
    api.delete("job", "daemon")
    for pid in (*pids, record["keeper"]):
        wait_until_gone(pid)
    assert jobs.find("daemon") is None


def test_a_job_with_much_output_is_not_blocked_and_its_log_is_bounded(jobs: Jobs) -> None:
    assert jobs.end("loud").status["phase"] == "SUCCEEDED"
    log = jobs.log("loud")
    assert len(log) < 65 * 1024
    assert "bytes are missing here" in log
    assert log.endswith("end\n")
    wait_until(lambda: jobs.find("brief") is None)  # its time is over


def test_only_a_running_job_can_be_attached_to(jobs: Jobs, folder: Path) -> None:
    found = jobs.running("attached")
    script = "pwd; grep -q jobs.attempt_init /proc/1/cmdline && exit 4"
    argv = attach_argv(jobs.state, found, "worker-0", ["sh", "-c", script])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{folder}\n", 4)
    with pytest.raises(UsageError, match="no instance master-0"):
        attach_argv(jobs.state, found, "master-0", [])
    with pytest.raises(ManifestError, match="job attached runs, and cannot be changed"):
        api.apply(job("attached", "sleep 2000"))
    os.kill(jobs.record("attached")["keeper"], signal.SIGTERM)
    assert jobs.end("attached").status["reason"] == "Stopped"
    with pytest.raises(UsageError, match="does not run: it is FAILED"):
        attach_argv(jobs.state, jobs.see("attached"), None, [])


def test_secrets_reach_the_job_and_neither_the_state_nor_the_doctor(
    jobs: Jobs, tmp_path: Path
) -> None:
    assert jobs.end("secret").status["message"].startswith("worker-0 ended with exit code 3")
    assert "API_TOKEN=" in jobs.log("secret")
    # Not read in this process: closing a file of SQLite drops the locks that we have on it.
    for secret in ("open-sesame", "of-the-one-who-applied"):
        found = subprocess.run(["grep", "-rl", secret, jobs.state.folder], capture_output=True)
        assert (found.stdout, found.returncode) == (b"", 1)
    write_bundle(examine(None), tmp_path / "b.tar.gz")
    held = texts_of_bundle(tmp_path / "b.tar.gz")
    assert "API_TOKEN=" in held["logs/jobs/default/secret-worker-0.log"]
    assert "kind: TrainingJob" in held["resources.yaml"]
    assert "open-sesame" not in "".join(held.values())
    result = penstock("doctor", "job/secret")
    assert result.returncode == 2
    assert "wrong job/secret: it failed: worker-0 ended with exit code 3" in result.stdout
    with pytest.raises(NoSuchResource) as refused:
        examine("secret")
    assert refused.value.hint == "there is a job of that name: penstock doctor job/secret"


def test_a_folder_created_by_another_user_is_not_used_as_scratch() -> None:
    uid = str(uuid4())
    place = Path(scratch_place(uid))
    place.mkdir(mode=0o700)
    try:
        assert scratch_place(uid) == str(place)  # of an attempt before
        os.chown(place, 65534, 65534)
        assert scratch_place(uid).startswith(f"{place}-")
    finally:
        place.rmdir()


def test_a_job_that_needs_missing_hardware_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_GPUS", "1")
    with pytest.raises(ManifestError, match="2 GPUs are needed, but this machine has 1"):
        api.apply(job("a", "true", workers=2, gpus=1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ManifestError, match="neither docker nor podman is installed"):
        api.apply(job("a", "true", image="torch:2"))
