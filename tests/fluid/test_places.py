"""Where the data of a mount is, for each scheme and each way to write it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.support.planning import S3_DATASET, no_effects, plan, runtime

from penstock.errors import SpecProblem
from penstock.fluid.plan import MountPlan
from penstock.store.connect import StoreOptions
from penstock.store.credentials import Keys


def mounted(
    mount_point: str,
    options: Mapping[str, str] | None = None,
    *,
    kind: str = "AlluxioRuntime",
    spec: str = "",
    **around: Any,
) -> MountPlan:
    mount = {"mountPoint": mount_point, "name": "data", "options": dict(options or {})}
    text = S3_DATASET.partition("  mounts:")[0] + f"  mounts: {json.dumps([mount])}\n"
    return plan(text + runtime(kind, spec), **around)


def part(mount_point: str, options: Mapping[str, str] | None = None, **around: Any) -> Any:
    (only,) = mounted(mount_point, options, **around).settings.parts
    return only


KEYS = Keys("id", "hidden")


@pytest.mark.parametrize(
    ("mount_point", "options", "source", "store"),
    [("s3://b/p/", {"aws.accessKeyId": "id", "aws.secretKey": "hidden",
                    "alluxio.underfs.s3.endpoint": "http://minio:9000",
                    "alluxio.underfs.s3.disable.dns.buckets": "true",
                    "alluxio.underfs.s3.endpoint.region": "eu-1"}, "s3://b/p",
      StoreOptions("http://minio:9000", "eu-1", path_style=True, keys=KEYS)),
     ("s3://b", {"fs.s3.accessKeyId": "id", "fs.s3.accessKeySecret": "hidden",
                 "fs.s3.endpoint": "minio.default.svc.cluster.local:9000",
                 "fs.s3.region": "us-east-1"}, "s3://b",
      StoreOptions("https://minio.default.svc.cluster.local:9000", "us-east-1", keys=KEYS)),
     ("s3://b", {"alluxio.underfs.s3.endpoint": "localhost:9000"},
      "s3://b", StoreOptions("http://localhost:9000")),
     ("s3://b", {"alluxio.underfs.s3.endpoint": "10.0.0.1:9000",
                 "alluxio.underfs.s3.secure.http.enabled": "false"},
      "s3://b", StoreOptions("http://10.0.0.1:9000")),
     ("oss://b/p", {"fs.oss.accessKeyId": "id", "fs.oss.accessKeySecret": "hidden",
                    "fs.oss.endpoint": "oss-cn-beijing-internal.aliyuncs.com"}, "oss://b/p",
      StoreOptions("https://oss-cn-beijing-internal.aliyuncs.com", keys=KEYS)),
     ("cos://b-1250000000", {"fs.cos.accessKeyId": "id", "fs.cos.accessKeySecret": "hidden",
                             "fs.cos.endpoint": "cos.ap-guangzhou.myqcloud.com"},
      "s3://b-1250000000", StoreOptions("https://cos.ap-guangzhou.myqcloud.com", "ap-guangzhou",
                                        path_style=False, keys=KEYS)),
     ("cosn://b/p", {"fs.cos.access.key": "id", "fs.cos.secret.key": "hidden",
                     "fs.cos.region": "ap-beijing", "fs.cos.app.id": "1250000000"},
      "s3://b-1250000000/p", StoreOptions("https://cos.ap-beijing.myqcloud.com", "ap-beijing",
                                          path_style=False, keys=KEYS)),
     ("bos://b", {"endpoint": "s3.bj.bcebos.com", "access-key": "id", "secret-key": "hidden"},
      "bos://b", StoreOptions("https://s3.bj.bcebos.com", keys=KEYS)),
     ("gs://b/p", {"service-account-json": "{}"},
      "gs://b/p", StoreOptions(keys=Keys(service_account_json="{}"))),
     ("gs://b/p", {"fs.gcs.accessKeyId": "id", "fs.gcs.secretAccessKey": "hidden"}, "s3://b/p",
      StoreOptions("https://storage.googleapis.com", "auto", keys=KEYS)),
     ("az://c/p", {"fs.azure.account.key.mine.blob.core.windows.net": "k"},
      "az://c/p", StoreOptions(keys=Keys(account_name="mine", account_key="k"))),
     ("https://mirrors.example.org/apache/", {},
      "https://mirrors.example.org/apache", StoreOptions()),
     ("s3://b", {"anonymous": "true"}, "s3://b", StoreOptions(anonymous=True))],
)  # fmt: skip
def test_each_scheme_is_parsed_in_all_its_spellings(
    mount_point: str, options: dict[str, str], source: str, store: StoreOptions
) -> None:
    found = part(mount_point, options)
    assert (found.path, str(found.source), found.store) == ("data", source, store)


JUICEFS = {"access-key": "id", "secret-key": "hidden", "metaurl": "redis://x/1"}


@pytest.mark.parametrize(
    ("mount_point", "options", "source", "store"),
    [("juicefs:///demo", {"storage": "minio", "bucket": "http://minio:9000/minio/test"},
      "s3://test/demo", StoreOptions("http://minio:9000", keys=KEYS)),
     ("juicefs:///", {"storage": "s3", "bucket": "https://my.jfs.s3.us-east-2.amazonaws.com"},
      "s3://my.jfs", StoreOptions("https://s3.us-east-2.amazonaws.com", keys=KEYS)),
     ("juicefs:///a/b", {"bucket": "https://jfs.oss-cn-hangzhou.aliyuncs.com"}, "oss://jfs/a/b",
      StoreOptions("https://oss-cn-hangzhou.aliyuncs.com", keys=KEYS)),
     ("juicefs:///", {"storage": "wasb", "bucket": "https://jfs.core.windows.net"}, "az://jfs",
      StoreOptions(keys=Keys(account_name="id", account_key="hidden")))],
)  # fmt: skip
def test_a_juicefs_mount_is_its_bucket_at_the_root(
    mount_point: str, options: dict[str, str], source: str, store: StoreOptions
) -> None:
    found = mounted(mount_point, options | JUICEFS, kind="JuiceFSRuntime")
    (only,) = found.settings.parts
    assert (only.path, str(only.source), replace(only.store, juicefs=None)) == ("", source, store)
    assert only.store.juicefs is not None
    assert "metadata engine" in no_effects(found)["spec.mounts.0.options.metaurl"]
    assert "no JuiceFS metadata is used" in found.notes[0]


@pytest.mark.parametrize(
    ("mount_point", "options", "path", "hint"),
    [("s3://b", {"aws.accesskeyid": "i"}, "options.aws.accesskeyid", "aws.accessKeyId"),
     ("s3://b", {"regoin": "x"}, "options.regoin", "region"),
     ("s3://b", {"zzz": "x"}, "options.zzz", "runtime-options.md"),
     ("s3://b", {"aws.accessKeyId": "i"}, "options.aws.accessKeyId", "aws.secretKey"),
     ("s3://b", {"endpoint": "<ENDPOINT>"}, "options.endpoint", "127.0.0.1"),
     ("s3://b", {"endpoint": "http://a:b@c"}, "options.endpoint", "encryptOptions"),
     ("s3://b", {"endpoint": "http://["}, "options.endpoint", ""),
     ("juicefs:///", {"bucket": "http://[/x"}, "options.bucket", ""),
     ("s3://b", {"path-style": "maybe"}, "options.path-style", "true"),
     ("oss://b", {"fs.oss.endpoint": "cn-x.oss-dls.aliyuncs.com"}, "options.fs.oss.endpoint",
      "oss-cn-hangzhou"),
     ("cos://b", {}, "options", "fs.cos.endpoint"),
     ("juicefs:///", {"storage": "minio"}, "options", "options.bucket"),
     ("juicefs:///", {"storage": "redis", "bucket": "x"}, "options.storage", "minio"),
     ("juicefs:///", {"bucket": "https://minio.local"}, "options.bucket", "host:9000/bucket"),
     ("gs://b", {"fs.gcs.credential.path": "/nowhere/key.json"},
      "options.fs.gcs.credential.path", "service-account-json")],
)  # fmt: skip
def test_an_impossible_value_is_rejected_with_its_path_and_a_hint(
    mount_point: str, options: dict[str, str], path: str, hint: str
) -> None:
    with pytest.raises(SpecProblem) as caught:
        part(mount_point, options)
    assert caught.value.path == f"spec.mounts.0.{path}"
    assert hint in (caught.value.hint or "")
    assert not any(len(text) > 8 and text in str(caught.value) for text in options.values())


def test_a_value_with_another_meaning_elsewhere_is_reported_with_the_reason() -> None:
    at = "spec.mounts.0.options."
    reported = {
        "alluxio.underfs.s3.inherit.acl": "all files have the data set's owner "
        "and the mount's modes",
        "fs.oss.endpoint": "it is for oss:// and this mount is s3://",
        "alluxio.underfs.s3.socket.timeout": "it tunes Alluxio's own client of the store",
        "fs.s3.region": f"{at}region sets it already",
    }
    options = {"region": "a", **dict.fromkeys(reported, "b")}
    assert no_effects(mounted("s3://b", options)) == {
        at + name: why for name, why in reported.items()
    }


def test_keys_in_runtime_settings_apply_to_every_mount_that_knows_them() -> None:
    spec = "  properties: {aws.accessKeyId: id, aws.secretKey: hidden, fs.oss.endpoint: x}"
    own = {"aws.secretKey": "own", "aws.accessKeyId": "other"}
    assert part("s3://b", own, spec=spec).store.keys == Keys("other", "own")
    found = mounted("s3://b", spec=spec)
    assert found.settings.parts[0].store.keys == Keys("id", "hidden")
    assert no_effects(found) == {
        "spec.properties.fs.oss.endpoint": "no mount of this data set is oss://"
    }


def test_a_key_file_is_found_in_the_secret_that_a_pod_would_mount() -> None:
    spec = """
  volumes: [{name: secret-volume, secret: {secretName: gcscreds}}]
  master: {volumeMounts: [{name: secret-volume, mountPath: /var/secrets}]}
"""
    options = {"fs.gcs.credential.path": "/var/secrets/key.json"}
    found = part("gs://b", options, spec=spec, secrets={"gcscreds/key.json": '{"a": 1}'})
    assert found.store.keys == Keys(service_account_json='{"a": 1}')
