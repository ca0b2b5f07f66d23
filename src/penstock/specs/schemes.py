"""Where a mountPoint may point to, and what to write instead of one that is not read here. Pure."""

import re
from difflib import get_close_matches

SCHEMES = (
    "s3", "s3a", "minio", "oss", "bos", "gs", "az", "cos", "cosn", "obs", "http", "https",
    "file", "local", "dataset", "juicefs",
)  # fmt: skip

_S3_ELSEWHERE = "it speaks S3: write s3://BUCKET/PREFIX and name its endpoint in options"
_A_FOLDER = "mount it on this machine, and name the folder: local:///FOLDER"
_INSTEAD = {
    "tos": _S3_ELSEWHERE,
    "ks3": _S3_ELSEWHERE,
    "s3n": "write s3://BUCKET/PREFIX",
    "gcs": "write gs://BUCKET/PREFIX",
    "wasb": "write az://CONTAINER/PREFIX",
    "wasbs": "write az://CONTAINER/PREFIX",
    "abfs": "write az://CONTAINER/PREFIX",
    "abfss": "write az://CONTAINER/PREFIX",
    "adl": "write az://CONTAINER/PREFIX",
    "hdfs": "HDFS is not read here; mount it on this machine (its NFS gateway, or fuse-dfs), "
    "and name the folder: local:///FOLDER",
    "pvc": "there are no volume claims on one machine; name the folder: local:///FOLDER",
    "nfs": _A_FOLDER,
    "ceph": _A_FOLDER,
    "cephfs": _A_FOLDER,
    "glusterfs": _A_FOLDER,
    "lustre": _A_FOLDER,
    "cpfs": _A_FOLDER,
    "efs": _A_FOLDER,
    "cubefs": _A_FOLDER,
    "alluxio": "name the store that is behind it",
    "ftp": "serve it over http://",
    "sftp": _A_FOLDER,
}


def wrong_with(address: str, *, allowed: tuple[str, ...] = SCHEMES) -> tuple[str, str] | None:
    """What is wrong with it, and what to do. None: its scheme is read here, and it names a place.

    Says nothing of the address that may be a secret.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        if address.startswith("/"):
            return "is a folder without a scheme", f"write local://{address.split('@')[0]}"
        if re.match(r"^[\w.-]+:/", address):
            return "looks like an NFS export, without a scheme", _A_FOLDER
        return "has no scheme", f"write it like s3://BUCKET/PREFIX; schemes: {', '.join(allowed)}"
    if scheme.lower() not in allowed or scheme != scheme.lower():
        near = get_close_matches(scheme.lower(), allowed, n=1)
        hint = _INSTEAD.get(scheme.lower()) or (
            f"did you mean {near[0]}://?" if near else f"schemes: {', '.join(allowed)}"
        )
        return f"scheme {scheme[:30]!r} is not read here", hint
    if re.search(r"<[^<>]+>", rest):
        return "still holds a <PLACEHOLDER>", "put the name of your own bucket or folder there"
    if "@" in rest.split("/")[0]:
        return "holds a user or a key", "put keys into a Secret, and name it in encryptOptions"
    if scheme in ("http", "https") and "?" in rest:  # of a signed address it is the signature
        return "has a query", "name the folder alone; keys and tokens go into a Secret"
    if scheme in ("file", "local"):
        if not rest.startswith("/"):
            return "is not an absolute path", f"write {scheme}:///{rest}"
    elif not rest.strip("/") and scheme != "juicefs":
        return "names no bucket", f"write it like {scheme}://BUCKET/PREFIX"
    return None
