"""Bytes that rot in the cache never reach a reader."""

import json
import os
import random
from pathlib import Path

import pytest

from tests.conftest import S3, Mounter, penstock, write_tree
from tests.kernelcaches import forget

LARGE = random.Random(11).randbytes(10 * 1024 * 1024 + 5)


def damage(cache: Path) -> None:
    (row,) = json.loads(penstock("cache", "ls", "--cache-dir", cache, "-o", "json").stdout)
    with open(row["file"], "r+b") as file:
        file.seek(9 * 1024 * 1024)
        file.write(b"rotten")
        os.fsync(file.fileno())


@pytest.mark.parametrize("mode", ["pagecache", "passthrough"])
def test_a_damaged_file_is_never_handed_to_the_kernel(
    mode: str, tmp_path: Path, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket(f"rot-{mode}"), {"large.bin": LARGE})
    options = (f"s3://rot-{mode}", "--endpoint", s3.endpoint, "--mode", mode)
    first = mounter(*options)
    assert (first.path / "large.bin").read_bytes() == LARGE
    first.umount()
    damage(tmp_path / "cache")
    second = mounter(*options)
    assert (second.path / "large.bin").read_bytes() == LARGE
    assert second.stats()["corrupt_blocks"] == 1
    assert second.gets() == 1, "only the damaged block is fetched again"


def test_a_block_that_rots_while_it_is_mounted_is_fetched_again(
    tmp_path: Path, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("rot"), {"large.bin": LARGE})
    mount = mounter("s3://rot", "--endpoint", s3.endpoint, "--mode", "pagecache")
    for _ in range(2):  # a block that its first reader got before the cache is held for the next
        assert (mount.path / "large.bin").read_bytes() == LARGE
        mount.wait_until_cached("large.bin")
        forget(mount.path)
    damage(tmp_path / "cache")
    assert (mount.path / "large.bin").read_bytes() == LARGE
    assert mount.stats()["corrupt_blocks"] == 1
