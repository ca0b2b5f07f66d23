"""What changes in the bucket while it is mounted: when it is seen, and what never is."""

import errno
import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import (
    ACCESS_KEY,
    S3,
    SECRET_KEY,
    Mount,
    Mounter,
    free_port,
    penstock,
    rclone,
    read_tree,
    running,
    write_tree,
)
from tests.mount.conftest import MODES, needs_passthrough

MIB = 1024 * 1024
OLD, NEW = (random.Random(seed).randbytes(6 * MIB) for seed in (1, 2))

both_modes = pytest.mark.parametrize("mode", MODES)


def in_either_mode(first: str, second: str) -> list[Any]:
    """One case in each mode: the modes know nothing of what differs."""
    return [
        ("pagecache", first),
        pytest.param("passthrough", second, marks=needs_passthrough),
    ]


def poll(what: Callable[[], bool]) -> bool:
    """Whether it becomes true within half a minute."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return False


def read_or_errno(path: Path) -> bytes | int | None:
    try:
        return path.read_bytes()
    except OSError as error:
        return error.errno


class Changing:
    """A bucket, its mount, and the changes that every test here makes."""

    def __init__(self, bucket: Path, mount: Mount) -> None:
        self.bucket, self.path, self.mount = bucket, mount.path, mount

    def change_everything(self) -> dict[str, bytes]:
        """Adds, rewrites (longer, shorter, as long, to nothing), deletes; returns what is left."""
        write_tree(self.bucket, {
            "a/added": b"added", "new/folder/file": b"deep", "a/longer": b"longer than before",
            "a/shorter": b"s", "a/as long": b"BBBB", "a/emptied": b"", "a/filled": b"filled",
        })  # fmt: skip
        (self.bucket / "a/deleted").unlink()
        (self.bucket / "gone/last").unlink()
        (self.bucket / "gone").rmdir()
        (self.bucket / "file to folder").unlink()
        write_tree(self.bucket, {"file to folder/inner": b"inner"})
        (self.bucket / "folder to file/inner").unlink()
        (self.bucket / "folder to file").rmdir()
        write_tree(self.bucket, {"folder to file": b"flat"})
        return read_tree(self.bucket)


BEFORE = {
    "a/same": b"same", "a/longer": b"long", "a/shorter": b"shorter", "a/as long": b"AAAA",
    "a/emptied": b"full", "a/filled": b"", "a/deleted": b"deleted", "gone/last": b"last",
    "file to folder": b"file", "folder to file/inner": b"inner",
}  # fmt: skip
ABSENT = ("a/added", "new", "new/folder/file", "none")


def start(s3: S3, mounter: Mounter, name: str, *options: str) -> Changing:
    bucket = s3.bucket(name)
    write_tree(bucket, BEFORE)
    mount = mounter(f"s3://{name}", "--endpoint", s3.endpoint, *options)
    # Everything that the kernel can keep, it keeps: names, absences, listings, pages.
    assert read_tree(mount.path) == BEFORE
    for missing in ABSENT:
        assert not (mount.path / missing).exists()
    return Changing(bucket, mount)


@both_modes
def test_every_change_is_seen_after_a_refresh_and_none_before(
    s3: S3, mounter: Mounter, mode: str
) -> None:
    changing = start(s3, mounter, f"on-demand-{mode}", "--refresh", "never", "--mode", mode)
    inodes = {name: (changing.path / name).stat().st_ino for name in BEFORE}
    version = os.getxattr(changing.path / "a/as long", "user.penstock.version")
    after = changing.change_everything()
    assert read_tree(changing.path) == BEFORE
    changing.mount.refresh()
    assert read_tree(changing.path) == after
    assert sorted(os.listdir(changing.path)) == ["a", "file to folder", "folder to file", "new"]
    assert sorted(os.listdir(changing.path / "a")) == sorted(os.listdir(changing.bucket / "a"))
    assert not (changing.path / "a/deleted").exists()
    assert not (changing.path / "gone").exists()
    assert not (changing.path / "none").exists()
    for name in ("a/longer", "a/shorter", "a/as long", "a/emptied", "a/filled"):
        assert (changing.path / name).stat().st_ino != inodes[name]
        assert (changing.path / name).stat().st_size == len(after[name])
    assert (changing.path / "a/same").stat().st_ino == inodes["a/same"]
    assert os.getxattr(changing.path / "a/as long", "user.penstock.version") != version
    stats = changing.mount.stats()
    assert (stats["files"], stats["bytes"]) == (len(after), sum(map(len, after.values())))


def test_every_change_is_seen_by_itself_within_the_interval(s3: S3, mounter: Mounter) -> None:
    changing = start(s3, mounter, "by-itself", "--refresh", "1s")
    after = changing.change_everything()
    listings = changing.mount.stats()["refreshes"]
    assert poll(lambda: changing.mount.stats()["refreshes"] >= listings + 2)
    assert read_tree(changing.path) == after
    assert sorted(os.listdir(changing.path)) == ["a", "file to folder", "folder to file", "new"]


def test_a_refresh_that_changes_nothing_leaves_the_kernels_caches_alone(
    s3: S3, mounter: Mounter
) -> None:
    changing = start(s3, mounter, "unchanged", "--refresh", "never")
    folders = ["a", "file to folder", "folder to file", "gone"]

    def refresh_and_read() -> None:
        changing.mount.refresh()
        for name, data in BEFORE.items():
            descriptor = os.open(changing.path / name, os.O_RDONLY)
            assert os.read(descriptor, 1000) == data
            os.close(descriptor)
        assert sorted(os.listdir(changing.path)) == folders

    assert changing.mount.messages_while(refresh_and_read) == {}


# -- one file, two versions -------------------------------------------------------------


def start_large(s3: S3, mounter: Mounter, name: str, *options: str) -> tuple[Path, Mount]:
    write_tree(s3.bucket(name), {"large": OLD})
    return s3.folder / name / "large", mounter(
        f"s3://{name}", "--endpoint", s3.endpoint, "--block-size", "1MiB", "--prefetch", "0",
        "--refresh", "never", *options,
    )  # fmt: skip


def rewrite(mount: Mount, behind: Path, data: bytes) -> None:
    """At once, as a store does it; and not while rclone's server answers, which looks at an
    object's ETag first and opens its file later. A READ of the kernel's own, ahead of its reader,
    may be on its way to us for a while."""
    quiet, before = 0, -1
    while quiet < 4:
        stats = mount.stats()
        now = stats["requests"].get("READ", 0)
        quiet = quiet + 1 if stats["fetching"] == 0 and now == before else 0
        before = now
        time.sleep(0.05)
    fresh = behind.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(behind)


def read_on(descriptor: int, start: int) -> tuple[bytes, int | None]:
    """What comes from `start` on, and the error that ended it."""
    parts: list[bytes] = []
    try:
        while part := os.pread(descriptor, 65536, start):
            parts.append(part)
            start += len(part)
    except OSError as error:
        return b"".join(parts), error.errno
    return b"".join(parts), None


@pytest.mark.parametrize(("mode", "told"), in_either_mode("with a refresh", "without a refresh"))
def test_a_reader_of_a_file_that_is_rewritten_never_gets_a_mix(
    s3: S3, mounter: Mounter, mode: str, told: str
) -> None:
    behind, mount = start_large(s3, mounter, f"mix-{mode}-{told.split()[0]}", "--mode", mode)
    descriptor = os.open(mount.path / "large", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 2 * MIB, 0) == OLD[: 2 * MIB]
        rewrite(mount, behind, NEW)  # as long as before: only the version tells them apart
        if told == "with a refresh":
            mount.refresh()
        found, error = read_on(descriptor, 0)
        assert error == errno.ESTALE
        assert len(found) >= 2 * MIB
        assert found == OLD[: len(found)]
    finally:
        os.close(descriptor)
    mount.refresh()
    assert (mount.path / "large").read_bytes() == NEW


@pytest.mark.parametrize(("mode", "change"), in_either_mode("rewritten", "deleted"))
def test_who_has_a_cached_file_open_reads_the_old_bytes_to_the_end(
    s3: S3, mounter: Mounter, mode: str, change: str
) -> None:
    behind, mount = start_large(s3, mounter, f"old-{mode}-{change}", "--mode", mode)
    assert (mount.path / "large").read_bytes() == OLD
    descriptor = os.open(mount.path / "large", os.O_RDONLY)
    try:
        if change == "rewritten":
            rewrite(mount, behind, NEW)
        else:
            behind.unlink()
        mount.refresh()
        expected = NEW if change == "rewritten" else errno.ENOENT
        assert read_or_errno(mount.path / "large") == expected
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_on(descriptor, 0) == (OLD, None)
        assert os.fstat(descriptor).st_size == len(OLD)
    finally:
        os.close(descriptor)


@both_modes
def test_who_meets_a_new_version_sees_it_soon_without_asking(
    s3: S3, mounter: Mounter, mode: str
) -> None:
    behind, mount = start_large(s3, mounter, f"soon-{mode}", "--mode", mode)
    rewrite(mount, behind, NEW)
    assert read_or_errno(mount.path / "large") == errno.ESTALE
    seen: list[bytes | int | None] = []
    assert poll(lambda: seen.append(read_or_errno(mount.path / "large")) or seen[-1] == NEW)
    assert set(seen) <= {errno.ESTALE, NEW}


# -- catalogs that are saved and shared -------------------------------------------------


def test_two_mounts_of_one_bucket_each_see_all_changes_after_their_own_refresh(
    s3: S3, mounter: Mounter
) -> None:
    first = start(s3, mounter, "shared", "--refresh", "never")
    second = mounter("s3://shared", "--endpoint", s3.endpoint, "--refresh", "never")
    assert read_tree(second.path) == BEFORE
    for missing in ABSENT:
        assert not (second.path / missing).exists()
    after = first.change_everything()
    first.mount.refresh()
    assert read_tree(first.path) == after
    second.refresh()
    assert read_tree(second.path) == after
    for name, data in after.items():
        assert (second.path / name).stat().st_size == len(data)


def test_a_saved_catalog_is_ready_while_the_server_is_down(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    write_tree(tmp_path / "s3/saved", {**BEFORE, "unread": b"unread"})
    port = free_port()
    server = [rclone(), "serve", "s3", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--addr",
              f"127.0.0.1:{port}", "--dir-cache-time", "0s", "--config", "/dev/null",
              str(tmp_path / "s3")]  # fmt: skip
    arguments = ("s3://saved", "--endpoint", f"http://127.0.0.1:{port}", "--deadline", "2s")
    with ExitStack() as up:
        up.enter_context(running(server, port))
        first = mounter(*arguments)
        for name, data in BEFORE.items():
            assert (first.path / name).read_bytes() == data
        first.umount()
    second = mounter(*arguments)
    assert sorted(read_names(second.path)) == sorted([*BEFORE, "unread"])
    for name, data in BEFORE.items():
        assert (second.path / name).read_bytes() == data
    assert read_or_errno(second.path / "unread") == errno.EIO
    result = penstock("refresh", second.path)
    assert result.returncode == 3
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["penstock:", "hint:"]
    assert poll(lambda: second.stats()["refresh_error"] is not None)
    assert "the last refresh failed" in penstock("doctor", second.path).stdout
    write_tree(tmp_path / "s3/saved", {"while it was down": b"1"})
    with running(server, port):
        second.refresh()
        assert read_tree(second.path) == read_tree(tmp_path / "s3/saved")
        assert second.stats()["refresh_error"] is None
        second.umount()
        third = mounter(*arguments, "--refresh", "never")
        assert (third.path / "while it was down").read_bytes() == b"1"
        assert third.stats()["store_requests_by_verb"].get("list", 0) == 0
        third.umount()


def read_names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def test_a_file_in_a_directory_that_was_listed_empty_is_seen(
    mounter: Mounter, tmp_path: Path
) -> None:
    """Of an empty listing the kernel keeps no page that it could be told to forget."""
    write_tree(tmp_path / "set", {"other": b"x"})
    (tmp_path / "set/empty").mkdir()
    mount = mounter(f"file://{tmp_path}/set", "--refresh", "never")
    assert os.listdir(mount.path / "empty") == []
    write_tree(tmp_path / "set/empty", {"new": b"new"})
    mount.refresh()
    assert os.listdir(mount.path / "empty") == ["new"]
    (tmp_path / "set/empty/new").unlink()
    mount.refresh()
    assert os.listdir(mount.path / "empty") == []
