"""A mount, judged: each rule over facts that were made up."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.resources.diagnosis.facts.machine import Cgroup
from penstock.resources.diagnosis.facts.mounts import Mount
from penstock.resources.diagnosis.finding import Finding
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


def judged(mount: Mount) -> list[Finding]:
    findings = judge_mount(mount, "imagenet", anew="penstock up --restart imagenet")
    return [one for one in findings if one.severity != "ok"]


def with_stats(**changes: object) -> Mount:
    return replace(WELL, stats={**STATS, **changes})


@pytest.mark.parametrize(
    ("severity", "mount", "says"),
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
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_do(severity: str, mount: Mount, says: str) -> None:
    found = only(judged(mount), severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


@pytest.mark.parametrize(
    "mount",
    [
        WELL,
        replace(WELL, stats=None, silence="timed out", state="restarting"),
        replace(WELL, read_ahead_kb=None),
        with_stats(**SMALL_READS, files=50_000),  # of small files
        with_stats(requests={"READ": 10}, read_bytes=40960),
    ],
)
def test_nothing_is_said_of_a_mount_that_is_well(mount: Mount) -> None:
    assert judged(mount) == []


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
