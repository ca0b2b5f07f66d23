"""What is planned can be mounted."""

from pathlib import Path

from penstock.daemon.start import start_supervisor
from penstock.daemon.stop import stop_mount
from tests.conftest import ACCESS_KEY, S3, SECRET_KEY
from tests.resources.planning import plan

MANIFESTS = """
apiVersion: data.fluid.io/v1alpha1
kind: Dataset
metadata: {{name: imagenet}}
spec:
  mounts:
    - mountPoint: s3://planned/train
      name: train
      options:
        alluxio.underfs.s3.endpoint: {endpoint}
        alluxio.underfs.s3.disable.dns.buckets: "true"
      encryptOptions:
        - name: aws.accessKeyId
          valueFrom: {{secretKeyRef: {{name: keys, key: id}}}}
        - name: aws.secretKey
          valueFrom: {{secretKeyRef: {{name: keys, key: secret}}}}
    - mountPoint: local://{local}
      path: /labels
      name: labels
  owner: {{uid: 1201, gid: 1202}}
---
apiVersion: data.fluid.io/v1alpha1
kind: AlluxioRuntime
metadata: {{name: imagenet}}
spec:
  replicas: 4
  tieredstore:
    levels:
      - {{mediumtype: SSD, path: {cache}, quota: 900Pi, high: "0.95", low: "0.7"}}
  properties: {{alluxio.user.block.size.bytes.default: 16MB}}
  fuse: {{args: [fuse, "--fuse-opts=kernel_cache,ro,attr_timeout=7200,entry_timeout=7200"]}}
"""


def test_a_planned_data_set_is_mounted_with_keys_from_secrets_and_nothing_else(
    s3: S3, tmp_path: Path
) -> None:
    train = s3.bucket("planned") / "train"
    train.mkdir()
    (train / "a.jpg").write_bytes(b"picture")
    local, cache, mountpoint = tmp_path / "local", tmp_path / "cache", tmp_path / "data"
    for folder in (local, mountpoint):
        folder.mkdir()
    (local / "a.txt").write_text("cat")
    text = MANIFESTS.format(endpoint=s3.endpoint, local=local, cache=cache)
    secrets = {"keys/id": ACCESS_KEY, "keys/secret": SECRET_KEY}
    planned = plan(text, secrets=secrets, mountpoint=mountpoint)
    start_supervisor(planned.settings)
    try:
        picture = mountpoint / "train" / "a.jpg"
        assert picture.read_bytes() == b"picture"
        assert (picture.stat().st_uid, picture.stat().st_gid) == (1201, 1202)
        assert (mountpoint / "labels" / "a.txt").read_text() == "cat"
    finally:
        stop_mount(mountpoint)
    assert (cache / "penstock" / "default" / "imagenet" / "index.sqlite").exists()
