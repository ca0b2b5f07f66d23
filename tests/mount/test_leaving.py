"""How a mount ends: signals, a server that died, and what must not be left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.daemon import stop
from penstock.daemon.registry import find_note, serves
from penstock.errors import PenstockError
from penstock.fuse.mounting import is_disconnected
from penstock.mounttable import find_mount
from tests.support.mounts import Mount, Mounter, penstock
from tests.support.trees import write_tree
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    write_tree(folder, {"a/file": b"x" * 1000, "b": b"y"})
    return folder


def start(folder: Path, path: Path, tmp_path: Path) -> subprocess.Popen[str]:
    path.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "mount", f"file://{folder}", str(path),
         "--cache-dir", str(tmp_path / "cache")],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGHUP,), (signal.SIGTERM, signal.SIGINT) * 3],
)
def test_a_signal_unmounts_and_leaves_nothing(
    folder: Path, tmp_path: Path, state: Path, signals: tuple[signal.Signals, ...]
) -> None:
    path = tmp_path / "mnt"
    process = start(folder, path, tmp_path)
    wait_until(lambda: (path / "b").exists(), "mounted")
    for number in signals:
        process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert find_mount(path) is None
    assert list((state / "mounts").iterdir()) == []


def test_a_signal_at_any_moment_of_the_start_leaves_no_mount(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    for number in range(6):
        process = start(folder, path, tmp_path)
        if number % 3 == 0:
            wait_until(lambda: find_mount(path) is not None, "mounted")
        else:
            time.sleep(number * 0.06)  # not for luck: any moment must do
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert find_mount(path) is None


def kill_both(mount: Mount) -> None:
    """The supervisor and its server, so that nobody holds the mount any more."""
    stats = mount.stats()
    for pid in (stats["supervisor_pid"], stats["pid"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_disconnected(mount.path), "dead")


def test_a_dead_mount_is_cleared_away_by_umount(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}")
    kill_both(mount)
    listed = penstock("stats", "-o", "json")
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
    mount.umount()
    assert find_mount(mount.path) is None
    assert penstock("mount", f"file://{folder}", mount.path, "-b").returncode == 0
    assert (mount.path / "b").read_bytes() == b"y"
    assert penstock("umount", mount.path).returncode == 0


def test_a_dead_mount_is_cleared_away_by_the_next_mount(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}")
    kill_both(mount)
    again = penstock("mount", f"file://{folder}", mount.path, "-b")
    assert again.returncode == 0, again.stderr
    assert "a dead mount was at" in again.stderr
    assert (mount.path / "b").read_bytes() == b"y"


def test_a_mount_whose_supervisor_died_is_served_on_and_can_be_unmounted(
    folder: Path, mounter: Mounter
) -> None:
    mount = mounter(f"file://{folder}")
    os.kill(mount.stats()["supervisor_pid"], signal.SIGKILL)
    assert (mount.path / "b").read_bytes() == b"y"
    assert mount.stats()["state"] == "serving"
    again = penstock("mount", f"file://{folder}", mount.path, "-b")
    assert (again.returncode, "already a mount point" in again.stderr) == (2, True)
    mount.umount()
    assert find_mount(mount.path) is None


def test_a_server_that_is_told_to_end_ends_the_mount(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}")
    os.kill(mount.stats()["pid"], signal.SIGTERM)
    wait_until(lambda: find_mount(mount.path) is None, "unmounted")
    mount._mounted = False


def test_readers_go_on_after_sigterm_for_the_grace_period_and_no_longer(
    folder: Path, mounter: Mounter
) -> None:
    write_tree(folder, {"large": bytes(9 << 20)})
    mount = mounter(f"file://{folder}", "--grace", "6s", "--prefetch", "0", "--block-size", "1MiB")
    supervisor = mount.stats()["supervisor_pid"]
    descriptor = os.open(mount.path / "large", os.O_RDONLY)
    os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: find_mount(mount.path) is None, "detached")
    mount._mounted = False
    assert os.pread(descriptor, 10, 0) == bytes(10)  # it is still served
    wait_until(lambda: not serves(supervisor, str(mount.path)), "ended")
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.pread(descriptor, 10, 8 << 20)
    with contextlib.suppress(OSError):  # closing tells too that nobody is there
        os.close(descriptor)


def test_a_new_directory_is_seen_after_others_have_come_and_gone(
    folder: Path, mounter: Mounter
) -> None:
    first = mounter(f"file://{folder}")
    write_tree(folder, {"z/f": b"z"})
    first.refresh()
    (folder / "z/f").unlink()
    (folder / "z").rmdir()
    first.refresh()
    first.umount()
    second = mounter(f"file://{folder}", "--refresh", "never")
    assert sorted(os.listdir(second.path)) == ["a", "b"]
    assert not (second.path / "y").exists()
    write_tree(folder, {"y/f": b"y"})
    told = json.loads(penstock("refresh", second.path, "-o", "json").stdout)
    assert told["changed"] == 2, "a directory and a file"
    assert sorted(os.listdir(second.path)) == ["a", "b", "y"]
    assert (second.path / "y/f").read_bytes() == b"y"


def test_a_source_that_is_gone_does_not_empty_the_mount(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}", "--refresh", "never")
    folder.rename(folder.with_name("elsewhere"))
    result = penstock("refresh", mount.path)
    assert result.returncode == 2
    assert "is gone" in result.stderr
    assert sorted(os.listdir(mount.path)) == ["a", "b"]
    folder.with_name("elsewhere").rename(folder)
    mount.refresh()


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces are made by root")
def test_a_copy_in_another_namespace_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where mounts are not shared, it keeps what is unmounted here."""
    monkeypatch.setattr(stop, "_SERVER_ENDS_WITHIN_S", 0.2)
    path = tmp_path / "mnt"
    path.mkdir()
    assert penstock("mount", f"file://{folder}", path, "-b", "--no-cache").returncode == 0
    processes = find_note(path).processes
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(PenstockError) as told:
            stop.stop_mount(path)
        assert f"{path} is unmounted here, but not in the mount namespace of " in str(told.value)
        assert f"pid {holder.pid}  cat" in str(told.value)
        assert f"server (pid {processes[0]}) ends when" in str(told.value.hint)
    wait_until(lambda: not any(serves(pid, str(path)) for pid in processes), "they ended with it")
