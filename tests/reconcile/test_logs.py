"""penstock logs: of data operations and of mounts, by whatever name they are known."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.api import mounts
from penstock.api import resources as api
from penstock.cli.app import run
from penstock.cli.logs import follow
from penstock.operations.lifecycle import log_of
from penstock.operations.main import _in_words
from penstock.reconcile.state import State
from penstock.specs.kinds import ResourceKey
from tests.support.datasets import of_folder, ours, path_of, stored
from tests.support.mounts import Mounter, fail
from tests.support.operation_work import operation
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

Shown = Callable[..., tuple[str, str]]
FILES = {"a/1": b"one", "a/2": b"two", "b/3": b"three"}
OF_SET = {"dataset": {"name": "set", "namespace": "default"}}


@pytest.fixture
def bound(declared: State, tmp_path: Path) -> State:
    write_tree(tmp_path / "source", FILES)
    api.apply([of_folder("set", tmp_path / "source"), ours("set", tmp_path / "cache")])
    return declared


@pytest.fixture
def logs(capfdbinary: pytest.CaptureFixture[bytes]) -> Shown:
    """logs("warm", "-f") is the stdout and stderr of `penstock logs warm -f`, which succeeds."""

    def show(*words: str | Path) -> tuple[str, str]:
        code = run(["logs", *map(str, words)])
        output = capfdbinary.readouterr()
        assert code == 0, output.err
        return output.out.decode(), output.err.decode()

    return show


def script(text: str) -> dict[str, Any]:
    dataset = {**OF_SET["dataset"], "mountPath": "/data"}
    return {"dataset": dataset, "processor": {"script": {"command": ["sh", "-c"], "source": text}}}


def done(kind: str, name: str) -> None:
    found = api.get(kind, name)
    assert isinstance(found, api.Operation)
    found.wait(60)


def test_a_load_shows_when_it_began_how_far_it_came_and_how_it_ended(
    bound: State, logs: Shown
) -> None:
    api.apply([operation("DataLoad", dict(OF_SET), "warm")])
    done("DataLoad", "warm")
    for name in ("dataload/warm", "load/warm", "warm"):
        out, said = logs(name)
        lines = out.splitlines()
        assert lines[0].endswith("dataload/default/warm begins")
        assert "loaded: 3 of 3 files, 11 B of 11 B" in lines[-2]
        assert lines[-1].endswith("dataload/default/warm is complete")
        assert said.startswith("dataload warm Complete after ")
    assert logs("warm", "--tail", "1")[0] == lines[-1] + "\n"
    assert fail("logs", "warm", "-i", "worker-0").startswith(
        "penstock: --instance: warm has no instances"
    )
    assert "hint: its lines begin with their time" in fail("logs", "warm", "--since", "5m")


def test_of_a_process_the_output_of_its_script_is_followed_to_its_end(
    bound: State, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    waits = f"echo first; until [ -e {gate} ]; do sleep 0.05; done; echo last"
    api.apply([operation("DataProcess", script(waits), "steps")], wait=False)
    follower = subprocess.Popen(
        [sys.executable, "-m", "penstock", "logs", "dataprocess/steps", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n", "before the script has ended"
    gate.touch()
    rest, said = follower.communicate(timeout=60)
    assert (follower.returncode, rest) == (0, "last\n")
    assert "dataprocess steps Complete after " in said


def test_a_failed_operation_says_why(bound: State, logs: Shown) -> None:
    spec = {**script("echo before; exit 7"), "ttlSecondsAfterFinished": 600}
    spec["processor"]["script"]["restartPolicy"] = "Never"
    api.apply([operation("DataProcess", spec, "broken")], wait=False)
    wait_until(lambda: api.get("DataProcess", "broken").phase == "Failed")
    out, said = logs("broken")
    assert out == "before\n"
    assert said.startswith("dataprocess broken Failed after ")
    assert "ended with status 7" in said


def test_a_name_of_several_asks_for_the_kind(bound: State, logs: Shown) -> None:
    done_load = operation("DataLoad", dict(OF_SET), "same")
    api.apply([done_load, operation("DataProcess", script("echo hello"), "same")])
    done("DataLoad", "same")
    done("DataProcess", "same")
    said = fail("logs", "same")
    assert "same are several: a DataLoad and a DataProcess" in said
    assert "hint: penstock logs dataload/same or penstock logs dataprocess/same" in said
    assert logs("dataprocess/same")[0] == "hello\n"
    assert "no job nothing in the namespace" in fail("logs", "nothing")
    assert "a PenstockRuntime prints nothing" in fail("logs", "penstockruntime/set")
    assert "elsewhere" in fail("logs", "dataload/same", "--namespace", "elsewhere")


def test_a_data_set_shows_the_log_of_its_mount(
    bound: State, monkeypatch: pytest.MonkeyPatch, logs: Shown
) -> None:
    mountpoint = path_of("set")
    os.kill(mounts.stats(str(mountpoint))["pid"], signal.SIGKILL)
    wait_until(lambda: "a new server took over" in logs("set")[0])
    for name in ("dataset/set", str(mountpoint)):
        assert "a new server took over" in logs(name)[0]
    monkeypatch.chdir(mountpoint.parent.parent)
    relative = str(mountpoint.relative_to(Path.cwd()))
    assert "a new server took over" in logs(relative)[0]


def test_a_mount_is_followed_until_it_is_over_and_shown_after_that(
    mounter: Mounter, tmp_path: Path, logs: Shown
) -> None:
    write_tree(tmp_path / "source", FILES)
    mount = mounter(f"file://{tmp_path / 'source'}")
    follower = subprocess.Popen(
        [sys.executable, "-m", "penstock", "logs", str(mount.path), "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    while "a new server took over" not in (line := follower.stdout.readline()):
        assert line
    mount.umount()
    _, said = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert f"{mount.path} is not mounted any more" in said
    shown = logs(mount.path)[0]
    assert "restart 1" in shown
    assert logs(mount.path, "--tail", "1")[0] == shown.splitlines()[-1] + "\n"
    assert "is not mounted by Penstock" in fail("logs", tmp_path)


def test_what_was_printed_before_a_log_was_full_comes_first(bound: State, logs: Shown) -> None:
    api.apply([operation("DataLoad", dict(OF_SET), "long")])
    done("DataLoad", "long")
    uid = stored(bound, ResourceKey("DataLoad", "default", "long")).uid
    path = log_of(bound.folder, uid)
    path.with_name("log.1").write_text("1\n2\n3\n")
    path.write_text("4\n5\n")
    assert logs("long")[0] == "1\n2\n3\n4\n5\n"
    assert logs("long", "--tail", "3")[0] == "3\n4\n5\n"
    assert logs("long", "--tail", "2")[0] == "4\n5\n"


def test_a_follower_goes_on_when_the_log_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    ended = threading.Event()
    blocks = follow(path, 0, ended.is_set)
    assert next(blocks) == b"one\n"
    with path.open("ab") as old:
        path.rename(tmp_path / "log.1")
        path.write_bytes(b"three\n")
        old.write(b"two\n")
    assert next(blocks) == b"two\n", "what was added before the new one began"
    assert next(blocks) == b"three\n"
    path.unlink()
    ended.set()
    assert list(blocks) == []


@pytest.mark.parametrize(
    ("progress", "words"),
    [({"phase": "listing"}, "listing"),
     ({"phase": "copying", "files": 1200, "bytes": 2048, "ofFiles": 3000, "ofBytes": 1 << 20,
       "skipped": 2}, "copying: 1,200 of 3,000 files, 2.0 KiB of 1.0 MiB, skipped 2"),
     ({"phase": "saving", "files": 7}, "saving: 7 files")],
)  # fmt: skip
def test_progress_is_logged_in_words(progress: dict[str, Any], words: str) -> None:
    assert _in_words(progress) == words
