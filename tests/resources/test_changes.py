"""What is applied again: changed in place where it can be, told where it cannot, and nothing at all
where nothing is new."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.registry import find_note
from penstock.errors import PenstockError
from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.support.datasets import (  # fmt: skip
    bucket_name,
    condition,
    dataset,
    fill,
    of_folder,
    ours,
    path_of,
    phase,
    secret,
)
from tests.support.mounts import penstock
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.waiting import wait_until

DATA = b"bytes"


def test_a_mount_is_added_while_someone_reads_another(
    bound: Path, source: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "other").write_bytes(b"more")
    supervisor = find_note(bound).pid
    ended, reads, errors = threading.Event(), [0], list[BaseException]()

    def read() -> None:
        try:
            with (bound / "file").open("rb", buffering=0) as file:
                while not ended.is_set():
                    assert os.pread(file.fileno(), len(DATA), 0) == DATA
                    reads[0] += 1
                    assert (bound / "file").read_bytes() == DATA
        except BaseException as error:
            errors.append(error)
            raise

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: reads[0] > 0)
        more = {"mountPoint": f"local://{second}", "name": "second", "path": "/below/second"}
        api.apply(of_folder("small", source, more))
        assert (bound / "below/second/other").read_bytes() == b"more"
        before = reads[0]
        wait_until(lambda: reads[0] > before + 2 or bool(errors))
    finally:
        ended.set()
        reader.join()
    assert errors == []
    assert find_note(bound).pid == supervisor
    small = api.dataset("small")
    assert (small.files, small.total_bytes) == (2, len(DATA) + 4)
    # And taken away again.
    api.apply(of_folder("small", source))
    assert sorted(os.listdir(bound)) == ["file"]
    assert api.dataset("small").files == 1


def test_a_quota_is_raised_in_place(bound: Path, declared: State, tmp_path: Path) -> None:
    note = find_note(bound)
    (bound / "file").read_bytes()
    assert api.dataset("small").capacity_bytes == 64 << 20
    api.apply(ours("small", tmp_path / "cache", "96Mi"))
    assert find_note(bound).pid == note.pid
    assert api.dataset("small").capacity_bytes == 96 << 20
    row = penstock("get", "datasets").stdout.splitlines()[1]
    assert "96.00MiB" in row
    assert api.get("penstockruntime", "small").status["cacheStates"]["cacheCapacity"] == "96.00MiB"
    # What `get -o yaml` printed is what was applied: nothing changes, and nothing is started.
    wait_until(lambda: not is_running(declared.folder))
    before = find_note(bound), declared.all()
    for kind in ("dataset", "penstockruntime"):
        printed = penstock("get", kind, "small", "-o", "yaml").stdout
        done = penstock("apply", "-f", "-", input=printed)
        assert done.stdout == f"{kind}.penstock.dev/small unchanged\n", done.stderr
    wait_until(lambda: not is_running(declared.folder))
    assert (find_note(bound), declared.all()) == before


def test_what_needs_a_restart_says_so_and_gets_it_when_nobody_reads(
    bound: Path, tmp_path: Path
) -> None:
    note = find_note(bound)
    api.apply(ours("small", tmp_path / "cache", options={"allow-other": "true"}))
    told = condition("small", "UpdateReady")
    assert told is not None
    assert (told["status"], told["reason"]) == ("False", "RestartNeeded")
    assert "who may read it" in told["message"]
    assert "penstock up --restart small" in told["message"]
    assert phase("small") == "Bound"
    assert find_note(bound) == note
    with (bound / "file").open("rb") as held:
        done = penstock("up", "--restart", "small")
        assert done.returncode == 2
        assert f"pid {os.getpid()} " in done.stderr
        assert held.read() == DATA
    assert find_note(bound) == note
    done = penstock("up", "--restart", "small")
    assert (done.returncode, done.stderr) == (0, "")
    assert condition("small", "UpdateReady") is None
    restarted = find_note(bound)
    assert restarted.pid != note.pid
    assert (bound / "file").read_bytes() == DATA
    # Once asked for is once done.
    assert penstock("up").returncode == 0
    assert find_note(bound).pid == restarted.pid


def test_a_source_that_is_not_there_leaves_what_was(
    bound: Path, source: Path, tmp_path: Path
) -> None:
    missing = {"mountPoint": f"local://{tmp_path}/nowhere", "name": "second"}
    with pytest.raises(PenstockError):
        api.apply(of_folder("small", source, missing))
    assert phase("small") == "Bound"
    told = condition("small")
    assert told is not None
    assert told["status"] == "False"
    assert "nowhere" in told["message"]
    assert (bound / "file").read_bytes() == DATA
    # Mended, and brought up as the messages say.
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "here").write_bytes(b"1")
    assert penstock("up").returncode == 0
    assert (bound / "second" / "here").read_bytes() == b"1"
    told = condition("small")
    assert told is not None
    assert told["status"] == "True"


@pytest.fixture
def of_bucket(declared: State, server: S3, request: pytest.FixtureRequest) -> dict[str, Any]:
    bucket = bucket_name(request)
    fill(server, bucket, {"file": DATA, "new": DATA})
    found = dataset("stored", server)
    found["spec"]["mounts"][0] |= {"mountPoint": f"oss://{bucket}", "path": "/"}
    return found


def test_a_secret_is_rotated_in_place(of_bucket: dict[str, Any], tmp_path: Path) -> None:
    wrong = secret()
    wrong["stringData"]["fs.oss.accessKeySecret"] = "an-old-one"
    with pytest.raises(PenstockError) as refused:
        api.apply([wrong, of_bucket, ours("stored", tmp_path / "cache")])
    assert refused.value.exit_code == 2
    assert phase("stored") == "Failed"
    # The right one, and nothing else: the data set that names it is bound.
    api.apply(secret())
    wait_until(lambda: phase("stored") == "Bound")
    path = path_of("stored")
    supervisor = find_note(path).pid
    assert (path / "file").read_bytes() == DATA
    # Written otherwise, it is the same keys: nobody is disturbed.
    note = find_note(path)
    again = {**secret(), "stringData": {}}
    again["stringData"] = {
        "fs.oss.accessKeyId": ACCESS_KEY, "fs.oss.accessKeySecret": SECRET_KEY, "more": "x",
    }  # fmt: skip
    api.apply(again)
    api.up("stored")
    assert find_note(path) == note
    # A wrong one is refused by the store: what is there goes on with the keys that it has.
    api.apply(wrong)
    assert api.up("stored") != []
    assert phase("stored") == "Bound"
    assert (path / "new").read_bytes() == DATA
    api.apply(secret())
    assert api.up("stored") == []
    assert find_note(path).pid == supervisor
