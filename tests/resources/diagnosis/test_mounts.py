"""A mount and its cache, judged: each rule over facts that were made up, and real disks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cache.tier import TierSpec
from penstock.resources.diagnosis.facts.caches import Disk, Tier, look_at_disk, look_at_tiers
from penstock.resources.diagnosis.facts.machine import Cgroup
from penstock.resources.diagnosis.facts.mounts import Mount
from penstock.resources.diagnosis.finding import Finding
from penstock.resources.diagnosis.rules.caches import judge_tiers
from penstock.resources.diagnosis.rules.mounts import judge_mount, judge_progress
from penstock.units import GIB, KIB, MIB
from tests.support.declared_samples import only

STATS: dict[str, Any] = {
    "memory_bytes": 100 * MIB, "memory_limit_bytes": GIB, "descriptors": 100,
    "descriptor_limit": 2000, "files": 1000, "bytes": 100 * MIB, "hidden": 0, "read_bytes": 0,
    "requests": {}, "corrupt_blocks": 0, "errors": 0, "errors_by_name": {}, "store_requests": 1000,
    "store_retries": 0, "store_retries_by_kind": {}, "store_bytes": 100 * MIB, "hit_bytes": {},
    "uptime_s": 3700.0, "refresh_error": None,
}  # fmt: skip
WELL = Mount(
    "/mnt/x", "s3://b", is_mounted=True, supervisor_runs=True, server_runs=True, state="serving",
    log="/l/x.log", stats=STATS, told={"notes": []}, server_pid=7, read_ahead_kb=1024, waiting=0,
    device="0:99", cgroup=Cgroup(None, 1, 0), looked_s=10.0,
)  # fmt: skip
SMALL_READS = {"requests": {"READ": 5000}, "read_bytes": 5000 * 4 * KIB}


DISK = Disk(
    "/nvme/c", kind="ext4", name="nvme0n1p1", rotational=False, total_bytes=1000 * GIB,
    free_bytes=500 * GIB, inodes=10**6, free_inodes=10**6 // 2,
)  # fmt: skip
TIER = Tier("SSD", 100 * GIB, 100 * GIB, 10 * GIB, 0.99, "keep", (DISK,))
OUT = (("/nvme/c", "I/O error", 90.0),)


def judged(mount: Mount) -> list[Finding]:
    findings = judge_mount(mount, "imagenet", anew="penstock up --restart imagenet")
    return [one for one in findings if one.severity != "ok"]


def judged_tier(
    tier: Tier, data_bytes: int = 200 * GIB, cached_bytes: int = 10 * GIB
) -> list[Finding]:
    findings = judge_tiers([tier], "imagenet", data_bytes=data_bytes, cached_bytes=cached_bytes)
    return [one for one in findings if one.severity != "ok"]


def on(medium: str = "SSD", **changes: object) -> Tier:
    return replace(TIER, medium=medium, disks=(replace(DISK, **changes),))


def with_stats(**changes: object) -> Mount:
    return replace(WELL, stats={**STATS, **changes})


@pytest.mark.parametrize(
    ("severity", "seen", "says"),
    [
        ("bad", replace(WELL, supervisor_runs=False, server_runs=False, stats=None),
         "supervisor and its server are gone|penstock umount /mnt/x, then penstock up --restart"),
        ("bad", replace(WELL, is_mounted=False, supervisor_runs=False, server_runs=False,
                        stats=None), "not mounted any more"),
        ("bad", replace(WELL, supervisor_runs=False), "a server that ends is not replaced"),
        ("bad", replace(WELL, state="waiting", stats=None, restarts=9, last_end="no python"),
         "no server at the moment|no python|/l/x.log"),
        ("bad", replace(WELL, stats=None, silence="timed out"), "stuck|timed out"),
        ("bad", with_stats(refresh_error="no route"), "the last refresh failed: no route"),
        ("note", replace(WELL, restarts=2, last_end="12:00 killed by signal 9"),
         "its server was replaced 2 times|signal 9"),
        ("note", replace(WELL, told={"notes": ["readahead stays at 128 KiB", "no passthrough",
                                               "--allow-other: all"]}), "no passthrough"),
        ("note", with_stats(hidden=12000), "12,000 objects"),
        ("note", with_stats(files=0, bytes=0, store_bytes=0), "it is empty"),
        ("note", with_stats(errors=3, errors_by_name={"EIO": 3}), "EIO 3"),
        ("note", with_stats(corrupt_blocks=1), "damaged"),
        ("slow", replace(WELL, read_ahead_kb=128),
         "raising it needs root|echo 1024 > /sys/class/bdi/0:99/read_ahead_kb"),
        ("slow", with_stats(memory_bytes=GIB - MIB), "memory limit"),
        ("slow", with_stats(descriptors=1999), "1,999 of 2,000"),
        ("slow", with_stats(**SMALL_READS), "4.0 KiB a read, 5,000 reads; files of 102.4 KiB"),
        ("slow", with_stats(store_bytes=300 * MIB, hit_bytes={"SSD": 100 * MIB}),
         "25% of the bytes were in the cache|100.0 MiB"),
        ("slow", with_stats(store_retries=100, store_retries_by_kind={"slow_down": 100}),
         "100 of 1,100 requests were sent again (slow_down 100)"),
        ("slow", on(rotational=True, name="sda1"), "rotating disk"),
        ("slow", on(kind="nfs4"), "nfs4"),
        ("slow", on("MEM"), "/dev/shm"),
        ("note", on(kind="tmpfs"), "lost when"),
        ("note", on(kind="overlay"), "volume"),
        ("note", on(with_root=True, free_bytes=50 * GIB), "it may take 90.0 GiB more"),
        ("note", replace(TIER, wanted_bytes=400 * GIB), "100.0 GiB of 400.0 GiB"),
        ("bad", on(free_bytes=MIB), "1.0 MiB of 1000.0 GiB free"),
        ("bad", on(free_inodes=5), "inodes"),
        ("bad", on(error="no answer within 2 s"), "does not answer"),
        ("bad", replace(TIER, out=OUT), "/nvme/c|I/O error; for 1m30s"),
        ("bad", replace(TIER, out=OUT, wanted_bytes=400 * GIB), "I/O error"),  # and no note
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(
    severity: str, seen: Mount | Tier, says: str
) -> None:
    found = only(judged(seen) if isinstance(seen, Mount) else judged_tier(seen), severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


@pytest.mark.parametrize(
    "seen",
    [
        WELL,
        replace(WELL, stats=None, silence="timed out", state="restarting"),
        replace(WELL, read_ahead_kb=None),
        with_stats(**SMALL_READS, files=50_000),  # of small files
        with_stats(requests={"READ": 10}, read_bytes=40960),
        TIER,
        on(rotational=True, name="vda1"),  # a virtual disk is none that rotates
        on("HDD", rotational=True, name="sda1"),
        on("MEM", kind="tmpfs"),
        on(inodes=0, free_inodes=0),
        on(with_root=True),
    ],
)
def test_nothing_is_said_of_what_is_well(seen: Mount | Tier) -> None:
    assert (judged(seen) if isinstance(seen, Mount) else judged_tier(seen)) == []


@pytest.mark.parametrize(
    ("waiting", "requests", "store_bytes", "is_said"),
    [(3, 10, 5, True), (0, 10, 5, False), (3, 11, 5, False), (3, 10, 6, False)],
)
def test_requests_that_wait_while_nothing_moves(
    waiting: int, requests: int, store_bytes: int, is_said: bool
) -> None:
    before = replace(with_stats(requests={"READ": 10}, store_bytes=5), waiting=3)
    after = replace(
        with_stats(requests={"READ": requests}, store_bytes=store_bytes), waiting=waiting,
        looked_s=11.5,
    )  # fmt: skip
    found = judge_progress(before, after, "imagenet")
    assert ["for 1.5 s" in one.why for one in found if one.severity == "slow"] == [True] * is_said


def test_a_full_tier_says_how_large_one_would_hold_all() -> None:
    full = replace(TIER, used_bytes=99 * GIB)
    found = only(judged_tier(full, cached_bytes=99 * GIB), "slow")
    assert "comes from object storage at each reading" in found.what
    assert "101.0 GiB of 200.0 GiB are not cached" in found.why
    assert "--tier of 203.0 GiB would hold all of it" in found.remedy
    assert judged_tier(full, data_bytes=99 * GIB, cached_bytes=99 * GIB) == []
    lru = only(judged_tier(replace(full, policy="lru"), cached_bytes=99 * GIB), "slow")
    assert "drives out" in lru.what


def test_real_directories_are_looked_at_also_before_they_are_made(tmp_path: Path) -> None:
    disk = look_at_disk(tmp_path / "not" / "yet")
    assert (disk.error, disk.path) == (None, str(tmp_path))
    assert disk.total_bytes > disk.free_bytes > 0
    assert look_at_disk(Path("/dev/shm")).kind == "tmpfs"


def test_what_the_server_says_of_a_tier_is_found_by_its_directories() -> None:
    spec = TierSpec("SSD", (Path("/a"), Path("/b")), 7 * GIB)
    directories = [{"path": "/a", "state": "ok", "error": None, "out_s": None},
                   {"path": "/b", "state": "out", "error": "EIO", "out_s": 3.0}]  # fmt: skip
    told = {"paths": ["/a", "/b"], "quota_bytes": 6 * GIB, "used_bytes": 5, "state": "out",
            "directories": directories}  # fmt: skip
    (tier,) = look_at_tiers([spec], "keep", [{"paths": ["/c"]}, told])
    assert (tier.wanted_bytes, tier.quota_bytes, tier.used_bytes) == (7 * GIB, 6 * GIB, 5)
    assert tier.out == (("/b", "EIO", 3.0),)
    (unasked,) = look_at_tiers([spec], "keep", None)
    assert (unasked.quota_bytes, unasked.out) == (7 * GIB, ())
