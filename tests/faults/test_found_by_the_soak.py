"""What the soak found, each as small as it can be."""

import errno
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.daemon.registry import find_note
from tests.support.mounts import Mounter
from tests.support.s3 import S3
from tests.support.trees import write_tree
from tests.support.waiting import wait_until

MIB = 1024 * 1024
DATA = random.Random(5).randbytes(3 * MIB)


def test_behind_the_end_of_a_file_that_became_shorter_there_is_estale(
    s3: S3, mounter: Mounter
) -> None:
    bucket = s3.bucket("shorter")
    write_tree(bucket, {"file": DATA})
    mount = mounter(
        "s3://shorter", "--endpoint", s3.endpoint, "--block-size", "1MiB", "--prefetch", "0",
        "--refresh", "never",
    )  # fmt: skip
    descriptor = os.open(mount.path / "file", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 10, 0) == DATA[:10]
        write_tree(bucket, {"file": DATA[: MIB // 2]})
        with pytest.raises(OSError, match="Stale") as caught:
            os.pread(descriptor, 10, 2 * MIB)
        assert caught.value.errno == errno.ESTALE
    finally:
        os.close(descriptor)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "test", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(ballast: Path) -> None:
    """Until not one page more is to be had."""
    with open(ballast, "wb", 0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_server_killed_while_the_disk_of_its_cache_is_full_is_replaced_at_once(
    small_disk: Path, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("full-disk"), {"first": DATA[:100_000], "second": DATA[100_000:]})
    mount = mounter(
        "s3://full-disk", "--endpoint", s3.endpoint, "--cache-dir", small_disk / "cache",
        "--cache-size", "3MiB",
    )  # fmt: skip
    assert (mount.path / "first").read_bytes() == DATA[:100_000]
    fill(small_disk / "ballast")
    pid = find_note(mount.path).server_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert (mount.path / "second").read_bytes() == DATA[100_000:]
    wait_until(lambda: find_note(mount.path).server_pid not in (None, pid), "no new server")
    assert find_note(mount.path).restarts == 1
