"""What changes in the bucket while it is mounted: when it is seen, and what never is."""

import errno
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.bench.workspace import free_port
from tests.support.mounts import Mount, Mounter, both_modes, penstock
from tests.support.page_counts import PagesDropped, locked_pages
from tests.support.rclone import rclone_serves
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY, ObjectPath
from tests.support.trees import read_or_errno, read_tree, write_tree
from tests.support.waiting import wait_until

MIB = 1024 * 1024
OLD, NEW = (random.Random(seed).randbytes(6 * MIB) for seed in (1, 2))


BEFORE = {
    "a/same": b"same", "a/longer": b"long", "a/shorter": b"shorter", "a/as long": b"AAAA",
    "a/emptied": b"full", "a/filled": b"", "a/deleted": b"deleted", "gone/last": b"last",
    "file to folder": b"file", "folder to file/inner": b"inner",
}  # fmt: skip
ABSENT = ("a/added", "new", "new/folder/file", "none")


def start(s3: S3, mounter: Mounter, name: str, *options: str) -> tuple[ObjectPath, Mount]:
    bucket = s3.bucket(name)
    write_tree(bucket, BEFORE)
    mount = mounter(bucket.source, "--endpoint", s3.endpoint, *options)
    # Everything that the kernel can keep, it keeps: names, absences, listings, pages.
    assert read_tree(mount.path) == BEFORE
    for missing in ABSENT:
        assert not (mount.path / missing).exists()
    return bucket, mount


def change_everything(bucket: ObjectPath) -> dict[str, bytes]:
    """Add, rewrite (longer, shorter, as long, to nothing) and delete; return what is left."""
    for name in ("a/deleted", "gone/last", "file to folder", "folder to file/inner"):
        (bucket / name).unlink()
    write_tree(
        bucket,
        {
            "a/added": b"added",
            "new/folder/file": b"deep",
            "a/longer": b"longer than before",
            "a/shorter": b"s",
            "a/as long": b"BBBB",
            "a/emptied": b"",
            "a/filled": b"filled",
            "file to folder/inner": b"inner",
            "folder to file": b"flat",
        },
    )
    return read_tree(bucket)


@both_modes
def test_every_change_is_seen_after_a_refresh_and_none_before(
    s3: S3, mounter: Mounter, mode: str
) -> None:
    bucket, mount = start(s3, mounter, f"on-demand-{mode}", "--refresh", "never", "--mode", mode)
    inodes = {name: (mount.path / name).stat().st_ino for name in BEFORE}
    version = os.getxattr(mount.path / "a/as long", "user.penstock.version")
    after = change_everything(bucket)
    assert read_tree(mount.path) == BEFORE
    mount.refresh()
    assert read_tree(mount.path) == after
    assert sorted(os.listdir(mount.path)) == ["a", "file to folder", "folder to file", "new"]
    names = sorted(name.removeprefix("a/") for name in after if name.startswith("a/"))
    assert sorted(os.listdir(mount.path / "a")) == names
    assert not (mount.path / "a/deleted").exists()
    assert not (mount.path / "gone").exists()
    assert not (mount.path / "none").exists()
    for name in ("a/longer", "a/shorter", "a/as long", "a/emptied", "a/filled"):
        assert (mount.path / name).stat().st_ino != inodes[name]
        assert (mount.path / name).stat().st_size == len(after[name])
    assert (mount.path / "a/same").stat().st_ino == inodes["a/same"]
    assert os.getxattr(mount.path / "a/as long", "user.penstock.version") != version
    stats = mount.stats()
    assert (stats["files"], stats["bytes"]) == (len(after), sum(map(len, after.values())))


def test_every_change_is_seen_without_a_request_within_the_interval(
    s3: S3, mounter: Mounter
) -> None:
    bucket, mount = start(s3, mounter, "by-itself", "--refresh", "1s")
    after = change_everything(bucket)
    listings = mount.stats()["refreshes"]
    wait_until(lambda: mount.stats()["refreshes"] >= listings + 2)
    assert read_tree(mount.path) == after
    assert sorted(os.listdir(mount.path)) == ["a", "file to folder", "folder to file", "new"]


@pytest.mark.counts_pages
def test_a_refresh_without_changes_leaves_the_kernel_caches_alone(s3: S3, mounter: Mounter) -> None:
    _, mount = start(s3, mounter, f"unchanged-{time.monotonic_ns()}", "--refresh", "never")
    folders = ["a", "file to folder", "folder to file", "gone"]

    def refresh_and_read() -> None:
        mount.refresh()
        for name, data in BEFORE.items():
            descriptor = os.open(mount.path / name, os.O_RDONLY)
            assert os.read(descriptor, 1000) == data
            os.close(descriptor)
        assert sorted(os.listdir(mount.path)) == folders

    with locked_pages(mount.path / name for name in BEFORE):
        sent = mount.messages_while(refresh_and_read)
    if sent and all(name.startswith("READDIR") for name in sent):
        raise PagesDropped("pages of listings, perhaps: those cannot be locked, nor looked at")
    assert sent == {}


@dataclass
class Large:
    """An object of OLD, in a bucket that other tests use too."""

    behind: ObjectPath
    mount: Mount
    path: Path


@pytest.fixture
def large(
    request: pytest.FixtureRequest, mode: str, s3: S3, empty_bucket: ObjectPath, shared: Mounter
) -> Large:
    behind = empty_bucket / request.function.__name__.removeprefix("test_")
    behind.write_bytes(OLD)
    mount = shared(
        empty_bucket.source,
        "--endpoint",
        s3.endpoint,
        "--block-size",
        "1MiB",
        "--prefetch",
        "0",
        "--refresh",
        "never",
        "--mode",
        mode,
    )
    mount.refresh()
    return Large(behind, mount, mount.path / behind.name)


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


@both_modes
def test_a_reader_of_a_rewritten_file_never_gets_a_mix(large: Large, mode: str) -> None:
    descriptor = os.open(large.path, os.O_RDONLY)
    try:
        assert os.pread(descriptor, 2 * MIB, 0) == OLD[: 2 * MIB]
        large.behind.write_bytes(NEW)  # as long as before: only the version tells them apart
        if mode == "pagecache":  # with a refresh in one mode and without in the other
            large.mount.refresh()
        found, error = read_on(descriptor, 0)
        assert error == errno.ESTALE
        assert len(found) >= 2 * MIB
        assert found == OLD[: len(found)]
    finally:
        os.close(descriptor)
    # Without a refresh, too: a reader has met the new version, and a listing follows.
    wait_until(lambda: read_or_errno(large.path) == NEW, "the new version is seen")


@both_modes
def test_an_open_cached_file_is_read_in_its_old_version_to_the_end(large: Large, mode: str) -> None:
    """It is rewritten in one mode and deleted in the other: the modes know nothing of that."""
    assert large.path.read_bytes() == OLD
    large.mount.wait_until_cached(large.path.name)
    descriptor = os.open(large.path, os.O_RDONLY)
    try:
        if mode == "pagecache":
            large.behind.write_bytes(NEW)
        else:
            large.behind.unlink()
        large.mount.refresh()
        assert read_or_errno(large.path) == (NEW if mode == "pagecache" else errno.ENOENT)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_on(descriptor, 0) == (OLD, None)
        assert os.fstat(descriptor).st_size == len(OLD)
    finally:
        os.close(descriptor)


@pytest.mark.slow  # it waits for deadlines
def test_a_saved_catalog_mounts_while_the_storage_server_is_down(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    write_tree(tmp_path / "s3/saved", {**BEFORE, "unread": b"unread"})
    port = free_port()
    auth = f"--auth-key={ACCESS_KEY},{SECRET_KEY}"
    arguments = ("s3://saved", "--endpoint", f"http://127.0.0.1:{port}")
    with rclone_serves("s3", tmp_path / "s3", auth, port=port):
        first = mounter(*arguments)
        for name, data in BEFORE.items():
            assert (first.path / name).read_bytes() == data
        first.umount()
    second = mounter(*arguments, "--deadline", "5s")
    shown = {
        str(path.relative_to(second.path)) for path in second.path.rglob("*") if path.is_file()
    }
    assert shown == {*BEFORE, "unread"}
    for name, data in BEFORE.items():
        assert (second.path / name).read_bytes() == data
    assert read_or_errno(second.path / "unread") == errno.EIO
    result = penstock("refresh", second.path)
    assert result.returncode == 3
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["penstock:", "hint:"]
    wait_until(lambda: second.stats()["refresh_error"] is not None)
    assert "the last refresh failed" in penstock("doctor", second.path).stdout
    write_tree(tmp_path / "s3/saved", {"while it was down": b"1"})
    with rclone_serves("s3", tmp_path / "s3", auth, port=port):
        second.refresh()
        assert read_tree(second.path) == read_tree(tmp_path / "s3/saved")
        assert second.stats()["refresh_error"] is None
        second.umount()
        third = mounter(*arguments, "--refresh", "never")
        assert (third.path / "while it was down").read_bytes() == b"1"
        assert third.stats()["store_requests_by_verb"].get("list", 0) == 0
        third.umount()


def test_a_file_added_to_a_directory_listed_empty_is_seen(mounter: Mounter, tmp_path: Path) -> None:
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


def test_a_bucket_that_rejects_the_keys_is_reported_though_its_listing_is_saved(
    s3: S3, mounter: Mounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, first = start(s3, mounter, "refuses")
    assert "warning" not in first.said
    first.umount()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-this-key")
    second = mounter(bucket.source, "--endpoint", s3.endpoint)
    warning, hint = second.said.splitlines()[2:4]
    assert warning.startswith(f"warning: {bucket.source}?endpoint={s3.endpoint}: access denied")
    assert warning.endswith("; only what is cached can be read")
    assert "AWS_SECRET_ACCESS_KEY" in hint
    diagnosis = penstock("doctor", second.path)
    assert diagnosis.returncode == 2
    assert f"export its keys, then penstock upgrade {second.path}" in diagnosis.stdout
