"""The option names people know: each does what it says, or is refused with the reason."""

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.mount_options import ALWAYS, REFUSED, parse_kernel_options
from tests.support.loader_places import state
from tests.support.mounts import Mount, Mounter, mounting, penstock
from tests.support.trees import write_tree

__all__ = ["state"]  # a fixture
MIB = 1024 * 1024
DATA = random.Random(7).randbytes(4 * MIB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    write_tree(folder, {"dir/file.bin": DATA})
    return folder


@pytest.fixture(scope="module")
def default(folder: Path, tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[Mount]:
    """A mount without any option but its mode."""
    with mounting(tmp_path_factory.mktemp("default")) as mounter:
        yield mounter(f"file://{folder}", "--mode", "pagecache")


def test_reads_arrive_in_requests_of_the_configured_size(
    folder: Path, default: Mount, mounter: Mounter
) -> None:
    """With the options of a published command line, as they are written there."""
    words = "kernel_cache,ro,max_read=131072,attr_timeout=7200,entry_timeout=7200,allow_other"
    familiar = mounter(f"file://{folder}", "--mode", "pagecache", "-o", words)
    for mount, least, most in ((default, 1, 6), (familiar, 32, 33)):  # of 1 MiB, of 128 KiB
        with open(mount.path / "dir/file.bin", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            sent = mount.messages_while(lambda file=file: file.seek(0) or file.read())
        # One more if the kernel takes back a page.
        assert least <= sent["READ"] <= most
        assert (mount.path / "dir/file.bin").read_bytes() == DATA


def test_missing_names_are_cached_too(default: Mount) -> None:
    missing = default.path / "missing"
    assert not missing.exists()
    assert default.messages_while(missing.exists) == {}


def test_owner_and_modes_follow_the_options(folder: Path, mounter: Mounter) -> None:
    mount = mounter(
        f"file://{folder}",
        "--uid",
        "1234",
        "--gid",
        "2345",
        "--file-mode",
        "0640",
        "--dir-mode",
        "0750",
    )
    file, directory = os.stat(mount.path / "dir/file.bin"), os.stat(mount.path / "dir")
    assert (file.st_uid, file.st_gid, file.st_mode & 0o777) == (1234, 2345, 0o640)
    assert (directory.st_uid, directory.st_mode & 0o777) == (1234, 0o750)


def test_names_and_attributes_are_kept_for_the_configured_time(
    folder: Path, default: Mount, mounter: Mounter
) -> None:
    asked = mounter(f"file://{folder}", "--attr-cache", "0", "--entry-cache", "0")
    for mount, expected in ((default, (False, False)), (asked, (True, True))):
        path = mount.path / "dir/file.bin"
        descriptor = os.open(path, os.O_RDONLY)
        os.stat(path)
        by_name = mount.messages_while(path.stat)
        by_descriptor = mount.messages_while(lambda fd=descriptor: os.fstat(fd))
        os.close(descriptor)
        assert ("LOOKUP" in by_name, "GETATTR" in by_descriptor) == expected


@pytest.mark.parametrize("prefetch", ["0", "2"])
def test_blocks_have_the_configured_size_and_prefetch(
    folder: Path, mounter: Mounter, prefetch: str
) -> None:
    options = ("--block-size", "1024", "--prefetch", prefetch, "--mode", "pagecache")
    mount = mounter(f"file://{folder}", *options)
    assert (mount.path / "dir/file.bin").read_bytes() == DATA
    assert mount.gets() == 4
    assert (mount.stats()["prefetched_blocks"] > 0) == (prefetch != "0")


def test_tiers_are_filled_in_their_order(tmp_path: Path, mounter: Mounter) -> None:
    write_tree(tmp_path / "pieces", {f"{n}.bin": DATA[: MIB // 2] for n in range(8)})
    mount = mounter(
        f"file://{tmp_path}/pieces",
        f"--tier=MEM:{tmp_path}/mem:2MiB:high=1,low=0.8",
        f"--tier=SSD:{tmp_path}/a,{tmp_path}/b:1GiB",
    )
    for number in range(8):
        (mount.path / f"{number}.bin").read_bytes()
        mount.wait_until_cached(f"{number}.bin")
    tiers = {tier["name"]: tier["used_bytes"] for tier in mount.stats()["tiers"]}
    assert tiers == {"MEM": 2 * MIB, "SSD": 2 * MIB}


def test_the_cache_commands_list_verify_and_clear(
    tmp_path: Path, folder: Path, mounter: Mounter
) -> None:
    mount = mounter(f"file://{folder}")
    (mount.path / "dir/file.bin").read_bytes()
    mount.umount()
    cache = ("--cache-dir", tmp_path / "cache")
    (row,) = json.loads(penstock("cache", "ls", *cache, "-o", "json").stdout)
    found = row["key"], row["cached_bytes"], row["size_bytes"]
    assert found == ("dir/file.bin", 4 * MIB, 4 * MIB)
    assert Path(row["file"]).read_bytes() == DATA
    assert penstock("cache", "verify", *cache).returncode == 0
    with open(row["file"], "r+b") as file:
        file.write(b"damage")
    bad = penstock("cache", "verify", *cache)
    assert bad.returncode == 1
    assert "dir/file.bin" in bad.stdout
    assert penstock("cache", "verify", *cache).returncode == 0, "what was damaged is dropped"
    assert "removed" in penstock("cache", "clear", *cache).stderr
    assert json.loads(penstock("cache", "ls", *cache, "-o", "json").stdout) == []
    assert not list((tmp_path / "cache" / "objects").rglob("?" * 32))


@pytest.mark.parametrize(
    ("text", "says"),
    [(option, f"refused: {re.escape(reason)}") for option, reason in REFUSED.items()]
    + [(text, text.split("=")[0]) for text in ("max_read", "max_read=1000", "uid=x")]
    + [("umask=022", "refused: ")],
)
def test_unsupported_libfuse_options_are_rejected(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_kernel_options((f"ro,{text}",))
    assert parse_kernel_options((",".join(ALWAYS),)) == {}, "what is so anyway is no error"
