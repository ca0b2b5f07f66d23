"""Addresses of external storage as `juicefs sync` takes them, with the endpoint inside. Pure.

minio://HOST:9000/BUCKET/PREFIX                  s3://BUCKET/PREFIX, endpoint http://HOST:9000
s3://BUCKET.s3.REGION.amazonaws.com/PREFIX       s3://BUCKET/PREFIX, endpoint and region
oss://BUCKET.oss-cn-hangzhou.aliyuncs.com/…      oss://BUCKET/…, endpoint
"""

import re

from penstock.errors import UsageError

# What the keys of external storage are called in Fluid's manifests, and their names here.
NAMES = {"access-key": "access-key", "secret-key": "secret-key", "token": "session-token"}

_AWS = re.compile(r"(?P<bucket>[^/]+?)\.s3[.-](?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_ELSEWHERE = re.compile(r"(?P<bucket>[^./]+)\.(?P<endpoint>[^/]+\.[a-z]{2,})")


def take_apart(uri: str) -> tuple[str, dict[str, str]]:
    """The address without its endpoint, and that as options."""
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    if scheme == "minio":
        bucket = path.strip("/")
        if not host or not bucket:
            raise UsageError(
                f"{uri!r} names no bucket", hint="write it like minio://HOST:9000/BUCKET/PREFIX"
            )
        return f"s3://{bucket}", {"endpoint": f"http://{host}", "path-style": "true"}
    if scheme == "s3" and (match := _AWS.fullmatch(host)):
        return _joined("s3", match["bucket"], path), {"region": match["region"]}
    if scheme in ("oss", "bos", "obs", "cos") and (match := _ELSEWHERE.fullmatch(host)):
        return _joined(scheme, match["bucket"], path), {"endpoint": match["endpoint"]}
    return uri, {}


def _joined(scheme: str, bucket: str, path: str) -> str:
    return f"{scheme}://{bucket}/{path}".rstrip("/")
