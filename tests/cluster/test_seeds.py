"""The manifests that users of Fluid and JuiceFS have, with kubectl, from create to delete.

Their texts are tests/reconcile/manifests (of the same test on one machine) and seeds/. Buckets,
endpoints and keys are filled in; images cannot be pulled here, so that of a pod is replaced.
"""

from pathlib import Path

import pytest
import yaml

from tests.cluster.kube import Kube
from tests.cluster.volumes import (
    BUSYBOX,
    DATA,
    READ_EVERYTHING,
    checksums,
    dataset,
    fill,
    keys_secret,
    pod,
)
from tests.support.datasets import seed
from tests.support.s3 import ACCESS_KEY, S3, SECRET_KEY

pytestmark = pytest.mark.cluster
SEEDS = Path(__file__).parent / "seeds"
V100 = "aliyun.accelerator/nvidia_name"


@pytest.mark.parametrize(("number", "kind"), [("000", "alluxioruntime"), ("004", "jindoruntime")])
def test_fluids_manifests_give_a_volume_that_pods_read(
    kube: Kube, cluster_s3: S3, number: str, kind: str
) -> None:
    bucket = cluster_s3.bucket(kube.namespace)
    contents = fill(bucket / "imagenet")
    values = {
        "bucket": kube.namespace,
        "oss_bucket": kube.namespace,
        "directory": "imagenet",
        "bucket_dir": "imagenet",
        "endpoint": cluster_s3.endpoint,
        "access_key_id": ACCESS_KEY,
        "access_key_secret": SECRET_KEY,
    }
    kube("label", "node", "node-1", f"{V100}=Tesla-V100-SXM2-16GB", "--overwrite")
    kube("create", "-f", "-", stdin=seed(number, "dataset", **values))
    kube.wait_for_phase("dataset", "imagenet", "NotBound")
    kube("create", "-f", "-", stdin=seed(number, "runtime", **values))
    kube.wait_for_phase("dataset", "imagenet", "Bound")

    title, row = kube("get", "dataset").splitlines()
    expected = "NAME UFS TOTAL SIZE CACHED CACHE CAPACITY CACHED PERCENTAGE PHASE AGE"
    assert title.split() == expected.split()
    assert row.split()[0] == "imagenet"
    title, row = kube("get", kind).splitlines()
    assert title.split() == ["NAME", "MASTER", "PHASE", "WORKER", "PHASE", "FUSE", "PHASE", "AGE"]
    assert row.split()[1:4] == ["Ready", "Ready", "Ready"]
    described = kube("describe", "dataset", "imagenet")
    for words in ("The ddc runtime is ready.", "DatasetReady", "Accelerate"):
        assert words in described
    volume = kube.get("persistentvolume", f"{kube.namespace}-imagenet")
    assert volume["status"]["phase"] == "Bound"
    assert volume["spec"]["csi"]["driver"] == "fuse.csi.fluid.io"

    # As arena submits it: --data imagenet:/data, DATA_DIR=/data/imagenet.
    log = kube.run_pod(pod("trainer", "imagenet", READ_EVERYTHING))
    assert checksums(log) == {f"imagenet/{name}": digest for name, digest in contents.items()}
    # Where the affinity of the data set allows servers and pods.
    assert kube.get("pod", "trainer")["spec"]["nodeName"] == "node-1"

    def total() -> str:
        return kube.get("dataset", "imagenet").get("status", {}).get("ufsTotal", "")

    kube.wait_for(lambda: total().endswith("MiB"), "the size of the bucket is not known")
    kube("delete", "pod", "trainer")
    kube("delete", "dataset", "imagenet", "--timeout=60s")
    kube("delete", kind, "imagenet", "--ignore-not-found", "--timeout=60s")


def test_the_pod_and_the_options_of_a_juicefs_volume_work(kube: Kube, cluster_s3: S3) -> None:
    contents = fill(cluster_s3.bucket(kube.namespace))
    manifest = yaml.safe_load((SEEDS / "001-pod.yaml").read_text())
    manifest["metadata"]["namespace"] = kube.namespace
    manifest["spec"]["containers"][0]["image"] = BUSYBOX
    (volume,) = manifest["spec"]["volumes"]
    claim = volume["persistentVolumeClaim"]["claimName"]
    attributes = yaml.safe_load((SEEDS / "001-volume.yaml").read_text())["spec"]["csi"]
    options = dict(
        option.partition("=")[::2]
        for option in attributes["volumeAttributes"]["mountOptions"].split(",")
    )
    mount = {
        "mountPoint": f"bos://{kube.namespace}",
        "path": "/",
        "name": "imagenet-jfs",
        "options": {"fs.bos.endpoint": cluster_s3.endpoint},
        "encryptOptions": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": "keys", "key": key}}}
            for name, key in (("fs.bos.access.key", "id"), ("fs.bos.secret.access.key", "secret"))
        ],
    }
    juicefs = {
        "apiVersion": DATA,
        "kind": "JuiceFSRuntime",
        "metadata": {"name": claim},
        "spec": {"fuse": {"options": options}},
    }
    kube.apply(keys_secret(), dataset(claim, mount), juicefs)
    kube.wait_for_phase("dataset", claim, "Bound")
    kube.apply(manifest)
    name = manifest["metadata"]["name"]
    kube.wait_for_phase("pod", name, "Running", timeout_s=90)
    assert "large.bin" in kube("exec", name, "--", "ls", "-hl", "/data")
    assert checksums(kube("exec", name, "--", "sh", "-c", READ_EVERYTHING)) == contents
