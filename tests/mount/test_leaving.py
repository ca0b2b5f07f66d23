"""Where people mount, and how a mount ends: unmounts, signals, and what must not be left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, takewhile
from pathlib import Path

import pytest

from penstock.daemon import mount_lifecycle
from penstock.daemon.mount_registry import find_note, serves
from penstock.errors import PenstockError
from penstock.mounttable import find_mount, mount_table
from tests.support.mounts import Mounter, penstock
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

FILES = {"a/file": b"x" * 1000, "b": b"y"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    write_tree(folder, FILES)
    return folder


@pytest.fixture
def source(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for mount points; what a failed test leaves mounted below it is detached."""
    folder = tmp_path / "places"
    folder.mkdir()
    yield folder
    for entry in mount_table():
        if entry.mountpoint.startswith(str(folder)):
            subprocess.run(["umount", "-l", entry.mountpoint], check=True, timeout=30)


def mount_use_and_unmount(source: str, mountpoint: str | Path) -> None:
    mounted = penstock("mount", source, mountpoint, "-b")
    assert mounted.returncode == 0, mounted.stderr
    assert "needs root" not in mounted.stderr or os.geteuid() != 0
    assert read_tree(Path(mountpoint)) == FILES
    stats = penstock("stats", mountpoint, "-o", "json")
    assert stats.returncode == 0, stats.stderr
    assert penstock("stats", "-o", "json").stdout.count('"mode"') == 1
    assert penstock("refresh", mountpoint).returncode == 0
    unmounted = penstock("umount", mountpoint)
    assert (unmounted.returncode, unmounted.stderr) == (0, "")
    assert os.listdir(mountpoint) == []


def test_a_mount_point_may_have_any_name_be_relative_and_lie_behind_symlinks(
    source: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ünï 写 'quoted' \t \n \\ %2e #1 a,b=c:d -b".encode() + b" latin \xe9"
    mountpoint = place / os.fsdecode(name)
    mountpoint.mkdir()
    mount_use_and_unmount(source, mountpoint)
    (place / "real/mnt").mkdir(parents=True)
    (place / "parent").symlink_to(place / "real")
    (place / "real/itself").symlink_to("mnt")
    monkeypatch.chdir(place)
    mount_use_and_unmount(source, "../places/parent/itself/")


def test_a_mount_in_use_is_not_unmounted_and_the_user_is_told(source: str, place: Path) -> None:
    assert penstock("mount", source, place, "-b").returncode == 0
    with open(place / "b", "rb") as file:
        # A shell hands its open files on: the command itself is then no one to be named.
        result = penstock("umount", place, pass_fds=(file.fileno(),))
        assert result.returncode == 2
        first, holder, hint = result.stderr.splitlines()
        assert first == f"penstock: {place} is in use"
        assert holder.startswith(f"  pid {os.getpid()}  ")
        assert "1 open file" in holder
        assert hint.startswith("hint: ")
        assert read_tree(place) == FILES
        assert file.read() == b"y"
    assert penstock("umount", place).returncode == 0


def test_a_lazy_unmount_detaches_at_once_and_serves_open_files(source: str, place: Path) -> None:
    assert penstock("mount", source, place, "-b").returncode == 0
    with open(place / "a/file", "rb") as file:
        assert penstock("umount", place, "--lazy").returncode == 0
        assert os.listdir(place) == []
        assert file.read() == FILES["a/file"]
    # The same folder again, and what is in it: nonempty hides it, and gives it back.
    write_tree(place, {"mine": b"precious"})
    assert penstock("mount", source, place, "-b", "-o", "nonempty").returncode == 0
    assert read_tree(place) == FILES
    assert penstock("umount", place).returncode == 0
    assert read_tree(place) == {"mine": b"precious"}


def start(folder: Path, path: Path, tmp_path: Path) -> subprocess.Popen[str]:
    path.mkdir(exist_ok=True)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock",
            "mount",
            f"file://{folder}",
            str(path),
            "--cache-dir",
            str(tmp_path / "cache"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT,), (signal.SIGHUP,), cycle((signal.SIGTERM, signal.SIGINT))]
)
def test_a_signal_unmounts_and_leaves_nothing(
    folder: Path, tmp_path: Path, state: Path, signals: Iterable[signal.Signals]
) -> None:
    path = tmp_path / "mnt"
    process = start(folder, path, tmp_path)
    wait_until(lambda: (path / "b").exists(), "mounted")
    for number in takewhile(lambda _: process.poll() is None, signals):  # to its very end
        process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert find_mount(path) is None
    assert list((state / "mounts").iterdir()) == []


def test_a_signal_at_any_moment_of_startup_leaves_no_mount(folder: Path, tmp_path: Path) -> None:
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


def test_readers_continue_after_sigterm_for_the_grace_period_and_no_longer(
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


def test_a_vanished_source_does_not_empty_the_mount_and_sigterm_ends_its_server(
    folder: Path, mounter: Mounter
) -> None:
    mount = mounter(f"file://{folder}", "--refresh", "never")
    folder.rename(folder.with_name("elsewhere"))
    result = penstock("refresh", mount.path)
    assert result.returncode == 2
    assert "is gone" in result.stderr
    assert sorted(os.listdir(mount.path)) == ["a", "b"]
    folder.with_name("elsewhere").rename(folder)
    mount.refresh()
    os.kill(mount.stats()["pid"], signal.SIGTERM)
    wait_until(lambda: find_mount(mount.path) is None, "unmounted")
    mount._mounted = False


def test_an_unmount_waits_for_processes_that_are_ending(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    assert penstock("mount", f"file://{folder}", path, "-b", "--no-cache").returncode == 0
    processes = find_note(path).processes
    assert len(processes) == 2
    unmount, waited_for = mount_lifecycle.unmount, []

    def unmount_late(mountpoint: Path, *, lazy: bool) -> None:
        unmount(mountpoint, lazy=lazy)
        wait_until(lambda: not any(serves(pid, str(path)) for pid in processes), "they ended")

    monkeypatch.setattr(mount_lifecycle, "unmount", unmount_late)
    monkeypatch.setattr(
        mount_lifecycle, "process_ends_within", lambda _seconds, pid: waited_for.append(pid) is None
    )
    mount_lifecycle.stop_mount(path)
    assert waited_for == processes


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces are made by root")
def test_a_copy_of_the_mount_in_another_namespace_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where mounts are not shared, it keeps what is unmounted here."""
    monkeypatch.setattr(mount_lifecycle, "_SERVER_ENDS_WITHIN_S", 0.2)
    path = tmp_path / "mnt"
    path.mkdir()
    assert penstock("mount", f"file://{folder}", path, "-b", "--no-cache").returncode == 0
    processes = find_note(path).processes
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(PenstockError) as caught:
            mount_lifecycle.stop_mount(path)
        assert f"{path} is unmounted here, but not in the mount namespace of " in str(caught.value)
        assert f"pid {holder.pid}  cat" in str(caught.value)
        assert f"server (pid {processes[0]}) ends when" in str(caught.value.hint)
    wait_until(lambda: not any(serves(pid, str(path)) for pid in processes), "they ended with it")
