"""Small files read in listing order are fetched ahead; shuffled ones are not."""

import random

import pytest

from tests.conftest import S3, Mounter, write_tree
from tests.survival.kills import wait_until

FILES = {f"a/{i:03}.jpg": random.Random(i).randbytes(5_000) for i in range(300)}


@pytest.mark.parametrize("cache", ["cached", "uncached"])
def test_files_in_listing_order_are_fetched_before_they_are_asked_for(
    s3: S3, mounter: Mounter, cache: str
) -> None:
    write_tree(s3.bucket(f"in-order-{cache}"), FILES)
    options = ["--no-cache"] if cache == "uncached" else []
    mount = mounter(
        f"s3://in-order-{cache}", "--endpoint", s3.endpoint, "--mode", "pagecache", *options
    )
    for name in list(FILES)[:5]:
        assert (mount.path / name).read_bytes() == FILES[name]
    # Four; or three, if the reader is at the next one before us.
    wait_until(lambda: mount.stats()["prefetched_blocks"] >= 3, "some more")
    for name, data in FILES.items():
        assert (mount.path / name).read_bytes() == data
    stats = mount.stats()
    assert stats["prefetched_blocks"] >= 200
    assert len(FILES) <= mount.gets() <= len(FILES) + stats["hedges"]


def test_a_shuffled_reader_gets_what_it_asks_for_and_no_more(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("shuffled"), FILES)
    mount = mounter("s3://shuffled", "--endpoint", s3.endpoint, "--mode", "pagecache")
    names = list(FILES)
    random.Random(1).shuffle(names)
    for name in names[:50]:
        assert (mount.path / name).read_bytes() == FILES[name]
    stats = mount.stats()
    assert stats["prefetched_blocks"] == 0
    assert 5_000 * 50 <= stats["store_bytes"] <= 5_000 * (50 + stats["hedges"])


def test_without_prefetch_nothing_is_fetched_ahead(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("no-prefetch"), FILES)
    mount = mounter(
        "s3://no-prefetch", "--endpoint", s3.endpoint, "--mode", "pagecache", "--prefetch", "0"
    )
    for name in list(FILES)[:20]:
        (mount.path / name).read_bytes()
    assert (mount.gets(), mount.stats()["prefetched_blocks"]) == (20, 0)
