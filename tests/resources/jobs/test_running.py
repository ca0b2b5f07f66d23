"""Jobs that run, each with real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock import api
from penstock.errors import ManifestError, UsageError
from penstock.resources.jobs.attaching import attach_argv
from penstock.resources.jobs.attempts import scratch_place
from penstock.resources.jobs.processes import pids_of
from penstock.resources.jobs.usage import job_usage
from tests.cache.test_flights import wait_until
from tests.conftest import penstock
from tests.resources.jobs.conftest import Jobs, job, wait_until_gone


def test_a_job_ends_with_its_exit_codes_its_times_and_its_log(jobs: Jobs) -> None:
    found = jobs.run("net", 'echo "$PENSTOCK_JOB_NAME $CUDA_VISIBLE_DEVICES."; pwd', workers=2)
    status = found.status
    assert (status["phase"], status["reason"], status["attempts"]) == ("SUCCEEDED", "Completed", 1)
    assert status["startTime"] <= status["completionTime"]
    assert status["node"] == os.uname().nodename
    shown = [(one["name"], one["phase"], one["exitCode"]) for one in status["instances"]]
    assert shown == [("net-worker-0", "SUCCEEDED", 0), ("net-worker-1", "SUCCEEDED", 0)]
    assert jobs.log("net", "worker-1").startswith("net .\n/")
    table = [line.split() for line in penstock("get", "jobs").stdout.splitlines()]
    assert table[0] == ["NAME", "STATUS", "TRAINER", "DURATION", "GPU(Requested)",
                        "GPU(Allocated)", "NODE"]  # fmt: skip
    assert table[1][:3] == ["net", "SUCCEEDED", "TFJOB"]


def test_what_goes_wrong_is_said_and_costs_no_other_job(jobs: Jobs) -> None:
    one_of_two = "case $TF_CONFIG in *'\"index\": 1'*) exit 7;; esac; sleep 100"
    expected = {
        "fails": ("Error", "worker-0 ended with exit code 3; it said last: oh no"),
        "missing": ("CannotStart", "./train.sh: no such command (hint: it is looked for in "),
        "unknown": ("CannotStart", "no-such-command: no such command"),
        "signal": ("Killed", "worker-0 was killed by SIGSEGV"),
        "nameless": ("Killed", "worker-0 was killed by signal 40"),
        "lost": ("CannotStart", "workingDir /no/such: No such file"),
        "hangs": ("Timeout", "timeout after 1s"),
        "other": ("Error", "worker-1 ended with exit code 7"),
    }
    jobs.submit("fails", "echo oh no; exit 3")
    jobs.submit("missing", "./train.sh --epochs 3", retries=5)
    jobs.submit("unknown", ["no-such-command"])
    jobs.submit("signal", "kill -SEGV $$")
    jobs.submit("nameless", "kill -40 $$")
    jobs.submit("lost", "true", workingDir="/no/such")
    jobs.submit("hangs", "sleep 100", timeoutSeconds=1)
    jobs.submit("other", one_of_two, workers=2)
    jobs.submit("good", "true")
    for name, (reason, message) in expected.items():
        status = jobs.end(name).status
        assert (status["phase"], status["reason"]) == ("FAILED", reason)
        assert status["message"].startswith(message)
    assert jobs.end("good").status["phase"] == "SUCCEEDED"
    assert jobs.see("other").status["instances"][0]["signal"] == "SIGTERM"


def test_a_failure_is_tried_again_as_often_as_was_said_and_when_it_is_applied_again(
    jobs: Jobs, tmp_path: Path
) -> None:
    never: dict[str, Any] = {"command": "test -e mended", "retries": 1, "workingDir": str(tmp_path)}
    jobs.submit("never", **never)
    tries = "echo try; echo x >> tries; test $(wc -l < tries) = 3"
    assert jobs.run("third", tries, retries=2).status["attempts"] == 3
    lines = jobs.log("third").splitlines()
    assert [line.partition(" at ")[0] for line in lines if line != "try"] == [
        "--- attempt 2", "--- attempt 3"
    ]  # fmt: skip
    status = jobs.end("never").status
    assert (status["phase"], status["attempts"]) == ("FAILED", 2)
    (tmp_path / "mended").touch()
    status = jobs.run("never", **never).status
    assert (status["phase"], status["attempts"]) == ("SUCCEEDED", 1)


def test_what_forks_away_ends_with_the_job(jobs: Jobs, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = (
        f"setsid sh -c 'sleep 1000 & touch {note}' & while ! test -e {note}; do sleep 0.02; done"
    )
    assert jobs.run("forks", command).status["phase"] == "SUCCEEDED"
    assert "processes that it had left were ended" in dict(jobs.events("forks"))["LeftRunning"]


def test_deletion_kills_a_daemon_that_left_its_session(jobs: Jobs, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork(): time.sleep(1000)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.environ.clear(); open('ready', 'w'); time.sleep(1000)\n"
    )
    jobs.submit("daemon", [sys.executable, "-c", code], workingDir=str(tmp_path))
    found = jobs.running("daemon")
    jobs.wait("daemon", lambda _: (tmp_path / "ready").exists())
    # The init, the command, and the daemon.
    wait_until(lambda: job_usage(found.uid).processes == 3)
    record = jobs.record("daemon")
    pids = pids_of(found.uid, record["init"])
    api.delete("job", "daemon")
    for pid in (*pids, record["keeper"]):
        wait_until_gone(pid)
    assert jobs.find("daemon") is None


def test_a_job_that_prints_much_is_not_blocked_and_its_log_is_bounded(jobs: Jobs) -> None:
    found = jobs.run("loud", "yes | head -c 20000000; echo end", maxLogSize="64Ki")
    assert found.status["phase"] == "SUCCEEDED"
    log = jobs.log("loud")
    assert len(log) < 65 * 1024
    assert "bytes are missing here" in log
    assert log.endswith("end\n")


def test_memory_beyond_the_limit_is_told(jobs: Jobs) -> None:
    code = "x = bytearray(300 << 20); x[::4096] = b'x' * len(x[::4096])"
    status = jobs.run("fat", [sys.executable, "-c", code], memory="64Mi", cpu="500m").status
    assert status["reason"] == "OutOfMemory"
    said = "worker-0 was killed by SIGKILL: out of memory (limit 64.0 MiB)"
    assert status["message"] == f"{said} (hint: give it more with --memory)"


def test_the_memory_of_a_launcher_is_that_of_its_workers(jobs: Jobs) -> None:
    code = "x = bytearray(300 << 20); x[::4096] = b'x' * len(x[::4096])"
    command, spec = [sys.executable, "-c", code], {"trainer": "mpi", "launch": "launcher"}
    status = jobs.run("fat", command, workers=2, memory="32Mi", **spec).status
    assert "out of memory (limit 64.0 MiB)" in status["message"]


def test_a_folder_that_somebody_else_has_made_is_not_used_as_scratch() -> None:
    uid = str(uuid4())
    place = Path(scratch_place(uid))
    place.mkdir(mode=0o700)
    try:
        assert scratch_place(uid) == str(place)  # of an attempt before
        os.chown(place, 65534, 65534)
        assert scratch_place(uid).startswith(f"{place}-")
    finally:
        place.rmdir()


def test_a_command_is_looked_for_in_the_path_that_is_given_with_it(
    jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "mytool").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "mytool").chmod(0o755)
    jobs.run("net", f"PATH={tmp_path}:$PATH mytool")
    assert jobs.log("net") == "here\n"


def test_it_is_removed_when_its_time_is_over(jobs: Jobs) -> None:
    jobs.submit("brief", "true", ttlSecondsAfterFinished=0)
    wait_until(lambda: jobs.find("brief") is None)


def test_gpus_are_allotted_and_others_queue(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_GPUS", "1")
    jobs.submit("first", "echo $CUDA_VISIBLE_DEVICES; while ! test -e go; do sleep 0.05; done",
                gpus=1, workingDir=str(jobs.state.folder))  # fmt: skip
    jobs.running("first")
    jobs.submit("second", "echo $CUDA_VISIBLE_DEVICES", gpus=1)
    waits = jobs.wait("second", lambda found: found.status.get("phase") == "QUEUING").status
    assert waits["message"] == "waits for 1 GPU; taken by job first"
    assert (waits["gpusRequested"], waits["gpusAllocated"]) == (1, 0)
    assert jobs.see("first").status["gpusAllocated"] == 1
    (jobs.state.folder / "go").touch()
    assert jobs.end("second").status["phase"] == "SUCCEEDED"
    assert jobs.log("first") == jobs.log("second") == "0\n"
    assert jobs.see("second").status["startTime"] >= jobs.see("first").status["completionTime"]


def test_more_gpus_than_there_are_and_an_image_without_docker_are_refused(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_GPUS", "1")
    with pytest.raises(ManifestError, match=r"2 workers with 1 each are more than .* has: one"):
        api.apply(job("a", "true", workers=2, gpus=1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ManifestError, match="neither docker nor podman is installed"):
        api.apply(job("a", "true", image="torch:2"))
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    with pytest.raises(ManifestError, match="but `docker info` gets no answer"):
        api.apply(job("a", "true", image="torch:2"))


def test_one_can_attach_to_a_job_that_runs_and_not_to_others(jobs: Jobs, tmp_path: Path) -> None:
    jobs.submit("net", "sleep 1000", workingDir=str(tmp_path))
    found = jobs.running("net")
    script = "echo $PENSTOCK_JOB_NAME; pwd; grep -q jobs.init /proc/1/cmdline && exit 4"
    argv = attach_argv(jobs.state, found, "worker-0", ["sh", "-c", script])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"net\n{tmp_path}\n", 4)
    with pytest.raises(UsageError, match="no instance master-0"):
        attach_argv(jobs.state, found, "master-0", [])
    with pytest.raises(ManifestError, match="job net runs, and cannot be changed"):
        api.apply(job("net", "sleep 2000"))
    os.kill(jobs.record("net")["keeper"], signal.SIGTERM)
    assert jobs.end("net").status["reason"] == "Stopped"
    with pytest.raises(UsageError, match="does not run: it is FAILED"):
        attach_argv(jobs.state, jobs.see("net"), None, [])


def test_secrets_reach_the_job_and_nothing_else(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-one-who-applied")
    env = [
        {"name": "API_TOKEN", "value": "open-sesame-1"},
        {"name": "DB_PASSPHRASE", "value": "open-sesame-2"},
        {"name": "QUEUE", "value": "redis://:open-sesame-3@localhost/1"},
    ]
    command = (
        'test "$API_TOKEN" = "open-"sesame-1 && env; tr "\\0" "\\n" < /proc/1/environ; '
        'echo "$DB_PASSPHRASE ${QUEUE#*//:}"; exit 3'
    )
    assert jobs.run("net", command, env=env).status["message"].startswith("worker-0 ended with")
    assert "API_TOKEN=" in jobs.log("net")
    # Not read in here: who closes a file of SQLite loses the locks that it has on it.
    for secret in ("open-sesame", "of-the-one-who-applied"):
        found = subprocess.run(["grep", "-rl", secret, jobs.state.folder], capture_output=True)
        assert (found.stdout, found.returncode) == (b"", 1)
