"""What makes it fast, told in counts: messages to the daemon, requests to the store, bytes."""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.kernelcaches import drop_pages, forget
from tests.support.mounts import Mount, Mounter, needs_passthrough
from tests.support.page_counts import locked_pages
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_raw, read_tree, write_tree
from tests.support.waiting import wait_until

FILES = {f"n{i // 10:04}/img{i:05}.jpg": random.Random(i).randbytes(60 * 1024) for i in range(60)}
BYTES = sum(map(len, FILES.values()))
LARGE = random.Random(1).randbytes(5 * 1024 * 1024 + 12345)
LARGE_BLOCKS = 6
BLOCK = ("--block-size", "1MiB")
ROW = {f"{i:03}.jpg": random.Random(i).randbytes(5_000) for i in range(300)}


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket / "small", FILES)
    write_tree(empty_bucket / "large", {"large.bin": LARGE})
    write_tree(empty_bucket / "row", ROW)
    return empty_bucket


@pytest.fixture
def mount(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mount:
    """A mount of FILES that tests share, with nothing cached."""
    options = ((bucket / "small").source, "--endpoint", s3.endpoint, "--mode", "pagecache")
    return shared(*options, "--prefetch", "0")  # what is fetched ahead would be a hit


def paths_of(mount: Mount) -> list[Path]:
    return [mount.path / name for name in FILES]


def test_a_warm_epoch_sends_the_daemon_no_message(mount: Mount) -> None:
    names = list(FILES)
    random.shuffle(names)

    def epoch() -> None:
        for name in names:
            assert read_raw(mount.path / name) == FILES[name]

    epoch()
    with locked_pages(paths_of(mount)):
        assert mount.messages_while(epoch) == {}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 asks this no more")
def test_the_builtin_open_adds_one_ioctl_and_nothing_else(mount: Mount) -> None:
    """`open()` asks each file whether it is a terminal, and the kernel passes that on to FUSE."""

    def read_with_a_buffer() -> None:
        for name in FILES:
            with open(mount.path / name, "rb", buffering=65536) as file:
                assert file.read() == FILES[name]

    def read_with_pythons_own() -> None:
        for name in FILES:
            assert (mount.path / name).read_bytes() == FILES[name]

    with locked_pages(paths_of(mount)):
        assert mount.messages_while(read_with_pythons_own) == {"IOCTL": len(FILES)}
        assert mount.messages_while(read_with_a_buffer) == {}


def test_a_cold_epoch_fetches_each_byte_once(mount: Mount) -> None:
    before = mount.stats()
    with ThreadPoolExecutor(8) as readers:
        found = dict(readers.map(lambda name: (name, (mount.path / name).read_bytes()), FILES))
    assert found == FILES
    # A second request for what was slow may still be on its way.
    wait_until(lambda: mount.gets() == len(FILES), mount.gets)
    stats = mount.stats()
    fetched, hedges = (stats[name] - before[name] for name in ("store_bytes", "hedges"))
    assert BYTES <= fetched <= BYTES + hedges * 60 * 1024


def test_eight_readers_of_one_large_file_fetch_each_byte_once(
    s3: S3, bucket: ObjectPath, mounter: Mounter
) -> None:
    mount = mounter((bucket / "large").source, "--endpoint", s3.endpoint, *BLOCK)
    assert mount.stats()["fetched_over_read"] is None
    read_by_eight(mount)
    stats = mount.stats()
    assert stats["store_bytes"] == len(LARGE)
    assert 0 < stats["fetched_over_read"] <= 1
    assert mount.gets() == LARGE_BLOCKS


def test_a_second_mount_on_the_same_cache_fetches_nothing(
    s3: S3, bucket: ObjectPath, mounter: Mounter
) -> None:
    source = (bucket / "small").source
    first = mounter(source, "--endpoint", s3.endpoint)
    assert read_tree(first.path) == FILES
    first.umount()
    second = mounter(source, "--endpoint", s3.endpoint)
    assert read_tree(second.path) == FILES
    assert second.stats()["store_bytes"] == 0
    assert second.gets() == 0


@needs_passthrough
def test_a_warm_large_file_in_passthrough_mode_causes_no_read(
    s3: S3, bucket: ObjectPath, mounter: Mounter, tmp_path: Path
) -> None:
    source = (bucket / "large").source
    mount = mounter(source, "--endpoint", s3.endpoint, *BLOCK, "--mode", "passthrough")
    assert (mount.path / "large.bin").read_bytes() == LARGE
    mount.wait_until_cached("large.bin")
    before = mount.stats()["requests"]["READ"]
    forget(mount.path)
    drop_pages((tmp_path / "cache/objects").rglob("*"))
    read_by_eight(mount)
    stats = mount.stats()
    assert stats["requests"]["READ"] == before
    assert stats["passthrough_opens"] == 8


def test_dropped_pages_are_read_from_the_cache_and_not_from_the_store(mount: Mount) -> None:
    read_tree(mount.path)
    assert mount.stats()["cached_bytes"] == BYTES
    forget(mount.path)
    before = sum(mount.stats()["hit_bytes"].values())
    assert read_tree(mount.path) == FILES
    wait_until(lambda: mount.gets() == len(FILES), mount.gets)
    assert sum(mount.stats()["hit_bytes"].values()) - before == BYTES


@pytest.mark.slow
def test_a_listing_of_a_hundred_thousand_entries_is_complete(
    tmp_path: Path, mounter: Mounter
) -> None:
    # In memory, where there is such a place: to make so many files takes ext4 20 s.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with TemporaryDirectory(dir=place) as folder:
        for number in range(100_000):
            os.close(os.open(f"{folder}/{number:06}", os.O_CREAT))
        mount = mounter(f"file://{folder}")
        assert sorted(os.listdir(mount.path)) == sorted(os.listdir(folder))
        mount.umount()


def read_by_eight(mount: Mount) -> None:
    with ThreadPoolExecutor(8) as readers:
        for found in readers.map(lambda _: read_raw(mount.path / "large.bin"), range(8)):
            assert found == LARGE


@pytest.fixture
def mount_row(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mounter:
    options = ((bucket / "row").source, "--endpoint", s3.endpoint, "--mode", "pagecache")
    return lambda *more: shared(*options, *more)


def read_all(mount: Mount, names: list[str]) -> None:
    for name in names:
        assert (mount.path / name).read_bytes() == ROW[name]


def prefetched_blocks(mount: Mount, least: int) -> int:
    """How many there are; 0 if there are fewer than `least`."""
    count = mount.stats()["prefetched_blocks"]
    return count if count >= least else 0


@pytest.mark.parametrize("options", [(), ("--no-cache",)])
def test_files_in_listing_order_are_fetched_before_they_are_read(
    mount_row: Mounter, options: tuple[str, ...]
) -> None:
    mount = mount_row(*options)
    before = mount.stats()["prefetched_blocks"]
    names = list(ROW)
    read_all(mount, names[:5])
    prefetched = before
    for number in range(5, len(names)):
        # The reader may have come to the fifth file first. Each later one is there before it.
        least = before + number - 4
        if prefetched < least:
            prefetched = wait_until(lambda least=least: prefetched_blocks(mount, least), number)
        read_all(mount, [names[number]])
    # A second request for what was slow may still be on its way.
    wait_until(lambda: mount.gets() == len(ROW), mount.gets)


def test_a_shuffled_reader_fetches_only_what_it_reads(mount_row: Mounter) -> None:
    mount = mount_row()
    before = mount.stats()
    read_all(mount, random.Random(1).sample(list(ROW), 50))
    stats = mount.stats()
    assert stats["prefetched_blocks"] == before["prefetched_blocks"]
    fetched, hedges = (stats[name] - before[name] for name in ("store_bytes", "hedges"))
    assert 5_000 * 50 <= fetched <= 5_000 * (50 + hedges)


def test_without_prefetch_nothing_is_fetched_ahead(mount_row: Mounter) -> None:
    mount = mount_row("--prefetch", "0")
    read_all(mount, list(ROW)[:20])
    assert (mount.gets(), mount.stats()["prefetched_blocks"]) == (20, 0)
