"""Declared resources, judged: why one is Pending, not bound, failed or stuck, and what to do."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.daemon import locks
from penstock.resources.conditions import Condition, with_conditions
from penstock.resources.diagnosis.facts.declared import (
    DatasetSeen,
    LoopSeen,
    OperationSeen,
    last_trouble,
    look_at_dataset,
    look_at_loop,
    look_at_operation,
    tail,
)
from penstock.resources.diagnosis.finding import exit_code
from penstock.resources.diagnosis.rules.declared import (
    judge_dataset,
    judge_loop,
    judge_operation,
)
from penstock.resources.pairs import World
from penstock.resources.state import State
from penstock.specs.keys import ResourceKey
from tests.support.declared_samples import AT_WORK, AWAY, only

BOUND = DatasetSeen(
    name="imagenet", namespace="default", plain_name="imagenet", phase="Bound", has_runtime=True,
    second_runtimes=(), settled=True, deleting_s=None, conditions=(), trouble=None,
    retry_in_s=None, mountpoint="/mnt/penstock/default/imagenet", mounted=True, warnings=(),
)  # fmt: skip
LOAD = OperationSeen(
    name="dataload/warm", kind="DataLoad", plain_name="warm", namespace="default",
    phase="Executing", policy="Once", message="", waits_for=None, runs=True, running_s=600.0,
    silent_s=1.0, progress={"bytes": 50, "of": 100}, unbound=(), log="/o/log",
)  # fmt: skip


def condition(kind: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
    return with_conditions([], [Condition(kind, holds, reason, message)], 0.0)[0]


# -- data sets -------------------------------------------------------------------------------


def test_a_data_set_that_is_bound_is_well() -> None:
    assert {one.severity for one in judge_dataset(BOUND, AWAY)} == {"ok"}


@pytest.mark.parametrize(
    ("severity", "changes", "says"),
    [
        ("bad", {"phase": "NotBound", "has_runtime": False, "mounted": False},
         "it waits for a runtime|PenstockRuntime, name imagenet"),
        ("bad", {"mounted": False}, "penstock up imagenet"),
        ("note", {"deleting_s": 5.0}, "deleted"),
        ("bad", {"deleting_s": 600.0}, "--force"),
        ("note", {"second_runtimes": ("JindoRuntime",)}, "penstock delete jindoruntime imagenet"),
        ("note", {"conditions": (condition(
            "UpdateReady", False, "RestartNeeded",
            "the mode cannot change (hint: `penstock up --restart imagenet`)"),)},
         "penstock up --restart imagenet"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(
    severity: str, changes: dict[str, Any], says: str
) -> None:
    found = only(judge_dataset(replace(BOUND, **changes), AWAY), severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


def test_an_affinity_that_is_not_met_is_told_with_its_hint() -> None:
    hint = "`penstock label KEY=VALUE` gives this machine a label"
    ready = condition("Ready", False, "NodeAffinityNotMet", f"no label gpu (hint: {hint})")
    seen = replace(BOUND, phase="NotBound", conditions=(ready,), mounted=False)
    found = only(judge_dataset(seen, AWAY))
    assert (found.what, found.why) == ("not bound: no label gpu", "NodeAffinityNotMet")
    assert found.remedy == f"{hint}; then penstock up imagenet"


def test_a_failure_has_its_reason_its_hint_and_its_exit_code() -> None:
    trouble = {"what": "s3://b: cannot be reached", "hint": "check the endpoint", "exit_code": 3}
    failed = replace(BOUND, phase="Failed", trouble=trouble, retry_in_s=90.0, mounted=False)
    found = only(judge_dataset(failed, AWAY))
    assert found.what == "not bound: s3://b: cannot be reached"
    assert "tried again in 1m30s" in found.why
    assert exit_code([found]) == 3
    denied = replace(failed, trouble={**trouble, "exit_code": 2})
    assert exit_code(judge_dataset(denied, AWAY)) == 2
    changed = only(judge_dataset(replace(failed, phase="Bound", mounted=True), AWAY))
    assert "a change to it failed" in changed.what


def test_one_that_is_not_as_declared_is_being_made_or_forgotten() -> None:
    fresh = replace(BOUND, phase="", settled=False, mounted=False)
    assert only(judge_dataset(fresh, AT_WORK), "note").what == "it is being made"
    found = only(judge_dataset(replace(fresh, namespace="team", name="team/imagenet"), AWAY))
    assert "nobody works on it" in found.what
    assert "penstock up imagenet -n team" in found.remedy


# -- the loop --------------------------------------------------------------------------------


def test_a_loop_that_should_run_and_does_not_tells_its_last_words() -> None:
    died = replace(AWAY, last_words="MemoryError")
    found = only(judge_loop(died, ["imagenet"], []))
    assert ("imagenet" in found.why, "MemoryError" in found.why) == (True, True)
    assert judge_loop(AWAY, ["imagenet"], [])[0].severity == "ok", "the data set itself is told of"
    assert judge_loop(died, [], [LOAD])[0].severity == "ok"
    assert judge_loop(AT_WORK, ["imagenet"], [])[0].severity == "ok"


@pytest.mark.parametrize("policy", ["Cron", "OnEvent"])
def test_schedules_and_events_need_serve(policy: str) -> None:
    found = only(judge_loop(AWAY, [], [replace(LOAD, policy=policy, phase="Complete")]))
    assert found.subject == "dataload/warm"
    assert "penstock serve" in found.remedy


# -- operations ------------------------------------------------------------------------------


def test_an_operation_that_failed_says_why() -> None:
    failed = replace(LOAD, phase="Failed", message="no such path")
    found = only(judge_operation(failed, AWAY))
    assert (found.what, "/o/log" in found.remedy) == ("it failed: no such path", True)


def test_an_operation_that_gets_on_is_well_and_one_that_does_not_is_slow() -> None:
    assert judge_operation(LOAD, AT_WORK, LOAD)[0].severity == "ok"
    silent = replace(LOAD, silent_s=300.0)
    moved = replace(silent, progress={"bytes": 60, "of": 100})
    assert judge_operation(silent, AT_WORK, moved)[0].why == "begun 10m00s ago, at 60%"
    found = only(judge_operation(silent, AT_WORK, silent), "slow")
    assert ("5m00s" in found.why, "50%" in found.why) == (True, True)


def test_an_operation_whose_process_is_gone_needs_somebody_to_go_on() -> None:
    gone = replace(LOAD, runs=False)
    assert "its process is gone" in only(judge_operation(gone, AWAY)).what
    assert judge_operation(gone, AT_WORK)[0].severity == "ok"


def test_an_operation_that_waits_says_for_what() -> None:
    pending = replace(LOAD, phase="Pending", runs=False)
    found = only(judge_operation(replace(pending, unbound=("imagenet",)), AWAY))
    assert found.remedy == "penstock doctor imagenet"
    waits = replace(pending, waits_for="until 12:00")
    assert only(judge_operation(waits, AWAY), "note").why == "until 12:00"
    assert "nobody is there to begin it" in only(judge_operation(pending, AWAY)).what


# -- looking ---------------------------------------------------------------------------------


def test_the_state_is_read_as_it_is() -> None:
    state = State()
    key = ResourceKey("Dataset", "team", "d")
    state.put(key, {"kind": "Dataset", "apiVersion": "x", "metadata": {}, "spec": {}}, {})
    load = ResourceKey("DataLoad", "team", "l")
    spec = {"dataset": {"name": "d"}, "policy": "Cron"}
    state.put(load, {"kind": "DataLoad", "apiVersion": "x", "metadata": {}, "spec": spec}, {})
    world = World.read(state)
    seen = look_at_dataset(state, world, world.pair("team", "d"))
    assert (seen.name, seen.phase, seen.has_runtime, seen.settled) == ("team/d", "", False, False)
    (operation,) = world.operations()
    assert not look_at_operation(state, world, operation).runs
    folder = state.folder / "operations" / operation.uid
    folder.mkdir(parents=True)
    lock = locks.take(folder / "lock")
    assert lock is not None
    state.observe(operation.uid, status={"phase": "Executing"}, note={"begun_s": 1000.0})
    operation = World.read(state).operations()[0]
    look = look_at_operation(state, world, operation)
    assert (look.runs, look.policy, look.unbound, look.phase) == (True, "Cron", ("d",), "Executing")
    assert look.silent_s is not None
    assert look.silent_s > 1e6
    os.close(lock)
    assert look_at_loop(state.folder) == LoopSeen(False, str(state.folder / "logs/loop.log"), "")


def test_the_last_words_of_a_log_are_those_of_trouble(tmp_path: Path) -> None:
    assert last_trouble("12:00 INFO a\n12:01 WARNING b\n12:02 INFO c\n") == "12:01 WARNING b"
    trace = 'Traceback (most recent call last):\n  File "x", line 1\n    boom()\nOSError: full\n'
    assert last_trouble(f"12:00 ERROR before\n{trace}12:01 INFO after\n") == "OSError: full"
    assert last_trouble("all is well\n") == ""
    log = tmp_path / "log"
    log.write_text("first line\nsecond line\n")
    assert tail(log, 15) == "second line\n"
    assert tail(log, 1000) == "first line\nsecond line\n"
    assert tail(tmp_path / "none", 10) == ""
