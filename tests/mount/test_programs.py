"""Everything a training stack does works over a mount, in both modes."""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from tests.support.everything import DATA, LARGE, SAMPLES, UNREAD, WIDE, Mounted
from tests.support.s3 import S3
from tests.support.trees import read_tree


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    return result.stdout


# -- system calls -----------------------------------------------------------------------


def test_python_reads_and_seeks_as_in_any_file(mounted: Mounted) -> None:
    with open(mounted.path / "large.bin", "rb") as file:
        assert file.seek(-5, os.SEEK_END) == len(LARGE) - 5
        assert file.read() == LARGE[-5:]
        assert file.seek(7 * 1024 * 1024) == 7 * 1024 * 1024
        assert file.read(100_000) == LARGE[7 * 1024 * 1024 :][:100_000]
        assert file.seek(10, os.SEEK_CUR) == 7 * 1024 * 1024 + 100_010
        assert file.seek(0) == 0
        assert file.read() == LARGE
        assert file.read() == b""


def test_nothing_comes_from_behind_the_end_of_a_file(mounted: Mounted) -> None:
    descriptor = os.open(mounted.path / "large.bin", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 100, len(LARGE) - 10) == LARGE[-10:]
        assert os.pread(descriptor, 100, len(LARGE)) == b""
        assert os.pread(descriptor, 100, len(LARGE) + 2**40) == b""
        assert os.lseek(descriptor, 0, os.SEEK_END) == len(LARGE)
        assert os.lseek(descriptor, 0, os.SEEK_HOLE) == len(LARGE)
        assert os.lseek(descriptor, 4096, os.SEEK_DATA) == 4096
    finally:
        os.close(descriptor)


def test_a_file_of_no_bytes_is_empty_in_every_way(mounted: Mounted) -> None:
    path = mounted.path / "data/empty"
    assert path.stat().st_size == path.stat().st_blocks == 0
    assert path.read_bytes() == b""
    with open(path, "rb") as file, pytest.raises(ValueError, match="empty file"):
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert run("cat", path) == ""


def test_the_kernel_reads_cached_files_by_itself_in_passthrough_mode_only(
    mounted: Mounted,
) -> None:
    path = mounted.path / "unread/2.bin"
    before = mounted.mount.stats()["passthrough_opens"]
    expected = (mounted.source / "unread/2.bin").read_bytes()
    assert path.read_bytes() == expected
    mounted.mount.wait_until_cached("unread/2.bin")
    assert [path.read_bytes() for _ in range(2)] == [expected] * 2
    opens = mounted.mount.stats()["passthrough_opens"] - before
    assert opens == (2 if mounted.mode == "passthrough" else 0)


def test_a_mapped_file_has_the_bytes_of_the_object(mounted: Mounted) -> None:
    name = "n0004/img00099.jpg"
    for _ in range(2):  # cold, and warm
        with open(mounted.path / "data" / name, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert pages[-100:] == DATA[name][-100:]
        assert pages[:] == DATA[name]
        pages.close()


def test_numpy_maps_a_large_file_and_reads_it_at_random(mounted: Mounted) -> None:
    values = numpy.memmap(mounted.path / "large.bin", numpy.uint8, "r")
    assert values.shape == (len(LARGE),)
    for at in random.Random(5).sample(range(len(LARGE) - 64), 500):
        assert values[at : at + 64].tobytes() == LARGE[at : at + 64]
    assert hashlib.sha256(values).digest() == hashlib.sha256(LARGE).digest()


def test_sendfile_sends_a_whole_file(mounted: Mounted, tmp_path: Path) -> None:
    with open(mounted.path / "large.bin", "rb") as source, open(tmp_path / "out", "wb") as target:
        sent = 0
        while more := os.sendfile(target.fileno(), source.fileno(), sent, 1 << 30):
            sent += more
    assert sent == len(LARGE)
    assert (tmp_path / "out").read_bytes() == LARGE


def test_reads_that_go_around_the_page_cache_give_the_same_bytes(mounted: Mounted) -> None:
    descriptor = os.open(mounted.path / "large.bin", os.O_RDONLY | os.O_DIRECT)
    try:
        pages = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants an aligned buffer
        for at in (0, 5 << 20, 9 << 20):
            length = os.preadv(descriptor, [pages], at)
            assert pages[:length] == LARGE[at : at + (1 << 20)]
        pages.close()
    finally:
        os.close(descriptor)


def test_hints_and_shared_locks_are_accepted(mounted: Mounted) -> None:
    with open(mounted.path / "large.bin", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        os.posix_fadvise(file.fileno(), 0, 1 << 20, os.POSIX_FADV_WILLNEED)
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_UN)
        assert file.read(10) == LARGE[:10]
    assert os.access(mounted.path / "large.bin", os.R_OK)
    assert not os.access(mounted.path / "large.bin", os.W_OK)


def test_a_file_can_be_open_many_times_and_in_many_ways(mounted: Mounted) -> None:
    path = mounted.path / "unread/8.bin"
    expected = (mounted.source / "unread/8.bin").read_bytes()
    with open(path, "rb") as first:  # before any byte of it is cached
        assert first.read(10) == expected[:10]
        with open(path, "rb") as second:  # and after all are
            assert second.read() == expected
        assert path.read_bytes() == expected
        assert first.read() == expected[10:]
    assert path.read_bytes() == expected


# -- names and attributes ---------------------------------------------------------------


def test_a_file_has_the_size_and_time_of_its_object(mounted: Mounted, s3: S3) -> None:
    listed = s3.client.list_objects_v2(Bucket=mounted.source.bucket, Prefix="data/")
    modified = {one["Key"]: one["LastModified"] for one in listed["Contents"]}
    for name, data in DATA.items():
        found = (mounted.path / "data" / name).stat()
        assert stat.S_IMODE(found.st_mode) == 0o444
        assert stat.S_ISREG(found.st_mode)
        assert (found.st_size, found.st_nlink) == (len(data), 1)
        assert found.st_blocks == -(-len(data) // 512)
        assert int(found.st_mtime) == int(modified[f"data/{name}"].timestamp())
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    folder = (mounted.path / "data").stat()
    assert stat.S_ISDIR(folder.st_mode)
    assert stat.S_IMODE(folder.st_mode) == 0o555


def test_the_file_system_tells_its_size_and_that_it_is_full_and_read_only(
    mounted: Mounted,
) -> None:
    found = os.statvfs(mounted.path)
    assert found.f_files == len(DATA) + 1 + UNREAD + WIDE
    total = sum(map(len, [*DATA.values(), LARGE])) + 5000 * UNREAD
    total += sum(len(str(number)) for number in range(WIDE))
    assert total <= found.f_blocks * found.f_frsize < total + found.f_frsize
    assert (found.f_bfree, found.f_bavail, found.f_ffree, found.f_namemax) == (0, 0, 0, 255)
    assert found.f_flag & os.ST_RDONLY


def test_a_directory_of_thousands_is_listed_in_full_each_time(mounted: Mounted) -> None:
    expected = [f"{number:04}.txt" for number in range(WIDE)]
    for _ in range(2):
        assert sorted(os.listdir(mounted.path / "wide")) == expected
    with os.scandir(mounted.path / "wide") as entries:
        found = {entry.name: (entry.is_file(), entry.stat().st_size) for entry in entries}
    assert found == {name: (True, len(str(int(name[:4])))) for name in expected}


def test_the_version_of_a_file_is_its_etag(mounted: Mounted) -> None:
    for name in ("large.bin", "data/n0001/img00030.jpg"):
        etag = hashlib.md5((mounted.source / name).read_bytes()).hexdigest()
        assert os.getxattr(mounted.path / name, "user.penstock.version") == etag.encode()


def test_an_attribute_tells_how_much_of_a_file_is_cached(mounted: Mounted) -> None:
    path = mounted.path / "unread/1.bin"
    assert os.listxattr(path) == ["user.penstock.version", "user.penstock.cached"]
    assert os.getxattr(path, "user.penstock.cached") == b"0"
    assert len(path.read_bytes()) == 5000
    assert os.getxattr(path, "user.penstock.cached") == b"5000"
    with pytest.raises(OSError, match="No data") as caught:
        os.getxattr(path, "user.other")
    assert caught.value.errno == errno.ENODATA
    assert os.listxattr(mounted.path / "unread") == []


# -- programs ---------------------------------------------------------------------------


@pytest.mark.slow  # each worker imports torch anew
@pytest.mark.timeout(300)
def test_the_workers_of_a_pytorch_loader_read_every_sample(mounted: Mounted) -> None:
    """Spawned ones; tests/faults/test_programs_under_faults.py has forked ones."""
    script = Path(__file__).with_name("train.py")
    said = run(sys.executable, "-W", "error", script, mounted.path / "data", "spawn")
    epoch = {name: hashlib.sha256(data).hexdigest() for name, data in SAMPLES.items()}
    assert json.loads(said) == [epoch, epoch]


def test_rsync_by_checksum_copies_once_and_then_nothing(mounted: Mounted, tmp_path: Path) -> None:
    command = ("rsync", "-a", "-c", "--itemize-changes", f"{mounted.path}/data/", f"{tmp_path}/to/")
    first = run(*command)
    assert sum(line.startswith(">f") for line in first.splitlines()) == len(DATA)
    assert read_tree(tmp_path / "to") == DATA
    assert run(*command) == ""


def test_a_copy_differs_in_nothing(mounted: Mounted, tmp_path: Path) -> None:
    run("cp", "-r", mounted.path / "data", mounted.path / "large.bin", tmp_path)
    assert read_tree(tmp_path / "data") == DATA
    assert (tmp_path / "large.bin").read_bytes() == LARGE
    assert run("diff", "-r", mounted.path / "data", tmp_path / "data") == ""
    assert run("cmp", mounted.path / "large.bin", tmp_path / "large.bin") == ""
