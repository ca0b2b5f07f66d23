"""What programs do with files works over a mount, in both modes, and changes nothing."""

import errno
import hashlib
import mmap
import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounts import MODES, Mounter
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_tree, write_tree

DATA = {
    **{f"n{i % 3}/{i:02}.jpg": random.Random(i).randbytes(10_000 + 331 * i) for i in range(20)},
    "empty": b"",
    "labels/with space/ünï.txt": "0 katze\n1 Hündin\n".encode(),
    "labels/odd 'quotes\".csv": b"a,b\n",
}
LARGE = random.Random(20).randbytes(9 * 1024 * 1024 + 12345)
FILE = "data/n0/00.jpg"


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket / "data", DATA)
    write_tree(empty_bucket, {"large.bin": LARGE})
    return empty_bucket


@pytest.fixture(params=MODES)
def root(request: pytest.FixtureRequest, s3: S3, bucket: ObjectPath, shared: Mounter) -> Path:
    options = ("--endpoint", s3.endpoint, "--mode", request.param, "--block-size", "4MiB")
    return shared(bucket.source, *options).path


def test_no_bytes_follow_the_end_of_a_file(root: Path) -> None:
    descriptor = os.open(root / "large.bin", os.O_RDONLY)
    try:
        assert os.pread(descriptor, 100, len(LARGE) - 10) == LARGE[-10:]
        assert os.pread(descriptor, 100, len(LARGE)) == b""
        assert os.pread(descriptor, 100, len(LARGE) + 2**40) == b""
        assert os.lseek(descriptor, 0, os.SEEK_END) == len(LARGE)
        assert os.lseek(descriptor, 0, os.SEEK_HOLE) == len(LARGE)
        assert os.lseek(descriptor, 4096, os.SEEK_DATA) == 4096
    finally:
        os.close(descriptor)


def test_a_mapped_file_has_the_bytes_of_the_object(root: Path) -> None:
    for _ in range(2):  # cold, and warm
        with open(root / "large.bin", "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for at in random.Random(5).sample(range(len(LARGE) - 64), 100):
            assert pages[at : at + 64] == LARGE[at : at + 64]
        assert pages[:] == LARGE
        pages.close()


def test_sendfile_sends_a_whole_file(root: Path, tmp_path: Path) -> None:
    with open(root / "large.bin", "rb") as source, open(tmp_path / "out", "wb") as target:
        sent = 0
        while more := os.sendfile(target.fileno(), source.fileno(), sent, 1 << 30):
            sent += more
    assert sent == len(LARGE)
    assert (tmp_path / "out").read_bytes() == LARGE


def test_direct_io_returns_the_same_bytes(root: Path) -> None:
    descriptor = os.open(root / "large.bin", os.O_RDONLY | os.O_DIRECT)
    try:
        pages = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants an aligned buffer
        for at in (0, 5 << 20, 9 << 20):
            length = os.preadv(descriptor, [pages], at)
            assert pages[:length] == LARGE[at : at + (1 << 20)]
        pages.close()
    finally:
        os.close(descriptor)


def test_a_file_has_the_size_and_time_of_its_object(root: Path, s3: S3, bucket: ObjectPath) -> None:
    listed = s3.client.list_objects_v2(Bucket=bucket.bucket, Prefix="data/")
    modified = {one["Key"]: one["LastModified"] for one in listed["Contents"]}
    for name, data in DATA.items():
        found = (root / "data" / name).stat()
        assert stat.S_IMODE(found.st_mode) == 0o444
        assert stat.S_ISREG(found.st_mode)
        assert (found.st_size, found.st_nlink) == (len(data), 1)
        assert found.st_blocks == -(-len(data) // 512)
        assert int(found.st_mtime) == int(modified[f"data/{name}"].timestamp())
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())
    folder = (root / "data").stat()
    assert stat.S_ISDIR(folder.st_mode)
    assert stat.S_IMODE(folder.st_mode) == 0o555


def test_the_version_attribute_of_a_file_is_its_etag(root: Path) -> None:
    for name, data in (("large.bin", LARGE), (FILE, DATA["n0/00.jpg"])):
        etag = hashlib.md5(data).hexdigest()
        assert os.getxattr(root / name, "user.penstock.version") == etag.encode()


def test_an_attribute_tells_how_much_of_a_file_is_cached(root: Path) -> None:
    path = root / FILE
    assert os.listxattr(path) == ["user.penstock.version", "user.penstock.cached"]
    assert os.getxattr(path, "user.penstock.cached") == b"0"
    assert len(path.read_bytes()) == 10_000
    assert os.getxattr(path, "user.penstock.cached") == b"10000"
    with pytest.raises(OSError, match="No data") as caught:
        os.getxattr(path, "user.other")
    assert caught.value.errno == errno.ENODATA
    assert os.listxattr(root / "data") == []


# The kernel refuses all of these by the mount's flag; tests/fuse/test_handlers.py has what the
# server would say.
CHANGES: tuple[Callable[[Path], object], ...] = (
    lambda root: os.open(root / FILE, os.O_WRONLY),
    lambda root: os.open(root / FILE, os.O_RDONLY | os.O_TRUNC),
    lambda root: os.truncate(root / FILE, 0),
    lambda root: (root / "data/new").open("xb"),
    lambda root: (root / "new").mkdir(),
    lambda root: (root / FILE).unlink(),
    lambda root: (root / "data").rename(root / "new"),
    lambda root: os.link(root / FILE, root / "data/new"),
    lambda root: root.chmod(0o777),
    lambda root: os.utime(root / FILE, (1, 1)),
    lambda root: os.setxattr(root / FILE, "user.penstock.version", b"1"),
)


def test_every_modifying_call_gives_erofs(root: Path) -> None:
    for change in CHANGES:
        with pytest.raises(OSError, match="Read-only file system"):
            change(root)
    assert read_tree(root / "data") == DATA
    assert sorted(os.listdir(root)) == ["data", "large.bin"]


def test_folders_look_to_programs_as_on_other_file_systems(root: Path) -> None:
    data = root / "data"
    # One link: a program that takes the others for sub-folders would find none.
    assert (root.stat().st_nlink, data.stat().st_nlink) == (1, 1)
    found = subprocess.run(["find", data, "-type", "d"], capture_output=True, text=True, check=True)
    folders = [data, *(path for path in data.rglob("*") if path.is_dir())]
    assert sorted(found.stdout.splitlines()) == sorted(map(str, folders))
    listed = subprocess.run(["ls", "-aif", data], capture_output=True, text=True, check=True)
    numbers = {name: int(number) for number, name in map(str.split, listed.stdout.splitlines())}
    assert (numbers["."], numbers[".."]) == (data.stat().st_ino, root.stat().st_ino)
    assert numbers.keys() - {".", ".."} == set(os.listdir(data))
    with pytest.raises(OSError, match="File name too long"):
        os.stat(root / ("x" * 256))
    with pytest.raises(FileNotFoundError):
        os.stat(root / ("x" * 255))
