"""Data sets that cannot be bound: what is told of them, and how often it is tried again."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.api import resources as api
from penstock.api.manifests import read as read_manifests
from penstock.errors import PenstockError, StoreError
from penstock.reconcile import datasets, loop
from penstock.reconcile.admission import apply
from penstock.reconcile.datasets import Datasets
from penstock.reconcile.loop import Loop
from penstock.reconcile.loop_control import LoopLock
from penstock.reconcile.node_affinity import this_node
from penstock.reconcile.snapshot import Pair
from penstock.reconcile.state import State
from penstock.reconcile.waiting import wait_for_pairs
from penstock.specs.kinds import ResourceKey
from penstock.store import redaction
from tests.support.datasets import loops_of, of_folder, ours, stored
from tests.support.trees import Tree, write_tree
from tests.support.waiting import PATIENCE_S, wait_until

KEY = ResourceKey("Dataset", "default", "small")
AWAY = StoreError("it does not answer")


@pytest.fixture
def declared_pair(tmp_path: Path) -> State:
    """Declared; no loop was started for it."""
    state = State()
    apply(state, read_manifests(_manifests(tmp_path)))
    return state


def test_a_data_set_failed_for_weeks_is_retried_every_five_minutes_and_on_change(
    declared_pair: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "start_supervisor", Mock(side_effect=AWAY))
    _reconcile(declared_pair)
    declared_pair.record(stored(declared_pair, KEY).uid, note={"attempts": 5000})
    before_s = time.time()
    _reconcile(declared_pair)
    note = stored(declared_pair, KEY).note
    assert note["attempts"] == 5001
    assert before_s + 300 <= note["retry_at_s"] <= time.time() + 300
    apply(declared_pair, read_manifests(_manifests(tmp_path, owner={"uid": 7, "gid": 7})))
    _reconcile(declared_pair)
    assert stored(declared_pair, KEY).note["attempts"] == 1


def test_an_earlier_attempt_does_not_answer_a_later_request(
    declared_pair: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "wake_loop", lambda _: None)

    def mended_meanwhile(*_: Any, **__: Any) -> list[str]:
        api.up("small", wait=False)
        raise AWAY

    monkeypatch.setattr(datasets, "start_supervisor", mended_meanwhile)
    _reconcile(declared_pair)
    assert "trouble" in stored(declared_pair, KEY).note
    with pytest.raises(PenstockError, match="not done within"):
        wait_for_pairs(declared_pair, [("default", "small")], timeout_s=0.1)


def test_a_reported_bug_does_not_show_a_key(declared_pair: State) -> None:
    redaction.remember("a-key-that-was-said")
    reconciler, pair, fingerprint = _reconciler(declared_pair)
    reconciler.report_error(pair, fingerprint, KeyError("header with a-key-that-was-said"))
    dataset = stored(declared_pair, KEY)
    output = f"{dataset.status} {dataset.note} {declared_pair.events(dataset.uid)}"
    assert "KeyError" in output
    assert "a-key-that-was-said" not in output


@pytest.mark.parametrize("kill", [False, True])
def test_a_data_set_that_is_being_listed_can_be_deleted(
    declared: State, tmp_path: Path, kill: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"aws.accessKeyId": "an-identifier", "aws.secretKey": "a-secret-value"}
        options = {"alluxio.underfs.s3.endpoint": endpoint, **keys}
        mount = {"mountPoint": "s3://bucket", "name": "data", "options": options}
        api.apply(_manifests(tmp_path, mounts=[mount]), wait=False)
        with silent.accept()[0]:  # it asks, and is not answered
            if kill:
                for pid in loops_of(declared.folder):
                    os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not loops_of(declared.folder))
            api.delete("Dataset", "small", timeout_s=PATIENCE_S)
            assert declared.find(KEY) is None


def test_a_waiting_caller_is_told_of_a_bug(
    declared_pair: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = Mock(side_effect=ZeroDivisionError("of our own making"))
    monkeypatch.setattr(datasets, "plan_of", bug)
    monkeypatch.setattr(loop, "_ATTEMPTS", 1)
    place = LoopLock(declared_pair.folder)
    assert place.acquire(wait=False)
    looping = threading.Thread(target=Loop(declared_pair, place, stay=False).run)
    looping.start()
    (trouble,) = wait_for_pairs(declared_pair, [("default", "small")], timeout_s=PATIENCE_S)
    assert trouble.what == "a bug of ours: ZeroDivisionError: of our own making"
    assert trouble.exit_code == 1
    looping.join(PATIENCE_S)
    assert not looping.is_alive()


def test_serve_can_be_ended_while_it_waits_for_another_loop(declared: State) -> None:
    place = LoopLock(declared.folder)
    assert place.acquire(wait=False)
    served = subprocess.Popen([sys.executable, "-m", "penstock", "serve"])
    try:
        place.wait(PATIENCE_S)
        assert place.asked_to_stop  # so it waits for us
        served.send_signal(signal.SIGTERM)
        assert served.wait(PATIENCE_S) == 0
    finally:
        served.kill()
        served.wait()
        place.release()


# What `juicefs format` and a first file leave in a bucket; and in a bucket of another name.
_VOLUME = {"vol/juicefs_uuid": b"8c4d", "vol/chunks/0/0/1_0_5": b"bytes"}


@pytest.mark.parametrize(
    ("mount_point", "name", "files", "says"),
    [
        ("juicefs:///", "vol", _VOLUME, "holds a JuiceFS volume, whose files only JuiceFS can"),
        ("juicefs:///train", "vol", _VOLUME, "holds a JuiceFS volume"),
        ("juicefs:///", "other", {"vol/chunks/0/0/1_0_5": b"bytes"}, "holds a JuiceFS volume"),
        ("juicefs:///train", "vol", {}, "there is nothing, neither objects nor a JuiceFS volume"),
    ],
)
def test_a_volume_of_juicefs_is_refused_and_never_shown_as_chunks_or_as_empty(
    declared: State, tmp_path: Path, mount_point: str, name: str, files: Tree, says: str
) -> None:
    (tmp_path / "bucket" / "train").mkdir(parents=True)
    write_tree(tmp_path / "bucket", files)
    options = {"storage": "file", "bucket": f"{tmp_path}/bucket"}
    wanted = of_folder("volume", tmp_path)
    wanted["spec"]["mounts"] = [{"mountPoint": mount_point, "name": name, "options": options}]
    with pytest.raises(PenstockError, match=says) as refused:
        api.apply([wanted, ours("volume")])
    assert refused.value.exit_code == 2
    assert "JuiceFS itself" in (refused.value.hint or "")
    assert api.dataset("volume").phase == "Failed"
    # Ordinary objects are shown in place.
    shutil.rmtree(tmp_path / "bucket")
    write_tree(tmp_path / "bucket", {"train/a": b"a"})
    api.apply([wanted, ours("volume")])
    assert api.dataset("volume").files == 1


def _manifests(folder: Path, **spec: Any) -> list[dict[str, Any]]:
    (folder / "source").mkdir(exist_ok=True)
    dataset = of_folder("small", folder / "source")
    dataset["spec"] |= spec
    return [dataset, ours("small")]


def _reconciler(state: State) -> tuple[Datasets, Pair, str]:
    snapshot = state.snapshot()
    pair = snapshot.pair("default", "small")
    found = Datasets(state, lambda: state.snapshot(), lambda: this_node({}))
    return found, pair, snapshot.fingerprint(pair)


def _reconcile(state: State) -> None:
    reconciler, pair, fingerprint = _reconciler(state)
    reconciler.reconcile(pair, fingerprint)
