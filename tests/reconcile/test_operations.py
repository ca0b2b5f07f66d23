"""Data operations: declared and followed to the end, in the order they ask for; and as the loop
sees them, at the moments at which they begin and end."""

import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock import file_locks
from penstock.api import resources as api
from penstock.operations import lifecycle
from penstock.operations.lifecycle import OperationRunner
from penstock.reconcile.conditions import BOUND, COMPLETE, EXECUTING, stamp
from penstock.reconcile.snapshot import Stored
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support import operation_work
from tests.support.datasets import of_folder, ours, serving, stored
from tests.support.mounts import penstock
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

FILES = {"a/1": b"one", "a/2": b"two", "b/3": b"three"}
TOTAL = sum(map(len, FILES.values()))


@pytest.fixture
def bound(declared: State, tmp_path: Path) -> Path:
    """A data set of three small files that is bound; its source."""
    source = tmp_path / "source"
    write_tree(source, FILES)
    api.apply([of_folder("set", source), ours("set", tmp_path / "cache")])
    return source


def operation(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    if kind in ("DataLoad", "DataProcess"):
        spec["dataset"] = {"name": "set", "namespace": "default", **spec.get("dataset", {})}
    return operation_work.operation(kind, spec, name)


def done(kind: str, name: str) -> api.Operation:
    found = api.get(kind, name)
    assert isinstance(found, api.Operation)
    return found.wait(60)


def started_s(state: State, kind: str, name: str) -> float:
    """When it was started, the only time; its status has whole seconds."""
    events = state.events(stored(state, ResourceKey(kind, "default", name)).uid)
    (event,) = [one for one in events if one.reason == "Started"]
    assert event.count == 1
    return event.first_s


def test_operations_run_in_the_declared_order(bound: Path, declared: State, tmp_path: Path) -> None:
    script = {"script": {"source": f"cat /in/a/1 /in/b/3 > {tmp_path}/out"}}
    warmed, joined = {"kind": "DataLoad", "name": "warm"}, {"kind": "DataProcess", "name": "join"}
    small = {"dataset": {"name": "set", "namespace": "default"}}
    api.apply(
        [
            # The first that is named is not the first to run.
            operation(
                "DataBackup",
                "keep",
                dataset="set",
                backupPath=f"local://{tmp_path}/backups",
                runAfter=joined,
            ),
            operation(
                "DataProcess",
                "join",
                dataset={"mountPath": "/in"},
                processor=script,
                runAfter=warmed,
            ),
            operation("DataLoad", "warm", target=[{"path": "/a"}]),
            operation(
                "DataMigrate",
                "copy",
                runAfter=joined,
                **{"from": small, "to": {"externalStorage": {"uri": f"local://{tmp_path}/copy"}}},
            ),
        ]
    )
    assert done("DataMigrate", "copy").phase == "Complete"
    in_order = [("DataLoad", "warm"), ("DataProcess", "join"), ("DataBackup", "keep")]
    assert [done(*one).phase for one in in_order] == ["Complete"] * 3
    begun_s = [started_s(declared, *one) for one in in_order]
    assert begun_s == sorted(begun_s)
    assert started_s(declared, "DataMigrate", "copy") > begun_s[1]
    assert api.dataset("set").cached_bytes == TOTAL, "what was loaded, and what was read"
    assert (tmp_path / "out").read_bytes() == b"onethree"
    assert read_tree(tmp_path / "copy") == FILES
    title = penstock("get", "databackups").stdout.splitlines()[0]
    assert " ".join(title.split()) == "NAME DATASET PHASE PATH NODENAME DURATION AGE"
    # Deleted, and made again from the backup: the catalog is there at once, and the cache again.
    api.delete("Dataset", "set")
    assert api.get("PenstockRuntime", "set").status["masterPhase"] == "NotReady"
    location = {"path": f"local://{tmp_path}/backups", "nodeName": "here"}
    api.apply(of_folder("set", bound, dataRestoreLocation=location))
    assert done("DataLoad", "set-restore").phase == "Complete"
    assert api.dataset("set").cached_bytes == TOTAL
    assert "Restored" in api.describe("dataset", "set")


def test_a_failed_operation_reports_why_and_load_exits_with_its_code(bound: Path) -> None:
    result = penstock("load", "set", "--path", "/nowhere")
    assert (result.returncode, "nowhere" in result.stderr, "hint:" in result.stderr) == (
        2,
        True,
        True,
    )
    (failed,) = api.get_all("dataloads")
    assert failed.conditions[-1]["type"] == "Failed"
    assert "nowhere" in penstock("describe", "dataload", failed.name).stdout


def test_an_operation_whose_process_is_killed_is_started_again(
    bound: Path, declared: State
) -> None:
    pids = bound.parent / "pids"
    script = {"script": {"source": f"echo $$ >> {pids}; until test -e /in/go; do sleep 0.05; done"}}
    api.apply(operation("DataProcess", "slow", dataset={"mountPath": "/in"}, processor=script))
    wait_until(lambda: pids.exists() and pids.read_text())  # the shell makes it before it writes
    os.killpg(stored(declared, api.get("DataProcess", "slow").key).note["pid"], signal.SIGKILL)
    wait_until(lambda: len(pids.read_text().split()) == 2)
    (bound / "go").touch()
    assert penstock("refresh", api.dataset("set").path or "").returncode == 0
    assert done("DataProcess", "slow").phase == "Complete"
    assert "Died" in api.describe("DataProcess", "slow")


def test_a_schedule_runs_while_serve_does_and_ttl_removes_runs(
    bound: Path, declared: State
) -> None:
    minute = (time.localtime().tm_min + 30) % 60  # half an hour from now, and half an hour ago
    api.apply(
        [
            operation("DataLoad", "gone", target=[{"path": "/"}], ttlSecondsAfterFinished=0),
            operation(
                "DataLoad",
                "often",
                target=[{"path": "/"}],
                policy="Cron",
                schedule=f"{minute} * * * *",
            ),
        ]
    )
    wait_until(lambda: [one.name for one in api.get_all("dataloads")] == ["often"])
    often = api.get("DataLoad", "often")
    assert often.phase == "Pending"
    assert "runs next at" in api.describe("DataLoad", "often")
    # As if that had been two hours ago: what was missed is run once.
    uid = stored(declared, often.key).uid
    declared.record(uid, status={"lastScheduleTime": stamp(time.time() - 7200)})
    with serving(declared):
        wait_until(lambda: often.refresh().phase == "Complete", lambda: often.refresh().as_dict())
    assert api.dataset("set").phase == "Bound", "what it kept stays"


DATASET = ResourceKey("Dataset", "default", "set")
LOAD = ResourceKey("DataLoad", "default", "load")


@pytest.fixture
def load() -> Stored:
    """Of a data set that is bound, as far as the state says."""
    state = State()
    state.put(DATASET, of_folder("set", Path("/usr")), {})
    state.put(LOAD, operation("DataLoad", "load"), {})
    state.record(stored(state, DATASET).uid, status={"phase": BOUND})
    return stored(state, LOAD)


def test_an_ended_operation_is_not_started_again(
    load: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    state.record(load.uid, status={"phase": EXECUTING})
    before = state.snapshot()
    OperationRunner(state).finish(load, COMPLETE, "DataLoadComplete", "done")
    monkeypatch.setattr(lifecycle.subprocess, "Popen", Mock(side_effect=AssertionError("begun")))
    assert OperationRunner(state).step(before, leaving=False)
    assert stored(state, LOAD).status["phase"] == COMPLETE


def test_an_operation_that_is_done_at_once_stays_done(
    load: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()

    def quick(*_: Any, **__: Any) -> Mock:
        OperationRunner(state).finish(load, COMPLETE, "DataLoadComplete", "done")
        return Mock(pid=1)

    monkeypatch.setattr(lifecycle.subprocess, "Popen", quick)
    OperationRunner(state).step(state.snapshot(), leaving=False)
    assert stored(state, LOAD).status["phase"] == COMPLETE


def test_removing_a_running_operation_keeps_the_loop_running(load: Stored) -> None:
    resources = State()
    resources.mark_deleted(load.uid, {"at_s": time.time()})
    folder = OperationRunner(resources).folder(load.uid)
    folder.mkdir(parents=True)
    held = file_locks.acquire(folder / "lock")
    assert held is not None
    assert OperationRunner(resources).step(resources.snapshot(), leaving=False)
    assert resources.find(LOAD) is not None
    file_locks.release(folder / "lock", held)
    assert not OperationRunner(resources).step(resources.snapshot(), leaving=False)
    assert resources.find(LOAD) is None
    assert not folder.exists()
