"""Random reads of a large cached file in page-cache mode, told in counts."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.warm import advice
from tests.support.kernelcaches import drop_pages
from tests.support.mounts import Mount, Mounter
from tests.support.page_counts import locked_pages, missing_pages
from tests.support.processes import commands
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

REGION = 8 << 20
UNIT = 128 << 10
READ = 16 << 10
PAGE = 4096
LARGE = random.Random(18).randbytes(8 * REGION)
WORKERS = pytest.mark.parametrize("workers", ["1", "3"])


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, {"large.bin": LARGE})
    return empty_bucket


@pytest.fixture
def cached(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mounter:
    """Mounts with the file in the local cache, and none of it in the page cache."""

    def mount(*options: str | Path) -> Mount:
        source = (bucket.source, "--endpoint", s3.endpoint, "--mode", "pagecache")
        mount = shared(*source, *options)
        assert (mount.path / "large.bin").read_bytes() == LARGE
        mount.wait_until_cached("large.bin")
        drop_pages([mount.path / "large.bin"])
        return mount

    return mount


@contextmanager
def random_reader(mount: Mount) -> Iterator[int]:
    file = os.open(mount.path / "large.bin", os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        yield file
    finally:
        os.close(file)


def read(file: int, offsets: list[int], length: int = READ) -> None:
    for offset in offsets:
        assert os.pread(file, length, offset) == LARGE[offset : offset + length]


def an_eighth(region: int, units: int = 8) -> list[int]:
    """Some offsets in a region, in as many units."""
    return [region * REGION + 3 * unit * UNIT + READ for unit in range(units)]


def loaded(mount: Mount) -> int:
    return mount.stats()["loaded_regions"]


@WORKERS
def test_after_an_eighth_of_each_region_random_reads_send_no_message(
    cached: Mounter, workers: str
) -> None:
    """4,096 reads of 16 KiB cost at most 264 messages, and 4,096 without it."""
    mount = cached("--workers", workers)
    path, before = mount.path / "large.bin", loaded(mount)
    offsets = random.Random(5).sample(range(0, len(LARGE), READ), len(LARGE) // READ)

    def read_an_eighth_and_wait() -> None:
        with random_reader(mount) as file:
            for region in range(8):
                read(file, an_eighth(region))
        wait_until(lambda: not missing_pages(path))

    def read_everything() -> None:
        with random_reader(mount) as file:
            read(file, offsets)

    messages = mount.messages_while(read_an_eighth_and_wait)
    # In each region: 8 reads, and 8 requests of 1 MiB; each is cut at the pages that were read.
    assert set(messages) <= {"READ", "LOOKUP", "GETATTR"}
    assert 64 + 64 <= messages["READ"] <= 8 * (8 + 8 + 8 + 9)
    assert loaded(mount) == before + 8
    with locked_pages([path]):
        assert mount.messages_while(read_everything) == {}


def test_a_reader_that_does_not_come_back_loads_nothing(cached: Mounter) -> None:
    mount = cached()
    before = loaded(mount)

    def read_less() -> None:
        with random_reader(mount) as file:
            for region in range(8):
                read(file, an_eighth(region, units=7))

    assert mount.messages_while(read_less) == {"READ": 56}
    assert loaded(mount) == before
    assert missing_pages(mount.path / "large.bin") == (len(LARGE) - 56 * READ) // PAGE


def test_a_sequential_reader_loads_no_region(cached: Mounter) -> None:
    mount = cached()
    before = loaded(mount)
    assert (mount.path / "large.bin").read_bytes() == LARGE
    assert loaded(mount) == before


def test_a_region_is_loaded_from_the_cache_and_not_from_the_store(cached: Mounter) -> None:
    mount = cached()
    before, gets = loaded(mount), mount.gets()
    with random_reader(mount) as file:
        read(file, an_eighth(3))
        wait_until(lambda: missing_pages(mount.path / "large.bin") == 7 * REGION // PAGE)
    assert loaded(mount) == before + 1
    assert mount.gets() == gets


def test_a_file_larger_than_the_page_cache_may_use_is_not_loaded(cached: Mounter) -> None:
    mount = cached("--page-cache", "63MiB")
    with random_reader(mount) as file:
        read(file, an_eighth(0, units=20))
    assert loaded(mount) == 0
    assert missing_pages(mount.path / "large.bin") == (len(LARGE) - 20 * READ) // PAGE


def test_a_server_that_takes_over_loads_regions_and_leaves_one_process(
    s3: S3, bucket: ObjectPath, mounter: Mounter
) -> None:
    options = (bucket.source, "--endpoint", s3.endpoint, "--mode", "pagecache")
    mount = mounter(*options)
    assert (mount.path / "large.bin").read_bytes() == LARGE
    mount.wait_until_cached("large.bin")
    drop_pages([mount.path / "large.bin"])

    def advisers() -> list[int]:
        mine = os.fsencode(mount.path)
        found = commands().items()
        return [
            pid for pid, words in found if os.fsencode(advice.__file__) in words and mine in words
        ]

    with random_reader(mount) as file:
        read(file, an_eighth(0))
        wait_until(lambda: loaded(mount) == 1)
        before = mount.stats()["pid"]
        os.kill(before, 9)
        wait_until(lambda: mount.stats()["pid"] != before)
        read(file, an_eighth(1))
        wait_until(lambda: missing_pages(mount.path / "large.bin") == 6 * REGION // PAGE)
    wait_until(lambda: len(advisers()) == 1, "only the new server's process")
    mount.umount()
    wait_until(lambda: not advisers(), "nothing is left")
