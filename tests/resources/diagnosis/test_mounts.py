"""A mount, judged: each rule over facts that were made up."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.resources.diagnosis.facts.machine import Cgroup
from penstock.resources.diagnosis.facts.mounts import Mount
from penstock.resources.diagnosis.finding import Finding
from penstock.resources.diagnosis.rules.mounts import judge_mount, judge_progress
from penstock.units import GIB, KIB, MIB

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


def judged(mount: Mount) -> list[Finding]:
    findings = judge_mount(mount, "imagenet", anew="penstock up --restart imagenet")
    return [one for one in findings if one.severity != "ok"]


def with_stats(**changes: object) -> Mount:
    return replace(WELL, stats={**STATS, **changes})


def only(findings: list[Finding], severity: str) -> Finding:
    (found,) = findings
    assert found.severity == severity
    return found


def test_nothing_is_said_of_a_mount_that_is_well() -> None:
    assert judged(WELL) == []


def test_a_mount_whose_processes_are_gone() -> None:
    dead = replace(WELL, supervisor_runs=False, server_runs=False, stats=None)
    found = only(judged(dead), "bad")
    assert "supervisor and its server are gone" in found.what
    assert found.remedy == "penstock umount /mnt/x, then penstock up --restart imagenet"
    assert "not mounted any more" in only(judged(replace(dead, is_mounted=False)), "bad").what


def test_a_mount_without_its_supervisor_is_wrong_though_it_serves() -> None:
    found = only(judged(replace(WELL, supervisor_runs=False)), "bad")
    assert "a server that ends is not replaced" in found.what


def test_a_server_that_ends_again_and_again_and_one_that_is_stuck() -> None:
    waiting = replace(WELL, state="waiting", stats=None, restarts=9, last_end="12:00 no python")
    found = only(judged(waiting), "bad")
    assert ("no server at the moment" in found.what, "no python" in found.why) == (True, True)
    assert "/l/x.log" in found.remedy
    stuck = replace(WELL, stats=None, silence="timed out")
    found = only(judged(stuck), "bad")
    assert ("stuck" in found.what, found.why) == (True, "timed out")
    assert judged(replace(stuck, state="restarting")) == []


def test_restarts_are_noted_with_the_last_end() -> None:
    found = only(judged(replace(WELL, restarts=2, last_end="12:00 killed by signal 9")), "note")
    assert (found.what, "signal 9" in found.why) == ("its server was replaced 2 times", True)


def test_a_refresh_that_failed_is_wrong_and_what_the_server_notes_is_passed_on() -> None:
    found = only(judged(with_stats(refresh_error="no route")), "bad")
    assert found.what == "the last refresh failed: no route"
    told = {"notes": ["readahead stays at 128 KiB", "no passthrough", "--allow-other: all"]}
    assert only(judged(replace(WELL, told=told)), "note").what == "no passthrough"


def test_hidden_objects_are_counted_and_an_empty_mount_is_noted() -> None:
    assert "12,000 objects" in only(judged(with_stats(hidden=12000)), "note").what
    assert only(judged(with_stats(files=0, bytes=0, store_bytes=0)), "note").what == "it is empty"


def test_readahead_that_was_not_raised_is_slow_with_the_command() -> None:
    found = only(judged(replace(WELL, read_ahead_kb=128)), "slow")
    assert found.remedy == "echo 1024 > /sys/class/bdi/0:99/read_ahead_kb"
    assert "raising it needs root" in found.why
    assert judged(replace(WELL, read_ahead_kb=None)) == []


def test_a_server_near_its_limits_is_slow() -> None:
    assert "memory limit" in only(judged(with_stats(memory_bytes=GIB - MIB)), "slow").what
    assert "1,999 of 2,000" in only(judged(with_stats(descriptors=1999)), "slow").why


def test_small_reads_of_large_files_are_slow_and_of_small_files_are_not() -> None:
    reads = {"requests": {"READ": 5000}, "read_bytes": 5000 * 4 * KIB}
    found = only(judged(with_stats(**reads)), "slow")
    assert "4.0 KiB a read, 5,000 reads; files of 102.4 KiB" in found.why
    assert judged(with_stats(**reads, files=50_000)) == []
    assert judged(with_stats(requests={"READ": 10}, read_bytes=40960)) == []


def test_a_data_set_that_is_fetched_again_is_slow_with_what_would_hold_it() -> None:
    found = only(judged(with_stats(store_bytes=300 * MIB, hit_bytes={"SSD": 100 * MIB})), "slow")
    assert "25% of the bytes were in the cache" in found.why
    assert "100.0 MiB" in found.remedy


def test_a_store_that_fails_often_is_slow_with_how_it_fails() -> None:
    retries = {"store_retries": 100, "store_retries_by_kind": {"slow_down": 100}}
    found = only(judged(with_stats(**retries)), "slow")
    assert "100 of 1,100 requests were sent again (slow_down 100)" in found.why


def test_errors_and_damage_are_noted() -> None:
    assert "EIO 3" in only(judged(with_stats(errors=3, errors_by_name={"EIO": 3})), "note").why
    assert "damaged" in only(judged(with_stats(corrupt_blocks=1)), "note").what


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
    assert bool(found) == is_said
    if is_said:
        assert "for 1.5 s" in only(found, "slow").why
