"""penstock warm: what is fetched, how often, and that what is said to be cached is."""

import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import S3, Mount, Mounter, penstock, read_tree, write_tree
from tests.faults.kinds import Fault
from tests.faults.proxy import FaultyProxy
from tests.kernelcaches import drop_pages, forget
from tests.mount.conftest import MODES, needs_passthrough
from tests.mount.test_counts import read_raw
from tests.survival.kills import wait_until

SMALL = {f"n{i // 10:02}/img{i:03}.jpg": random.Random(i).randbytes(60_000 + i) for i in range(60)}
LARGE = random.Random(1).randbytes(5 * 1024 * 1024 + 123)
FILES = {**SMALL, "large.bin": LARGE, "empty": b"", "odd [1]/*": b"odd"}
BYTES = sum(map(len, FILES.values()))
BLOCK = ("--block-size", "1MiB")
# The kernel may take any page back at any moment; with plenty of memory free, a machine that others
# use too was seen to take a few.
TAKEN_BACK = 8
PAGE = os.sysconf("SC_PAGE_SIZE")


def warm(mount: Mount, *arguments: str | Path, code: int = 0, **options: Any) -> dict[str, Any]:
    result = penstock("warm", mount.path, *arguments, "-o", "json", **options)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


def begin(mount: Mount, *arguments: str | Path) -> "subprocess.Popen[str]":
    """A load of which the rest can be told apart from the beginning."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "warm", mount.path, "-o", "json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def cached_names(mount: Mount) -> set[str]:
    return {
        name for name, data in FILES.items()
        if data and os.getxattr(mount.path / name, "user.penstock.cached") == b"%d" % len(data)
    }  # fmt: skip


def is_nearly(size: int, whole: int) -> bool:
    return whole - TAKEN_BACK * PAGE <= size <= whole


def cache_rows(tmp_path: Path) -> list[dict[str, Any]]:
    listed = penstock("cache", "ls", "--cache-dir", tmp_path / "cache", "-o", "json")
    return json.loads(listed.stdout)


@pytest.fixture
def mount(request: pytest.FixtureRequest, s3: S3, mounter: Mounter) -> Mount:
    bucket = f"warm-{zlib.crc32(request.node.name.encode())}"
    write_tree(s3.bucket(bucket), FILES)
    return mounter(f"s3://{bucket}", "--endpoint", s3.endpoint, *BLOCK, "--mode", "pagecache")


def test_each_small_file_is_fetched_once_and_the_second_run_fetches_nothing(mount: Mount) -> None:
    answer = warm(mount)
    assert (answer["files"], answer["bytes"]) == (len(FILES), BYTES)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), BYTES)
    assert answer["cached_percentage"] == 100
    assert answer["fetched_bytes"] == BYTES
    assert mount.gets() == len(SMALL) + 6 + 1
    again = warm(mount)
    assert (again["cached_bytes"], again["fetched_bytes"]) == (BYTES, 0)
    assert mount.gets() == len(SMALL) + 6 + 1
    assert read_tree(mount.path) == FILES
    assert mount.gets() == len(SMALL) + 6 + 1


def test_paths_folders_and_patterns_are_what_is_fetched_each_file_once(mount: Mount) -> None:
    picked = warm(mount, "n00", "n0[12]/*5.jpg", "**/img05?.jpg", mount.path / "n00/img003.jpg")
    expected = {name for name in SMALL if name.startswith("n00/")}
    expected |= {"n01/img015.jpg", "n02/img025.jpg"}
    expected |= {name for name in SMALL if "img05" in name}
    assert picked["files"] == len(expected) == mount.gets()
    assert cached_names(mount) == expected
    # What exists under a name is meant by it, whatever it looks like.
    assert warm(mount, "odd [1]/*")["files"] == 1
    assert "odd [1]/*" in cached_names(mount)


def test_a_list_names_files_and_folders_one_a_line_or_ended_by_nul(
    mount: Mount, tmp_path: Path
) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"n00/img001.jpg\nodd [1]/*\n" + os.fsencode(mount.path / "n01") + b"\n")
    assert warm(mount, "--files-from", listed)["files"] == 12
    answer = warm(mount, "--files-from", "-", input="n02/img020.jpg\0n00/img001.jpg\0")
    assert (answer["files"], answer["fetched_files"]) == (2, 1)
    listed.write_bytes(b"n00/img001.jpg\nn00/img00l.jpg\nnowhere\n")
    result = penstock("warm", mount.path, "--files-from", listed)
    assert result.returncode == 2
    assert "n00/img00l.jpg is not on the mount, and 1 more of the list" in result.stderr
    assert mount.gets() == 13, "nothing was fetched for a list with a mistake"


MISTAKES: list[tuple[list[str], str]] = [
    (["n00/img01.jpg"], "did you mean n00/img001.jpg?"),
    (["n99/*.jpg"], "n99/*.jpg: nothing on the mount is called so or matches it"),
    (["/etc/passwd"], "/etc/passwd does not lie below"),
    (["--rate", "fast"], "--rate: 'fast' is not a rate"),
    (["--rate", "0"], "--rate: 0 fetches nothing"),
    (["--concurrency", "0"], "--concurrency"),
    (["--check", "--evict"], "--check and --evict at once"),
    (["--check", "--rate", "1MiB/s"], "--check fetches nothing"),
    (["--files-from", "/nowhere"], "--files-from /nowhere: No such file or directory"),
]


def test_a_mistake_is_named_and_nothing_is_fetched(mount: Mount) -> None:
    for arguments, said in MISTAKES:
        result = penstock("warm", mount.path, *arguments)
        assert result.returncode == 2, arguments
        assert said in result.stderr
        assert result.stdout == ""
    assert mount.gets() == 0


def test_what_is_not_mounted_cannot_be_warmed(tmp_path: Path) -> None:
    result = penstock("warm", tmp_path)
    assert result.returncode == 2
    assert "is not mounted by Penstock" in result.stderr


def test_the_largest_come_first_if_asked_for(mount: Mount) -> None:
    loading = begin(mount, "--order", "largest", "--concurrency", "1", "--rate", "1MiB/s")
    wait_until(lambda: mount.gets() >= 3, "it fetches")
    loading.send_signal(signal.SIGINT)
    loading.communicate()
    assert not cached_names(mount) & set(SMALL), "the largest file was first, and took seconds"


def test_ctrl_c_stops_it_and_the_same_command_goes_on_where_it_was(mount: Mount) -> None:
    loading = begin(mount, "--rate", "2MiB/s", "--concurrency", "2")
    wait_until(lambda: mount.gets() >= 5, "it fetches")
    loading.send_signal(signal.SIGINT)
    out, said = loading.communicate()
    assert (loading.returncode, out) == (130, "")
    assert said == "stopped; the same command goes on where it was\n"
    assert mount.gets() < len(SMALL)
    answer = warm(mount)
    assert answer["cached_bytes"] == BYTES
    assert answer["fetched_bytes"] < BYTES
    assert mount.gets() == len(SMALL) + 6 + 1, "each block was fetched once in all"


def test_a_killed_command_stops_the_load_too(mount: Mount) -> None:
    loading = begin(mount, "--rate", "1MiB/s", "--concurrency", "1")
    wait_until(lambda: mount.gets() >= 3, "it fetches")
    loading.kill()
    loading.communicate()
    wait_until(lambda: mount.stats()["gets_in_flight"] == 0, "nothing is fetched any more")
    gets = mount.gets()
    assert gets < len(SMALL)
    assert warm(mount, "empty")["cached_files"] == 1
    assert mount.gets() == gets


def test_a_server_that_is_killed_in_the_middle_costs_nothing_but_a_moment(mount: Mount) -> None:
    loading = begin(mount, "--rate", "3MiB/s", "--concurrency", "4")
    wait_until(lambda: mount.gets() >= 5, "it fetches")
    os.kill(mount.stats()["pid"], signal.SIGKILL)
    out, said = loading.communicate()
    assert loading.returncode == 0, said
    answer = json.loads(out)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), BYTES)
    assert mount.stats()["restarts"] == 1
    assert read_tree(mount.path) == FILES


def test_check_is_exact_to_the_byte_and_fetches_nothing(mount: Mount) -> None:
    lookups = mount.stats()["requests"].get("LOOKUP", 0)
    cold = warm(mount, "--check")
    looked_up = mount.stats()["requests"].get("LOOKUP", 0) - lookups
    assert looked_up == 0, "the kernel holds no files that nobody has looked up"
    assert cold == {
        "files": len(FILES), "bytes": BYTES, "cached_files": 1, "cached_bytes": 0,
        "cached_percentage": 0, "tiers": [{"name": "SSD", "bytes": 0, "files": 0}],
        "page_cache_files": 0, "page_cache_bytes": 0,
    }  # fmt: skip
    assert mount.gets() == 0
    warm(mount, "n00")
    with open(mount.path / "large.bin", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.seek(2 * 1024 * 1024)
        file.read(4096)
    forget(mount.path)
    first = sum(len(data) for name, data in SMALL.items() if name.startswith("n00/"))
    wait_until(lambda: mount.stats()["fetching"] == 0, "the block is stored")
    some = warm(mount, "--check")
    assert some["cached_files"] == 11
    assert (some["cached_bytes"] - first) % 1024**2 == 0
    assert 0 < some["cached_bytes"] - first < len(LARGE)
    assert some["tiers"] == [{"name": "SSD", "bytes": some["cached_bytes"], "files": 11}]
    assert some["page_cache_bytes"] == 0
    assert read_raw(mount.path / "n00/img001.jpg") == SMALL["n00/img001.jpg"]
    warmer = warm(mount, "n00", "--check")
    assert (warmer["page_cache_files"], warmer["page_cache_bytes"]) == (1, 60_001)


def test_check_tells_the_tiers_apart(s3: S3, mounter: Mounter, tmp_path: Path) -> None:
    write_tree(s3.bucket("warm-tiers"), FILES)
    mount = mounter("s3://warm-tiers", "--endpoint", s3.endpoint, *BLOCK, "--mode", "pagecache",
                    "--tier", f"MEM:{tmp_path}/mem:2MiB",
                    "--tier", f"SSD:{tmp_path}/a,{tmp_path}/b:100MiB")  # fmt: skip
    assert warm(mount)["cached_percentage"] == 100
    checked = warm(mount, "--check")
    fast, slow = checked["tiers"]
    assert (fast["name"], slow["name"]) == ("MEM", "SSD")
    assert fast["bytes"] + slow["bytes"] == checked["cached_bytes"] == BYTES
    assert 0 < fast["bytes"] <= 2 * 1024**2
    assert [tier["used_bytes"] for tier in mount.stats()["tiers"]] == [fast["bytes"], slow["bytes"]]


@pytest.mark.parametrize("order", ["name", "largest"])
def test_of_a_set_larger_than_the_cache_only_what_fits_is_fetched(
    order: str, s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket(f"warm-small-{order}"), FILES)
    mount = mounter(f"s3://warm-small-{order}", "--endpoint", s3.endpoint, *BLOCK,
                    "--cache-size", "2MiB", "--mode", "pagecache")  # fmt: skip
    result = penstock("warm", mount.path, "--order", order)
    assert result.returncode == 0
    assert "are more than the cache holds" in result.stderr
    assert "2.0 MiB will fit" in result.stderr
    checked = warm(mount, "--check")
    stats = mount.stats()
    assert checked["cached_bytes"] == stats["store_bytes"], "nothing was fetched in vain"
    assert 0 < checked["cached_percentage"] < 25
    assert checked["cached_bytes"] <= 2 * 1024**2
    assert 2 * 1024**2 * 0.99 - checked["cached_bytes"] < 60_000, "nothing more fits"
    gets = mount.gets()
    warm(mount)
    assert mount.gets() == gets


def test_with_lru_a_load_does_not_drive_out_what_it_has_just_brought(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("warm-lru"), FILES)
    mount = mounter("s3://warm-lru", "--endpoint", s3.endpoint, *BLOCK, "--cache-size", "2MiB",
                    "--policy", "lru", "--mode", "pagecache")  # fmt: skip
    warm(mount, "n05")
    first = warm(mount, "n00", "n01", "n02", "n03")
    assert 1024**2 < first["cached_bytes"] == first["fetched_bytes"]
    # Without evicting anything there is room up to the high watermark, now that n05 is out.
    second = warm(mount, "n00", "n01", "n02", "n03")
    assert second["cached_bytes"] == first["cached_bytes"] + second["fetched_bytes"]
    assert second["cached_bytes"] <= 2 * 1024**2


def test_a_mount_without_a_cache_says_that_there_is_nothing_to_fill(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("warm-no-cache"), SMALL)
    mount = mounter("s3://warm-no-cache", "--endpoint", s3.endpoint, "--no-cache")
    result = penstock("warm", mount.path)
    assert result.returncode == 2
    assert "this mount has no cache to fill" in result.stderr
    assert "--page-cache" in result.stderr
    answer = warm(mount, "--page-cache")
    assert is_nearly(answer["page_cache_bytes"], answer["bytes"])
    assert mount.gets() == len(SMALL)
    assert {name: read_raw(mount.path / name) for name in SMALL} == SMALL
    assert mount.stats()["requests"].get("READ", 0) <= TAKEN_BACK


def test_into_the_page_cache_means_that_readers_ask_for_nothing(mount: Mount) -> None:
    answer = warm(mount, "--page-cache")
    assert is_nearly(answer["page_cache_bytes"], BYTES)
    assert answer["cached_bytes"] == BYTES
    assert len(FILES) - 1 - TAKEN_BACK <= answer["page_cache_files"] <= len(FILES) - 1
    gets = mount.gets()
    assert gets == len(SMALL) + 6 + 1
    assert {name: read_raw(mount.path / name) for name in FILES} == FILES
    stats = mount.stats()
    assert stats["requests"].get("READ", 0) <= TAKEN_BACK
    assert 0.9 < stats["fetched_over_read"] <= 1
    assert warm(mount, "--page-cache")["fetched_bytes"] == 0
    again = mount.stats()["pushed_bytes"] - stats["pushed_bytes"]
    assert again <= len(LARGE) + TAKEN_BACK * 61_000, "what is there is left alone"
    forget(mount.path)
    assert warm(mount, "--check")["page_cache_bytes"] == 0
    pushed = warm(mount, "--page-cache")["page_cache_bytes"]
    assert is_nearly(pushed, BYTES), "from the cache"
    assert mount.gets() == gets


def test_what_the_page_cache_may_not_hold_is_said(s3: S3, mounter: Mounter) -> None:
    write_tree(s3.bucket("warm-tight"), SMALL)
    mount = mounter("s3://warm-tight", "--endpoint", s3.endpoint, "--page-cache", "2MiB")
    result = penstock("warm", mount.path, "--page-cache")
    assert "were left out of the page cache: 1.5 MiB of it may hold files" in result.stderr
    answer = warm(mount, "--page-cache")
    assert 0 < answer["page_cache_bytes"] <= 1.5 * 1024**2
    assert answer["cached_bytes"] == answer["bytes"]
    assert is_nearly(answer["page_cache_bytes"] + answer["unpushed_bytes"], answer["bytes"])


@needs_passthrough
def test_in_passthrough_mode_the_pages_of_the_caches_own_files_are_warmed(
    s3: S3, mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(s3.bucket("warm-through"), FILES)
    mount = mounter("s3://warm-through", "--endpoint", s3.endpoint, *BLOCK, "--mode", "passthrough")
    warm(mount)
    os.sync()  # what is not written yet cannot be dropped
    drop_pages(Path(row["file"]) for row in cache_rows(tmp_path))
    assert warm(mount, "--check")["page_cache_bytes"] == 0
    answer = warm(mount, "--page-cache")
    assert is_nearly(answer["page_cache_bytes"], BYTES)
    assert answer["fetched_bytes"] == 0
    assert {name: read_raw(mount.path / name) for name in FILES} == FILES
    assert mount.stats()["requests"].get("READ", 0) <= 1  # of the empty file


def test_a_flipped_byte_is_found_named_and_fetched_again(mount: Mount, tmp_path: Path) -> None:
    warm(mount)
    for row in cache_rows(tmp_path):
        if row["key"] in ("large.bin", "n03/img031.jpg"):
            with open(row["file"], "r+b") as file:
                file.seek(row["size_bytes"] // 2)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 1]))
    gets = mount.gets()
    result = penstock("warm", mount.path, "--verify")
    assert result.returncode == 1
    assert "2 were damaged" in result.stdout
    assert "large.bin: 1 blocks dropped" in result.stderr
    assert "n03/img031.jpg" in result.stderr
    assert warm(mount, "--check")["cached_bytes"] == BYTES - 1024**2 - len(SMALL["n03/img031.jpg"])
    assert warm(mount)["cached_bytes"] == BYTES
    assert gets < mount.gets() <= gets + 2  # a block of a large file may still be in memory
    assert warm(mount, "--verify")["damaged_files"] == 0


def test_a_file_that_someone_has_deleted_from_the_cache_is_not_said_to_be_cached(
    mount: Mount, tmp_path: Path
) -> None:
    warm(mount)
    lost = [row for row in cache_rows(tmp_path) if row["key"] in ("large.bin", "n00/img001.jpg")]
    for row in lost:
        Path(row["file"]).unlink()
    assert warm(mount, "--check")["cached_bytes"] == BYTES - len(LARGE) - 60_001
    answer = warm(mount)
    assert (answer["cached_bytes"], answer["fetched_files"] > 0) == (BYTES, True)
    assert warm(mount, "--verify")["damaged_files"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_is_evicted_is_gone_from_the_cache_and_from_memory(
    mode: str, s3: S3, mounter: Mounter, tmp_path: Path
) -> None:
    write_tree(s3.bucket(f"warm-evict-{mode}"), FILES)
    mount = mounter(f"s3://warm-evict-{mode}", "--endpoint", s3.endpoint, *BLOCK, "--mode", mode)
    warm(mount, "--page-cache")
    with open(mount.path / "large.bin", "rb") as open_file:
        answer = warm(mount, "n00", "large.bin", "--evict")
        gone = sum(len(data) for name, data in SMALL.items() if name.startswith("n00/"))
        gone += len(LARGE)
        assert (answer["files"], answer["freed_bytes"]) == (11, gone), mount.stats()["tiers"]
        left = warm(mount, "--check")
        assert left["cached_bytes"] == BYTES - gone
        assert is_nearly(left["page_cache_bytes"], BYTES - gone)
        used = sum(
            path.stat().st_size for path in (tmp_path / "cache/objects").rglob("*")
            if path.is_file()
        )  # fmt: skip
        assert used == BYTES - gone
        assert open_file.read() == LARGE, "who has it open reads on"
    gets = mount.gets()
    assert read_tree(mount.path) == FILES
    assert mount.gets() > gets


def test_files_that_changed_or_vanished_meanwhile_are_named(mount: Mount, s3: S3) -> None:
    folder = s3.folder / str(mount.arguments[0]).removeprefix("s3://")
    (folder / "n00/img001.jpg").unlink()
    (folder / "n00/img002.jpg").write_bytes(b"rewritten")
    answer = warm(mount, "n00", code=3)
    assert answer["failed_files"] == 2
    assert {failure["path"] for failure in answer["failures"]} == {
        "n00/img001.jpg", "n00/img002.jpg",
    }  # fmt: skip
    assert answer["cached_files"] <= 8
    mount.refresh()
    assert warm(mount, "n00")["cached_files"] == 9


def test_what_could_not_be_fetched_is_counted_and_named_and_comes_with_the_next_run(
    s3: S3, mounter: Mounter
) -> None:
    write_tree(s3.bucket("warm-failing"), SMALL)
    with FaultyProxy(s3.endpoint, seed=1) as proxy:
        mount = mounter("s3://warm-failing", "--endpoint", proxy.endpoint, "--deadline", "4s")
        proxy.inject({Fault.SERVER_ERROR: 1.0})
        result = penstock("warm", mount.path, "n00", "n01")
        assert result.returncode == 3, result.stderr
        assert "20 files could not be fetched" in result.stderr
        assert "and 10 more" in result.stderr
        proxy.inject({})
        assert warm(mount)["cached_percentage"] == 100


def test_a_terminal_shows_files_bytes_rate_and_time_left_and_elsewhere_it_is_silent(
    mount: Mount,
) -> None:
    result = penstock("warm", mount.path, "n00")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("cached ")
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, 0x5414, b"\x32\x00\xc8\x00" + bytes(4))  # TIOCSWINSZ: 50 x 200
    loading = subprocess.Popen(
        [sys.executable, "-m", "penstock", "warm", mount.path, "--rate", "8MiB/s"],
        stdout=subprocess.PIPE, stderr=secondary, text=True,
    )  # fmt: skip
    os.close(secondary)
    drawn = b""
    while True:
        try:
            received = os.read(primary, 65536)
        except OSError:
            break  # the other end is closed
        drawn += received
    os.close(primary)
    assert loading.stdout is not None
    assert "cached      8.4 MiB of 8.4 MiB (100%)" in loading.stdout.read()
    loading.stdout.close()
    assert loading.wait() == 0
    assert b"of 63 files" in drawn
    assert b"MiB" in drawn
    assert b"/s" in drawn
