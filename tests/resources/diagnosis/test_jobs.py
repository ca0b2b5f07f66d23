"""Training jobs, judged: why one waits, does not get on or has failed, and what to do."""

import json
import os
from dataclasses import replace

import pytest

from penstock.daemon import locks
from penstock.resources.diagnosis.facts.jobs import Awaited, JobSeen, look_at_job
from penstock.resources.diagnosis.facts.mounts import Mount
from penstock.resources.diagnosis.rules.declared import judge_loop
from penstock.resources.diagnosis.rules.jobs import judge_job, judge_reading
from penstock.resources.jobs.places import attempt_path, job_folder, keeper_lock_path
from penstock.resources.jobs.queue import Waiting, decide
from penstock.resources.pairs import World
from penstock.resources.state import State
from penstock.specs.keys import ResourceKey
from penstock.units import MIB
from tests.resources.diagnosis.test_declared import AT_WORK, AWAY, only

IMAGENET = ResourceKey("Dataset", "default", "imagenet")
RUNS = JobSeen(
    name="job/net", plain_name="net", namespace="default", phase="RUNNING", reason="Running",
    message="attempt 1 runs", deleting_s=None, supervised=True, kept=True, running_s=90.0,
    ended_s=None, instances=("worker-0", "worker-1"), lost=0, notes=(), datasets=(IMAGENET,),
    awaited=(), holders=(), too_many=False, prepared=False, cpu_s=10.0, looked_s=0.0, log="/j/log",
)  # fmt: skip
WAITS = replace(RUNS, phase="PENDING", supervised=False, kept=False, running_s=None, instances=())
QUEUED = replace(WAITS, phase="QUEUING", message="waits for 2 GPUs; taken by job old")
SERVED = Mount(
    "/mnt/imagenet", "s3://b", True, True, True, "serving", waiting=4, looked_s=0.0,
    stats={"requests": {"READ": 5}, "store_bytes": 0, "hit_bytes": {"ssd": 0}, "plans": []},
)  # fmt: skip


def after(mount: Mount, **stats: object) -> Mount:
    return replace(mount, looked_s=0.5, stats={**(mount.stats or {}), **stats})


# -- that have ended -------------------------------------------------------------------------


def test_a_job_that_failed_is_wrong_for_who_asks_for_it_and_else_a_note() -> None:
    message = "worker-1 ended with exit code 3; it said last: nan"
    failed = replace(RUNS, phase="FAILED", reason="Error", message=message, ended_s=60.0)
    found = only(judge_job(failed, AWAY, by_name=True))
    assert (found.what, found.why) == (f"it failed: {message}", "Error, 1m00s ago")
    assert found.remedy == "penstock logs net --tail 50 -i worker-1"
    assert only(judge_job(failed, AWAY), "note").what == found.what
    alone = replace(failed, instances=("worker-1",), namespace="team")
    assert only(judge_job(alone, AWAY), "note").remedy == "penstock logs net --tail 50 -n team"


def test_the_hint_of_a_failure_comes_first() -> None:
    message = "workingDir /x: No such file or directory (hint: it is looked up as the job sees it)"
    failed = replace(RUNS, phase="FAILED", reason="CannotStart", message=message)
    found = only(judge_job(failed, AWAY), "note")
    assert found.what == "it failed: workingDir /x: No such file or directory"
    assert found.remedy == (
        "it is looked up as the job sees it; what it printed: penstock logs net --tail 50"
    )


def test_a_job_that_succeeded_is_well_and_a_deletion_needs_the_loop() -> None:
    assert judge_job(replace(RUNS, phase="SUCCEEDED"), AWAY)[0].severity == "ok"
    doomed = replace(RUNS, deleting_s=5.0)
    assert only(judge_job(doomed, AT_WORK), "note").what == "it is being deleted"
    assert "nobody does it" in only(judge_job(doomed, AWAY)).what
    assert only(judge_job(replace(doomed, deleting_s=600.0), AT_WORK)).why == "for 10m00s"


# -- that wait -------------------------------------------------------------------------------


def test_a_job_says_which_data_set_it_waits_for() -> None:
    missing = Awaited(IMAGENET, False, "there is no data set imagenet")
    found = only(judge_job(replace(WAITS, awaited=(missing,)), AT_WORK))
    assert found.why == "there is no data set imagenet"
    assert found.remedy.startswith("apply a Dataset imagenet in the namespace default")
    unbound = Awaited(IMAGENET._replace(namespace="team"), True, "data set team/imagenet is not …")
    found = only(judge_job(replace(WAITS, awaited=(unbound,)), AT_WORK))
    assert (found.what, found.remedy) == (
        "it waits for its data", "penstock doctor imagenet -n team",
    )  # fmt: skip


def test_a_job_in_the_queue_says_who_has_what_it_needs() -> None:
    held = replace(QUEUED, holders=("job/old has GPUs 0, 1",))
    found = only(judge_job(held, AT_WORK), "note")
    assert found.why == "waits for 2 GPUs; taken by job old; job/old has GPUs 0, 1"
    too_many = replace(QUEUED, message="waits for 8 GPUs; this machine has 2", too_many=True)
    found = only(judge_job(too_many, AT_WORK))
    assert (found.why, "penstock delete job net" in found.remedy) == (too_many.message, True)


@pytest.mark.parametrize("job", [QUEUED, WAITS, replace(WAITS, phase="")])
def test_a_job_that_needs_the_loop_and_none_runs_is_stuck(job: JobSeen) -> None:
    found = only(judge_job(job, AWAY))
    assert found.remedy == "penstock up; its log: /l/loop.log"
    assert job.needs_the_loop
    died = replace(AWAY, last_words="MemoryError")
    assert "MemoryError" in only(judge_loop(died, [job.name], [])).why
    assert only(judge_job(job, AT_WORK), "note")


def test_a_job_that_is_being_begun_is_well_and_one_that_is_tried_again_a_note() -> None:
    loading = replace(WAITS, supervised=True, reason="Loading", message="loading imagenet: 5%")
    assert judge_job(loading, AWAY)[0].why == "loading imagenet: 5%"
    again = replace(loading, reason="Retrying", message="attempt 1: worker-0 is gone")
    found = only(judge_job(again, AWAY), "note")
    assert (found.why, found.remedy) == (again.message, "penstock logs net --tail 50")


# -- that run --------------------------------------------------------------------------------


def test_a_job_that_runs_and_is_seen_to_is_well() -> None:
    (found,) = judge_job(RUNS, AWAY, RUNS)
    assert (found.severity, found.why) == ("ok", "begun 1m30s ago")


def test_a_job_whose_keeper_or_supervisor_is_gone_is_told() -> None:
    alone = replace(RUNS, supervised=False)
    assert "without its supervisor" in only(judge_job(alone, AWAY, alone), "note").what
    assert judge_job(alone, AT_WORK, alone)[0].severity == "ok", "it gets another"
    gone = replace(alone, kept=False)
    found = only(judge_job(gone, AWAY, gone))
    assert (found.what, found.remedy) == (
        "it says that it runs, and its processes are gone", "penstock up; its log: /j/log",
    )  # fmt: skip
    assert only(judge_job(gone, AT_WORK, gone), "note")
    ended = replace(gone, phase="SUCCEEDED")
    assert judge_job(gone, AWAY, ended)[0].what == "it succeeded", "it went on meanwhile"


def test_instances_that_are_gone_at_both_looks_are_told() -> None:
    lost = replace(RUNS, lost=2)
    assert "none of 2 instances" in only(judge_job(lost, AWAY, lost)).why
    assert judge_job(lost, AWAY, RUNS)[0].severity == "ok"


def test_what_a_job_has_to_do_without_is_noted_with_what_would_give_it() -> None:
    notes = (
        ("NoLimit", "memory is not limited: no cgroup can be made (Permission denied)"),
        ("NoNamespace", "no mount namespace can be made here"), ("LeftRunning", "2 processes"),
    )  # fmt: skip
    _, limit, namespace = judge_job(replace(RUNS, notes=notes), AT_WORK)
    assert (limit.severity, limit.what) == ("note", notes[0][1])
    assert "Delegate=yes" in limit.remedy
    assert (namespace.why, "user namespaces" in namespace.remedy) == (notes[1][1], True)


def test_a_job_that_does_nothing_while_its_mount_is_stuck_waits_for_data() -> None:
    later = replace(RUNS, cpu_s=10.01, looked_s=0.5)
    found = only(judge_reading(RUNS, later, "team/imagenet", SERVED, after(SERVED)), "slow")
    assert (found.what, found.remedy) == (
        "it waits for data of team/imagenet", "penstock doctor imagenet -n team",
    )  # fmt: skip
    assert found.why.startswith("its processes used 0.01 s of CPU in 0.5 s")
    busy = replace(later, cpu_s=10.4)
    assert judge_reading(RUNS, busy, "imagenet", SERVED, after(SERVED)) == []


def test_a_job_that_waits_for_object_storage_without_a_plan_is_slow() -> None:
    fetching = after(SERVED, store_bytes=8 * MIB, hit_bytes={"ssd": MIB})
    found = only(judge_reading(RUNS, RUNS, "imagenet", SERVED, fetching), "slow")
    assert "8.0 MiB came from object storage and 1.0 MiB from the cache" in found.why
    assert "--plan" in found.remedy
    planned = replace(RUNS, prepared=True)
    cached = after(SERVED, store_bytes=MIB, hit_bytes={"ssd": 8 * MIB})
    nobody_waits = replace(fetching, waiting=0)
    assert judge_reading(planned, planned, "imagenet", SERVED, fetching) == []
    assert judge_reading(RUNS, RUNS, "imagenet", SERVED, cached) == []
    assert judge_reading(RUNS, RUNS, "imagenet", SERVED, nobody_waits) == []
    assert judge_reading(WAITS, WAITS, "imagenet", SERVED, fetching) == []


# -- looking ---------------------------------------------------------------------------------


def put(state: State, name: str, **spec: object) -> str:
    key = ResourceKey("TrainingJob", "default", name)
    state.put(key, {"kind": "TrainingJob", "apiVersion": "x", "metadata": {}, "spec": spec}, {})
    found = state.find(key)
    assert found is not None
    return found.uid


def look(state: State, uid: str) -> JobSeen:
    job = state.by_uid(uid)
    assert job is not None
    return look_at_job(state.folder, World.read(state), job, lambda _place, _key: False)


def test_what_a_job_waits_for_is_read_from_the_state() -> None:
    state = State()
    old = put(state, "old", gpus=2)
    state.observe(old, note={"allotted": {"gpus": [0, 1], "cores": 1.0}})
    data = [{"dataset": "imagenet", "mountPath": "/data"}]
    uid = put(state, "net", gpus=1, cpu="2", data=data)
    seen = look(state, uid)
    assert (seen.name, seen.phase, seen.needs_the_loop) == ("job/net", "", True)
    assert seen.awaited == (Awaited(IMAGENET, False, "there is no data set imagenet"),)
    (verdict,) = decide([Waiting("net", (0.0, uid), gpus=1)], [], [], 2.0).values()
    state.observe(uid, status={"phase": "QUEUING", "message": verdict.why})
    seen = look(state, uid)
    assert seen.holders == ("job/old has GPUs 0, 1 and 1 core",)
    assert seen.too_many


def test_who_keeps_a_job_and_whether_its_instances_live_is_looked_up() -> None:
    state = State()
    uid = put(state, "net")
    state.observe(uid, status={"phase": "RUNNING"}, note={"run": "r"})
    folder = job_folder(state.folder, uid)
    folder.mkdir(parents=True)
    lock = locks.take(keeper_lock_path(folder))
    assert lock is not None
    instances = [{"phase": "RUNNING", "pid": 2**22 + 1}, {"phase": "SUCCEEDED"}]
    record = {"run": "r", "begun_s": 0.0, "notes": [["NoLimit", "x"]], "instances": instances,
              "outcome": None, "init": None}  # fmt: skip
    attempt_path(folder).write_text(json.dumps(record))
    seen = look(state, uid)
    assert (seen.kept, seen.supervised, seen.lost, seen.needs_the_loop) == (True, False, 1, False)
    assert seen.notes == (("NoLimit", "x"),)
    instances.append({"phase": "RUNNING", "pid": os.getpid()})
    attempt_path(folder).write_text(json.dumps(record))
    assert look(state, uid).lost == 0
    os.close(lock)
    state.observe(uid, note={"run": "another"})
    seen = look(state, uid)
    assert (seen.kept, seen.running_s, seen.notes) == (False, None, ())
