"""Small files read in listing order are fetched ahead; shuffled ones are not."""

import random

import pytest

from tests.support.mounts import Mount, Mounter
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

FILES = {f"a/{i:03}.jpg": random.Random(i).randbytes(5_000) for i in range(300)}


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, FILES)
    return empty_bucket


@pytest.fixture
def mount_set(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mounter:
    options = (bucket.source, "--endpoint", s3.endpoint, "--mode", "pagecache")
    return lambda *more: shared(*options, *more)


def read_all(mount: Mount, names: list[str]) -> None:
    for name in names:
        assert (mount.path / name).read_bytes() == FILES[name]


@pytest.mark.parametrize("options", [(), ("--no-cache",)])
def test_files_in_listing_order_are_fetched_before_they_are_asked_for(
    mount_set: Mounter, options: tuple[str, ...]
) -> None:
    mount = mount_set(*options)
    before = mount.stats()["prefetched_blocks"]
    read_all(mount, list(FILES)[:5])
    # Four; or three, if the reader is at the next one before us.
    wait_until(lambda: mount.stats()["prefetched_blocks"] - before >= 3, "some more")
    read_all(mount, list(FILES))
    assert mount.stats()["prefetched_blocks"] - before >= 200
    # A second request for what was slow may still be on its way.
    wait_until(lambda: mount.gets() == len(FILES), mount.gets)


def test_a_shuffled_reader_gets_what_it_asks_for_and_no_more(
    mount_set: Mounter,
) -> None:
    mount = mount_set()
    before = mount.stats()
    read_all(mount, random.Random(1).sample(list(FILES), 50))
    stats = mount.stats()
    assert stats["prefetched_blocks"] == before["prefetched_blocks"]
    fetched, hedges = (stats[name] - before[name] for name in ("store_bytes", "hedges"))
    assert 5_000 * 50 <= fetched <= 5_000 * (50 + hedges)


def test_without_prefetch_nothing_is_fetched_ahead(mount_set: Mounter) -> None:
    mount = mount_set("--prefetch", "0")
    read_all(mount, list(FILES)[:20])
    assert (mount.gets(), mount.stats()["prefetched_blocks"]) == (20, 0)
