"""Declared resources, judged: why one is Pending, not bound, failed or stuck, and what to do."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import file_locks
from penstock.doctor.facts import declared as facts
from penstock.doctor.facts.declared import DatasetFacts, LoopFacts, OperationFacts
from penstock.doctor.findings import Finding, exit_code
from penstock.doctor.rules.declared import judge_dataset, judge_loop, judge_operation
from penstock.reconcile.conditions import Condition, with_conditions
from penstock.reconcile.state import State
from tests.support.declared_samples import AT_WORK, AWAY, assert_told, put

BOUND = DatasetFacts(
    name="imagenet",
    namespace="default",
    plain_name="imagenet",
    phase="Bound",
    has_runtime=True,
    second_runtimes=(),
    settled=True,
    deleting_s=None,
    conditions=(),
    trouble=None,
    retry_in_s=None,
    mountpoint="/mnt/penstock/default/imagenet",
    mounted=True,
    warnings=(),
)
LOAD = OperationFacts(
    name="dataload/warm",
    kind="DataLoad",
    plain_name="warm",
    namespace="default",
    phase="Executing",
    policy="Once",
    message="",
    waits_for=None,
    runs=True,
    running_s=600.0,
    silent_s=1.0,
    progress={"bytes": 50, "ofBytes": 100},
    unbound=(),
    log="/o/log",
)


def condition(kind: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
    return with_conditions([], [Condition(kind, holds, reason, message)], 0.0)[0]


HINT = "`penstock label KEY=VALUE` gives this machine a label"
UNLABELLED = condition("Ready", False, "NodeAffinityNotMet", f"no label gpu (hint: {HINT})")
OLD_MODE = condition(
    "UpdateReady",
    False,
    "RestartNeeded",
    "the mode cannot change (hint: `penstock up --restart imagenet`)",
)
TROUBLE = {"what": "s3://b: cannot be reached", "hint": "check the endpoint", "exit_code": 3}
UNBOUND = replace(BOUND, phase="NotBound", mounted=False)
FAILED = replace(BOUND, phase="Failed", trouble=TROUBLE, retry_in_s=90.0, mounted=False)
FRESH = replace(BOUND, phase="", settled=False, mounted=False)
DIED = replace(AWAY, last_error="MemoryError")
SILENT = replace(LOAD, silent_s=300.0)
PENDING = replace(LOAD, phase="Pending", runs=False)


@pytest.mark.parametrize(
    ("severity", "findings", "says"),
    [
        (
            "bad",
            judge_dataset(replace(UNBOUND, has_runtime=False), AWAY),
            "it waits for a runtime|PenstockRuntime, name imagenet",
        ),
        ("bad", judge_dataset(replace(BOUND, mounted=False), AWAY), "penstock up imagenet"),
        (
            "bad",
            judge_dataset(replace(UNBOUND, conditions=(UNLABELLED,)), AWAY),
            f"not bound: no label gpu|NodeAffinityNotMet|{HINT}; then penstock up imagenet",
        ),
        (
            "bad",
            judge_dataset(FAILED, AWAY),
            "not bound: s3://b: cannot be reached|retried in 1m30s",
        ),
        (
            "bad",
            judge_dataset(replace(FAILED, phase="Bound", mounted=True), AWAY),
            "a change to it failed",
        ),
        ("note", judge_dataset(FRESH, AT_WORK), "it is being mounted"),
        (
            "bad",
            judge_dataset(replace(FRESH, namespace="team", name="team/imagenet"), AWAY),
            "nothing works on it|penstock up imagenet -n team",
        ),
        ("note", judge_dataset(replace(BOUND, deleting_s=5.0), AWAY), "deleted"),
        ("bad", judge_dataset(replace(BOUND, deleting_s=600.0), AWAY), "--force"),
        (
            "note",
            judge_dataset(replace(BOUND, second_runtimes=("JindoRuntime",)), AWAY),
            "penstock delete jindoruntime imagenet",
        ),
        (
            "note",
            judge_dataset(replace(BOUND, conditions=(OLD_MODE,)), AWAY),
            "penstock up --restart imagenet",
        ),
        ("bad", judge_loop(DIED, ["imagenet"], []), "imagenet|MemoryError"),
        *(
            (
                "bad",
                judge_loop(AWAY, [], [replace(LOAD, policy=policy, phase="Complete")]),
                "penstock serve",
            )
            for policy in ("Cron", "OnEvent")
        ),
        (
            "bad",
            judge_operation(replace(LOAD, phase="Failed", message="no such path"), AWAY),
            "it failed: no such path|/o/log",
        ),
        ("slow", judge_operation(SILENT, AT_WORK, SILENT), "5m00s|50%"),
        ("bad", judge_operation(replace(LOAD, runs=False), AWAY), "its process is gone"),
        (
            "bad",
            judge_operation(replace(PENDING, unbound=("imagenet",)), AWAY),
            "penstock doctor imagenet",
        ),
        ("note", judge_operation(replace(PENDING, waits_for="until 12:00"), AWAY), "until 12:00"),
        ("bad", judge_operation(PENDING, AWAY), "nothing will start it"),
    ],
)
def test_trouble_has_a_remedy(severity: str, findings: list[Finding], says: str) -> None:
    assert_told(findings, severity, says)


@pytest.mark.parametrize(
    "findings",
    [judge_dataset(BOUND, AWAY),
     judge_loop(AWAY, ["imagenet"], []),  # the data set itself is told of
     judge_loop(DIED, [], [LOAD]),
     judge_loop(AT_WORK, ["imagenet"], []),
     judge_operation(LOAD, AT_WORK, LOAD),
     judge_operation(SILENT, AT_WORK, replace(SILENT, progress={"bytes": 60, "ofBytes": 100})),
     judge_operation(replace(LOAD, runs=False), AT_WORK)],
)  # fmt: skip
def test_healthy_facts_give_no_finding(findings: list[Finding]) -> None:
    assert {one.severity for one in findings} == {"ok"}


def test_a_failure_decides_the_exit_code() -> None:
    assert exit_code(judge_dataset(FAILED, AWAY)) == 3
    denied = replace(FAILED, trouble={**TROUBLE, "exit_code": 2})
    assert exit_code(judge_dataset(denied, AWAY)) == 2


def test_the_state_is_read_unchanged() -> None:
    state = State()
    put("Dataset", "d", "team", spec={})
    put("DataLoad", "l", "team", spec={"dataset": {"name": "d"}, "policy": "Cron"})
    snapshot = state.snapshot()
    seen = facts.look_at_dataset(state, snapshot, snapshot.pair("team", "d"))
    assert (seen.name, seen.phase, seen.has_runtime, seen.settled) == ("team/d", "", False, False)
    (operation,) = snapshot.operations()
    assert not facts.look_at_operation(state, snapshot, operation).runs
    folder = state.folder / "operations" / operation.uid
    folder.mkdir(parents=True)
    lock = file_locks.acquire(folder / "lock")
    assert lock is not None
    state.record(operation.uid, status={"phase": "Executing"}, note={"begun_s": 1000.0})
    operation = state.snapshot().operations()[0]
    look = facts.look_at_operation(state, snapshot, operation)
    assert (look.runs, look.policy, look.unbound, look.phase) == (True, "Cron", ("d",), "Executing")
    assert (look.silent_s or 0) > 1e6
    os.close(lock)
    assert facts.look_at_loop(state.folder) == LoopFacts(
        False, str(state.folder / "logs/loop.log"), ""
    )


def test_the_last_log_lines_of_a_failure_are_shown(tmp_path: Path) -> None:
    assert facts.last_error("12:00 INFO a\n12:01 WARNING b\n12:02 INFO c\n") == "12:01 WARNING b"
    trace = 'Traceback (most recent call last):\n  File "x", line 1\n    boom()\nOSError: full\n'
    assert facts.last_error(f"12:00 ERROR before\n{trace}12:01 INFO after\n") == "OSError: full"
    assert facts.last_error("all is well\n") == ""
    log = tmp_path / "log"
    log.write_text("first line\nsecond line\n")
    assert [facts.tail(log, size) for size in (15, 1000)] == ["second line\n", log.read_text()]
    assert facts.tail(tmp_path / "none", 10) == ""
