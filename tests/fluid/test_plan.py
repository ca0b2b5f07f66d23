"""Whole manifests, as people have them, to the settings and the tiers that they make."""

from pathlib import Path

import pytest
from tests.support.datasets import seed
from tests.support.planning import CACHE, MOUNTPOINT, S3_DATASET, SCRATCH, no_effects, plan, runtime

from penstock.cache.tier import TierSpec
from penstock.errors import SpecProblem
from penstock.settings import MountSettings, Part
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys
from penstock.store.source import Source
from penstock.units import GIB, MIB

MINE = "penstock/default/imagenet"
KEYS = {"access_key_id": "the-id", "access_key_secret": "the-secret"}
DAWNBENCH = "---\n".join(
    seed(
        "000",
        part,
        bucket="bucket",
        directory="imagenet",
        **KEYS,
        endpoint="oss-cn-hangzhou-internal.aliyuncs.com",
    )
    for part in ("dataset", "runtime")
)


def test_the_dawnbench_manifests_give_exactly_these_settings() -> None:
    found = plan(DAWNBENCH)
    assert found.settings == MountSettings(
        parts=(
            Part(
                "imagenet",
                Source("oss", "bucket", "imagenet"),
                StoreOptions(
                    "https://oss-cn-hangzhou-internal.aliyuncs.com",
                    keys=Keys("the-id", "the-secret"),
                ),
            ),
        ),
        mountpoint=MOUNTPOINT,
        catalog="default.imagenet",
        title="dataset/default/imagenet",
        tiers=(memory(150 * GIB),),
        block_bytes=16 * MIB,
        max_read_bytes=131072,
        attr_timeout_s=7200,
        entry_timeout_s=7200,
    )
    assert "the-secret" not in repr(found)
    assert found.notes == [
        "spec.tieredstore.levels.0.path: /var/lib/docker/alluxio is not in memory; "
        f"/dev/shm/{MINE} is used instead"
    ]
    # Every property is acted on or told, and nothing else is.
    properties = {path for path in no_effects(found) if path.startswith("spec.properties.")}
    acted = {"alluxio.user.block.size.bytes.default", "alluxio.user.metadata.cache.expiration.time"}
    assert len(properties) == 47 - len(acted)
    assert set(no_effects(found)) == properties


SEVERAL = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: both}
spec:
  sharedOptions: {region: shared, endpoint: http://127.0.0.1:9000}
  sharedEncryptOptions:
    - {name: aws.accessKeyId, valueFrom: {secretKeyRef: {name: all, key: id}}}
    - {name: aws.secretKey, valueFrom: {secretKeyRef: {name: all, key: key}}}
  mounts:
    - {mountPoint: s3://one, name: one, options: {region: own}}
    - mountPoint: s3://two
      path: /deep/two
      name: two
      encryptOptions: [{name: aws.secretKey, valueFrom: {secretKeyRef: {name: mine, key: key}}}]
    - {mountPoint: local:///data, path: /, name: three}
"""


def test_several_mounts_have_their_own_paths_and_common_settings() -> None:
    secrets = {"all/id": "i", "all/key": "k", "mine/key": "m"}
    found = plan(SEVERAL + runtime("AlluxioRuntime", "", name="both"), secrets=secrets)
    endpoint = "http://127.0.0.1:9000"
    one = StoreOptions(endpoint, "own", keys=Keys("i", "k"))
    two = StoreOptions(endpoint, "shared", keys=Keys("i", "m"))
    assert found.settings.parts == (
        Part("one", Source("s3", "one", ""), one),
        Part("deep/two", Source("s3", "two", ""), two),
        Part("", Source("file", "", "/data"), StoreOptions()),
    )


def dataset(name: str, mount: str) -> str:
    """With its runtime; `name` may be followed by a namespace."""
    return (
        "---\napiVersion: data.fluid.io/v1alpha1\nkind: Dataset\n"
        f"metadata: {{name: {name}}}\nspec:\n  mounts: [{{mountPoint: {mount}}}]\n"
    ) + runtime("AlluxioRuntime", "", name=name)


def refer(mount: str, scheme: str = "s3") -> MountSettings:
    source = "local:///bucket/spark" if scheme == "file" else "s3://bucket/spark"
    other = dataset("phy", f"{source}, name: spark")
    return plan(dataset("ref, namespace: team", mount) + other).settings


@pytest.mark.parametrize(
    ("mount", "path", "source"),
    [
        ("dataset://default/phy, name: all", "all/spark", "s3://bucket/spark"),
        ("dataset://default/phy/spark/3.1/x, name: x", "x", "s3://bucket/spark/3.1/x"),
        ("dataset://default/phy/spark/3.1, path: /", "", "file:///bucket/spark/3.1"),
    ],
)
def test_a_reference_shows_the_parts_below_its_own_path(mount: str, path: str, source: str) -> None:
    (part,) = refer(mount, source.partition(":")[0]).parts
    assert (part.path, str(part.source)) == (path, source)
    with pytest.raises(SpecProblem, match="has nothing in flink") as caught:
        refer("dataset://default/phy/flink, path: /")
    assert caught.value.hint == "its parts are at /spark"


def test_the_owner_precedes_fuse_arguments_and_those_precede_run_as() -> None:
    spec = '  runAs: {uid: 1, gid: 2}\n  fuse: {args: [fuse, "--fuse-opts=uid=3"]}'
    settings = plan(S3_DATASET + runtime("AlluxioRuntime", spec)).settings
    assert (settings.uid, settings.gid) == (3, 2)
    owned = S3_DATASET + "  owner: {uid: 4, gid: 5}\n"
    settings = plan(owned + runtime("AlluxioRuntime", spec)).settings
    assert (settings.uid, settings.gid) == (4, 5)


def test_read_permission_is_the_callers_choice_unless_the_runtime_sets_it() -> None:
    text = S3_DATASET + runtime("AlluxioRuntime", "")
    assert not plan(text).settings.allow_other
    assert plan(text, allow_other=True).settings.allow_other
    mine = S3_DATASET + runtime("PenstockRuntime", '  options: {allow-other: "false"}')
    assert not plan(mine, allow_other=True).settings.allow_other
    # The owners and modes of a folder of this machine would be lost on the way.
    local = text.replace("s3://bucket", "local:///bucket")
    assert not plan(local, allow_other=True).settings.allow_other


def test_any_command_line_option_works_in_our_own_runtime() -> None:
    spec = """
  options: {mode: passthrough, refresh: never, block-size: 4MiB, threads: 64, deadline: 30s,
            region: eu-1, no-cache: true, max_read: "131072", file-mode: "0440"}
"""
    found = plan(S3_DATASET + runtime("PenstockRuntime", spec))
    store = StoreOptions(region="eu-1", deadline_s=30)
    assert found.settings == MountSettings(
        parts=(Part("imagenet", Source("s3", "bucket", "imagenet"), store),),
        mountpoint=MOUNTPOINT,
        catalog="default.imagenet",
        title="dataset/default/imagenet",
        mode="passthrough",
        refresh_s=None,
        block_bytes=4 * MIB,
        threads=64,
        max_read_bytes=131072,
        file_mode=0o440,
    )
    assert (found.without_effect, found.notes) == ([], [])


def test_tiers_of_our_own_runtime_are_written_in_one_way() -> None:
    spec = "  options: {tier: 'MEM:/dev/shm/x:1GiB SSD:/nvme:2GiB'}"
    found = plan(S3_DATASET + runtime("PenstockRuntime", spec)).settings.tiers
    assert [tier.medium for tier in found] == ["MEM", "SSD"]
    spec += "\n  tieredstore: {levels: [{mediumtype: SSD, path: /a}]}"
    with pytest.raises(SpecProblem, match="exclude each other"):
        plan(S3_DATASET + runtime("PenstockRuntime", spec))
    (usual,) = plan(S3_DATASET + runtime("PenstockRuntime", "")).settings.tiers
    assert usual.paths == (CACHE / "datasets/default/imagenet",)


@pytest.mark.parametrize(
    ("option", "what", "hint"),
    [("thread: 4", "thread is not an option", "did you mean threads?"),
     ("block-size: 100KiB", "multiple of 128 KiB", ""),
     ("refresh: soon", "not a duration", "10m"),
     ("memory: 100MiB", "is not enough", "at least"),
     ("threads: ²", "²", ""),
     (f"memory: '{'9' * 400}'", "larger than any disk", "")],
)  # fmt: skip
def test_a_wrong_option_of_our_runtime_is_rejected_at_its_path(
    option: str, what: str, hint: str
) -> None:
    with pytest.raises(SpecProblem, match=what) as caught:
        plan(S3_DATASET + runtime("PenstockRuntime", f"  options: {{{option}}}"))
    assert caught.value.path == f"spec.options.{option.partition(':')[0]}"
    assert hint in (caught.value.hint or "")


def tiers(levels: str, *, checked: bool = True) -> tuple[TierSpec, ...]:
    text = S3_DATASET + runtime("AlluxioRuntime", f"  tieredstore:\n    levels: [{levels}]")
    return plan(text, checked=checked).settings.tiers


def memory(quota: int) -> TierSpec:
    return TierSpec("MEM", (Path("/dev/shm") / MINE,), quota, clamp=True)


def ssd(*paths: str, quota: int | None, high: float = 0.99, low: float = 0.8) -> TierSpec:
    folders = tuple(Path(path) / MINE for path in paths)
    return TierSpec("SSD", folders, quota, high, low, clamp=True)


TWO = '{mediumtype: SSD, path: "/a,/b", '


@pytest.mark.parametrize(
    ("levels", "expected"),
    [('{mediumtype: SSD, path: /nvme, quota: 180G, high: "0.95", low: "0.7"}',
      (ssd("/nvme", quota=180 * 10**9, high=0.95, low=0.7),)),
     ("{mediumtype: SSD, path: /nvme}", (ssd("/nvme", quota=None),)),
     (TWO + "quota: 100Gi}", (ssd("/a", "/b", quota=100 * GIB),)),
     (TWO + 'quotaList: "50Gi,50Gi"}', (ssd("/a", "/b", quota=100 * GIB),)),
     (TWO + 'quotaList: "100Gi,50Gi"}', (ssd("/a", quota=100 * GIB), ssd("/b", quota=50 * GIB))),
     ('{mediumtype: MEM, path: "/a,/b", quotaList: "1Gi,2Gi"}', (memory(3 * GIB),)),
     ("{mediumtype: SSD, path: /ssd, quota: 2Gi}, {mediumtype: MEM, path: /dev/shm, quota: 1Gi}",
      (memory(GIB), ssd("/ssd", quota=2 * GIB))),
     ("{mediumtype: SSD, volumeType: emptyDir, path: /cache, quota: 2Gi}",
      (TierSpec("SSD", (SCRATCH / "default/imagenet/0-0",), 2 * GIB, clamp=True),)),
     ('{mediumtype: SSD, path: /a, low: "0.1"}', (ssd("/a", quota=None, low=0.1),)),
     ('{mediumtype: SSD, path: /a, high: "0.5"}', (ssd("/a", quota=None, high=0.5, low=0.5),))],
)  # fmt: skip
def test_levels_become_tiers_fastest_first(levels: str, expected: tuple[TierSpec, ...]) -> None:
    assert tiers(levels) == expected


def test_juicefs_paths_use_colons_quotas_default_to_mib_and_low_means_free_space() -> None:
    level = '{mediumtype: SSD, path: "/mnt/a:/mnt/b", quota: 40960, low: "0.1"}'
    found = plan(S3_DATASET + runtime("JuiceFSRuntime", f"  tieredstore: {{levels: [{level}]}}"))
    assert found.settings.tiers == (ssd("/mnt/a", "/mnt/b", quota=40960 * MIB),)
    assert "spec.tieredstore.levels.0.low" in no_effects(found)
    assert any("40.0 GiB" in note for note in found.notes)


@pytest.mark.parametrize(
    ("levels", "path", "what"),
    [("{mediumtype: SSD, path: nvme, quota: 1Gi}", "levels.0.path", "not an absolute path"),
     ('{mediumtype: SSD, path: /a, quota: "0"}', "levels.0.quota", "caches nothing"),
     ('{mediumtype: SSD, path: "/a,/b", quotaList: 1Gi}', "levels.0.quotaList", "1 quotas"),
     ('{mediumtype: SSD, path: /a, high: "0.5", low: "0.9"}', "levels.0.low", "above high"),
     ("{mediumtype: SSD, path: /a}, {mediumtype: HDD, path: /a}", "levels", "in two levels")],
)  # fmt: skip
def test_an_impossible_level_is_rejected_with_its_path(levels: str, path: str, what: str) -> None:
    with pytest.raises(SpecProblem, match=what) as caught:
        tiers(levels, checked=False)
    assert caught.value.path == f"spec.tieredstore.{path}"
