"""What is applied again: changed in place where it can be, told where it cannot, and nothing at all
where nothing is new. Where data sets are mounted; and what `dataset://` shows of others."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.api import mounts
from penstock.api import resources as api
from penstock.daemon.mount_registry import find_note
from penstock.errors import ManifestError, PenstockError
from penstock.mounttable import find_mount
from penstock.reconcile.loop_control import is_running
from penstock.reconcile.state import State
from tests.support.datasets import (
    condition,
    dataset,
    fill,
    mount,
    of_folder,
    ours,
    path_of,
    phase,
    secret,
    stored,
)
from tests.support.mounts import Mounter, fail, penstock
from tests.support.s3 import S3
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

DATA = b"bytes"
FILES = {"file": DATA, "train/a": os.urandom(200_000), "train/deep/b": b"deep", "c": b"c"}
TOTAL = sum(map(len, FILES.values()))


def test_a_mount_is_added_while_another_is_read(bound: Path, source: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "second", {"other": b"more"})
    supervisor = find_note(bound).pid
    ended, reads = threading.Event(), [0]

    def read() -> None:
        with (bound / "file").open("rb", buffering=0) as file:
            while not ended.is_set():
                assert os.pread(file.fileno(), len(DATA), 0) == DATA
                reads[0] += 1
                assert (bound / "file").read_bytes() == DATA

    reader = ThreadPoolExecutor(1).submit(read)
    try:
        wait_until(lambda: reads[0] > 0 or reader.done())
        more = {"mountPoint": f"local://{tmp_path}/second", "name": "x", "path": "/below/second"}
        api.apply(of_folder("small", source, more))
        assert (bound / "below/second/other").read_bytes() == b"more"
        before = reads[0]
        wait_until(lambda: reads[0] > before + 2 or reader.done())
    finally:
        ended.set()
        reader.result()
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


def test_a_change_that_needs_a_restart_is_reported_and_made_once_unused(
    bound: Path, tmp_path: Path
) -> None:
    note = find_note(bound)
    api.apply(ours("small", tmp_path / "cache", options={"allow-other": "true"}))
    reported = condition("small", "UpdateReady")
    assert (reported["status"], reported["reason"]) == ("False", "RestartNeeded")
    assert "who may read it" in reported["message"]
    assert "penstock up --restart small" in reported["message"]
    assert phase("small") == "Bound"
    assert find_note(bound) == note
    with (bound / "file").open("rb") as held:
        assert f"pid {os.getpid()} " in fail("up", "--restart", "small")
        assert held.read() == DATA
    assert find_note(bound) == note
    done = penstock("up", "--restart", "small")
    assert (done.returncode, done.stderr) == (0, "")
    assert condition("small", "UpdateReady") == {}
    restarted = find_note(bound)
    assert restarted.pid != note.pid
    assert (bound / "file").read_bytes() == DATA
    # Once asked for is once done.
    assert penstock("up").returncode == 0
    assert find_note(bound).pid == restarted.pid


def test_apply_reports_what_changed_and_what_waits_for_a_restart(
    bound: Path, tmp_path: Path
) -> None:
    note = find_note(bound)
    options = {"allow-other": "true", "prefetch": "8"}
    wanted = json.dumps(ours("small", tmp_path / "cache", "96Mi", options=options))
    done = penstock("apply", "-f", "-", input=wanted)
    assert (done.returncode, done.stdout) == (0, "penstockruntime.penstock.dev/small configured\n")
    changed, *rest = done.stderr.splitlines()
    assert changed.startswith(
        "dataset small changed in place: cache SSD 64.0 MiB to SSD 96.0 MiB; prefetch (readers "
    )
    waits = [
        "dataset small waits for a restart: who may read it cannot change while it is mounted",
        "hint: `penstock up --restart small`",
    ]
    assert rest == waits
    assert api.dataset("small").capacity_bytes == 96 << 20
    assert find_note(bound).pid == note.pid
    # Applied again, it says again what waits, and nothing of what was done before.
    again = penstock("apply", "-f", "-", input=wanted)
    assert again.stdout == "penstockruntime.penstock.dev/small unchanged\n"
    assert again.stderr.splitlines() == waits


def test_a_missing_source_leaves_the_mount_unchanged(
    bound: Path, source: Path, tmp_path: Path
) -> None:
    missing = {"mountPoint": f"local://{tmp_path}/nowhere", "name": "second"}
    with pytest.raises(PenstockError):
        api.apply(of_folder("small", source, missing))
    assert phase("small") == "Bound"
    reported = condition("small")
    assert (reported["status"], "nowhere" in reported["message"]) == ("False", True)
    assert (bound / "file").read_bytes() == DATA
    # Mended, and brought up as the messages say.
    write_tree(tmp_path / "nowhere", {"here": b"1"})
    assert penstock("up").returncode == 0
    assert (bound / "second" / "here").read_bytes() == b"1"
    assert condition("small")["status"] == "True"


@pytest.fixture
def of_bucket(declared: State, server: S3) -> dict[str, Any]:
    fill(server, "changes", FILES)
    return dataset("stored", server, mount(server, "changes", path="/"))


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
    note = find_note(path)
    assert (path / "file").read_bytes() == DATA
    # Written otherwise, it is the same keys: nobody is disturbed.
    again = secret()
    again["stringData"]["more"] = "x"
    api.apply(again)
    api.up("stored")
    assert find_note(path) == note
    # A wrong one is refused by the store: what is there goes on with the keys that it has.
    api.apply(wrong)
    assert api.up("stored") != []
    assert phase("stored") == "Bound"
    assert (path / "c").read_bytes() == FILES["c"]
    api.apply(secret())
    assert api.up("stored") == []
    assert find_note(path).pid == note.pid


def test_apply_warns_of_a_bucket_that_rejects_the_keys_of_a_saved_listing(
    of_bucket: dict[str, Any], server: S3, tmp_path: Path
) -> None:
    api.apply([secret(), of_bucket, ours("stored", tmp_path / "cache")])
    mounts.umount(str(path_of("stored")))
    wrong = secret()
    wrong["stringData"]["fs.oss.accessKeySecret"] = "an-old-one"
    items = {"apiVersion": "v1", "kind": "List", "items": [wrong, of_bucket]}
    done = penstock("apply", "-f", "-", input=json.dumps(items))
    warning, hint = done.stderr.splitlines()
    source = f"oss://changes?endpoint={server.endpoint}"
    assert warning.startswith(f"dataset stored: {source}: access denied")
    assert hint == "hint: penstock doctor stored"
    assert phase("stored") == "Bound"


def test_applying_again_tries_again(declared: State, server: S3, tmp_path: Path) -> None:
    manifests = [secret(), dataset("made-later", server), ours("made-later", tmp_path / "cache")]
    with pytest.raises(PenstockError, match="no such bucket") as refused:
        api.apply(manifests)
    assert refused.value.hint == ("check its name, `endpoint` and `region`")
    fill(server, "made-later", FILES)
    assert [one.outcome for one in api.apply(manifests)] == ["unchanged"] * 3
    assert phase("made-later") == "Bound"


# -- where ---------------------------------------------------------------------------------


def at(manifest: dict[str, Any], place: str | Path, name: str = "small") -> dict[str, Any]:
    annotations = {"penstock.dev/mount-path": str(place)}
    return {**manifest, "metadata": {"name": name, "annotations": annotations}}


def test_a_data_set_moves_behind_a_symlink_with_its_cache(
    bound: Path, source: Path, tmp_path: Path
) -> None:
    api.load("small", wait=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    api.apply(at(of_folder("small", source), tmp_path / "link/here"))
    assert not bound.exists()
    assert api.dataset("small").cached_bytes == 5
    assert (tmp_path / "link/here/file").read_bytes() == DATA
    note = find_note(path_of("small"))
    assert penstock("up").returncode == 0
    assert phase("small") == "Bound"
    assert find_note(path_of("small")) == note
    api.apply(ours("small", tmp_path / "cache", "96Mi"))
    assert api.dataset("small").capacity_bytes == 96 << 20
    api.delete("dataset", "small")
    assert not (tmp_path / "real/here/file").exists()
    assert find_mount(tmp_path / "real/here") is None


@pytest.mark.parametrize("place", ["here/below", "~/x", "/"])
def test_an_invalid_mount_path_is_rejected(declared: State, source: Path, place: str) -> None:
    with pytest.raises(PenstockError, match="mount-path") as refused:
        api.apply([at(of_folder("small", source), place), ours("small")])
    assert refused.value.exit_code == 2
    assert refused.value.hint
    assert declared.all() == []


def test_an_occupied_mount_path_is_reported(
    bound: Path, source: Path, tmp_path: Path, mounter: Mounter
) -> None:
    full, plain = tmp_path / "full", mounter(f"file://{source}", "--no-cache").path
    write_tree(full, {"mine": b"mine"})
    taken = {
        full: "is not empty",
        bound: "dataset/default/small is mounted at",
        plain: "is mounted",
    }
    for place, says in taken.items():
        with pytest.raises(PenstockError, match=says) as refused:
            api.apply([at(of_folder("x", source), place, name="x"), ours("x")])
        assert refused.value.exit_code == 2
        assert phase("x") == "Failed"
        api.delete("dataset", "x", force=True)
    assert os.listdir(full) == ["mine"]
    assert phase("small") == "Bound"
    for place in (bound, plain):
        assert (place / "file").read_bytes() == DATA


# -- another data set, seen from this one -------------------------------------------------------


def view(name: str, mount_point: str, path: str = "/") -> dict[str, Any]:
    found = of_folder(name, Path("/"))
    found["spec"]["mounts"] = [{"mountPoint": mount_point, "name": "seen", "path": path}]
    return found


@pytest.fixture
def whole(of_bucket: dict[str, Any], tmp_path: Path) -> Path:
    """A view of a data set in the namespace `team`, whose cache is full."""
    api.apply([secret(), of_bucket, ours("stored", tmp_path / "cache")], namespace="team")
    assert read_tree(path_of("stored", "team")) == FILES
    wait_until(lambda: api.dataset("stored", namespace="team").cached_bytes == TOTAL)
    api.apply([view("whole", "dataset://team/stored"), ours("whole")])
    return path_of("whole")


def test_a_view_serves_the_bytes_of_its_data_set_from_the_same_cache(whole: Path) -> None:
    assert read_tree(whole) == FILES
    assert "get" not in mounts.stats(str(whole))["store_requests_by_verb"]
    found = api.dataset("whole")
    assert (found.files, found.total_bytes, found.cached_bytes) == (len(FILES), TOTAL, TOTAL)
    # A folder of it, and a view of that view, from the namespace that both are in.
    api.apply([view("part", "dataset://team/stored/train", "/x"), ours("part")])
    part = path_of("part")
    assert read_tree(part) == {"x/a": FILES["train/a"], "x/deep/b": FILES["train/deep/b"]}
    api.apply([view("deep", "dataset://part/"), ours("deep")])
    assert read_tree(path_of("deep")) == read_tree(part)


def test_a_view_needs_no_runtime(
    of_bucket: dict[str, Any], declared: State, tmp_path: Path
) -> None:
    api.apply([secret(), of_bucket], namespace="team")
    done = penstock("apply", "-f", "-", input=json.dumps(view("seen", "dataset://team/stored/d")))
    assert done.stderr == (
        "dataset seen is not bound: dataset/team/stored, which it refers to, is not bound\n"
    )
    # Bound with the data set that it refers to; waited for where both are applied.
    whole = view("whole", "dataset://team/stored")
    runtime = ours("stored", tmp_path / "cache")
    runtime["metadata"]["namespace"] = "team"
    api.apply([whole, runtime])
    assert read_tree(path_of("whole")) == FILES
    wait_until(lambda: api.dataset("whole").cached_bytes == TOTAL)
    assert api.dataset("whole").status["runtimes"] == [
        {"name": "stored", "namespace": "team", "category": "Accelerate", "type": "penstock"}
    ]
    assert penstock("doctor", "whole").returncode == 0
    # Unbound with it.
    api.delete("penstockruntime", "stored", namespace="team", force=True)
    wait_until(lambda: condition("whole")["reason"] == "ReferencedNotBound")
    assert phase("whole") == "NotBound"


def test_views_follow_changes_and_the_deletion_of_their_data_set(
    whole: Path, declared: State, tmp_path: Path
) -> None:
    write_tree(tmp_path / "more", {"d": b"d"})
    found = stored(declared, api.dataset("stored", namespace="team").key)
    more = {"mountPoint": f"local://{tmp_path}/more", "name": "more"}
    api.apply({**found.manifest, "spec": {"mounts": [*found.spec["mounts"], more]}})
    # A folder of this machine is not opened to all, so that needs a restart.
    assert api.up("stored", namespace="team", restart=True) == []
    assert api.up("whole", restart=True) == []
    wait_until((whole / "more/d").exists)  # it comes with the listing behind the change
    assert (whole / "more/d").read_bytes() == b"d"
    api.delete("dataset", "stored", namespace="team", force=True)
    assert api.up("whole") != []
    reported = condition("whole")
    assert reported["status"] == "False"
    assert "there is no dataset/team/stored" in reported["message"]
    # What it showed it shows: nobody asked for that to end.
    assert phase("whole") == "Bound"
    assert (whole / "c").read_bytes() == b"c"


@pytest.mark.parametrize(
    ("mount_point", "says", "hint"),
    [
        ("dataset://team/base", "there is no dataset/", "apply it first"),
        (
            "dataset://near/train",
            "there is no dataset/",
            "did you mean dataset://default/near/train?",
        ),
        ("dataset://default/back", "circle", ""),
    ],
)
def test_a_view_of_a_missing_data_set_or_of_itself_is_rejected(
    declared: State, mount_point: str, says: str, hint: str
) -> None:
    others = [of_folder("near", Path("/usr")), view("back", "dataset://default/whole")]
    with pytest.raises(ManifestError, match=says) as refused:
        api.apply([*others, view("whole", mount_point), ours("whole")])
    assert hint in str(refused.value)
    assert declared.all() == []
