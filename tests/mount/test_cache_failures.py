"""The cache fails under a mount in use: readers see right bytes and no error, and it comes back."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import cut, flip_bit
from tests.support.kernelcaches import forget
from tests.support.mounts import Mount, Mounter, both_modes, needs_passthrough
from tests.support.trees import read_tree, write_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and dropped pages need root")

FILES = {
    **{f"img{i:03}.jpg": random.Random(i).randbytes(50_000 + i) for i in range(20)},
    "large.bin": random.Random(99).randbytes(2 * 1024 * 1024 + 5),
}
BLOCK = ("--block-size", "1MiB")
FEW = dict(list(FILES.items())[:3])
SIZE = sum(map(len, FILES.values()))


@pytest.fixture
def mount(mode: str, source: str, mounter: Mounter) -> Mount:
    return mounter(source, "--mode", mode, *BLOCK)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("source")
    write_tree(folder, FILES)
    return f"file://{folder}"


def read_until(mount: Mount, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Epochs, each of which must be right, until the server says what is waited for."""

    def read_once() -> dict[str, Any] | None:
        forget(mount.path)
        assert read_tree(mount.path) == FILES
        stats = mount.stats()
        return stats if reached(stats) else None

    return wait_until(read_once, mount.stats)


def is_all_cached(stats: dict[str, Any]) -> bool:
    return stats["tiers"][0]["state"] == "ok" and stats["cached_bytes"] == SIZE


def overwrite_index(cache: Path) -> None:
    for name in ("index.sqlite", "index.sqlite-wal"):
        with open(cache / name, "r+b") as file:
            file.write(random.Random(5).randbytes((cache / name).stat().st_size))


@pytest.mark.parametrize(
    ("mode", "harm"),
    [
        ("pagecache", shutil.rmtree),
        pytest.param("passthrough", overwrite_index, marks=needs_passthrough),
    ],
)
def test_a_cache_destroyed_under_a_mount_is_recreated_and_used(
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
    assert second.gets() == 0


@contextmanager
def mounted_over(place: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, str(place)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


@needs_passthrough
@pytest.mark.parametrize("mode", ["passthrough"])
def test_a_read_only_cache_is_disabled_until_it_is_writable(tmp_path: Path, mount: Mount) -> None:
    for name, data in FEW.items():
        assert (mount.path / name).read_bytes() == data
    cache = tmp_path / "cache"
    with mounted_over(cache, "--bind", str(cache)):
        # Busy while the server has a file of the cache open to write.
        make_read_only = ["mount", "-o", "remount,bind,ro", str(cache)]
        wait_until(lambda: subprocess.run(make_read_only, check=False).returncode == 0)
        stats = read_until(mount, lambda stats: stats["tiers"][0]["state"] == "out")
        (only,) = stats["tiers"]
        assert "Read-only" in only["error"]
        assert stats["errors"] == 0
        assert stats["cache_warnings"] == 1
    stats = read_until(mount, is_all_cached)
    assert stats["errors"] == 0
    before = stats["store_requests"]
    assert read_until(mount, is_all_cached)["store_requests"] == before


def test_a_cache_on_a_disk_filled_by_others_is_used_again_when_there_is_room(
    tmp_path: Path, source: str, mounter: Mounter
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted_over(disk, "-t", "tmpfs", "-o", "size=16m", "tmpfs"):
        mount = mounter(source, *BLOCK, "--cache-dir", disk / "cache")
        for name, data in FEW.items():
            assert (mount.path / name).read_bytes() == data
            mount.wait_until_cached(name)
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


def link(file: Path, _: random.Random) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd")


@both_modes
def test_cache_files_damaged_under_a_mount_or_before_it_are_fetched_again(
    tmp_path: Path, mount: Mount, mounter: Mounter
) -> None:
    passwd = Path("/etc/passwd").read_bytes()
    chance = random.Random(3)
    for harm in (flip_bit, cut, link, lambda file, _: file.unlink()):
        before = read_until(mount, is_all_cached)
        files = list((tmp_path / "cache" / "objects").glob("*/*"))
        assert len(files) == len(FILES)
        for file in files:
            harm(file, chance)
        stats = read_until(mount, is_all_cached)
        assert (stats["errors"], stats["tiers"][0]["state"]) == (0, "ok")
        assert stats["store_bytes"] > before["store_bytes"]
    assert Path("/etc/passwd").read_bytes() == passwd
    mount.umount()
    sizes = {file.stat().st_size: file for file in (tmp_path / "cache" / "objects").glob("*/*")}
    assert flip_bit(sizes[len(FILES["large.bin"])], chance)
    source, _, *options = mount.arguments
    second = mounter(str(source), *options)
    assert read_tree(second.path) == FILES
    assert second.stats()["corrupt_blocks"] == 1
    assert second.gets() == 1, "only the damaged block is fetched again"
