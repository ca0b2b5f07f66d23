"""`dataset://`: another data set, or a folder of it, seen from this one, with the same cache."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock import api
from penstock.cli.stats import ask_stats
from penstock.errors import ManifestError
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
from tests.support.s3 import S3
from tests.support.trees import read_tree
from tests.support.waiting import wait_until

FILES = {"train/a": os.urandom(200_000), "train/deep/b": os.urandom(10), "c": b"c"}


def gets(path: Path) -> int:
    return ask_stats(str(path))["store_requests_by_verb"].get("get", 0)


def view(name: str, mount_point: str, path: str = "/") -> dict[str, Any]:
    found = of_folder(name, Path("/"))
    found["spec"]["mounts"] = [{"mountPoint": mount_point, "name": "seen", "path": path}]
    return found


@pytest.fixture
def base(declared: State, server: S3, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A data set of a bucket, in the namespace `team`, with its cache full."""
    bucket = bucket_name(request)
    fill(server, bucket, FILES)
    found = dataset("base", server)
    found["spec"]["mounts"][0] |= {"mountPoint": f"oss://{bucket}", "path": "/"}
    api.apply([secret(), found, ours("base", tmp_path / "cache")], namespace="team")
    path = path_of("base", "team")
    assert read_tree(path) == FILES
    wait_until(lambda: api.dataset("base", namespace="team").cached_bytes == 200_011)
    return path


def test_the_same_bytes_from_the_same_cache(base: Path) -> None:
    api.apply([view("whole", "dataset://team/base"), ours("whole")])
    whole = path_of("whole")
    assert read_tree(whole) == FILES
    assert gets(whole) == 0
    found = api.dataset("whole")
    assert (found.files, found.total_bytes, found.cached_bytes) == (3, 200_011, 200_011)
    # A folder of it, and a view of that view, from the namespace that both are in.
    api.apply([view("part", "dataset://team/base/train", "/x"), ours("part")])
    part = path_of("part")
    assert read_tree(part) == {"x/a": FILES["train/a"], "x/deep/b": FILES["train/deep/b"]}
    api.apply([view("deep", "dataset://part/"), ours("deep")])
    assert read_tree(path_of("deep")) == read_tree(part)


def test_a_change_of_it_is_a_change_of_those_that_show_it(
    base: Path, declared: State, tmp_path: Path, server: S3
) -> None:
    api.apply([view("whole", "dataset://team/base"), ours("whole")])
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "d").write_bytes(b"d")
    found = declared.find(api.dataset("base", namespace="team").key)
    assert found is not None
    more = {"mountPoint": f"local://{tmp_path}/more", "name": "more"}
    manifest = {**found.manifest, "spec": {"mounts": [*found.spec["mounts"], more]}}
    api.apply(manifest)
    # A folder of this machine is not opened to all, so that needs a restart.
    assert api.up("base", namespace="team", restart=True) == []
    assert api.up("whole", restart=True) == []
    shown = path_of("whole") / "more" / "d"
    wait_until(shown.exists)  # it comes with the listing behind the change
    assert shown.read_bytes() == b"d"


@pytest.mark.parametrize(
    ("mount_point", "says", "hint"),
    [
        ("dataset://team/base", "there is no dataset/", "apply it first"),
        ("dataset://near/train", "there is no dataset/",
         "did you mean dataset://default/near/train?"),
        ("dataset://default/back", "circle", ""),
    ],
)  # fmt: skip
def test_one_that_is_not_there_or_comes_back_to_itself_is_a_mistake(
    declared: State, mount_point: str, says: str, hint: str
) -> None:
    others = [of_folder("near", Path("/usr")), view("back", "dataset://default/whole")]
    with pytest.raises(ManifestError, match=says) as refused:
        api.apply([*others, view("whole", mount_point), ours("whole")])
    assert hint in str(refused.value)
    assert declared.all() == []


def test_one_that_goes_by_force_is_told_by_those_that_show_it(base: Path) -> None:
    api.apply([view("whole", "dataset://team/base"), ours("whole")])
    whole = path_of("whole")
    api.delete("dataset", "base", namespace="team", force=True)
    assert api.up("whole") != []
    told = condition("whole")
    assert told is not None
    assert told["status"] == "False"
    assert "there is no dataset/team/base" in told["message"]
    # What it showed it shows: nobody asked for that to end.
    assert phase("whole") == "Bound"
    assert (whole / "c").read_bytes() == b"c"
