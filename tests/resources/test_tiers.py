from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.errors import SpecProblem
from penstock.units import GIB, MIB
from tests.support.planning import CACHE, S3_DATASET, SCRATCH, no_effects, plan, runtime

MINE = "penstock/default/imagenet"


def tiers(levels: str, *, checked: bool = True) -> tuple[TierSpec, ...]:
    text = S3_DATASET + runtime("AlluxioRuntime", f"  tieredstore:\n    levels: [{levels}]")
    return plan(text, checked=checked).settings.tiers


def ssd(*paths: str, quota: int | None, high: float = 0.99, low: float = 0.8) -> TierSpec:
    folders = tuple(Path(path) / MINE for path in paths)
    return TierSpec("SSD", folders, quota, high, low, clamp=True)


TWO = '{mediumtype: SSD, path: "/a,/b", '


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ('{mediumtype: SSD, path: /nvme, quota: 180G, high: "0.95", low: "0.7"}',
         (ssd("/nvme", quota=180 * 10**9, high=0.95, low=0.7),)),
        ("{mediumtype: SSD, path: /nvme}", (ssd("/nvme", quota=None),)),
        (TWO + "quota: 100Gi}", (ssd("/a", "/b", quota=100 * GIB),)),
        (TWO + 'quotaList: "50Gi,50Gi"}', (ssd("/a", "/b", quota=100 * GIB),)),
        (TWO + 'quotaList: "100Gi,50Gi"}',
         (ssd("/a", quota=100 * GIB), ssd("/b", quota=50 * GIB))),
        ('{mediumtype: MEM, path: "/a,/b", quotaList: "1Gi,2Gi"}',
         (TierSpec("MEM", (Path("/dev/shm") / MINE,), 3 * GIB, clamp=True),)),
        ("{mediumtype: SSD, volumeType: emptyDir, path: /cache, quota: 2Gi}",
         (TierSpec("SSD", (SCRATCH / "default/imagenet/0-0",), 2 * GIB, clamp=True),)),
        ('{mediumtype: SSD, path: /a, low: "0.1"}', (ssd("/a", quota=None, low=0.1),)),
        ('{mediumtype: SSD, path: /a, high: "0.5"}',
         (ssd("/a", quota=None, high=0.5, low=0.5),)),
    ],
    ids=["one path", "no quota", "a quota for two", "equal quotas", "unequal quotas", "memory",
         "emptyDir", "low alone", "high alone"],
)  # fmt: skip
def test_a_level_becomes_tiers_in_folders_of_the_data_set_s_own(
    levels: str, expected: tuple[TierSpec, ...]
) -> None:
    assert tiers(levels) == expected


def test_tiers_come_fastest_first_in_whatever_order_they_were_written() -> None:
    found = tiers(
        "{mediumtype: HDD, path: /hdd, quota: 3Gi}, {mediumtype: MEM, path: /dev/shm, quota: 1Gi},"
        "{mediumtype: SSD, path: /ssd, quota: 2Gi}"
    )
    assert [(tier.medium, tier.quota_bytes) for tier in found] == [
        ("MEM", GIB), ("SSD", 2 * GIB), ("HDD", 3 * GIB),
    ]  # fmt: skip


def test_memory_on_a_disk_becomes_memory_and_is_said() -> None:
    levels = "{mediumtype: MEM, path: /var/lib/docker/alluxio, quota: 150Gi}"
    text = S3_DATASET + runtime("AlluxioRuntime", f"  tieredstore:\n    levels: [{levels}]")
    found = plan(text)
    (tier,) = found.settings.tiers
    assert tier == TierSpec("MEM", (Path("/dev/shm") / MINE,), 150 * GIB, clamp=True)
    assert found.notes == [
        "spec.tieredstore.levels.0.path: /var/lib/docker/alluxio is not in memory; "
        f"/dev/shm/{MINE} is used instead"
    ]


def test_a_runtime_without_levels_uses_the_usual_folder() -> None:
    (tier,) = plan(S3_DATASET + runtime("AlluxioRuntime", "")).settings.tiers
    assert tier == TierSpec("SSD", (CACHE / "datasets/default/imagenet",), None, clamp=True)


def test_juicefs_paths_have_colons_bare_quotas_count_mib_and_low_is_free_space() -> None:
    level = '{mediumtype: SSD, path: "/mnt/a:/mnt/b", quota: 40960, low: "0.1"}'
    found = plan(S3_DATASET + runtime("JuiceFSRuntime", f"  tieredstore:\n    levels: [{level}]"))
    assert found.settings.tiers == (ssd("/mnt/a", "/mnt/b", quota=40960 * MIB),)
    assert "spec.tieredstore.levels.0.low" in no_effects(found)
    assert any("40.0 GiB" in note for note in found.notes)


@pytest.mark.parametrize(
    ("levels", "path", "what"),
    [
        ("{mediumtype: SSD, path: nvme, quota: 1Gi}", "levels.0.path", "not an absolute path"),
        ('{mediumtype: SSD, path: /a, quota: "0"}', "levels.0.quota", "caches nothing"),
        ('{mediumtype: SSD, path: "/a,/b", quotaList: 1Gi}', "levels.0.quotaList", "1 quotas"),
        ('{mediumtype: SSD, path: /a, high: "0.5", low: "0.9"}', "levels.0.low", "above high"),
        ("{mediumtype: SSD, path: /a}, {mediumtype: HDD, path: /a}", "levels", "in two levels"),
    ],
)  # fmt: skip
def test_a_level_that_cannot_be_is_refused_with_its_place(
    levels: str, path: str, what: str
) -> None:
    with pytest.raises(SpecProblem, match=what) as caught:
        tiers(levels, checked=False)
    assert caught.value.path == f"spec.tieredstore.{path}"
