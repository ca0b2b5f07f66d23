"""What stands for an object's bytes as they are: its ETag, or the next best. Pure.

An ETag is kept without its quotes: some servers (rclone's) quote it in an answer and not in a
listing. The other two begin with a word, so that they are never sent as an ETag.
"""

from penstock.store import ObjectInfo

BY_TIME = "mtime-"
BY_SIZE = "size-"


def version_of(etag: str | None, modified_s: float, size_bytes: int) -> str:
    if etag:
        return etag.replace('"', "")
    return f"{BY_TIME}{int(modified_s):x}-{size_bytes:x}"


def size_version(info: ObjectInfo) -> str:
    return f"{BY_SIZE}{info.size_bytes}"
