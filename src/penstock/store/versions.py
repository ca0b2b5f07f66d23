"""What stands for an object's bytes as they are: its ETag, or the next best. Pure.

An ETag is kept without its quotes: some servers (rclone's) quote it in an answer and not in a
listing. The other two begin with a word, so that they are never sent as an ETag.
"""

from penstock.errors import ObjectChanged, StoreError
from penstock.store import ObjectInfo

BY_TIME = "mtime-"
BY_SIZE = "size-"


def version_of(etag: str | None, modified_s: float, size_bytes: int) -> str:
    if etag:
        return etag.replace('"', "")
    return f"{BY_TIME}{int(modified_s):x}-{size_bytes:x}"


def size_version(info: ObjectInfo) -> str:
    return f"{BY_SIZE}{info.size_bytes}"


def check_version(where: str, version: str, size_bytes: int, found: str, found_bytes: int) -> None:
    """Raise unless the object that a store answers with is of this version and size. Not every
    server honours If-Match."""
    if found_bytes != size_bytes if version.startswith(BY_SIZE) else found != version:
        raise ObjectChanged(f"{where}: rewritten while it was read")
    if found_bytes != size_bytes:
        # The same ETag, so the same object: this answer is wrong, the next may be right.
        raise StoreError(
            f"{where}: {found_bytes} bytes were announced of {size_bytes}", kind="wrong_length"
        )
