"""The cache's directories, judged: each rule over facts that were made up, and real disks."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.resources.diagnosis.facts.caches import Disk, Tier, look_at_disk, look_at_tiers
from penstock.resources.diagnosis.finding import Finding
from penstock.resources.diagnosis.rules.caches import judge_tiers
from penstock.units import GIB, MIB
from tests.support.declared_samples import only

DISK = Disk(
    "/nvme/c", kind="ext4", name="nvme0n1p1", rotational=False, total_bytes=1000 * GIB,
    free_bytes=500 * GIB, inodes=10**6, free_inodes=10**6 // 2,
)  # fmt: skip
TIER = Tier("SSD", 100 * GIB, 100 * GIB, 10 * GIB, 0.99, "keep", (DISK,))
OUT = (("/nvme/c", "I/O error", 90.0),)


def judged(tier: Tier, data_bytes: int = 200 * GIB, cached_bytes: int = 10 * GIB) -> list[Finding]:
    findings = judge_tiers([tier], "imagenet", data_bytes=data_bytes, cached_bytes=cached_bytes)
    return [one for one in findings if one.severity != "ok"]


def on(medium: str = "SSD", **changes: object) -> Tier:
    return replace(TIER, medium=medium, disks=(replace(DISK, **changes),))


@pytest.mark.parametrize(
    ("severity", "tier", "says"),
    [
        ("slow", on(rotational=True, name="sda1"), "rotating disk"),
        *(("slow", on(kind=kind), kind) for kind in ("nfs4", "cifs", "lustre", "fuse.sshfs")),
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
)
def test_what_is_wrong_is_told_with_what_to_do(severity: str, tier: Tier, says: str) -> None:
    found = only(judged(tier), severity)
    for words in says.split("|"):
        assert words in f"{found.what}\n{found.why}\n{found.remedy}"


@pytest.mark.parametrize(
    "tier",
    [
        TIER,
        on(rotational=True, name="vda1"),  # a virtual disk is none that rotates
        on("HDD", rotational=True, name="sda1"),
        on("MEM", kind="tmpfs"),
        on(inodes=0, free_inodes=0),
        on(with_root=True),
    ],
)
def test_nothing_is_said_of_a_cache_that_is_well(tier: Tier) -> None:
    assert judged(tier) == []


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
