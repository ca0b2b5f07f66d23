"""Training jobs, judged: why one waits, makes no progress or has failed, and what to do."""

import json
import os
from dataclasses import replace

import pytest

from penstock import file_locks
from penstock.doctor.facts.declared import Awaited, JobFacts, LoopFacts, look_at_job
from penstock.doctor.facts.mounts import Mount
from penstock.doctor.rules.declared import judge_job, judge_loop, judge_reading
from penstock.jobs.job_folder import attempt_path, job_folder, keeper_lock_path
from penstock.jobs.job_queue import Waiting, decide
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from penstock.units import MIB
from tests.support.datasets import stored
from tests.support.declared_samples import AT_WORK, AWAY, assert_told, only, put

IMAGENET = ResourceKey("Dataset", "default", "imagenet")
RUNS = JobFacts(
    name="job/net",
    plain_name="net",
    namespace="default",
    phase="RUNNING",
    reason="Running",
    message="attempt 1 runs",
    deleting_s=None,
    supervised=True,
    kept=True,
    running_s=90.0,
    ended_s=None,
    instances=("worker-0", "worker-1"),
    lost=0,
    notes=(),
    datasets=(IMAGENET,),
    awaited=(),
    holders=(),
    too_many=False,
    prepared=False,
    cpu_s=10.0,
    looked_s=0.0,
    log="/j/log",
)
WAITS = replace(RUNS, phase="PENDING", supervised=False, kept=False, running_s=None, instances=())
QUEUED = replace(WAITS, phase="QUEUING", message="waits for 2 GPUs; taken by job old")
SERVED = Mount(
    "/mnt/imagenet",
    "s3://b",
    True,
    True,
    True,
    "serving",
    waiting=4,
    looked_s=0.0,
    stats={"requests": {"READ": 5}, "store_bytes": 0, "hit_bytes": {"ssd": 0}, "plans": []},
)


def after(mount: Mount, **stats: object) -> Mount:
    return replace(mount, looked_s=0.5, stats={**(mount.stats or {}), **stats})


FAILED = replace(
    RUNS, phase="FAILED", reason="Error", message="worker-1 ended with exit code 3", ended_s=60.0
)
DOOMED = replace(RUNS, deleting_s=5.0)
HINTED = replace(FAILED, message="workingDir /x: not there (hint: it is looked up as the job sees)")
LOADING = replace(WAITS, supervised=True, reason="Loading", message="loading imagenet: 5%")
MISSING = Awaited(IMAGENET, False, "there is no data set imagenet")
UNBOUND = Awaited(IMAGENET._replace(namespace="team"), True, "data set team/imagenet is not bound")
ALONE = replace(RUNS, supervised=False)
GONE = replace(ALONE, kept=False)


@pytest.mark.parametrize(
    ("severity", "job", "loop", "says"),
    [("note", FAILED, AWAY, "it failed: worker-1 ended with exit code 3|Error, 1m00s ago"
      "|penstock logs net --tail 50 -i worker-1"),
     ("note", replace(FAILED, instances=("worker-1",), namespace="team"), AWAY,
      "penstock logs net --tail 50 -n team"),
     ("note", HINTED, AWAY, "it failed: workingDir /x: not there|it is looked up as the job "
      "sees; what it printed: penstock logs net --tail 50"),
     ("note", DOOMED, AT_WORK, "it is being deleted"),
     ("bad", DOOMED, AWAY, "nothing works on it"),
     ("bad", replace(DOOMED, deleting_s=600.0), AT_WORK, "for 10m00s"),
     ("bad", replace(WAITS, awaited=(MISSING,)), AT_WORK,
      "there is no data set imagenet|apply a Dataset imagenet in the namespace default"),
     ("bad", replace(WAITS, awaited=(UNBOUND,)), AT_WORK,
      "it waits for its data|penstock doctor imagenet -n team"),
     ("note", replace(QUEUED, holders=("job/old has GPUs 0, 1",)), AT_WORK,
      "waits for 2 GPUs; taken by job old; job/old has GPUs 0, 1"),
     ("bad", replace(QUEUED, message="waits for 8 GPUs; this machine has 2", too_many=True),
      AT_WORK, "waits for 8 GPUs; this machine has 2|penstock delete job net"),
     ("note", replace(LOADING, reason="Retrying", message="attempt 1: worker-0 is gone"), AWAY,
      "attempt 1: worker-0 is gone|penstock logs net --tail 50"),
     ("note", ALONE, AWAY, "without its supervisor"),
     ("bad", GONE, AWAY, "its status is running, but its processes are gone"
      "|penstock up; its log: /j/log"),
     ("note", GONE, AT_WORK, ""),
     ("bad", replace(RUNS, lost=2), AWAY, "none of 2 instances")],
)  # fmt: skip
def test_trouble_has_a_remedy(severity: str, job: JobFacts, loop: LoopFacts, says: str) -> None:
    assert_told(judge_job(job, loop, job), severity, says)


@pytest.mark.parametrize(
    ("job", "loop", "later", "says"),
    [(RUNS, AWAY, RUNS, "started 1m30s ago"),
     (replace(RUNS, phase="SUCCEEDED"), AWAY, None, "succeeded"),
     (LOADING, AWAY, None, "loading imagenet: 5%"),
     (ALONE, AT_WORK, ALONE, "started 1m30s ago"),  # it gets another supervisor
     (GONE, AWAY, replace(GONE, phase="SUCCEEDED"), "succeeded"),  # meanwhile
     (replace(RUNS, lost=2), AWAY, RUNS, "started 1m30s ago")],  # at the first look alone
)  # fmt: skip
def test_a_job_that_makes_progress_is_ok(
    job: JobFacts, loop: LoopFacts, later: JobFacts | None, says: str
) -> None:
    (found,) = judge_job(job, loop, later)
    assert found.severity == "ok"
    assert says in f"{found.what} {found.why}"


@pytest.mark.parametrize("job", [QUEUED, WAITS, replace(WAITS, phase="")])
def test_a_job_without_a_running_loop_is_stuck(job: JobFacts) -> None:
    assert only(judge_job(job, AWAY)).remedy == "penstock up; its log: /l/loop.log"
    assert job.needs_the_loop
    died = replace(AWAY, last_error="MemoryError")
    assert "MemoryError" in only(judge_loop(died, [job.name], [])).why
    assert only(judge_job(job, AT_WORK), "note")


def test_missing_features_of_a_job_are_noted_with_a_remedy() -> None:
    notes = (("NoLimit", "no cgroup can be made"), ("NoNamespace", "no mount namespace"))
    _, limit, namespace = judge_job(replace(RUNS, notes=notes), AT_WORK)
    assert (limit.severity, limit.what) == ("note", notes[0][1])
    assert "Delegate=yes" in limit.remedy
    assert (namespace.why, "user namespaces" in namespace.remedy) == (notes[1][1], True)


def test_a_job_that_waits_for_its_mount_or_store_is_slow() -> None:
    later = replace(RUNS, cpu_s=10.01, looked_s=0.5)
    found = only(judge_reading(RUNS, later, "team/imagenet", SERVED, after(SERVED)), "slow")
    assert (found.what, found.remedy) == (
        "it waits for data of team/imagenet",
        "penstock doctor imagenet -n team",
    )
    assert found.why.startswith("its processes used 0.01 s of CPU in 0.5 s")
    fetching = after(SERVED, store_bytes=8 * MIB, hit_bytes={"ssd": MIB})
    found = only(judge_reading(RUNS, RUNS, "imagenet", SERVED, fetching), "slow")
    assert "8.0 MiB came from object storage and 1.0 MiB from the cache" in found.why
    assert "--plan" in found.remedy
    planned, busy = replace(RUNS, prepared=True), replace(later, cpu_s=10.4)
    cached = after(SERVED, store_bytes=MIB, hit_bytes={"ssd": 8 * MIB})
    for before, now, mount in (
        (RUNS, busy, after(SERVED)),
        (planned, planned, fetching),
        (RUNS, RUNS, cached),
        (RUNS, RUNS, replace(fetching, waiting=0)),
        (WAITS, WAITS, fetching),
    ):
        assert judge_reading(before, now, "imagenet", SERVED, mount) == []


def look(state: State) -> JobFacts:
    job = stored(state, ResourceKey("TrainingJob", "default", "net"))
    return look_at_job(state.folder, state.snapshot(), job, lambda _place, _key: False)


def test_the_cause_of_a_waiting_job_is_read_from_the_state() -> None:
    state = State()
    old = put("TrainingJob", "old", spec={"gpus": 2})
    state.record(old, note={"allotted": {"gpus": [0, 1], "cores": 1.0}})
    data = [{"dataset": "imagenet", "mountPath": "/data"}]
    uid = put("TrainingJob", "net", spec={"gpus": 1, "cpu": "2", "data": data})
    seen = look(state)
    assert (seen.name, seen.phase, seen.needs_the_loop) == ("job/net", "", True)
    assert seen.awaited == (Awaited(IMAGENET, False, "there is no data set imagenet"),)
    (verdict,) = decide([Waiting("net", (0.0, uid), gpus=1)], [], [], 2.0).values()
    state.record(uid, status={"phase": "QUEUING", "message": verdict.why})
    seen = look(state)
    assert seen.holders == ("job/old has GPUs 0, 1 and 1 core",)
    assert seen.too_many


def test_the_keeper_of_a_job_and_its_live_instances_are_looked_up() -> None:
    state = State()
    uid = put("TrainingJob", "net", spec={})
    state.record(uid, status={"phase": "RUNNING"}, note={"run": "r"})
    folder = job_folder(state.folder, uid)
    folder.mkdir(parents=True)
    lock = file_locks.acquire(keeper_lock_path(folder))
    assert lock is not None
    record = {
        "run": "r",
        "begun_s": 0.0,
        "notes": [["NoLimit", "x"]],
        "outcome": None,
        "init": None,
        "instances": [{"phase": "RUNNING", "pid": 2**22 + 1}],
    }
    attempt_path(folder).write_text(json.dumps(record))
    seen = look(state)
    assert (seen.kept, seen.supervised, seen.lost, seen.needs_the_loop) == (True, False, 1, False)
    assert seen.notes == (("NoLimit", "x"),)
    record["instances"] = [{"phase": "RUNNING", "pid": os.getpid()}, {"phase": "SUCCEEDED"}]
    attempt_path(folder).write_text(json.dumps(record))
    assert look(state).lost == 0
    os.close(lock)
    # What was written of another run says nothing of this one.
    state.record(uid, note={"run": "another"})
    seen = look(state)
    assert (seen.kept, seen.running_s, seen.notes) == (False, None, ())
