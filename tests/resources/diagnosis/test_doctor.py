"""The command, as a person runs it: on mounts that are well, dying or dead, and on data sets."""

import json
import os
import signal
from pathlib import Path

import pytest

from penstock import api
from penstock.daemon.registry import find_note, serves
from penstock.resources.state import State
from tests.support.datasets import dataset, fill, mount, ours, secret
from tests.support.leaks import places_in_bundle
from tests.support.mounts import Mounter, penstock
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


def test_a_data_set_that_is_well_is_one_line_and_verbose_tells_each_check(
    declared: State, server: S3, tmp_path: Path
) -> None:
    fill(server, "doctored", {"a": b"1" * 5000})
    stored = dataset("doctored", server, mount(server, "doctored", path="/"))
    api.apply([secret(), stored, ours("doctored")])
    bundle = tmp_path / "b.tar.gz"
    told = penstock("doctor", "doctored", "--bundle", bundle)
    assert told.returncode == 0, told.stdout
    assert "doctored: nothing is wrong" in told.stdout
    assert "ok " not in told.stdout
    assert (places_in_bundle(bundle, SECRET_KEY), places_in_bundle(bundle, ACCESS_KEY)) == ([], [])
    told = penstock("doctor", "doctored", "-v")
    assert f"oss://doctored: {server.endpoint} answers" in told.stdout
    assert "1 files, 4.9 KiB" in told.stdout
    place = api.dataset("doctored").path
    found = json.loads(penstock("doctor", place, "-o", "json").stdout)
    assert (found["exit_code"], found["hidden"], found["mode"]) == (0, [], "pagecache")
    assert "ok" in {one["severity"] for one in found["findings"]}
    assert penstock("umount", place).returncode == 0
    told = penstock("doctor", "doctored")
    assert (told.returncode, "it should be mounted, and is not" in told.stdout) == (2, True)
    assert "do:  penstock up doctored" in told.stdout


def test_a_mount_that_lost_its_source_its_supervisor_and_its_server(
    mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(tmp_path / "source", {"a": b"1"})
    broken = mounter(f"file://{tmp_path}/source")
    os.rename(tmp_path / "source", tmp_path / "moved")
    told = penstock("doctor", broken.path)
    assert (told.returncode, "the folder is not there" in told.stdout) == (2, True)
    os.rename(tmp_path / "moved", tmp_path / "source")
    note = find_note(broken.path)
    os.kill(note.pid, signal.SIGKILL)
    wait_until(lambda: not serves(note.pid, str(broken.path)))
    told = penstock("doctor", broken.path)
    assert (told.returncode, "its supervisor is gone" in told.stdout) == (2, True)
    assert note.server_pid is not None
    os.kill(note.server_pid, signal.SIGKILL)
    wait_until(lambda: not serves(note.server_pid or 0, str(broken.path)))
    for arguments in ([broken.path], []):
        told = penstock("doctor", *arguments)
        assert told.returncode == 2
        assert "its supervisor and its server are gone" in told.stdout
        assert f"do:  penstock umount {broken.path}" in told.stdout


def test_neither_a_damaged_state_nor_a_server_that_is_stopped_stops_the_doctor(
    mounter: Mounter, state: Path, tmp_path: Path
) -> None:
    damaged = state / "resources.sqlite"
    damaged.write_bytes(b"not a database, not at all" * 100)
    write_tree(tmp_path / "source", {"a": b"1"})
    broken = mounter(f"file://{tmp_path}/source", "--watchdog", "100s")
    told = penstock("doctor")
    assert told.returncode == 2
    assert "wrong the declared state:" in told.stdout
    assert f"{broken.path}: nothing is wrong" in told.stdout
    damaged.unlink()
    pid = find_note(broken.path).server_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        told = penstock("doctor", broken.path)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (told.returncode, "does not answer: it is stuck" in told.stdout) == (2, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [("imagenet", "no data set 'imagenet'"), ("datalod/x", "did you mean"),
     ("runtimes/x", "several kinds")],
)  # fmt: skip
def test_a_name_that_is_nobody_s(name: str, says: str) -> None:
    told = penstock("doctor", name)
    assert (told.returncode, told.stdout) == (2, "")
    assert says in told.stderr
    assert "hint:" in told.stderr
