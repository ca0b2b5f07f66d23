"""The command, as a person runs it: on mounts that are well, dying or dead, and on data sets."""

import json
import os
import signal
from pathlib import Path

import pytest

from penstock.daemon.registry import find_note, serves
from penstock.resources.state import State
from penstock.specs.keys import ResourceKey
from tests.support.mounts import Mounter, penstock
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


def put(kind: str, name: str, spec: dict[str, object]) -> str:
    state = State()
    key = ResourceKey(kind, "default", name)
    metadata = {"name": name, "namespace": "default"}
    state.put(key, {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}, {})
    found = state.find(key)
    assert found is not None
    return found.uid


def test_nothing_declared_and_nothing_mounted_is_one_line() -> None:
    result = penstock("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert "this machine:" in result.stdout
    assert len(result.stdout.splitlines()) < 5


def test_a_mount_that_is_well_is_one_line_and_verbose_tells_each_check(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(s3.bucket("well"), {"a": b"1" * 5000})
    mount = mounter("s3://well", "--endpoint", s3.endpoint)
    # The keys are the mount's own, whoever asks.
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = penstock("doctor", mount.path)
    assert told.returncode == 0, told.stdout
    assert f"{mount.path}: nothing is wrong" in told.stdout
    assert "ok " not in told.stdout
    told = penstock("doctor", mount.path, "-v")
    assert f"s3://well: {s3.endpoint} answers" in told.stdout
    assert "1 files, 4.9 KiB" in told.stdout
    found = json.loads(penstock("doctor", mount.path, "-o", "json").stdout)
    assert (found["exit_code"], found["hidden"], found["mode"]) == (0, [], "pagecache")
    assert "ok" in {one["severity"] for one in found["findings"]}


def test_a_mount_that_lost_its_source_its_supervisor_and_its_server(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {"a": b"1"})
    mount = mounter(f"file://{tmp_path}/source")
    os.rename(tmp_path / "source", tmp_path / "moved")
    told = penstock("doctor", mount.path)
    assert (told.returncode, "the folder is not there" in told.stdout) == (2, True)
    os.rename(tmp_path / "moved", tmp_path / "source")
    note = find_note(mount.path)
    os.kill(note.pid, signal.SIGKILL)
    wait_until(lambda: not serves(note.pid, str(mount.path)))
    told = penstock("doctor", mount.path)
    assert (told.returncode, "its supervisor is gone" in told.stdout) == (2, True)
    assert note.server_pid is not None
    os.kill(note.server_pid, signal.SIGKILL)
    wait_until(lambda: not serves(note.server_pid or 0, str(mount.path)))
    for arguments in ([mount.path], []):
        told = penstock("doctor", *arguments)
        assert told.returncode == 2
        assert "its supervisor and its server are gone" in told.stdout
        assert f"do:  penstock umount {mount.path}" in told.stdout


def test_neither_a_damaged_state_nor_a_server_that_is_stopped_stops_the_doctor(
    mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    damaged = state / "resources.sqlite"
    damaged.write_bytes(b"not a database, not at all" * 100)
    write_tree(tmp_path / "source", {"a": b"1"})
    mount = mounter(f"file://{tmp_path}/source", "--watchdog", "100s")
    told = penstock("doctor")
    assert told.returncode == 2
    assert "wrong the declared state:" in told.stdout
    assert f"{mount.path}: nothing is wrong" in told.stdout
    damaged.unlink()
    pid = find_note(mount.path).server_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        told = penstock("doctor", mount.path)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (told.returncode, "does not answer: it is stuck" in told.stdout) == (2, True)


def test_a_data_set_without_a_runtime_and_a_load_that_waits_for_it() -> None:
    put("Dataset", "imagenet", {"mounts": []})
    uid = put("DataLoad", "warm", {"dataset": {"name": "imagenet"}, "policy": "Cron"})
    State().observe(uid, status={"phase": "Pending"})
    told = penstock("doctor", "imagenet")
    assert (told.returncode, "wrong imagenet: it waits for a runtime" in told.stdout) == (2, True)
    for name in ("dataload/warm", "load/warm", "DataLoad/warm"):
        told = penstock("doctor", name)
        assert told.returncode == 2
        assert "it waits until the data set imagenet is bound" in told.stdout
        assert "`penstock serve` does not run" in told.stdout
        assert "imagenet: it waits for a runtime" in told.stdout
    everything = penstock("doctor").stdout
    assert "imagenet: it waits for a runtime" in everything
    assert "dataload/warm" in everything


@pytest.mark.parametrize(
    ("name", "says"),
    [("imagenet", "no data set 'imagenet'"), ("dataload/x", "no DataLoad 'x'"),
     ("datalod/x", "did you mean"), ("runtimes/x", "several kinds")],
)  # fmt: skip
def test_a_name_that_is_nobody_s(name: str, says: str) -> None:
    told = penstock("doctor", name)
    assert (told.returncode, told.stdout) == (2, "")
    assert says in told.stderr
    assert "hint:" in told.stderr
