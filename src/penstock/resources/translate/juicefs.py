"""The bucket of a JuiceFS volume, from the words that `juicefs format` takes. Pure."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import SpecProblem

# The storages of JuiceFS that we read, as the schemes of our own.
STORAGES = {
    "s3": "s3", "minio": "s3", "wasabi": "s3", "space": "s3", "scw": "s3", "oss": "oss",
    "bos": "bos", "cos": "cos", "obs": "obs", "gs": "gs", "wasb": "az", "file": "file",
}  # fmt: skip
# Whose host it is, where `storage` is not said.
_HOSTS = (
    ("aliyuncs.com", "oss"), ("bcebos.com", "bos"), ("myqcloud.com", "cos"),
    ("myhuaweicloud.com", "obs"), ("core.windows.net", "wasb"),
)  # fmt: skip
# In the name of a bucket of AWS there may be dots; the host begins where S3's own does.
_AMAZON = re.compile(r"^(?P<bucket>.+?)\.(?P<host>s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com[a-z.]*)$")


@dataclass(frozen=True, slots=True)
class Bucket:
    scheme: str
    address: str  # like s3://bucket/prefix
    endpoint: str | None


def find_bucket(storage: str | None, bucket: str | None, folder: str, path: str) -> Bucket:
    """`path` is where the options are written, `folder` what stands behind juicefs://."""
    if not bucket:
        raise SpecProblem(
            path, "juicefs:// names no bucket",
            hint="objects are read in place, without JuiceFS' metadata engine: "
            "say which bucket in options.bucket, and its keys in access-key and secret-key",
        )  # fmt: skip
    if "<" in bucket:
        hint = "put the address of your bucket there"
        raise SpecProblem(f"{path}.bucket", "still holds a <PLACEHOLDER>", hint=hint)
    if not re.fullmatch(r"[\w.:/-]+", bucket):
        hint = "write it like https://bucket.s3.us-east-2.amazonaws.com or http://host:9000/bucket"
        raise SpecProblem(f"{path}.bucket", "is no address of a bucket", hint=hint)
    scheme_said, separator, rest = bucket.partition("://")
    address = rest if separator else bucket
    kind = storage or _guess(scheme_said if separator else "", address)
    if kind not in STORAGES:
        raise SpecProblem(
            f"{path}.storage", f"storage {kind!r} is not read",
            hint="storages that are: " + ", ".join(STORAGES),
        )  # fmt: skip
    scheme = STORAGES[kind]
    prefix = folder.strip("/")
    if scheme == "file":
        return Bucket("file", f"file://{_joined('/' + address.strip('/'), prefix)}", None)
    if scheme == "gs" or not set("/.:") & set(address.strip("/")):
        name, _, inside = address.strip("/").partition("/")
        return Bucket(scheme, f"{scheme}://{_joined(name, inside, prefix)}", None)
    url = urlsplit(f"{scheme_said if scheme_said in ('http', 'https') else 'https'}://{address}")
    name, host, inside = _split(url.netloc, url.path.strip("/"), kind)
    if not name:
        raise SpecProblem(
            f"{path}.bucket", "names a host, and no bucket",
            hint="write it like https://bucket.s3.us-east-2.amazonaws.com or http://host:9000/bucket",
        )  # fmt: skip
    endpoint = None if scheme == "az" else f"{url.scheme}://{host}"
    return Bucket(scheme, f"{scheme}://{_joined(name, inside, prefix)}", endpoint)


def _guess(scheme: str, address: str) -> str:
    if scheme in STORAGES:
        return scheme
    if address.startswith("/"):
        return "file"
    host = urlsplit(f"//{address}").hostname or ""
    return next((kind for end, kind in _HOSTS if host.endswith(end)), "s3")


def _split(host: str, path: str, kind: str) -> tuple[str, str, str]:
    """The bucket's name, the host without it, and what stands behind the bucket."""
    if path:
        names = path.split("/")
        # MinIO's own web page shows its buckets below /minio, and people copy that address.
        if kind == "minio" and len(names) > 1 and names[0] == "minio":
            names = names[1:]
        return names[0], host, "/".join(names[1:])
    if match := _AMAZON.match(host):
        return match["bucket"], match["host"], ""
    name, _, rest = host.partition(".")
    return (name, rest, "") if "." in rest else ("", host, "")


def _joined(*names: str) -> str:
    return "/".join(name.rstrip("/") for name in names if name)
