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

from penstock import api
from penstock.daemon.places import default_cache_dir
from penstock.daemon.registry import find_note, serves
from penstock.errors import InUse, PenstockError
from penstock.fuse.holders import holders
from penstock.mounttable import find_mount
from penstock.resources.nudge import is_running
from penstock.resources.state import State
from tests.support.datasets import (  # fmt: skip
    dataset,
    kill_mount,
    of_folder,
    ours,
    path_of,
    phase,
    secret,
)
from tests.support.mounts import penstock
from tests.support.s3 import serve_rclone
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """A process that has a file of it open; each other way is in tests/fuse/test_holders.py."""
    with (path / "file").open("rb") as file:
        holder = subprocess.Popen(["sleep", "1000"], stdin=file)
    with holder:
        yield holder.pid
        holder.kill()


def gone(state: State, path: Path) -> None:
    assert declared_names(state) == []
    assert find_mount(path) is None
    assert not path.exists()
    assert list((state.folder / "mounts").glob("*.json")) == []
    assert list((state.folder / "catalogs").glob("*small*")) == []


def declared_names(state: State) -> list[str]:
    return [str(one.key) for one in state.all()]


def test_it_is_refused_while_a_process_uses_it(
    bound: Path, declared: State, source: Path, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([of_folder("small", source), ours("small")]))
    before = [(one.uid, one.generation, one.deleting) for one in declared.all()]
    with holding(bound) as pid:
        for words in (["dataset", "small"], ["penstockruntime", "small"], ["-f", file]):
            done = penstock("delete", *words)
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert f"pid {pid} " in done.stderr
            assert "--force" in done.stderr
            assert [(one.uid, one.generation, one.deleting) for one in declared.all()] == before
            assert (bound / "file").read_bytes() == b"bytes"
        done = penstock("delete", "-f", file, "--force")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "penstockruntime/small deleted", "dataset/small deleted",
        ]  # fmt: skip
        gone(declared, bound)
    done = penstock("delete", "-f", file)
    assert (done.returncode, "not there" in done.stderr) == (2, True)
    assert penstock("delete", "-f", file, "--ignore-not-found").returncode == 0


def test_who_begins_to_read_after_the_wish_is_waited_for(bound: Path, declared: State) -> None:
    with holding(bound):
        # As if it had come between the question and the unmount.
        for one in declared.all():
            declared.want_deleted(one.uid, {"at_s": 0.0, "force": False})
        penstock("get", "datasets")
        api.apply(of_folder("other", bound.parent))
        assert phase("small") == "Bound"
        assert (bound / "file").read_bytes() == b"bytes"
    wait_until(lambda: declared_names(declared) == ["dataset/default/other"])


def kill_server(path: Path) -> None:
    note = find_note(path)
    assert note.server_pid is not None
    os.kill(note.server_pid, signal.SIGKILL)


def kill_supervisor(path: Path) -> None:
    pid = find_note(path).pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not serves(pid, str(path)))


def unmount_by_hand(path: Path) -> None:
    subprocess.run(["umount", path], check=True)


def remove_note(path: Path) -> None:
    kill_mount(path)
    for file in (Path(os.environ["PENSTOCK_STATE_DIR"]) / "mounts").iterdir():
        file.unlink()


# What force changes is the unmounting: of one that is half alive, dead, not noted, not there.
@pytest.mark.parametrize(
    ("harm", "force"),
    [
        *((harm, []) for harm in (kill_server, kill_supervisor, kill_mount, remove_note)),
        *((harm, ["--force"]) for harm in (kill_supervisor, remove_note, unmount_by_hand)),
    ],
)  # fmt: skip
def test_it_is_not_stuck_after(
    bound: Path, declared: State, tmp_path: Path, harm: Any, force: list[str]
) -> None:
    (bound / "file").read_bytes()
    wait_until(lambda: not is_running(declared.folder))
    harm(bound)
    for words in (["dataset", "small"], ["penstockruntime", "small"]):
        done = penstock("delete", *words, *force)
        assert done.returncode == 0, done.stderr
    gone(declared, bound)
    assert not (tmp_path / "cache" / "penstock").exists()


def test_it_is_not_stuck_with_a_server_that_hangs(bound: Path, declared: State) -> None:
    note = find_note(bound)
    assert note.server_pid is not None
    os.kill(note.pid, signal.SIGSTOP)
    os.kill(note.server_pid, signal.SIGSTOP)
    done = penstock("delete", "dataset", "small", "--force")
    assert done.returncode == 0, done.stderr
    assert not serves(note.pid, str(bound))
    assert not serves(note.server_pid, str(bound))
    assert penstock("delete", "penstockruntime", "small").returncode == 0
    gone(declared, bound)


def test_it_is_not_stuck_with_a_store_that_is_away(declared: State, tmp_path: Path) -> None:
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
        done = penstock("delete", "dataset", "small")
        assert done.returncode == 2
        assert f"pid {reader.pid} " in done.stderr
        done = penstock("delete", "dataset", "small", "--force")
        assert done.returncode == 0, done.stderr
        assert reader.wait(20) != 0
    # Declared while it is away: Failed; deleted as quickly.
    manifests[1]["metadata"]["name"] = "late"
    manifests[2] = ours("late", tmp_path / "cache", options={"deadline": "1s"})
    file = tmp_path / "late.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    done = penstock("apply", "-f", file)
    assert done.returncode == 3, done.stderr
    assert phase("late") == "Failed"
    done = penstock("delete", "-f", file)
    assert done.returncode == 0, done.stderr
    assert declared_names(declared) == ["penstockruntime/default/small"]


# -- the cache ----------------------------------------------------------------------------


def cached_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def test_the_cache_is_kept_or_cleared_as_it_was_said(
    declared: State, source: Path, tmp_path: Path
) -> None:
    noted = of_folder("noted", source)
    noted["metadata"]["annotations"] = {"penstock.dev/keep-cache": "true"}
    by_policy = ours("by-policy", tmp_path / "by-policy", cleanCachePolicy={"keep": True})
    api.apply([
        noted, ours("noted", tmp_path / "noted"), of_folder("by-policy", source), by_policy,
        of_folder("cleared", source), ours("cleared", tmp_path / "cleared"),
    ])  # fmt: skip
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


def test_of_a_cache_that_two_share_each_takes_its_own_away(
    declared: State, source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "source2"  # begins as the first one's name does
    other.mkdir()
    (other / "more").write_bytes(b"others")
    shared: dict[str, Any] = {"options": {"cache-dir": str(tmp_path / "cache")}}
    api.apply([
        of_folder("one", source), ours("one", **shared),
        of_folder("two", other), ours("two", **shared),
    ])  # fmt: skip
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


EMPTY_DIR = {"mediumtype": "SSD", "volumeType": "emptyDir", "path": "/x", "quota": "64Mi"}


def test_a_cache_that_was_made_for_it_goes_with_it(declared: State, source: Path) -> None:
    manifests = [of_folder("usual", source), ours("usual"), of_folder("empty", source)]
    api.apply([*manifests, ours("empty", tieredstore={"levels": [EMPTY_DIR]})])
    places = [default_cache_dir(), declared.folder / "scratch"]
    assert all(cached_files(place) for place in places)
    api.delete("dataset", "usual", "empty")
    assert [file for place in places for file in place.rglob("*")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which takes root")
def test_a_cache_is_not_made_in_a_folder_that_another_user_has_put_there(
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


def test_one_that_another_shows_is_not_deleted_before_it(bound: Path, declared: State) -> None:
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
    done = penstock("delete", "dataset", "small", "view")
    assert done.returncode == 0, done.stderr
