"""Whole manifests, as people have them, to the settings that they make."""

from pathlib import Path

import pytest

from penstock.cache.tier import TierSpec
from penstock.daemon.settings import MountSettings, Part
from penstock.errors import SpecProblem
from penstock.store.connect import StoreOptions
from penstock.store.keys import Keys
from penstock.store.source import Source
from penstock.units import GIB, MIB
from tests.resources.planning import (
    CACHE,
    MOUNTPOINT,
    S3_DATASET,
    no_effects,
    plan,
    runtime,
)

ONLY_V100 = """
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: aliyun.accelerator/nvidia_name, operator: In, values: [Tesla-V100-SXM2-16GB]}
"""
DAWNBENCH = (
    """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata:
  name: imagenet
spec:
  mounts:
    - mountPoint: oss://bucket/imagenet/
      name: imagenet
      options:
        fs.oss.accessKeyId: the-id
        fs.oss.accessKeySecret: the-secret
        fs.oss.endpoint: oss-cn-hangzhou-internal.aliyuncs.com
"""
    + ONLY_V100
    + """
---
apiVersion: data.fluid.io/v1alpha1
kind: AlluxioRuntime
metadata:
  name: imagenet
spec:
  replicas: 4
  dataReplicas: 3
  alluxioVersion: {image: registry/alluxio, imageTag: "2.3.0", imagePullPolicy: Always}
  tieredstore:
    levels:
      - mediumtype: MEM
        path: /var/lib/docker/alluxio
        quota: 150Gi
        high: "0.99"
        low: "0.8"
        storageType: Memory
  properties:
    alluxio.fuse.jnifuse.enabled: "true"
    alluxio.user.client.cache.enabled: "false"
    alluxio.user.client.cache.store.type: MEMORY
    alluxio.user.client.cache.dir: /alluxio/ram
    alluxio.user.client.cache.page.size: 2MB
    alluxio.user.client.cache.size: 1800MB
    alluxio.master.metastore: ROCKS
    alluxio.master.metastore.inode.cache.max.size: "10000000"
    alluxio.master.journal.log.size.bytes.max: 500MB
    alluxio.master.metadata.sync.concurrency.level: "128"
    alluxio.master.metadata.sync.executor.pool.size: "128"
    alluxio.master.metadata.sync.ufs.prefetch.pool.size: "128"
    alluxio.user.block.worker.client.pool.min: "512"
    alluxio.fuse.debug.enabled: "false"
    alluxio.web.ui.enabled: "false"
    alluxio.user.file.writetype.default: MUST_CACHE
    alluxio.user.ufs.block.read.location.policy: alluxio.client.block.policy.LocalFirstPolicy
    alluxio.user.block.write.location.policy.class: alluxio.client.block.policy.LocalFirstPolicy
    alluxio.worker.allocator.class: alluxio.worker.block.allocator.GreedyAllocator
    alluxio.user.block.size.bytes.default: 16MB
    alluxio.user.streaming.reader.chunk.size.bytes: 32MB
    alluxio.user.local.reader.chunk.size.bytes: 32MB
    alluxio.worker.network.reader.buffer.size: 32MB
    alluxio.worker.file.buffer.size: 320MB
    alluxio.user.metrics.collection.enabled: "false"
    alluxio.master.rpc.executor.max.pool.size: "1024"
    alluxio.master.rpc.executor.core.pool.size: "128"
    alluxio.user.update.file.accesstime.disabled: "true"
    alluxio.user.file.passive.cache.enabled: "false"
    alluxio.user.block.avoid.eviction.policy.reserved.size.bytes: 2GB
    alluxio.master.journal.folder: /journal
    alluxio.master.journal.type: UFS
    alluxio.user.block.master.client.pool.gc.threshold: 2day
    alluxio.user.file.master.client.threads: "1024"
    alluxio.user.block.master.client.threads: "1024"
    alluxio.user.file.readtype.default: CACHE
    alluxio.security.stale.channel.purge.interval: 365d
    alluxio.user.metadata.cache.enabled: "true"
    alluxio.user.metadata.cache.expiration.time: 2day
    alluxio.user.metadata.cache.max.size: "1000000"
    alluxio.user.direct.memory.io.enabled: "true"
    alluxio.fuse.cached.paths.max: "1000000"
    alluxio.job.worker.threadpool.size: "164"
    alluxio.user.worker.list.refresh.interval: 2min
    alluxio.user.logging.threshold: 1000ms
    alluxio.fuse.logging.threshold: 1000ms
    alluxio.worker.block.master.client.pool.size: "1024"
  master: {replicas: 1, jvmOptions: ["-Xmx6G"]}
  worker: {jvmOptions: ["-Xmx12G"]}
  fuse:
    image: registry/alluxio-fuse
    imageTag: "2.3.0"
    env: {SPENT_TIME: "1000"}
    jvmOptions: ["-Xmx16G"]
    shortCircuitPolicy: local
    args:
      - fuse
      - --fuse-opts=kernel_cache,ro,max_read=131072,attr_timeout=7200,entry_timeout=7200
"""
)
JINDO = (
    """
apiVersion: v1
kind: Secret
metadata: {name: mysecret}
stringData: {fs.oss.accessKeyId: xxx, fs.oss.accessKeySecret: xxx}
---
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {name: imagenet}
spec:
  mounts:
    - mountPoint: oss://bucket/folder
      options: {fs.oss.endpoint: oss-cn-hangzhou.aliyuncs.com}
      name: imagenet
      encryptOptions:
        - name: fs.oss.accessKeyId
          valueFrom: {secretKeyRef: {name: mysecret, key: fs.oss.accessKeyId}}
        - name: fs.oss.accessKeySecret
          valueFrom: {secretKeyRef: {name: mysecret, key: fs.oss.accessKeySecret}}
"""
    + ONLY_V100
    + """
---
apiVersion: data.fluid.io/v1alpha1
kind: JindoRuntime
metadata: {name: imagenet}
spec:
  replicas: 4
  tieredstore:
    levels:
      - {mediumtype: SSD, path: /var/lib/docker/jindo, quota: 180G, high: "0.99", low: "0.8"}
"""
)


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


def test_keys_are_in_no_repr() -> None:
    found = plan(DAWNBENCH)
    assert "the-secret" not in repr(found)
    assert "the-id" not in repr(found)


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


def refer(mount: str, other: str = PHYSICAL) -> MountSettings:
    mine = dataset("ref", mount, "team") + runtime("ThinRuntime", "", name="ref").replace(
        "{name: ref}", "{name: ref, namespace: team}"
    )
    return plan(mine + other).settings


def test_a_reference_shows_the_other_data_sets_parts_below_its_own_path() -> None:
    (part,) = refer("{mountPoint: dataset://default/phy, path: /}").parts
    assert (part.path, str(part.source)) == ("spark", "s3://bucket/spark")
    (part,) = refer("{mountPoint: dataset://default/phy, name: all}").parts
    assert (part.path, str(part.source)) == ("all/spark", "s3://bucket/spark")


def test_a_reference_to_a_folder_shows_what_is_in_it() -> None:
    (part,) = refer("{mountPoint: dataset://default/phy/spark, path: /}").parts
    assert (part.path, str(part.source)) == ("", "s3://bucket/spark")
    (part,) = refer("{mountPoint: dataset://default/phy/spark/3.1/x, name: x}").parts
    assert (part.path, str(part.source)) == ("x", "s3://bucket/spark/3.1/x")
    local = PHYSICAL.replace("s3://bucket/spark", "local:///data")
    (part,) = refer("{mountPoint: dataset://default/phy/spark/3.1, path: /}", local).parts
    assert str(part.source) == "file:///data/3.1"


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


def test_a_name_alone_is_a_data_set_of_the_same_namespace() -> None:
    other = dataset("phy", "{mountPoint: s3://mine, name: spark}", "team")
    (part,) = refer("{mountPoint: dataset://phy, path: /}", other).parts
    assert str(part.source) == "s3://mine"


def test_secrets_of_a_referenced_data_set_are_those_of_its_own_namespace() -> None:
    other = PHYSICAL.replace(
        "{mountPoint: s3://bucket/spark, name: spark}",
        "{mountPoint: s3://bucket/spark, name: spark, encryptOptions: ["
        "{name: access-key, valueFrom: {secretKeyRef: {name: s, key: a}}},"
        "{name: secret-key, valueFrom: {secretKeyRef: {name: s, key: b}}}]}",
    )
    mine = dataset("ref", "{mountPoint: dataset://default/phy, path: /}", "team") + runtime(
        "ThinRuntime", "", name="ref"
    ).replace("{name: ref}", "{name: ref, namespace: team}")
    secrets = {"default/s/a": "i", "default/s/b": "k"}
    assert plan(mine + other, secrets=secrets).settings.parts[0].store.keys == Keys("i", "k")


def test_a_circle_and_a_data_set_that_is_not_there_are_refused() -> None:
    back = dataset("phy", "{mountPoint: dataset://team/ref, path: /}")
    with pytest.raises(
        SpecProblem, match="circle: dataset/team/ref -> dataset/default/phy -> dataset/team/ref"
    ):
        refer("{mountPoint: dataset://default/phy, path: /}", back)
    with pytest.raises(SpecProblem, match="there is no dataset/default/gone"):
        refer("{mountPoint: dataset://default/gone, path: /}")


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
        ("mode: fast", "not one of auto, pagecache, passthrough", ""),
        ("threads: 1", "not a whole number from 2 to 512", ""),
        ("block-size: 100KiB", "multiple of 128 KiB", ""),
        ("refresh: soon", "not a duration", "10m"),
        ("memory: 100MiB", "are not enough", "at least"),
        ("no-cache: maybe", "neither true nor false", ""),
        ("max_read: 17", "multiple of 4096", ""),
    ],
)
def test_a_wrong_option_of_our_own_runtime_is_refused_at_its_place(
    option: str, what: str, hint: str
) -> None:
    with pytest.raises(SpecProblem, match=what) as caught:
        plan(S3_DATASET + runtime("PenstockRuntime", f"  options: {{{option}}}"))
    assert caught.value.path == f"spec.options.{option.partition(':')[0]}"
    assert hint in (caught.value.hint or "")
