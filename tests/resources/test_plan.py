"""Whole manifests, as people have them, to the settings that they make."""

from pathlib import Path
from typing import Any

import pytest

from penstock.cache.tier import TierSpec
from penstock.daemon.settings import MountSettings, Part
from penstock.errors import SpecProblem
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import Source
from penstock.units import GIB, MIB
from tests.support.datasets import seed
from tests.support.planning import CACHE, MOUNTPOINT, S3_DATASET, no_effects, plan, runtime

KEYS = {"access_key_id": "the-id", "access_key_secret": "the-secret"}
DAWNBENCH = "---\n".join(
    seed("000", part, bucket="bucket", directory="imagenet", **KEYS,
         endpoint="oss-cn-hangzhou-internal.aliyuncs.com")
    for part in ("dataset", "runtime")
)  # fmt: skip
JINDO = "---\n".join(
    seed("004", part, oss_bucket="bucket", bucket_dir="folder",
         oss_endpoint="oss-cn-hangzhou.aliyuncs.com")
    for part in ("dataset", "runtime")
)  # fmt: skip


def test_the_dawnbench_manifests_give_exactly_these_settings() -> None:
    found = plan(DAWNBENCH)
    assert found.settings == MountSettings(
        parts=(
            Part(
                "imagenet", Source("oss", "bucket", "imagenet"),
                StoreOptions("https://oss-cn-hangzhou-internal.aliyuncs.com",
                             keys=Keys("the-id", "the-secret")),
            ),
        ),
        mountpoint=MOUNTPOINT,
        catalog="default.imagenet",
        title="dataset/default/imagenet",
        tiers=(
            TierSpec("MEM", (Path("/dev/shm/penstock/default/imagenet"),), 150 * GIB, clamp=True),
        ),
        block_bytes=16 * MIB,
        max_read_bytes=131072,
        attr_timeout_s=7200,
        entry_timeout_s=7200,
    )  # fmt: skip
    assert "the-secret" not in repr(found)
    # Every property is acted on or told, and nothing else is.
    properties = {path for path in no_effects(found) if path.startswith("spec.properties.")}
    acted = {"alluxio.user.block.size.bytes.default", "alluxio.user.metadata.cache.expiration.time"}
    assert len(properties) == 47 - len(acted)
    assert set(no_effects(found)) == properties


def test_the_jindo_manifests_give_exactly_these_settings() -> None:
    secrets = {"mysecret/fs.oss.accessKeyId": "the-id", "mysecret/fs.oss.accessKeySecret": "hush"}
    found = plan(JINDO, secrets=secrets)
    folder = Path("/var/lib/docker/jindo/penstock/default/imagenet")
    assert found.settings == MountSettings(
        parts=(
            Part(
                "imagenet", Source("oss", "bucket", "folder"),
                StoreOptions("https://oss-cn-hangzhou.aliyuncs.com", keys=Keys("the-id", "hush")),
            ),
        ),
        mountpoint=MOUNTPOINT,
        catalog="default.imagenet",
        title="dataset/default/imagenet",
        tiers=(TierSpec("SSD", (folder,), 180 * 10**9, clamp=True),),
    )  # fmt: skip
    assert (found.without_effect, found.notes) == ([], [])


def test_a_secret_that_is_missing_is_refused_at_the_option_that_names_it() -> None:
    with pytest.raises(SpecProblem, match=r"has no fs\.oss\.accessKeySecret") as caught:
        plan(JINDO, secrets={"mysecret/fs.oss.accessKeyId": "the-id"})
    assert caught.value.path == "spec.mounts.0.encryptOptions.1"


SEVERAL = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: both}
spec:
  sharedOptions: {region: shared, endpoint: http://127.0.0.1:9000}
  sharedEncryptOptions:
    - name: aws.accessKeyId
      valueFrom: {secretKeyRef: {name: all, key: id}}
    - name: aws.secretKey
      valueFrom: {secretKeyRef: {name: all, key: key}}
  mounts:
    - {mountPoint: s3://one, name: one, options: {region: own}}
    - mountPoint: s3://two
      path: /deep/two
      name: two
      encryptOptions:
        - name: aws.secretKey
          valueFrom: {secretKeyRef: {name: mine, key: key}}
    - {mountPoint: local:///data, path: /, name: three}
"""


def test_several_mounts_have_their_own_paths_and_share_what_is_shared() -> None:
    secrets = {"all/id": "i", "all/key": "k", "mine/key": "m"}
    found = plan(SEVERAL + runtime("AlluxioRuntime", "", name="both"), secrets=secrets)
    endpoint = "http://127.0.0.1:9000"
    one, two, three = found.settings.parts
    assert one == Part(
        "one", Source("s3", "one", ""), StoreOptions(endpoint, "own", keys=Keys("i", "k"))
    )
    assert two == Part(
        "deep/two", Source("s3", "two", ""), StoreOptions(endpoint, "shared", keys=Keys("i", "m"))
    )
    assert three == Part("", Source("file", "", "/data"), StoreOptions())


def dataset(name: str, mount: str, namespace: str = "default") -> str:
    return (
        "---\napiVersion: data.fluid.io/v1alpha1\nkind: Dataset\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  mounts:\n    - {mount}\n"
    )


PHYSICAL = dataset("phy", "{mountPoint: s3://bucket/spark, name: spark}") + runtime(
    "AlluxioRuntime",
    "  tieredstore: {levels: [{mediumtype: SSD, path: /nvme, quota: 1Gi}]}",
    name="phy",
)


def refer(mount: str, other: str = PHYSICAL, **around: Any) -> MountSettings:
    mine = dataset("ref", mount, "team") + runtime("ThinRuntime", "", name="ref").replace(
        "{name: ref}", "{name: ref, namespace: team}"
    )
    return plan(mine + other, **around).settings


LOCAL = PHYSICAL.replace("s3://bucket/spark", "local:///data")
OF_TEAM = dataset("phy", "{mountPoint: s3://mine, name: spark}", "team")


@pytest.mark.parametrize(
    ("mount", "other", "path", "source"),
    [
        ("{mountPoint: dataset://default/phy, path: /}", PHYSICAL, "spark", "s3://bucket/spark"),
        ("{mountPoint: dataset://default/phy, name: all}", PHYSICAL, "all/spark",
         "s3://bucket/spark"),
        ("{mountPoint: dataset://default/phy/spark, path: /}", PHYSICAL, "", "s3://bucket/spark"),
        ("{mountPoint: dataset://default/phy/spark/3.1/x, name: x}", PHYSICAL, "x",
         "s3://bucket/spark/3.1/x"),
        ("{mountPoint: dataset://default/phy/spark/3.1, path: /}", LOCAL, "", "file:///data/3.1"),
        # A name alone is a data set of the same namespace.
        ("{mountPoint: dataset://phy, path: /}", OF_TEAM, "spark", "s3://mine"),
    ],
)  # fmt: skip
def test_a_reference_shows_the_other_data_sets_parts_below_its_own_path(
    mount: str, other: str, path: str, source: str
) -> None:
    (part,) = refer(mount, other).parts
    assert (part.path, str(part.source)) == (path, source)


def test_a_reference_to_a_folder_that_is_in_no_part_is_refused() -> None:
    with pytest.raises(SpecProblem, match="has nothing in flink") as caught:
        refer("{mountPoint: dataset://default/phy/flink, path: /}")
    assert caught.value.hint == "its parts are at /spark"


def test_a_reference_without_tiers_uses_those_of_what_it_refers_to() -> None:
    settings = refer("{mountPoint: dataset://default/phy, path: /}")
    assert settings.tiers == (
        TierSpec("SSD", (Path("/nvme/penstock/default/phy"),), GIB, clamp=True),
    )
    assert settings.catalog == "team.ref"


def test_secrets_of_a_referenced_data_set_are_those_of_its_own_namespace() -> None:
    other = PHYSICAL.replace(
        "{mountPoint: s3://bucket/spark, name: spark}",
        "{mountPoint: s3://bucket/spark, name: spark, encryptOptions: ["
        "{name: access-key, valueFrom: {secretKeyRef: {name: s, key: a}}},"
        "{name: secret-key, valueFrom: {secretKeyRef: {name: s, key: b}}}]}",
    )
    secrets = {"default/s/a": "i", "default/s/b": "k"}
    (part,) = refer("{mountPoint: dataset://default/phy, path: /}", other, secrets=secrets).parts
    assert part.store.keys == Keys("i", "k")


def test_the_owner_comes_before_fuse_arguments_and_those_before_run_as() -> None:
    spec = '  runAs: {uid: 1, gid: 2}\n  fuse: {args: [fuse, "--fuse-opts=uid=3"]}'
    settings = plan(S3_DATASET + runtime("AlluxioRuntime", spec)).settings
    assert (settings.uid, settings.gid) == (3, 2)
    owned = S3_DATASET + "  owner: {uid: 4, gid: 5}\n"
    settings = plan(owned + runtime("AlluxioRuntime", spec)).settings
    assert (settings.uid, settings.gid) == (4, 5)


def test_who_may_read_is_the_callers_choice_unless_the_runtime_says() -> None:
    text = S3_DATASET + runtime("AlluxioRuntime", "")
    assert not plan(text).settings.allow_other
    assert plan(text, allow_other=True).settings.allow_other
    mine = S3_DATASET + runtime("PenstockRuntime", '  options: {allow-other: "false"}')
    assert not plan(mine, allow_other=True).settings.allow_other
    # The owners and modes of a folder of this machine would be lost on the way.
    local = text.replace("s3://bucket", "local:///bucket")
    assert not plan(local, allow_other=True).settings.allow_other


def test_any_option_of_the_command_line_is_one_of_our_own_runtime() -> None:
    spec = """
  options:
    mode: passthrough
    refresh: never
    policy: lru
    block-size: 4MiB
    threads: 64
    prefetch: "0"
    deadline: 30s
    region: eu-1
    no-cache: true
    allow-other: true
    max_read: "131072"
    file-mode: "0440"
"""
    found = plan(S3_DATASET + runtime("PenstockRuntime", spec))
    assert found.settings == MountSettings(
        parts=(
            Part("imagenet", Source("s3", "bucket", "imagenet"),
                 StoreOptions(region="eu-1", deadline_s=30)),
        ),
        mountpoint=MOUNTPOINT, catalog="default.imagenet", title="dataset/default/imagenet",
        mode="passthrough", refresh_s=None, policy="lru", block_bytes=4 * MIB, threads=64,
        prefetch_blocks=0, allow_other=True, max_read_bytes=131072, file_mode=0o440,
    )  # fmt: skip
    assert (found.without_effect, found.notes) == ([], [])


def test_tiers_of_our_own_runtime_are_said_in_one_way() -> None:
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
    [
        ("thread: 4", "thread is not an option", "did you mean threads?"),
        ("block-size: 100KiB", "multiple of 128 KiB", ""),
        ("refresh: soon", "not a duration", "10m"),
        ("memory: 100MiB", "are not enough", "at least"),
    ],
)
def test_a_wrong_option_of_our_own_runtime_is_refused_at_its_place(
    option: str, what: str, hint: str
) -> None:
    with pytest.raises(SpecProblem, match=what) as caught:
        plan(S3_DATASET + runtime("PenstockRuntime", f"  options: {{{option}}}"))
    assert caught.value.path == f"spec.options.{option.partition(':')[0]}"
    assert hint in (caught.value.hint or "")
