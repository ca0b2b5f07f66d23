"""Options of a Dataset's mounts that configure its store: tables, with the names that people know
from Alluxio, Jindo, JuiceFS and Thin runtimes.

docs/reference/runtime-options.md is made from them.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

# The storages of JuiceFS that Penstock reads, and our scheme for each.
STORAGES = {
    "s3": "s3", "minio": "s3", "wasabi": "s3", "space": "s3", "scw": "s3", "oss": "oss",
    "bos": "bos", "cos": "cos", "obs": "obs", "gs": "gs", "wasb": "az", "file": "file",
}  # fmt: skip
# The table for each scheme of a mountPoint.
FAMILIES: Final[Mapping[str, str]] = {
    "s3": "s3", "s3a": "s3", "minio": "s3", "oss": "oss", "bos": "bos", "cos": "cos", "cosn": "cos",
    "obs": "obs", "gs": "gs", "az": "az", "http": "https", "https": "https", "file": "file",
    "local": "file", "juicefs": "juicefs", "dataset": "dataset",
}  # fmt: skip

# What each option configures, for the reference.
MEANINGS: Final[Mapping[str, str]] = {
    "endpoint": "address of the store; without a scheme https, and http on this machine",
    "tls": "https or http, for an endpoint without a scheme",
    "region": "the bucket's region",
    "path_style": "the bucket's name is in the path, not in the host's name",
    "anonymous": "requests are not signed: a public bucket",
    "verify": "bodies are compared with their ETags",
    "manifest": "a file of `SIZE PATH` lines instead of a listing",
    "access_key_id": "the key's id",
    "secret_access_key": "the key's secret",
    "session_token": "the token of a temporary key",
    "account_name": "the storage account",
    "account_key": "the account's key",
    "sas_token": "a shared access signature",
    "service_account_json": "the service account's key, as JSON",
    "service_account_file": "the file with this key: on this machine, or in a Secret in `volumes`",
    "app_id": "the part of the bucket's name behind its last dash",
    "bucket": "the bucket, as a URL",
    "storage": "the kind of store",
}  # fmt: skip

_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "endpoint": ("endpoint",), "region": ("region",), "anonymous": ("anonymous",),
    "verify": ("verify-store",), "access_key_id": ("access-key",),
    "secret_access_key": ("secret-key",), "session_token": ("session-token",),
    "path_style": ("path-style",),
}  # fmt: skip


def _with_ours(theirs: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    meanings = (*_OURS, *(meaning for meaning in theirs if meaning not in _OURS))
    return {meaning: (*_OURS.get(meaning, ()), *theirs.get(meaning, ())) for meaning in meanings}


# Names of options by family and meaning. The first name that is set wins.
USED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "s3": _with_ours({
        "endpoint": ("alluxio.underfs.s3.endpoint", "fs.s3.endpoint", "fs.s3a.endpoint",
                     "endpoint_url", "minio-url"),
        "tls": ("alluxio.underfs.s3.secure.http.enabled",),
        "region": ("alluxio.underfs.s3.region", "alluxio.underfs.s3.endpoint.region",
                   "fs.s3.region", "fs.s3a.endpoint.region", "region_name"),
        "path_style": ("alluxio.underfs.s3.disable.dns.buckets", "fs.s3a.path.style.access",
                       "path_style"),
        "access_key_id": ("aws.accessKeyId", "s3a.accessKeyId", "fs.s3.accessKeyId",
                          "fs.s3a.access.key", "minio-access-key", "access"),
        "secret_access_key": ("aws.secretKey", "s3a.secretKey", "fs.s3.accessKeySecret",
                              "fs.s3a.secret.key", "minio-access-secret", "secret"),
        "session_token": ("aws.sessionToken", "fs.s3.sessionToken", "fs.s3a.session.token"),
    }),
    "oss": _with_ours({
        "endpoint": ("fs.oss.endpoint", "oss-endpoint"),
        "region": ("fs.oss.region",),
        "access_key_id": ("fs.oss.accessKeyId", "oss-access-key"),
        "secret_access_key": ("fs.oss.accessKeySecret", "oss-secret-key"),
        "session_token": ("fs.oss.sessionToken", "fs.oss.securityToken"),
    }),
    "bos": _with_ours({
        "endpoint": ("fs.bos.endpoint",),
        "access_key_id": ("fs.bos.access.key",),
        "secret_access_key": ("fs.bos.secret.access.key",),
    }),
    "cos": _with_ours({
        "endpoint": ("fs.cos.endpoint",),
        "region": ("fs.cos.region", "fs.cosn.bucket.region"),
        "access_key_id": ("fs.cos.accessKeyId", "fs.cos.access.key", "fs.cosn.userinfo.secretId"),
        "secret_access_key": ("fs.cos.accessKeySecret", "fs.cos.secret.key",
                              "fs.cosn.userinfo.secretKey"),
        "session_token": ("fs.cosn.userinfo.sessionToken",),
        "app_id": ("fs.cos.app.id",),
    }),
    "obs": _with_ours({
        "endpoint": ("fs.obs.endpoint",),
        "access_key_id": ("fs.obs.accessKeyId", "fs.obs.accessKey", "fs.obs.access.key"),
        "secret_access_key": ("fs.obs.accessKeySecret", "fs.obs.secretKey", "fs.obs.secret.key"),
        "session_token": ("fs.obs.session.token",),
    }),
    "gs": {
        "endpoint": ("endpoint",),
        "anonymous": ("anonymous",),
        "verify": ("verify-store",),
        "service_account_json": ("service-account-json",),
        "service_account_file": ("fs.gcs.credential.path",),
        "access_key_id": ("fs.gcs.accessKeyId",),
        "secret_access_key": ("fs.gcs.secretAccessKey",),
    },
    "az": {
        "endpoint": ("endpoint",),
        "anonymous": ("anonymous",),
        "verify": ("verify-store",),
        "account_name": ("account-name",),
        "account_key": ("account-key", "fs.azure.account.key.*.*"),
        "sas_token": ("sas-token", "fs.azure.sas.*.*"),
    },
    "https": {"manifest": ("manifest",), "verify": ("verify-store",)},
    "file": {},
    "juicefs": {
        "bucket": ("bucket",),
        "storage": ("storage",),
        "access_key_id": ("access-key", "accesskey"),
        "secret_access_key": ("secret-key", "secretkey"),
        "session_token": ("session-token",),
        "region": ("region",),
        "anonymous": ("anonymous",),
        "verify": ("verify-store",),
    },
    "dataset": {},
}  # fmt: skip

# Text for the reference beside the tables.
REMARKS: Final[Mapping[str, str]] = {
    "oss": "OSS-HDFS (`oss-dls`) is not read.",
    "cos": "S3 at `cos.REGION.myqcloud.com`. The endpoint or the region is enough.",
    "obs": "S3 at `obs.REGION.myhuaweicloud.com`. The endpoint or the region is enough.",
    "gs": "With an id and a secret (HMAC) Penstock reads it through Google's S3 interface.",
    "juicefs": (
        "`juicefs:///folder` shows the objects of the bucket below `folder` as files, in place. "
        "JuiceFS' metadata engine is not used: `metaurl` has no effect. A bucket that holds a "
        "volume in JuiceFS' own format is noticed and refused, and so is one with nothing to show. "
        "In a JuiceFSRuntime it is the root of the data set, unless `path` says otherwise, and its "
        "options may hold those of the mount too. "
        f"Storages: {', '.join(STORAGES)}."
    ),
    "dataset": (
        "`dataset://namespace/name` shows the parts of that data set, `dataset://name` of one in "
        "the same namespace, `dataset://namespace/name/folder` what is in that folder of it. Its "
        "options, keys and Secrets are used, and its tiers if the runtime has none."
    ),
}

_METADATA = "objects are read in place, as files; there is no metadata engine"
_VOLUME = "it formats a JuiceFS volume; here objects are read in place, as files"
_ALLUXIO = "it tunes Alluxio's own client of the store"
_JINDO = "it tunes Jindo's own client of the store"
_KEYS = "keys come from options, encryptOptions or this machine's environment"
_OWNER = "all files have the data set's owner and the mount's modes"

# Options without effect here, by name or pattern. The first match wins.
UNUSED: Final[tuple[tuple[str, str], ...]] = (
    ("metaurl", _METADATA),
    ("token", _METADATA),
    ("meta-password", _METADATA),
    ("quota", "it limits writes, and mounts are read-only"),
    ("bucket2", "only the first bucket is read"),
    ("access-key2", "only the first bucket is read"),
    ("secret-key2", "only the first bucket is read"),
    ("block-size", _VOLUME),
    ("compress", _VOLUME),
    ("trash-days", _VOLUME),
    ("capacity", _VOLUME),
    ("inodes", _VOLUME),
    ("shards", _VOLUME),
    ("hash-prefix", _VOLUME),
    ("encrypt-rsa-key", _VOLUME),
    ("encrypt-algo", _VOLUME),
    ("alluxio.underfs.s3.inherit.acl", _OWNER),
    ("alluxio.underfs.s3.default.mode", _OWNER),
    ("alluxio.underfs.s3.owner.id.to.username.mapping", _OWNER),
    ("alluxio.underfs.hdfs.*", "there is no HDFS client"),
    ("alluxio.underfs.object.store.breadcrumbs.enabled", "mounts are read-only"),
    ("alluxio.underfs.web.*", "HTML indexes are read as the server writes them"),
    ("alluxio.underfs.http.*", "HTML indexes are read as the server writes them"),
    ("alluxio.*", _ALLUXIO),
    ("fs.oss.provider.*", _KEYS),
    ("fs.oss.credentials.*", _KEYS),
    ("fs.cosn.credentials.*", _KEYS),
    ("fs.s3a.aws.credentials.*", _KEYS),
    ("fs.dls.*", "OSS-HDFS is not read, only OSS itself"),
    ("fs.gcs.*", _ALLUXIO),
    ("fs.azure.*", _ALLUXIO),
    ("fs.oss.*", _JINDO),
    ("fs.s3.*", _JINDO),
    ("fs.s3a.*", "it tunes Hadoop's client of S3"),
    ("fs.cos.*", _JINDO),
    ("fs.cosn.*", "it tunes Hadoop's client of COS"),
    ("fs.obs.*", _JINDO),
    ("fs.bos.*", "it tunes Hadoop's client of BOS"),
    ("fs.jindo*", _JINDO),
    ("jindo*", _JINDO),
    ("dfs.*", "there is no HDFS client"),
    ("hadoop.*", "there is no Hadoop client"),
)  # fmt: skip


def why_unused(name: str, *, exactly: bool = False) -> str | None:
    """Return why an option has no effect. `exactly` ignores patterns."""
    for pattern, reason in UNUSED:
        if pattern == name or (not exactly and fnmatchcase(name, pattern)):
            return reason
    return None


def family_of(name: str) -> str | None:
    """Return the first family that has this option."""
    for family, meanings in USED.items():
        if any(fnmatchcase(name, known) for names in meanings.values() for known in names):
            return family
    return None


def names_of(family: str) -> list[str]:
    return [name for names in USED[family].values() for name in names]
