"""What makes it fast, told in counts: messages to the daemon, requests to the store, bytes."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.conftest import S3, Mounter, read_tree, write_tree
from tests.kernelcaches import drop_pages, forget

FILES = {f"n{i // 10:04}/img{i:05}.jpg": random.Random(i).randbytes(110 * 1024) for i in range(60)}
LARGE = random.Random(1).randbytes(20 * 1024 * 1024 + 12345)


def read_raw(path: Path) -> bytes:
    """open, read, close: the system calls and nothing around them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
    finally:
        os.close(descriptor)


def read_in_another_process(path: Path, readers: int = 1) -> None:
    code = "import sys; open(sys.argv[1], 'rb').read()"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(readers)]
    assert [process.wait() for process in processes] == [0] * readers


def test_a_warm_epoch_sends_the_daemon_no_message(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("warm"), FILES)
    mount = mounter("s3://warm", "--endpoint", s3.endpoint)
    assert read_tree(mount.path) == FILES
    names = list(FILES)

    def epoch() -> None:
        random.shuffle(names)
        for name in names:
            assert read_raw(mount.path / name) == FILES[name]

    assert mount.messages_while(epoch) == {}


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 asks this no more")
def test_pythons_own_open_adds_one_ioctl_and_nothing_else(s3: S3, mounter: Mounter) -> None:
    """`open()` asks each file whether it is a terminal, and the kernel passes that on to FUSE."""
    write_tree(s3.bucket("ioctl"), FILES)
    mount = mounter("s3://ioctl", "--endpoint", s3.endpoint)
    assert read_tree(mount.path) == FILES
    assert mount.messages_while(lambda: read_tree(mount.path)) == {"IOCTL": len(FILES)}

    def read_with_a_buffer() -> None:
        for name in FILES:
            with open(mount.path / name, "rb", buffering=65536) as file:
                assert file.read() == FILES[name]

    assert mount.messages_while(read_with_a_buffer) == {}


def test_a_cold_epoch_fetches_each_byte_once(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("cold"), FILES)
    mount = mounter("s3://cold", "--endpoint", s3.endpoint)
    with ThreadPoolExecutor(8) as readers:
        found = dict(readers.map(lambda name: (name, (mount.path / name).read_bytes()), FILES))
    assert found == FILES
    stats = mount.stats()
    assert stats["store_bytes"] == stats["bytes"] == sum(map(len, FILES.values()))
    assert mount.gets() == len(FILES)


def test_eight_readers_of_one_large_file_fetch_each_byte_once(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("eight"), {"large.bin": LARGE})
    mount = mounter("s3://eight", "--endpoint", s3.endpoint, "--block-size", "4MiB")
    read_in_another_process(mount.path / "large.bin", readers=8)
    assert mount.stats()["store_bytes"] == len(LARGE)
    assert mount.gets() == 6
    assert (mount.path / "large.bin").read_bytes() == LARGE


def test_a_second_mount_on_the_same_cache_fetches_nothing(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("second"), {**FILES, "large.bin": LARGE})
    first = mounter("s3://second", "--endpoint", s3.endpoint)
    expected = read_tree(first.path)
    first.umount()
    second = mounter("s3://second", "--endpoint", s3.endpoint)
    assert read_tree(second.path) == expected
    assert second.stats()["store_bytes"] == 0
    assert second.gets() == 0


def test_a_warm_large_file_in_passthrough_mode_causes_no_read(
    s3: S3, mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(s3.bucket("through"), {"large.bin": LARGE})
    mount = mounter("s3://through", "--endpoint", s3.endpoint)
    assert mount.stats()["mode"] == "passthrough"
    assert (mount.path / "large.bin").read_bytes() == LARGE
    mount.wait_until_cached("large.bin")
    before = mount.stats()["requests"]["READ"]
    forget(mount.path)
    drop_pages((tmp_path / "cache/objects").rglob("*"))
    assert (mount.path / "large.bin").read_bytes() == LARGE
    read_in_another_process(mount.path / "large.bin", readers=8)
    stats = mount.stats()
    assert stats["requests"]["READ"] == before
    assert stats["passthrough_opens"] == 9


def test_pages_dropped_are_read_from_the_cache_and_not_from_the_store(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("dropped"), FILES)
    # What is fetched ahead would be a hit when it is read.
    mount = mounter("s3://dropped", "--endpoint", s3.endpoint, "--prefetch", "0")
    read_tree(mount.path)
    assert mount.stats()["cached_bytes"] == mount.stats()["bytes"]
    forget(mount.path)
    assert read_tree(mount.path) == FILES
    stats = mount.stats()
    assert stats["store_bytes"] == stats["bytes"]
    assert sum(stats["hit_bytes"].values()) == stats["bytes"]


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


def test_whole_files_read_at_random_fetch_hardly_more_than_is_read(
    s3: S3, mounter: Mounter
) -> None:
    files = {**FILES, **{f"large{n}.bin": LARGE[: 5_000_000 + n] for n in range(4)}}
    write_tree(s3.bucket("ratio"), files)
    mount = mounter("s3://ratio", "--endpoint", s3.endpoint, "--block-size", "1MiB")
    assert mount.stats()["fetched_over_read"] is None
    names = list(files)
    random.Random(4).shuffle(names)
    for name in names:
        assert read_raw(mount.path / name) == files[name]
    stats = mount.stats()
    assert stats["read_bytes"] == sum(map(len, files.values()))
    assert stats["fetched_over_read"] < 1.1
