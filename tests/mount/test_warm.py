"""penstock warm: what is fetched, how often, and that what is said to be cached is."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import flip_bit
from tests.support.faults import Fault
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kernelcaches import drop_pages, forget
from tests.support.mounts import Mount, Mounter, both_modes, fail, needs_passthrough, penstock, warm
from tests.support.page_counts import assert_kept, locked_pages
from tests.support.s3 import S3, ObjectPath
from tests.support.trees import read_raw, read_tree, write_tree
from tests.support.waiting import wait_until

SMALL = {f"n{i // 10:02}/img{i:03}.jpg": random.Random(i).randbytes(60_000 + i) for i in range(60)}
LARGE = random.Random(1).randbytes(5 * 1024 * 1024 + 123)
FILES = {**SMALL, "large.bin": LARGE, "empty": b"", "odd [1]/*": b"odd"}
BYTES = sum(map(len, FILES.values()))
BLOCK = ("--block-size", "1MiB")
GETS = len(SMALL) + 6 + 1  # a large file has six blocks, and an empty one has none
# At this rate the small files take 12 s: nobody is too late to stop that.
SLOWLY = ("n0*", "--rate", "300KiB/s", "--concurrency", "2")


def begin(mount: Mount, *arguments: str | Path) -> "subprocess.Popen[str]":
    """Start a load, and return when it has fetched something."""
    loading = subprocess.Popen(
        [sys.executable, "-m", "penstock", "warm", mount.path, "-o", "json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: mount.gets() >= 3, "it fetches nothing")
    return loading


def cached_names(mount: Mount) -> set[str]:
    return {
        name
        for name, data in FILES.items()
        if data and os.getxattr(mount.path / name, "user.penstock.cached") == b"%d" % len(data)
    }


def cache_rows(mount: Mount, cache: Path | None = None) -> list[dict[str, Any]]:
    cache = cache or mount.path.parent / "cache"
    listed = penstock("cache", "ls", "--cache-dir", cache, "-o", "json")
    return json.loads(listed.stdout)


def assert_all_kept(mount: Mount, names: dict[str, bytes] = FILES) -> None:
    assert_kept(mount.path / name for name in names)


@pytest.fixture(scope="module")
def bucket(empty_bucket: ObjectPath) -> ObjectPath:
    write_tree(empty_bucket, FILES)
    return empty_bucket


@pytest.fixture
def mount(s3: S3, bucket: ObjectPath, shared: Mounter) -> Mount:
    """The mount of this module, with nothing cached."""
    return shared(bucket.source, "--endpoint", s3.endpoint, *BLOCK, "--mode", "pagecache")


@pytest.fixture
def mount_bucket(s3: S3, bucket: ObjectPath, mounter: Mounter) -> Mounter:
    """A mount of the test's own."""

    def mount(*options: str | Path) -> Mount:
        mode = () if "--mode" in options else ("--mode", "pagecache")
        return mounter(bucket.source, "--endpoint", s3.endpoint, *BLOCK, *mode, *options)

    return mount


def test_each_small_file_is_fetched_once_and_a_second_run_fetches_nothing(mount: Mount) -> None:
    answer = warm(mount)
    assert (answer["files"], answer["bytes"]) == (len(FILES), BYTES)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), BYTES)
    assert answer["cached_percentage"] == 100
    assert answer["fetched_bytes"] == BYTES
    assert mount.gets() == GETS
    again = warm(mount)
    assert (again["cached_bytes"], again["fetched_bytes"]) == (BYTES, 0)
    assert mount.gets() == GETS
    assert read_tree(mount.path) == FILES
    assert mount.gets() == GETS


def test_paths_folders_patterns_and_lists_select_files_and_each_is_fetched_once(
    mount: Mount,
) -> None:
    picked = warm(mount, "n00", "n0[12]/*5.jpg", "**/img05?.jpg", mount.path / "n00/img003.jpg")
    expected = {name for name in SMALL if name.startswith("n00/")}
    expected |= {"n01/img015.jpg", "n02/img025.jpg"}
    expected |= {name for name in SMALL if "img05" in name}
    assert picked["files"] == len(expected) == mount.gets()
    assert cached_names(mount) == expected
    silent = penstock("warm", mount.path, "n00")
    assert (silent.returncode, silent.stderr) == (0, ""), "progress is for terminals"
    # What exists under a name is meant by it, whatever it looks like.
    assert warm(mount, "odd [1]/*")["files"] == 1
    assert "odd [1]/*" in cached_names(mount)
    answer = warm(mount, "--files-from", "-", input="n03/img030.jpg\0n00/img001.jpg\0")
    assert (answer["files"], answer["fetched_files"]) == (2, 1)


def test_a_mistake_is_named_and_nothing_is_fetched(mount: Mount, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"n00/img001.jpg\nn00/img00l.jpg\nnowhere\n")
    for arguments, says in (
        (["/etc/passwd"], "/etc/passwd does not lie below"),
        (["n99/*.jpg"], "n99/*.jpg: no path on the mount has this name or matches it"),
        (["--rate", "0"], "--rate: 0 fetches nothing"),
        (["--check", "--evict"], "--check and --evict at once"),
        (["--check", "--rate", "1MiB/s"], "--check fetches nothing"),
        (["--files-from", listed], "n00/img00l.jpg is not on the mount, and 1 more of the list"),
    ):
        assert says in fail("warm", mount.path, *arguments)
    assert mount.gets() == 0


def test_ctrl_c_stops_a_load_and_the_same_command_resumes_it(mount: Mount) -> None:
    loading = begin(mount, *SLOWLY)
    loading.send_signal(signal.SIGINT)
    out, stderr = loading.communicate()
    assert (loading.returncode, out) == (130, "")
    assert stderr == "stopped; run the same command again to continue\n"
    wait_until(lambda: mount.stats()["gets_in_flight"] == 0, "it goes on fetching")
    gets = mount.gets()
    assert gets < len(SMALL)
    assert warm(mount, "empty")["cached_files"] == 1
    assert mount.gets() == gets
    answer = warm(mount)
    assert answer["cached_bytes"] == BYTES
    assert answer["fetched_bytes"] < BYTES
    assert mount.gets() == GETS, "each block was fetched once in all"


def test_a_server_killed_during_a_load_costs_only_a_moment(mount: Mount) -> None:
    before = mount.stats()
    loading = begin(mount, "--rate", "3MiB/s", "--concurrency", "4")
    os.kill(before["pid"], signal.SIGKILL)
    out, stderr = loading.communicate()
    assert loading.returncode == 0, stderr
    answer = json.loads(out)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), BYTES)
    assert mount.stats()["restarts"] == before["restarts"] + 1
    assert read_tree(mount.path) == FILES


def test_check_is_exact_to_the_byte_and_fetches_nothing(mount: Mount) -> None:
    lookups = mount.stats()["requests"].get("LOOKUP", 0)
    cold = warm(mount, "--check")
    looked_up = mount.stats()["requests"].get("LOOKUP", 0) - lookups
    assert looked_up == 0, "the kernel holds no files that nobody has looked up"
    tier = cold["tiers"][0]["name"]  # MEM where temporary folders are in memory
    assert cold == {
        "files": len(FILES),
        "bytes": BYTES,
        "cached_files": 1,
        "cached_bytes": 0,
        "cached_percentage": 0,
        "tiers": [{"name": tier, "bytes": 0, "files": 0}],
        "page_cache_files": 0,
        "page_cache_bytes": 0,
    }
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
    assert some["tiers"] == [{"name": tier, "bytes": some["cached_bytes"], "files": 11}]
    assert some["page_cache_bytes"] == 0
    assert read_raw(mount.path / "n00/img001.jpg") == SMALL["n00/img001.jpg"]
    with locked_pages([mount.path / "n00/img001.jpg"]):
        warmer = warm(mount, "n00", "--check")
    assert (warmer["page_cache_files"], warmer["page_cache_bytes"]) == (1, 60_001)


def test_only_what_fits_is_fetched_of_a_set_larger_than_the_cache(mount_bucket: Mounter) -> None:
    mount = mount_bucket("--cache-size", "2MiB")
    result = penstock("warm", mount.path, "--order", "largest")
    assert result.returncode == 2, "not all that was asked for is cached"
    assert "are more than the cache holds" in result.stderr
    assert "2.0 MiB will fit" in result.stderr
    left = re.search(r"(\d+) files \(.* MiB\) are not in the cache: .* no room", result.stderr)
    assert left is not None
    assert int(left[1]) == len(FILES) - warm(mount, "--check")["cached_files"]
    checked = warm(mount, "--check")
    stats = mount.stats()
    assert checked["cached_bytes"] == stats["store_bytes"], "nothing was fetched in vain"
    assert 0 < checked["cached_percentage"] < 25
    assert checked["cached_bytes"] <= 2 * 1024**2
    assert 2 * 1024**2 * 0.99 - checked["cached_bytes"] < 60_000, "nothing more fits"
    # The large file does not fit; the first small ones in this order do, and the tiniest one.
    found = cached_names(mount) & SMALL.keys()
    assert len(found) > 10
    assert found == set(sorted(SMALL, reverse=True)[: len(found)])
    gets = mount.gets()
    warm(mount, code=2)
    assert mount.gets() == gets


@pytest.mark.parametrize("removed", ["cache", "cache/objects"])
def test_a_removed_cache_is_recreated_and_warmed(
    mount_bucket: Mounter, tmp_path: Path, removed: str
) -> None:
    mount = mount_bucket()
    warm(mount, "n00")
    shutil.rmtree(tmp_path / removed)
    answer = warm(mount)
    assert (answer["cached_files"], answer["cached_bytes"]) == (len(FILES), BYTES)


def test_a_cache_that_cannot_be_recreated_is_an_error_with_the_reason(
    mount_bucket: Mounter, tmp_path: Path
) -> None:
    mount = mount_bucket()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    result = penstock("warm", mount.path, "n00")
    assert result.returncode == 2
    assert "10 files (586.0 KiB) are not in the cache: " in result.stderr
    assert f"cache directory {tmp_path / 'cache'} is out: " in result.stderr
    answer = warm(mount, "n00", code=2)
    assert (answer["cached_files"], answer["fetched_bytes"]) == (0, 0)


def test_a_load_under_lru_does_not_evict_what_it_has_just_fetched(mount_bucket: Mounter) -> None:
    mount = mount_bucket("--cache-size", "2MiB", "--policy", "lru")
    warm(mount, "n05")
    first = warm(mount, "n00", "n01", "n02", "n03", code=2)
    assert 1024**2 < first["cached_bytes"] == first["fetched_bytes"]
    # Without evicting anything there is room up to the high watermark, now that n05 is out.
    second = warm(mount, "n00", "n01", "n02", "n03", code=2)
    assert second["cached_bytes"] == first["cached_bytes"] + second["fetched_bytes"]
    assert second["cached_bytes"] <= 2 * 1024**2


def test_a_mount_without_a_cache_reports_that_there_is_nothing_to_fill(
    mount_bucket: Mounter,
) -> None:
    output = fail("warm", mount_bucket("--no-cache").path, "n00")
    assert "this mount has no cache to fill" in output
    assert "--page-cache" in output


@pytest.mark.counts_pages
def test_after_a_load_into_the_page_cache_readers_send_no_request(mount: Mount) -> None:
    before = mount.stats()
    answer = warm(mount, "--page-cache")
    assert_all_kept(mount)
    assert answer["page_cache_bytes"] == answer["cached_bytes"] == BYTES
    assert answer["page_cache_files"] == len(FILES) - 1
    assert mount.gets() == GETS
    assert {name: read_raw(mount.path / name) for name in FILES} == FILES
    stats = mount.stats()
    assert stats["requests"].get("READ", 0) == before["requests"].get("READ", 0)
    assert warm(mount, "--page-cache")["fetched_bytes"] == 0
    again = mount.stats()["pushed_bytes"] - stats["pushed_bytes"]
    assert_all_kept(mount)
    assert again <= len(LARGE), "what is there is left alone"
    forget(mount.path)
    assert warm(mount, "--check")["page_cache_bytes"] == 0
    answer = warm(mount, "--page-cache")
    assert_all_kept(mount)
    assert answer["page_cache_bytes"] == BYTES, "from the cache"
    assert mount.gets() == GETS


@pytest.mark.counts_pages
def test_files_beyond_the_page_cache_budget_are_reported(mount_bucket: Mounter) -> None:
    mount = mount_bucket("--page-cache", "2MiB")
    result = penstock("warm", mount.path, "n0*", "--page-cache")
    assert "were not put into the page cache: they are not cached, or the 1.5 MiB" in result.stderr
    answer = warm(mount, "n0*", "--page-cache")
    assert 0 < answer["page_cache_bytes"] <= 1.5 * 1024**2
    assert answer["cached_bytes"] == answer["bytes"]
    if answer["page_cache_bytes"] + answer["unpushed_bytes"] != answer["bytes"]:
        pushed = answer["files"] - answer["unpushed_files"]
        assert_all_kept(mount, dict(list(SMALL.items())[:pushed]))
        pytest.fail(f"nothing was dropped, and some are counted twice or not at all: {answer}")


@needs_passthrough
@pytest.mark.counts_pages
def test_in_passthrough_mode_pages_of_the_cache_files_are_warmed(
    mount_bucket: Mounter, on_disk: Path
) -> None:
    mount = mount_bucket("--mode", "passthrough", "--cache-dir", on_disk)
    warm(mount)
    stored = [Path(row["file"]) for row in cache_rows(mount, on_disk)]
    assert len(stored) == len(FILES) - 1
    for path in stored:  # what is not written yet cannot be dropped
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    drop_pages(stored)
    assert warm(mount, "--check")["page_cache_bytes"] == 0
    answer = warm(mount, "--page-cache")
    assert_kept(stored)
    assert answer["page_cache_bytes"] == BYTES
    assert answer["fetched_bytes"] == 0
    assert {name: read_raw(mount.path / name) for name in FILES} == FILES
    assert mount.stats()["requests"].get("READ", 0) <= 1  # of the empty file


def test_a_flipped_byte_is_detected_named_and_fetched_again(mount: Mount) -> None:
    warm(mount)
    for row in cache_rows(mount):
        if row["key"] in ("large.bin", "n03/img031.jpg"):
            assert flip_bit(Path(row["file"]), random.Random(1))
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


@both_modes
@pytest.mark.counts_pages
def test_an_evicted_file_is_gone_from_the_cache_and_from_memory(
    mode: str, mount_bucket: Mounter, tmp_path: Path
) -> None:
    mount = mount_bucket("--mode", mode)
    warm(mount, "--page-cache")
    with open(mount.path / "large.bin", "rb") as open_file:
        answer = warm(mount, "n00", "large.bin", "--evict")
        evicted = {"large.bin", *(name for name in SMALL if name.startswith("n00/"))}
        gone = sum(len(FILES[name]) for name in evicted)
        assert (answer["files"], answer["freed_bytes"]) == (11, gone), mount.stats()["tiers"]
        left = warm(mount, "--check")
        assert left["cached_bytes"] == BYTES - gone
        if left["page_cache_bytes"] < BYTES - gone:
            assert_all_kept(mount, {name: FILES[name] for name in FILES.keys() - evicted})
        assert left["page_cache_bytes"] == BYTES - gone
        used = sum(
            path.stat().st_size
            for path in (tmp_path / "cache/objects").rglob("*")
            if path.is_file()
        )
        assert used == BYTES - gone
        assert open_file.read() == LARGE, "who has it open reads on"
    gets = mount.gets()
    assert read_tree(mount.path) == FILES
    assert mount.gets() > gets


def test_failed_files_are_counted_named_and_fetched_by_the_next_run(
    proxy: FaultyProxy, bucket: ObjectPath, mounter: Mounter
) -> None:
    mount = mounter(bucket.source, "--endpoint", proxy.endpoint, "--deadline", "2s")
    proxy.inject({Fault.SERVER_ERROR: 1.0})
    result = penstock("warm", mount.path, "n00", "n01")
    assert result.returncode == 3, result.stderr
    assert "20 files could not be fetched" in result.stderr
    assert "and 10 more" in result.stderr
    proxy.calm()
    # What failed a moment ago may be told again once, without asking the store.
    wait_until(lambda: penstock("warm", mount.path).returncode == 0)
    assert warm(mount, "--check")["cached_percentage"] == 100
