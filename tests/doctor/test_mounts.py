"""A mount, its cache and this machine, judged: each rule over facts that were made up; real disks,
and what the kernel writes."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cache.tier import TierSpec
from penstock.doctor.facts import machine as facts
from penstock.doctor.facts.machine import Cgroup, Machine, Memory
from penstock.doctor.facts.mounts import Disk, Mount, Tier, look_at_disk, look_at_tiers
from penstock.doctor.findings import (
    Finding,
    TooSlow,
    each_within,
    exit_code,
    ok,
    within,
    worst_first,
)
from penstock.doctor.rules import machine as rules
from penstock.doctor.rules.mounts import judge_mount, judge_progress, judge_tiers
from penstock.units import GIB, KIB, MIB
from tests.support.declared_samples import assert_told, only

STATS: dict[str, Any] = {
    "memory_bytes": 100 * MIB, "memory_limit_bytes": GIB, "descriptors": 100,
    "descriptor_limit": 2000, "files": 1000, "bytes": 100 * MIB, "hidden": 0, "read_bytes": 0,
    "requests": {}, "corrupt_blocks": 0, "errors": 0, "errors_by_name": {}, "store_requests": 1000,
    "store_retries": 0, "store_retries_by_kind": {}, "store_bytes": 100 * MIB, "hit_bytes": {},
    "uptime_s": 3700.0, "refresh_error": None,
}  # fmt: skip
WELL = Mount(
    "/mnt/x",
    "s3://b",
    is_mounted=True,
    supervisor_runs=True,
    server_runs=True,
    state="serving",
    log="/l/x.log",
    stats=STATS,
    doctor_answer={"notes": []},
    server_pid=7,
    read_ahead_kb=4096,
    waiting=0,
    device="0:99",
    cgroup=Cgroup(None, 1, 0),
    looked_s=10.0,
)
DEAD = replace(WELL, supervisor_runs=False, server_runs=False, stats=None)
SMALL_READS = {"requests": {"READ": 5000}, "read_bytes": 5000 * 4 * KIB}
DISK = Disk(
    "/nvme/c",
    kind="ext4",
    name="nvme0n1p1",
    rotational=False,
    total_bytes=1000 * GIB,
    free_bytes=500 * GIB,
    inodes=10**6,
    free_inodes=10**6 // 2,
)
TIER = Tier("SSD", 100 * GIB, 100 * GIB, 10 * GIB, 0.99, "keep", (DISK,))
OUT = (("/nvme/c", "I/O error", 90.0),)
MACHINE = Machine(
    release="6.18.1",
    kernel=(6, 18),
    is_root=True,
    fuse_error=None,
    fusermount=None,
    user_allow_other=False,
    memory=Memory(64 * GIB, 32 * GIB, 0.0, 0),
)
USER = replace(MACHINE, is_root=False, fusermount="/bin/fusermount3")
SMALL = Memory(4 * GIB, 600 * MIB, 0.0, 0)


def judged(seen: Mount | Tier | list[Finding], **sizes: int) -> list[Finding]:
    """What is not `ok`."""
    if isinstance(seen, Mount):
        seen = judge_mount(seen, "imagenet", remount="penstock up --restart imagenet")
    elif isinstance(seen, Tier):
        sizes = {"data_bytes": 200 * GIB, "cached_bytes": 10 * GIB, **sizes}
        seen = judge_tiers([seen], "imagenet", **sizes)
    return [one for one in seen if one.severity != "ok"]


def on(medium: str = "SSD", **changes: object) -> Tier:
    return replace(TIER, medium=medium, disks=(replace(DISK, **changes),))


def with_stats(**changes: object) -> Mount:
    return replace(WELL, stats={**STATS, **changes})


@pytest.mark.parametrize(
    ("severity", "seen", "says"),
    [("bad", DEAD, "penstock umount /mnt/x, then penstock up --restart"),
     ("bad", replace(DEAD, is_mounted=False), "no longer mounted"),
     ("bad", replace(WELL, supervisor_runs=False), "if the server ends, nothing replaces it"),
     ("bad", replace(WELL, state="waiting", stats=None, restarts=9, last_end="no python"),
      "no server at the moment|no python|/l/x.log"),
     ("bad", replace(WELL, stats=None, no_answer="timed out"), "stuck|timed out"),
     ("bad", with_stats(refresh_error="no route"), "the last refresh failed: no route"),
     ("bad", with_stats(catalog_damage={"what": "1 page", "healed": False}),
      "is not rebuilt yet|1 page|penstock refresh"),
     ("note", with_stats(catalog_damage={"what": "1 page", "healed": True}),
      "its catalog was damaged|1 page|check the disk"),
     ("note", replace(WELL, restarts=2, last_end="12:00 killed by signal 9"),
      "its server was replaced 2 times|signal 9"),
     ("note", replace(WELL, doctor_answer={"notes": ["readahead stays at", "no passthrough",
                                            "--allow-other: all"]}), "no passthrough"),
     ("note", with_stats(hidden=12000), "12,000 objects"),
     ("note", with_stats(files=0, bytes=0, store_bytes=0), "it is empty"),
     ("note", with_stats(errors=3, errors_by_name={"EIO": 3}), "EIO 3"),
     ("note", with_stats(corrupt_blocks=1), "damaged"),
     ("slow", replace(WELL, read_ahead_kb=128), "echo 4096 > /sys/class/bdi/0:99/read_ahead_kb"),
     ("slow", with_stats(memory_bytes=GIB - MIB), "memory limit"),
     ("slow", with_stats(descriptors=1999), "1,999 of 2,000"),
     ("slow", with_stats(**SMALL_READS), "4.0 KiB a read, 5,000 reads; files of 102.4 KiB"),
     ("slow", with_stats(store_bytes=300 * MIB, hit_bytes={"SSD": 100 * MIB}),
      "25% of the bytes read were in the cache|100.0 MiB"),
     ("slow", with_stats(store_retries=100, store_retries_by_kind={"slow_down": 100}),
      "100 of 1,100 requests were retried (slow_down 100)"),
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
     ("bad", replace(TIER, failed=OUT), "/nvme/c|I/O error; for 1m30s"),
     ("bad", replace(TIER, failed=OUT, wanted_bytes=400 * GIB), "I/O error"),  # and no note
     ("bad", rules.judge_machine(replace(MACHINE, fuse_error="No such file")),
      "No such file|modprobe fuse"),
     ("bad", rules.judge_machine(replace(USER, fusermount=None)), "fusermount3"),
     ("bad", rules.judge_machine(USER, wants_allow_other=True), "user_allow_other"),
     ("note", rules.judge_machine(replace(MACHINE, kernel=(6, 8))), "no passthrough"),
     ("note", rules.judge_machine(replace(MACHINE, kernel=(6, 12))), "listing"),
     ("slow", rules.judge_machine(replace(MACHINE, memory=Memory(64 * GIB, GIB, 0.42, 0))), "42%"),
     ("slow", rules.judge_machine(replace(MACHINE, memory=Memory(64 * GIB, GIB, None, 0))),
      "1.0 GiB of 64.0 GiB available"),
     ("slow", rules.judge_thrashing(200 * MIB, 2.0), "100.0 MiB a second"),
     ("slow", rules.judge_cgroup("x", Cgroup(512 * MIB, 0, 0), GIB), "--memory 256.0MiB"),
     ("bad", rules.judge_cgroup("x", Cgroup(None, 0, 3), GIB), "oom_kill 3"),
     ("slow", rules.judge_headroom("x", SMALL, 200 * MIB, GIB), "it may take 824.0 MiB more")],
)  # fmt: skip
def test_trouble_has_a_remedy(severity: str, seen: Mount | Tier | list[Finding], says: str) -> None:
    assert_told(judged(seen), severity, says)


@pytest.mark.parametrize(
    "seen",
    [
        WELL,
        replace(WELL, stats=None, no_answer="timed out", state="restarting"),
        replace(WELL, read_ahead_kb=None),
        with_stats(**SMALL_READS, files=50_000),  # of small files
        with_stats(requests={"READ": 10}, read_bytes=40960),
        TIER,
        on(rotational=True, name="vda1"),  # a virtual disk is none that rotates
        on("HDD", rotational=True, name="sda1"),
        on("MEM", kind="tmpfs"),
        on(inodes=0, free_inodes=0),
        on(with_root=True),
        rules.judge_machine(MACHINE),
        rules.judge_machine(replace(USER, user_allow_other=True), wants_allow_other=True),
        rules.judge_thrashing(MIB, 2.0),
        rules.judge_thrashing(None, 2.0),
        rules.judge_cgroup("x", Cgroup(None, 5, 0), GIB),
        rules.judge_headroom("x", SMALL, 500 * MIB, GIB),
    ],
)
def test_healthy_facts_give_no_finding(seen: Mount | Tier | list[Finding]) -> None:
    assert judged(seen) == []


@pytest.mark.parametrize(
    ("waiting", "requests", "store_bytes", "is_said"),
    [(3, 10, 5, True), (0, 10, 5, False), (3, 11, 5, False), (3, 10, 6, False)],
)
def test_stalled_requests_are_reported(
    waiting: int, requests: int, store_bytes: int, is_said: bool
) -> None:
    before = replace(with_stats(requests={"READ": 10}, store_bytes=5), waiting=3)
    after = with_stats(requests={"READ": requests}, store_bytes=store_bytes)
    after = replace(after, waiting=waiting, looked_s=11.5)
    found = judge_progress(before, after, "imagenet")
    assert ["for 1.5 s" in one.why for one in found if one.severity == "slow"] == [True] * is_said


def test_a_full_tier_gets_the_size_that_would_hold_everything() -> None:
    full = replace(TIER, used_bytes=99 * GIB)
    found = only(judged(full, cached_bytes=99 * GIB), "slow")
    assert "fetched again at each read" in found.what
    assert "101.0 GiB of 200.0 GiB are not cached" in found.why
    assert "--tier of 203.0 GiB would hold all of it" in found.remedy
    assert judged(full, data_bytes=99 * GIB, cached_bytes=99 * GIB) == []
    lru = only(judged(replace(full, policy="lru"), cached_bytes=99 * GIB), "slow")
    assert "evicts" in lru.what


def test_a_tier_that_could_hold_all_is_not_to_be_made_larger() -> None:
    holds = {"data_bytes": 3 * GIB, "cached_bytes": 1 * GIB}
    clamped = replace(TIER, quota_bytes=20 * GIB, wanted_bytes=100 * GIB, used_bytes=GIB)
    assert judged(clamped, **holds) == []
    assert "larger disk" in only(judged(clamped, data_bytes=30 * GIB), "note").remedy
    others = replace(TIER, quota_bytes=20 * GIB, wanted_bytes=20 * GIB, used_bytes=20 * GIB)
    found = only(judged(others, **holds), "slow")
    assert "2.0 GiB of 3.0 GiB are not cached" in found.why
    assert "19.0 GiB are of other data" in found.remedy
    assert "penstock cache clear" in found.remedy
    assert "would hold all of it" not in found.remedy


def test_cache_directories_are_inspected_even_before_they_exist(tmp_path: Path) -> None:
    disk = look_at_disk(tmp_path / "not" / "yet")
    assert (disk.error, disk.path) == (None, str(tmp_path))
    assert disk.total_bytes > disk.free_bytes > 0
    assert look_at_disk(Path("/dev/shm")).kind == "tmpfs"


def test_tier_facts_of_the_server_are_matched_by_directory() -> None:
    spec = TierSpec("SSD", (Path("/a"), Path("/b")), 7 * GIB)
    directories = [
        {"path": "/a", "state": "ok", "error": None, "out_s": None},
        {"path": "/b", "state": "out", "error": "EIO", "out_s": 3.0},
    ]
    reported = {
        "paths": ["/a", "/b"],
        "quota_bytes": 6 * GIB,
        "used_bytes": 5,
        "state": "out",
        "directories": directories,
    }
    (tier,) = look_at_tiers([spec], "keep", [{"paths": ["/c"]}, reported])
    assert (tier.wanted_bytes, tier.quota_bytes, tier.used_bytes) == (7 * GIB, 6 * GIB, 5)
    assert tier.failed == (("/b", "EIO", 3.0),)
    (unasked,) = look_at_tiers([spec], "keep", None)
    assert (unasked.quota_bytes, unasked.failed) == (7 * GIB, ())


def test_kernel_messages_are_parsed() -> None:
    assert facts.meminfo("MemTotal:  100 kB\nMemFree: 3 kB\nMemAvailable: 50 kB\n") == (
        102400,
        51200,
    )
    pressure = "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0 total=0\n"
    assert facts.stalled_share(pressure) == 0.125
    assert facts.stalled_share("") is None
    assert facts.refaults("nr_free_pages 1\nworkingset_refault_file 77\n") == 77
    assert facts.allows_other("# user_allow_other\n") is False
    assert facts.allows_other("mount_max = 9\n user_allow_other\n") is True
    this = facts.look_at_machine()
    assert this.memory.total_bytes > this.memory.available_bytes > 0
    assert this.kernel >= (5, 0)
    before, after = replace(SMALL, refaults=5), replace(SMALL, refaults=7)
    assert facts.refaulted_bytes(before, after) == 2 * os.sysconf("SC_PAGE_SIZE")
    assert facts.look_at_cgroup(2**22 + 1) is None


def test_the_worst_finding_comes_first_and_decides_the_exit_code() -> None:
    slow, note = Finding("slow", "x", "a"), Finding("note", "x", "b")
    bad = Finding("bad", "x", "c")
    away = Finding("bad", "x", "d", unreachable=True)
    assert worst_first([ok("x", "e"), note, slow, bad])[0] is bad
    several = ([], [slow, note], [bad, slow], [bad, away])
    assert [exit_code(some) for some in several] == [0, 0, 2, 3]


def test_a_probe_that_never_returns_costs_its_deadline_and_no_more() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    released = threading.Event()
    with pytest.raises(TooSlow):
        within(0.01, lambda: released.wait(30))
    found = each_within(1.0, {"hangs": lambda: released.wait(30), "well": lambda: True})
    assert found == {"hangs": None, "well": True}
    released.set()
    # More than fit at once are all looked at.
    looks = {number: (lambda number=number: number * 2) for number in range(10)}
    assert each_within(5, looks, at_once=3) == {number: number * 2 for number in range(10)}
