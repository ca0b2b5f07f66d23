"""The cache's directories, judged: each rule over facts that were made up, and real disks."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.resources.diagnosis.facts.caches import Disk, Tier, look_at_disk, look_at_tiers
from penstock.resources.diagnosis.finding import Finding
from penstock.resources.diagnosis.rules.caches import judge_tiers
from penstock.units import GIB, MIB

DISK = Disk(
    "/nvme/c", kind="ext4", name="nvme0n1p1", rotational=False, total_bytes=1000 * GIB,
    free_bytes=500 * GIB, inodes=10**6, free_inodes=10**6 // 2,
)  # fmt: skip
TIER = Tier("SSD", 100 * GIB, 100 * GIB, 10 * GIB, 0.99, "keep", (DISK,))


def judged(tier: Tier, data_bytes: int = 200 * GIB, cached_bytes: int = 10 * GIB) -> list[Finding]:
    findings = judge_tiers([tier], "imagenet", data_bytes=data_bytes, cached_bytes=cached_bytes)
    return [one for one in findings if one.severity != "ok"]


def on(**changes: object) -> Tier:
    return replace(TIER, disks=(replace(DISK, **changes),))


def only(findings: list[Finding], severity: str) -> Finding:
    (found,) = findings
    assert found.severity == severity
    return found


def test_nothing_is_said_of_a_cache_that_is_well() -> None:
    assert judged(TIER) == []


def test_an_ssd_that_rotates_is_slow_unless_the_disk_is_virtual() -> None:
    assert "rotating disk" in only(judged(on(rotational=True, name="sda1")), "slow").what
    assert judged(on(rotational=True, name="vda1")) == []
    hdd = replace(on(rotational=True, name="sda1"), medium="HDD")
    assert judged(hdd) == []


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs"])
def test_a_cache_behind_the_network_is_slow(kind: str) -> None:
    assert kind in only(judged(on(kind=kind)), "slow").why


def test_a_cache_in_a_container_s_layer_is_noted() -> None:
    assert "volume" in only(judged(on(kind="overlay")), "note").remedy


def test_mem_that_is_not_in_memory_is_slow_and_ssd_that_is_is_noted() -> None:
    assert "/dev/shm" in only(judged(replace(TIER, medium="MEM")), "slow").remedy
    assert "lost when" in only(judged(on(kind="tmpfs")), "note").what
    assert judged(replace(on(kind="tmpfs"), medium="MEM")) == []


def test_a_full_disk_and_a_file_system_without_inodes_are_wrong() -> None:
    found = only(judged(on(free_bytes=MIB)), "bad")
    assert "1.0 MiB of 1000.0 GiB free" in found.why
    assert "inodes" in only(judged(on(free_inodes=5)), "bad").why
    assert judged(on(inodes=0, free_inodes=0)) == []


def test_a_cache_that_may_fill_the_system_s_disk_is_noted() -> None:
    found = only(judged(on(with_root=True, free_bytes=50 * GIB)), "note")
    assert "it may take 90.0 GiB more" in found.why
    assert judged(on(with_root=True)) == []


def test_a_directory_that_is_out_and_a_disk_that_does_not_answer_are_wrong() -> None:
    found = only(judged(replace(TIER, out=(("/nvme/c", "I/O error", 90.0),))), "bad")
    assert ("I/O error; for 1m30s" in found.why, "/nvme/c" in found.what) == (True, True)
    assert "does not answer" in only(judged(on(error="no answer within 2 s")), "bad").what


def test_a_quota_that_the_disk_does_not_have_is_noted() -> None:
    found = only(judged(replace(TIER, wanted_bytes=400 * GIB)), "note")
    assert "100.0 GiB of 400.0 GiB" in found.why
    out = replace(TIER, wanted_bytes=400 * GIB, out=(("/x", "gone", 1.0),))
    assert [one.severity for one in judged(out)] == ["bad"]


def test_a_full_tier_says_how_large_one_would_hold_all() -> None:
    full = replace(TIER, used_bytes=99 * GIB)
    found = only(judged(full, cached_bytes=99 * GIB), "slow")
    assert "comes from object storage at each reading" in found.what
    assert "101.0 GiB of 200.0 GiB are not cached" in found.why
    assert "--tier of 203.0 GiB would hold all of it" in found.remedy
    assert judged(full, data_bytes=99 * GIB, cached_bytes=99 * GIB) == []
    lru = only(judged(replace(full, policy="lru"), cached_bytes=99 * GIB), "slow")
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
