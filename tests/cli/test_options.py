"""The option names people know: each does what it says, or is refused with the reason."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from penstock.daemon.kernel_options import ALWAYS, REFUSED, parse_kernel_options
from penstock.errors import OptionError
from tests.conftest import S3, Mounter, penstock, write_tree

MIB = 1024 * 1024
DATA = random.Random(7).randbytes(4 * MIB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    write_tree(folder, {"dir/file.bin": DATA})
    return folder


def test_the_line_of_the_seeds_is_taken_as_it_is(folder: Path, mounter: Mounter) -> None:
    mount = mounter(
        f"file://{folder}", "--mode", "pagecache",
        "-o", "kernel_cache,ro,max_read=131072,attr_timeout=7200,entry_timeout=7200,allow_other",
    )  # fmt: skip
    assert (mount.path / "dir/file.bin").read_bytes() == DATA
    # 4 MiB in requests of 128 KiB; and one more if the kernel takes back a page.
    assert mount.stats()["requests"]["READ"] in (32, 33)


def test_reads_come_in_requests_of_a_megabyte_by_default(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}", "--mode", "pagecache")
    assert (mount.path / "dir/file.bin").read_bytes() == DATA
    assert mount.stats()["requests"]["READ"] <= 6


def test_attributes_are_kept_as_long_as_is_said(folder: Path, mounter: Mounter) -> None:
    kept, asked = mounter(f"file://{folder}"), mounter(f"file://{folder}", "--attr-cache", "0")
    for mount, grows in ((kept, False), (asked, True)):
        file = mount.path / "dir/file.bin"
        os.stat(file)
        assert ("GETATTR" in mount.messages_while(file.stat)) == grows


def test_names_are_kept_as_long_as_is_said(folder: Path, mounter: Mounter) -> None:
    kept, asked = mounter(f"file://{folder}"), mounter(f"file://{folder}", "--entry-cache", "0")
    for mount, grows in ((kept, False), (asked, True)):
        file = mount.path / "dir/file.bin"
        os.stat(file)
        assert ("LOOKUP" in mount.messages_while(file.stat)) == grows


def test_a_name_that_is_missing_is_remembered_too(folder: Path, mounter: Mounter) -> None:
    mount = mounter(f"file://{folder}")
    missing = mount.path / "missing"
    assert not missing.exists()
    assert mount.messages_while(missing.exists) == {}


def test_owner_and_modes_are_shown_as_said(folder: Path, mounter: Mounter) -> None:
    mount = mounter(
        f"file://{folder}", "--uid", "1234", "--gid", "2345", "--file-mode", "0640",
        "--dir-mode", "0750",
    )  # fmt: skip
    file, directory = os.stat(mount.path / "dir/file.bin"), os.stat(mount.path / "dir")
    assert (file.st_uid, file.st_gid, file.st_mode & 0o777) == (1234, 2345, 0o640)
    assert (directory.st_uid, directory.st_mode & 0o777) == (1234, 0o750)


def test_other_users_may_read_only_where_it_is_said(folder: Path, mounter: Mounter) -> None:
    closed, opened = mounter(f"file://{folder}"), mounter(f"file://{folder}", "--allow-other")
    for parent in [opened.path, *opened.path.parents][1:-2]:
        parent.chmod(0o755)
    for mount, works in ((closed, False), (opened, True)):
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                   "cat", str(mount.path / "dir/file.bin")]  # fmt: skip
        result = subprocess.run(command, capture_output=True, check=False)
        assert (result.stdout == DATA) == works


def test_blocks_have_the_size_that_was_said(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("blocks"), {"file.bin": DATA})
    mount = mounter("s3://blocks", "--endpoint", s3.endpoint, "--block-size", "1024")
    assert (mount.path / "file.bin").read_bytes() == DATA
    assert mount.gets() == 4


def test_no_prefetch_means_none(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("ahead"), {"file.bin": DATA})
    options = ("--endpoint", s3.endpoint, "--block-size", "1MiB", "--no-cache")
    without = mounter("s3://ahead", *options, "--prefetch", "0")
    assert (without.path / "file.bin").read_bytes() == DATA
    assert without.stats()["prefetched_blocks"] == 0
    with_it = mounter("s3://ahead", *options, "--prefetch", "2")
    assert (with_it.path / "file.bin").read_bytes() == DATA
    assert with_it.stats()["prefetched_blocks"] > 0


def test_tiers_are_filled_in_their_order(tmp_path: Path, s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("tiers"), {f"{n}.bin": DATA[: MIB // 2] for n in range(8)})
    mount = mounter(
        "s3://tiers", "--endpoint", s3.endpoint,
        f"--tier=MEM:{tmp_path}/mem:2MiB:high=1,low=0.8",
        f"--tier=SSD:{tmp_path}/a,{tmp_path}/b:1GiB",
    )  # fmt: skip
    for path in mount.path.iterdir():
        path.read_bytes()
    tiers = {tier["name"]: tier for tier in mount.stats()["tiers"]}
    assert tiers["MEM"]["used_bytes"] == 2 * MIB
    assert tiers["SSD"]["used_bytes"] == 2 * MIB
    assert mount.stats()["cached_bytes"] == mount.stats()["bytes"]


def test_a_full_cache_keeps_what_it_has_and_reads_the_rest_from_the_store(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("full"), {f"{n}.bin": DATA[: MIB // 2] for n in range(8)})
    mount = mounter("s3://full", "--endpoint", s3.endpoint, "--cache-size", "2MiB")
    for path in mount.path.iterdir():
        assert path.read_bytes() == DATA[: MIB // 2]
    stats = mount.stats()
    assert stats["cached_bytes"] == 3 * MIB // 2, "the fourth would pass the high watermark"
    assert stats["store_bytes"] == stats["bytes"]


def test_the_cache_commands_show_check_and_clear(
    tmp_path: Path, folder: Path, mounter: Mounter
) -> None:
    mount = mounter(f"file://{folder}")
    (mount.path / "dir/file.bin").read_bytes()
    mount.umount()
    cache = ("--cache-dir", tmp_path / "cache")
    (row,) = json.loads(penstock("cache", "ls", *cache, "-o", "json").stdout)
    assert (row["key"], row["cached_bytes"], row["size_bytes"]) == (
        "dir/file.bin",
        4 * MIB,
        4 * MIB,
    )
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


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_option_says_why(name: str) -> None:
    with pytest.raises(OptionError, match="refused: "):
        parse_kernel_options((f"ro,{name}",))


@pytest.mark.parametrize("name", sorted(ALWAYS))
def test_what_is_so_anyway_is_no_error(name: str) -> None:
    assert parse_kernel_options((name,)) == {}


@pytest.mark.parametrize(
    "text", ["kernel_cach", "max_read", "max_read=1000", "allow_other=1", "uid=x"]
)
def test_a_typo_or_a_wrong_value_is_an_error(text: str) -> None:
    with pytest.raises(OptionError):
        parse_kernel_options((text,))
