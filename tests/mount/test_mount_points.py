"""Where people mount: names of any bytes, links, relative paths; and mounts that are in use."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import penstock
from tests.support.trees import read_tree, write_tree

FILES = {"a/b": b"1", "c": b"22"}


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_tree(tmp_path / "source", FILES)
    return f"file://{tmp_path}/source"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for mount points; what a failed test leaves mounted below it is detached."""
    folder = tmp_path / "places"
    folder.mkdir()
    yield folder
    with open("/proc/self/mountinfo", "rb") as table:
        points = [line.split(b" ")[4] for line in table]
    for point in points:
        if point.startswith(os.fsencode(folder)):
            for code in (b" ", b"\t", b"\n", b"#", b"\\"):
                point = point.replace(b"\\%03o" % code[0], code)
            subprocess.run(["umount", "-l", os.fsdecode(point)], check=True, timeout=30)


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


def test_a_mount_point_may_have_any_name(source: str, place: Path) -> None:
    name = "ünï 写 'quoted' \t \n \\ %2e #1 a,b=c:d -b".encode() + b" latin \xe9"
    mountpoint = place / os.fsdecode(name)
    mountpoint.mkdir()
    mount_use_and_unmount(source, mountpoint)


def test_a_mount_point_may_be_reached_through_links(source: str, place: Path) -> None:
    (place / "real/mnt").mkdir(parents=True)
    (place / "parent").symlink_to(place / "real")
    (place / "real/itself").symlink_to("mnt")
    mount_use_and_unmount(source, place / "parent/itself")


def test_a_mount_point_may_be_relative(
    source: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mnt").mkdir()
    monkeypatch.chdir(place)
    mount_use_and_unmount(source, "../places/mnt/")


def test_a_mount_in_use_is_not_unmounted_and_the_user_is_told(source: str, place: Path) -> None:
    assert penstock("mount", source, place, "-b").returncode == 0
    with open(place / "c", "rb") as file:
        # A shell hands its open files on: the command itself is then no one to be named.
        result = penstock("umount", place, pass_fds=(file.fileno(),))
        assert result.returncode == 2
        first, holder, hint = result.stderr.splitlines()
        assert first == f"penstock: {place} is in use"
        assert holder.startswith(f"  pid {os.getpid()}  ")
        assert "1 open file" in holder
        assert hint.startswith("hint: ")
        assert read_tree(place) == FILES
        assert file.read() == b"22"
    assert penstock("umount", place).returncode == 0


def test_a_lazy_unmount_detaches_at_once_and_serves_its_last_user(source: str, place: Path) -> None:
    assert penstock("mount", source, place, "-b").returncode == 0
    with open(place / "a/b", "rb") as file:
        assert penstock("umount", place, "--lazy").returncode == 0
        assert os.listdir(place) == []
        assert file.read() == b"1"
    assert penstock("mount", source, place, "-b").returncode == 0
    assert read_tree(place) == FILES
    assert penstock("umount", place).returncode == 0


def test_nonempty_hides_what_is_there_and_gives_it_back(source: str, place: Path) -> None:
    write_tree(place, {"mine": b"precious"})
    assert penstock("mount", source, place, "-b", "-o", "nonempty").returncode == 0
    assert read_tree(place) == FILES
    assert penstock("umount", place).returncode == 0
    assert read_tree(place) == {"mine": b"precious"}
