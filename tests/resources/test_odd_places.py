"""What else may be otherwise: where things lie, what has been lost, when somebody was killed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.registry import find_note
from penstock.errors import PenstockError
from penstock.mounttable import find_mount
from penstock.resources.admission import apply
from penstock.resources.nudge import is_running
from penstock.resources.removal import delete
from penstock.resources.state import State
from tests.support.datasets import condition, of_folder, ours, path_of, phase, secret
from tests.support.mounts import Mounter, penstock
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

# -- where ---------------------------------------------------------------------------------


def at(manifest: dict[str, Any], place: str | Path, name: str = "small") -> dict[str, Any]:
    annotations = {"penstock.dev/mount-path": str(place)}
    return {**manifest, "metadata": {"name": name, "annotations": annotations}}


def test_a_mount_path_with_a_link_in_it(declared: State, source: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place = tmp_path / "link" / "here"
    api.apply([at(of_folder("small", source), place), ours("small", tmp_path / "cache")])
    assert phase("small") == "Bound"
    assert (place / "file").read_bytes() == b"bytes"
    note = find_note(path_of("small"))
    assert penstock("up").returncode == 0
    assert phase("small") == "Bound"
    assert find_note(path_of("small")) == note
    api.apply(ours("small", tmp_path / "cache", "96Mi"))
    assert api.dataset("small").capacity_bytes == 96 << 20
    api.delete("dataset", "small")
    assert not (tmp_path / "real" / "here" / "file").exists()
    assert find_mount(tmp_path / "real" / "here") is None


@pytest.mark.parametrize("place", ["here/below", "~/x", "/"])
def test_a_mount_path_that_is_none_is_a_mistake(declared: State, source: Path, place: str) -> None:
    with pytest.raises(PenstockError, match="mount-path") as refused:
        api.apply([at(of_folder("small", source), place), ours("small")])
    assert refused.value.exit_code == 2
    assert refused.value.hint
    assert declared.all() == []


def test_it_moves_and_the_cache_stays(bound: Path, source: Path, tmp_path: Path) -> None:
    api.load("small", wait=True)
    api.apply(at(of_folder("small", source), tmp_path / "there"))
    assert path_of("small") == tmp_path / "there"
    assert not bound.exists()
    assert api.dataset("small").cached_bytes == 5
    assert (tmp_path / "there" / "file").read_bytes() == b"bytes"


def test_a_place_that_is_taken_is_told_and_stays_as_it_is(
    bound: Path, source: Path, tmp_path: Path, mounter: Mounter
) -> None:
    full, plain = tmp_path / "full", mounter(f"file://{source}", "--no-cache").path
    write_tree(full, {"mine": b"mine"})
    taken = {full: "full", bound: "is where dataset/default/small is mounted", plain: "is mounted"}
    for place, says in taken.items():
        with pytest.raises(PenstockError, match=says) as refused:
            api.apply([at(of_folder("x", source), place, name="x"), ours("x")])
        assert refused.value.exit_code == 2
        assert phase("x") == "Failed"
        api.delete("dataset", "x", force=True)
    assert os.listdir(full) == ["mine"]
    assert phase("small") == "Bound"
    for place in (bound, plain):
        assert (place / "file").read_bytes() == b"bytes"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs, which takes root")
def test_a_data_set_is_deleted_also_when_something_else_was_mounted_in_its_place(
    declared: State, bound: Path
) -> None:
    wait_until(lambda: not is_running(declared.folder))
    assert penstock("umount", bound).returncode == 0
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", bound], check=True)
    try:
        api.delete("dataset", "small", timeout_s=20)
        entry = find_mount(bound)
        assert entry is not None
        assert entry.kind == "tmpfs"
    finally:
        subprocess.run(["umount", bound], check=True)


def test_a_state_folder_may_be_named_as_one_sees_it(declared: State, source: Path) -> None:
    apply(declared, api.read([of_folder("small", source), ours("small")]))
    folder = declared.folder
    done = penstock(
        "up", cwd=folder.parent, env={**os.environ, "PENSTOCK_STATE_DIR": f"./{folder.name}"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert phase("small") == "Bound"


# -- lost ----------------------------------------------------------------------------------


def test_without_the_key_of_the_secrets_it_is_told_and_deleted(
    declared: State, source: Path, tmp_path: Path
) -> None:
    small = of_folder("small", source)
    small["spec"]["mounts"][0]["options"] = {"aws.secretKey": "hidden-in-the-box"}
    api.apply([small, ours("small", tmp_path / "cache")])
    path = path_of("small")
    wait_until(lambda: not is_running(declared.folder))  # which knows the key
    (declared.folder / "secrets.key").unlink()
    done = penstock("up")
    assert done.returncode == 2
    assert "secrets.key is gone" in done.stderr
    assert "hint: apply the manifests with their secrets again" in done.stderr
    wait_until(lambda: not is_running(declared.folder), "it is tried without end")
    assert penstock("get", "datasets", "-o", "yaml").returncode == 0
    assert (path / "file").read_bytes() == b"bytes"
    # As the hint says.
    done = penstock("apply", "-f", "-", input=json.dumps(small))
    assert done.returncode == 0, done.stderr
    told = condition("small")
    assert told is not None
    assert told["status"] == "True"
    (declared.folder / "secrets.key").unlink()
    api.delete("dataset", "small")
    assert not path.exists()


# -- killed, before a loop was woken ---------------------------------------------------------


def test_a_wish_whose_maker_was_killed_is_seen_to_by_whoever_looks(
    declared: State, source: Path
) -> None:
    apply(declared, api.read([of_folder("small", source), ours("small")]))
    assert not is_running(declared.folder)
    penstock("get", "datasets")
    wait_until(lambda: phase("small") == "Bound")
    wait_until(lambda: not is_running(declared.folder))
    delete(declared, declared.all())
    penstock("get", "datasets")
    wait_until(lambda: declared.all() == [])


def test_nobody_is_woken_where_nothing_is_to_be_done(
    declared: State, source: Path, tmp_path: Path
) -> None:
    api.apply([of_folder("small", source), ours("small"), secret(), ours("lone")])
    api.load("small", wait=True)
    with pytest.raises(PenstockError):
        api.apply([of_folder("lost", tmp_path / "nowhere"), ours("lost")])
    wait_until(lambda: not is_running(declared.folder))
    log = declared.folder / "logs" / "loop.log"
    before = (log.stat().st_mtime_ns, sorted(declared.folder.iterdir()))
    assert penstock("get", "all").returncode == 0
    assert not is_running(declared.folder)
    assert (log.stat().st_mtime_ns, sorted(declared.folder.iterdir())) == before
