"""What a listing may say of an object besides its key: what is believed, and what is not. Pure.

A server can answer anything. What would break a reader later (a size that no file has, a version
that cannot be sent back) hides the object, with the reason; a time that cannot be right is bent.
"""

from penstock.store import ObjectInfo

_MOST = 2**63 - 1  # what SQLite, off_t and the kernel's times can hold
# An ETag is 34 characters, of a multipart upload a few more; 1 KiB is nobody's.
_VERSION_MAX = 1024


def why_not_believed(info: ObjectInfo) -> str | None:
    if not 0 <= info.size_bytes <= _MOST:
        return "a size that no file can have"
    version = info.version
    if len(version) > _VERSION_MAX:
        return f"a version (ETag) longer than {_VERSION_MAX:,} characters"
    # It travels in an If-Match header, where anything else could not be sent, or would end it.
    if not (version.isascii() and version.isprintable()):
        return "a version (ETag) with characters that cannot be sent back"
    return None


def plausible_mtime_ns(info: ObjectInfo) -> int:
    """Within what the kernel can be told: 1970 to 2262."""
    return min(max(info.mtime_ns, 0), _MOST)
