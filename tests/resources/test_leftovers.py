"""What a data set has left on the machine when it is gone: nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.daemon.places import default_cache_dir, state_dir
from penstock.errors import PenstockError
from penstock.resources.state import State
from tests.support.datasets import of_folder, ours
from tests.support.trees import write_tree

EMPTY_DIR = {"mediumtype": "SSD", "volumeType": "emptyDir", "path": "/x", "quota": "64Mi"}


@pytest.mark.parametrize("levels", [[], [EMPTY_DIR]], ids=["usual", "emptyDir"])
def test_a_cache_that_was_made_for_it_goes_with_it(
    declared: State, tmp_path: Path, levels: list[dict[str, Any]]
) -> None:
    api.apply(manifests(tmp_path, levels))
    places = [default_cache_dir(), state_dir() / "scratch"]
    assert any(place.exists() for place in places)
    api.delete("Dataset", "set")
    assert [file for place in places for file in place.rglob("*")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which takes root")
def test_a_cache_is_not_made_in_a_folder_that_another_user_has_put_there(
    declared: State, tmp_path: Path
) -> None:
    cache = tmp_path / "for-all"
    (cache / "penstock" / "default").mkdir(parents=True)
    os.chown(cache / "penstock", 12345, 12345)
    level = {"mediumtype": "SSD", "path": str(cache), "quota": "64Mi"}
    with pytest.raises(PenstockError, match=r"for-all/penstock belongs to another user"):
        api.apply(manifests(tmp_path, [level]))
    assert not (cache / "penstock" / "default" / "set").exists()
    # One that was put there later, with a cache in it, is not ours to remove.
    os.chown(cache / "penstock", 0, 0)
    assert api.up("set") == []
    os.chown(cache / "penstock", 12345, 12345)
    api.delete("Dataset", "set")
    assert (cache / "penstock" / "default" / "set" / "index.sqlite").exists()


def manifests(folder: Path, levels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runtime = ours("set", tieredstore={"levels": levels})
    write_tree(folder / "source", {"file": b"bytes"})
    return [of_folder("set", folder / "source"), runtime]
