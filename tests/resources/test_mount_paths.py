"""Where a data set is mounted: a place of its own, however it is spelled."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.places import state_dir
from penstock.errors import ManifestError, PenstockError
from penstock.resources.admission import apply as admit
from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.cache.test_flights import wait_until
from tests.conftest import penstock


def test_of_two_data_sets_at_one_place_the_first_has_it(declared: State, tmp_path: Path) -> None:
    place = tmp_path / "place"
    api.apply(manifests("one", tmp_path, place))
    with pytest.raises(PenstockError, match=r"is where dataset/default/one is mounted"):
        api.apply(manifests("two", tmp_path, place))
    assert (api.dataset("one").phase, api.dataset("two").phase) == ("Bound", "Failed")
    assert [file.name for file in place.iterdir()] == ["one"]
    api.delete("Dataset", "two", force=True)
    assert [file.name for file in place.iterdir()] == ["one"]


def test_a_plain_mount_is_neither_taken_for_a_data_set_nor_unmounted_with_one(
    declared: State, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("plain")
    done = penstock("mount", f"file://{tmp_path}/plain", place, "--background", "--no-cache")
    assert done.returncode == 0, done.stderr
    try:
        with pytest.raises(PenstockError, match="is mounted"):
            api.apply(manifests("one", tmp_path, place))
        assert api.dataset("one").phase == "Failed"
        api.delete("Dataset", "one", force=True)
        assert (place / "file").read_text() == "plain"
    finally:
        assert penstock("umount", place).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs, which takes root")
def test_a_data_set_is_deleted_also_when_something_else_was_mounted_in_its_place(
    declared: State, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    api.apply(manifests("one", tmp_path, place))
    wait_until(lambda: not is_running(state_dir()))
    assert penstock("umount", place).returncode == 0
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        api.delete("Dataset", "one", timeout_s=20)
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_path_through_a_link_is_bound_and_the_loop_ends(declared: State, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    api.apply(manifests("one", tmp_path, tmp_path / "link" / "place"))
    assert api.dataset("one").phase == "Bound"
    assert (tmp_path / "link" / "place" / "one").read_text() == "one"
    wait_until(lambda: not is_running(state_dir()))


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"object 1:1: .*nothing can be mounted at 'data/one'"):
        api.apply(manifests("one", tmp_path, Path("data/one")))


def test_a_state_folder_may_be_named_as_one_sees_it(declared: State, tmp_path: Path) -> None:
    admit(declared, api.read(manifests("one", tmp_path, None)))
    folder = state_dir()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "up"], cwd=folder.parent, text=True,
        env={**os.environ, "PENSTOCK_STATE_DIR": f"./{folder.name}"}, timeout=100,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert api.dataset("one").phase == "Bound"


def manifests(name: str, folder: Path, place: Path | None) -> list[dict[str, Any]]:
    source = folder / f"source-{name}"
    source.mkdir(exist_ok=True)
    (source / name).write_text(name)
    annotations = {"penstock.dev/mount-path": str(place)} if place is not None else {}
    return [
        {
            "apiVersion": "penstock.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"mounts": [{"mountPoint": f"local://{source}", "name": "data", "path": "/"}]},
        },
        {
            "apiVersion": "penstock.dev/v1alpha1", "kind": "PenstockRuntime",
            "metadata": {"name": name}, "spec": {},
        },
    ]  # fmt: skip
