"""Bytes that rot in the cache never reach a reader."""

import json
import os
import random
from pathlib import Path

from tests.support.mounts import Mounter, both_modes, penstock
from tests.support.s3 import S3
from tests.support.trees import write_tree

LARGE = random.Random(11).randbytes(3 * 1024 * 1024 + 5)


def damage(cache: Path) -> None:
    (row,) = json.loads(penstock("cache", "ls", "--cache-dir", cache, "-o", "json").stdout)
    with open(row["file"], "r+b") as file:
        file.seek(2 * 1024 * 1024)
        file.write(b"rotten")
        os.fsync(file.fileno())


@both_modes
def test_a_damaged_file_is_never_handed_to_the_kernel(
    mode: str, tmp_path: Path, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket(f"rot-{mode}"), {"large.bin": LARGE})
    options = (f"s3://rot-{mode}", "--endpoint", s3.endpoint, "--mode", mode,
               "--block-size", "1MiB")  # fmt: skip
    first = mounter(*options)
    assert (first.path / "large.bin").read_bytes() == LARGE
    first.umount()
    damage(tmp_path / "cache")
    second = mounter(*options)
    assert (second.path / "large.bin").read_bytes() == LARGE
    assert second.stats()["corrupt_blocks"] == 1
    assert second.gets() == 1, "only the damaged block is fetched again"
