"""The cache fails under a mount in use: readers see right bytes and no error, and it comes back."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import S3, Mount, Mounter, read_tree, write_tree
from tests.kernelcaches import forget

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and dropped pages need root")

FILES = {
    **{f"img{i:03}.jpg": random.Random(i).randbytes(50_000 + i) for i in range(20)},
    "large.bin": random.Random(99).randbytes(9 * 1024 * 1024 + 5),
}
FEW = dict(list(FILES.items())[:3])
SIZE = sum(map(len, FILES.values()))
MODES = ["pagecache", "passthrough"]


@pytest.fixture(params=MODES)
def mount(request: pytest.FixtureRequest, s3: S3, mounter: Mounter) -> Mount:
    return mount_files(request.param, s3, mounter)


def mount_files(mode: str, s3: S3, mounter: Mounter, *options: str | Path) -> Mount:
    bucket = f"fails-{time.monotonic_ns()}"
    write_tree(s3.bucket(bucket), FILES)
    return mounter(
        f"s3://{bucket}", "--endpoint", s3.endpoint, "--mode", mode, "--block-size", "4MiB",
        *options,
    )  # fmt: skip


def tier(mount: Mount) -> dict[str, Any]:
    (only,) = mount.stats()["tiers"]
    return only


def read_until(mount: Mount, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Epochs, each of which must be right, until the server says what is waited for."""
    deadline = time.monotonic() + 30
    while True:
        forget(mount.path)
        assert read_tree(mount.path) == FILES
        stats = mount.stats()
        if reached(stats):
            return stats
        assert time.monotonic() < deadline, stats
        time.sleep(0.1)


def is_all_cached(stats: dict[str, Any]) -> bool:
    return stats["tiers"][0]["state"] == "ok" and stats["cached_bytes"] == SIZE


def delete_all(cache: Path) -> None:
    shutil.rmtree(cache)


def delete_objects(cache: Path) -> None:
    shutil.rmtree(cache / "objects")


def delete_index(cache: Path) -> None:
    (cache / "index.sqlite").unlink()


def overwrite_index(cache: Path) -> None:
    for name in ("index.sqlite", "index.sqlite-wal"):
        with open(cache / name, "r+b") as file:
            file.write(random.Random(5).randbytes((cache / name).stat().st_size))


def truncate_index(cache: Path) -> None:
    os.truncate(cache / "index.sqlite", 0)
    os.truncate(cache / "index.sqlite-wal", 0)


@pytest.mark.parametrize(
    ("mount", "harm"),
    [("pagecache", delete_all), ("passthrough", delete_all), ("passthrough", delete_index),
     ("pagecache", overwrite_index), ("passthrough", truncate_index)],
    indirect=["mount"],
)  # fmt: skip
def test_a_cache_destroyed_under_a_mount_is_made_and_used_again(
    tmp_path: Path, mount: Mount, mounter: Mounter, harm: Callable[[Path], None]
) -> None:
    read_until(mount, is_all_cached)
    harm(tmp_path / "cache")
    stats = read_until(mount, is_all_cached)
    assert stats["errors"] == 0
    assert stats["cache_warnings"] <= 3, "not one for each read"
    mount.umount()
    source, _, *options = mount.arguments
    second = mounter(str(source), *options)
    assert read_tree(second.path) == FILES
    if harm is not delete_index:  # what works without a name is found by the next write
        assert second.gets() == 0


@contextmanager
def mounted_over(place: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, str(place)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def test_a_cache_that_gets_read_only_is_out_until_it_can_be_written(
    tmp_path: Path, mount: Mount
) -> None:
    for name, data in FEW.items():
        assert (mount.path / name).read_bytes() == data
    cache = tmp_path / "cache"
    with mounted_over(cache, "--bind", str(cache)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(cache)], check=True, timeout=30)
        stats = read_until(mount, lambda stats: stats["tiers"][0]["state"] == "out")
        (only,) = stats["tiers"]
        assert "Read-only" in only["error"]
        assert only["out_s"] >= 0
        assert stats["errors"] == 0
        assert stats["cache_warnings"] == 1
    stats = read_until(mount, is_all_cached)
    assert stats["errors"] == 0
    before = stats["store_requests"]
    assert read_until(mount, is_all_cached)["store_requests"] == before


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_whose_disk_others_have_filled_is_used_again_when_there_is_room(
    tmp_path: Path, mode: str, s3: S3, mounter: Mounter
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted_over(disk, "-t", "tmpfs", "-o", "size=16m", "tmpfs"):
        mount = mount_files(mode, s3, mounter, "--cache-dir", disk / "cache")
        for name, data in FEW.items():
            assert (mount.path / name).read_bytes() == data
        os.getxattr(mount.path / next(iter(FEW)), "user.penstock.cached")
        with pytest.raises(OSError, match="No space left"):
            (disk / "filler").write_bytes(bytes(32 << 20))
        forget(mount.path)
        for _ in range(2):
            assert read_tree(mount.path) == FILES
            forget(mount.path)
        stats = mount.stats()
        assert (stats["tiers"][0]["state"], stats["errors"]) == ("ok", 0)
        assert stats["cached_bytes"] < SIZE
        (disk / "filler").unlink()
        assert read_until(mount, is_all_cached)["errors"] == 0
        mount.umount()


def flip(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.seek(40_000)
        stream.write(b"rotten")


def cut(file: Path) -> None:
    os.truncate(file, 40_000)


def grow(file: Path) -> None:
    with open(file, "ab") as stream:
        stream.write(b"more")


def link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def test_files_damaged_under_a_mount_are_fetched_again(tmp_path: Path, mount: Mount) -> None:
    passwd = Path("/etc/passwd").read_bytes()
    for harm in (flip, cut, grow, link, folder, Path.unlink):
        before = read_until(mount, is_all_cached)
        files = list((tmp_path / "cache" / "objects").glob("*/*"))
        assert len(files) == len(FILES)
        for file in files:
            harm(file)
        stats = read_until(mount, is_all_cached)
        assert (stats["errors"], stats["tiers"][0]["state"]) == (0, "ok")
        if harm is not grow:  # what lies behind the end of a file is only seen by the kernel
            assert stats["store_bytes"] > before["store_bytes"]
    assert Path("/etc/passwd").read_bytes() == passwd
