"""Deletion: refused while someone reads, complete otherwise, and never stuck, whatever has died."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.api import resources as api
from penstock.daemon.mount_registry import find_note, serves
from penstock.errors import InUse, PenstockError
from penstock.fuse.holders import holders
from penstock.mounttable import find_mount
from penstock.paths import default_cache_dir, state_dir
from penstock.reconcile.loop_control import is_running
from penstock.reconcile.state import State
from tests.support.datasets import dataset, kill_mount, of_folder, ours, path_of, phase, secret
from tests.support.mounts import fail, penstock, succeed
from tests.support.s3 import serve_rclone
from tests.support.trees import write_tree
from tests.support.waiting import PATIENCE_S, wait_until


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """A process that has a file of it open; each other way is in tests/fuse/test_holders.py."""
    with (path / "file").open("rb") as file:
        holder = subprocess.Popen(["sleep", "1000"], stdin=file)
    with holder:
        yield holder.pid
        holder.kill()


def gone(state: State, path: Path) -> None:
    assert state.all() == []
    assert find_mount(path) is None
    assert not path.exists()
    assert list((state.folder / "mounts").glob("*.json")) == []
    assert list((state.folder / "catalogs").glob("*small*")) == []


def test_a_data_set_in_use_is_not_deleted(
    bound: Path, declared: State, source: Path, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([of_folder("small", source), ours("small")]))
    before = [(one.uid, one.generation, one.deleting) for one in declared.all()]
    with holding(bound) as pid:
        for words in (["dataset", "small"], ["penstockruntime", "small"], ["-f", file]):
            output = fail("delete", *words)
            assert f"pid {pid} " in output
            assert "--force" in output
            assert [(one.uid, one.generation, one.deleting) for one in declared.all()] == before
            assert (bound / "file").read_bytes() == b"bytes"
        done = succeed("delete", "-f", file, "--force")
        assert done == "penstockruntime/small deleted\ndataset/small deleted\n"
        gone(declared, bound)
    assert "not found" in fail("delete", "-f", file)
    succeed("delete", "-f", file, "--ignore-not-found")


def test_deletion_waits_for_a_reader_that_comes_after_the_request(
    bound: Path, declared: State
) -> None:
    with holding(bound):
        # As if it had come between the question and the unmount.
        for one in declared.all():
            declared.mark_deleted(one.uid, {"at_s": 0.0, "force": False})
        penstock("get", "datasets")
        api.apply(of_folder("other", bound.parent))
        assert phase("small") == "Bound"
        assert (bound / "file").read_bytes() == b"bytes"
    wait_until(lambda: [str(one.key) for one in declared.all()] == ["dataset/default/other"])


def kill_server(path: Path) -> None:
    _, server = find_note(path).processes
    os.kill(server, signal.SIGKILL)


def kill_supervisor(path: Path) -> None:
    pid = find_note(path).pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not serves(pid, str(path)))


def unmount_by_hand(path: Path) -> None:
    subprocess.run(["umount", path], check=True)


def remove_note(path: Path) -> None:
    kill_mount(path)
    for file in (state_dir() / "mounts").iterdir():
        file.unlink()


# What force changes is the unmounting: of one that is half alive, dead, not noted, not there.
@pytest.mark.parametrize(
    ("harm", "force"),
    [
        *((harm, []) for harm in (kill_server, kill_supervisor, kill_mount, remove_note)),
        *((harm, ["--force"]) for harm in (kill_supervisor, remove_note, unmount_by_hand)),
    ],
)
def test_deletion_completes_after_any_process_died(
    bound: Path, declared: State, tmp_path: Path, harm: Any, force: list[str]
) -> None:
    (bound / "file").read_bytes()
    wait_until(lambda: not is_running(declared.folder))
    harm(bound)
    for words in (["dataset", "small"], ["penstockruntime", "small"]):
        succeed("delete", *words, *force)
    gone(declared, bound)
    assert not (tmp_path / "cache" / "penstock").exists()


def test_deletion_completes_with_a_hanging_server(bound: Path, declared: State) -> None:
    supervisor, server = find_note(bound).processes
    for pid in (supervisor, server):
        os.kill(pid, signal.SIGSTOP)
    succeed("delete", "dataset", "small", "--force")
    assert not any(serves(pid, str(bound)) for pid in (supervisor, server))
    succeed("delete", "penstockruntime", "small")
    gone(declared, bound)


def test_deletion_completes_with_an_unreachable_store(declared: State, tmp_path: Path) -> None:
    write_tree(tmp_path / "s3" / "small", {"file": b"bytes", "other": b"bytes"})
    with serve_rclone(tmp_path / "s3") as server:
        manifests = [secret(), dataset("small", server), ours("small", tmp_path / "cache")]
        api.apply(manifests)
        path = path_of("small")
        assert (path / "small" / "file").read_bytes() == b"bytes"
    # A reader that waits for the store holds it; forced, it is taken away all the same.
    with subprocess.Popen(
        ["cat", path / "small" / "other"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as reader:
        wait_until(lambda: [one.pid for one in holders(path).processes] == [reader.pid])
        assert f"pid {reader.pid} " in fail("delete", "dataset", "small")
        succeed("delete", "dataset", "small", "--force")
        assert reader.wait(PATIENCE_S) != 0
    # Declared while it is away: Failed; deleted as quickly.
    manifests[1]["metadata"]["name"] = "late"
    manifests[2] = ours("late", tmp_path / "cache", options={"deadline": "1s"})
    file = tmp_path / "late.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    done = penstock("apply", "-f", file)
    assert done.returncode == 3, done.stderr
    assert phase("late") == "Failed"
    succeed("delete", "-f", file)
    assert [str(one.key) for one in declared.all()] == ["penstockruntime/default/small"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs, which takes root")
def test_deletion_completes_below_a_foreign_mount(declared: State, bound: Path) -> None:
    wait_until(lambda: not is_running(declared.folder))
    succeed("umount", bound)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", bound], check=True)
    try:
        api.delete("dataset", "small", timeout_s=PATIENCE_S)
        assert getattr(find_mount(bound), "kind", None) == "tmpfs"
    finally:
        subprocess.run(["umount", bound], check=True)


def cached_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def test_the_cache_is_kept_or_cleared_as_declared(
    declared: State, source: Path, tmp_path: Path
) -> None:
    noted = of_folder("noted", source)
    noted["metadata"]["annotations"] = {"penstock.dev/keep-cache": "true"}
    by_policy = ours("by-policy", tmp_path / "by-policy", cleanCachePolicy={"keep": True})
    api.apply(
        [
            noted,
            ours("noted", tmp_path / "noted"),
            of_folder("by-policy", source),
            by_policy,
            of_folder("cleared", source),
            ours("cleared", tmp_path / "cleared"),
        ]
    )
    names = ("noted", "by-policy", "cleared")
    for name in names:
        read_into_cache(name, "file", 5)
    api.delete("dataset", *names)
    api.delete("penstockruntime", *names)
    assert [bool(cached_files(tmp_path / name)) for name in names] == [True, True, False]
    api.apply([noted, ours("noted", tmp_path / "noted")])
    assert api.dataset("noted").cached_bytes == 5


def read_into_cache(name: str, file: str, size: int) -> None:
    (path_of(name) / file).read_bytes()
    wait_until(lambda: api.dataset(name).cached_bytes == size)


def test_a_shared_cache_loses_only_the_objects_of_the_deleted_data_set(
    declared: State, source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "source2"  # begins as the first one's name does
    write_tree(other, {"more": b"others"})
    shared: dict[str, Any] = {"options": {"cache-dir": str(tmp_path / "cache")}}
    api.apply(
        [
            of_folder("one", source),
            ours("one", **shared),
            of_folder("two", other),
            ours("two", **shared),
        ]
    )
    read_into_cache("one", "file", 5)
    read_into_cache("two", "more", 6)
    api.delete("dataset", "one")
    assert api.dataset("two").cached_bytes == 6
    assert (path_of("two") / "more").read_bytes() == b"others"
    # What both show stays with who is left.
    api.apply(of_folder("one", other))
    assert api.dataset("one").cached_bytes == 6
    api.delete("dataset", "one")
    assert api.dataset("two").cached_bytes == 6
    api.delete("dataset", "two")
    api.apply(of_folder("two", other))
    assert api.dataset("two").cached_bytes == 0


def test_a_cache_created_for_a_data_set_is_deleted_with_it(declared: State, source: Path) -> None:
    level = {"mediumtype": "SSD", "volumeType": "emptyDir", "path": "/x", "quota": "64Mi"}
    manifests = [of_folder("usual", source), ours("usual"), of_folder("empty", source)]
    api.apply([*manifests, ours("empty", tieredstore={"levels": [level]})])
    places = [default_cache_dir(), declared.folder / "scratch"]
    assert all(cached_files(place) for place in places)
    api.delete("dataset", "usual", "empty")
    assert [file for place in places for file in place.rglob("*")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which takes root")
def test_a_foreign_folder_is_not_treated_as_a_cache(
    declared: State, source: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "for-all" / "penstock"
    (theirs / "default").mkdir(parents=True)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(PenstockError, match=r"for-all/penstock belongs to another user"):
        api.apply([of_folder("set", source), ours("set", tmp_path / "for-all")])
    assert not (theirs / "default" / "set").exists()
    # One that was put there later, with a cache in it, is not ours to remove.
    os.chown(theirs, 0, 0)
    assert api.up("set") == []
    os.chown(theirs, 12345, 12345)
    api.delete("dataset", "set")
    assert (theirs / "default" / "set" / "index.sqlite").exists()


def test_a_data_set_is_not_deleted_before_a_data_set_that_shows_it(
    bound: Path, declared: State
) -> None:
    view = of_folder("view", Path("/"))
    view["spec"]["mounts"][0]["mountPoint"] = "dataset://default/small"
    api.apply([view, ours("view")])
    assert (path_of("view") / "file").read_bytes() == b"bytes"
    with pytest.raises(InUse) as refused:
        api.delete("dataset", "small")
    assert "default/view" in str(refused.value)
    assert refused.value.hint == "delete those first"
    assert phase("small") == "Bound"
    # Both at once are no question of order.
    succeed("delete", "dataset", "small", "view")
