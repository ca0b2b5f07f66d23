"""Which keys can be files, and why the others cannot. Pure.

An object store's key is any string; a file's path is not. A key that cannot be a path is never
dropped silently: it is hidden with a reason, which `penstock doctor` lists.
"""

import hashlib

from penstock.store import ObjectInfo

NAME_MAX_BYTES = 255
# The kernel's limit for a path (PATH_MAX, less its NUL). No real key is longer: S3 and GCS allow
# 1024 bytes, Azure 1024 characters, and local folders this.
KEY_MAX_BYTES = 4095
_NOTE_CHARACTERS = 200

COVERED = "another source is mounted there"
DOUBLE_ROLE = "also a directory: other keys lie below it"
MARKER_WITH_DATA = "a directory marker that holds data"
NOT_UTF8 = "its name is not UTF-8"


def why_no_name(name: str) -> str | None:
    """Return why one segment of a key cannot be a file's or a directory's name."""
    if not name:
        return "an empty segment in its path"
    if name in (".", ".."):
        return f"a `{name}` segment in its path"
    if "\0" in name:
        return "a NUL in its name"
    # At most 4 bytes a character: short names need not be encoded to be sure.
    if not name.isascii() or len(name) > NAME_MAX_BYTES // 4:
        try:
            length = len(encode(name))
        except UnicodeEncodeError:
            return NOT_UTF8  # half of a surrogate pair, as JSON can write it
        if length > NAME_MAX_BYTES:
            return f"a name longer than {NAME_MAX_BYTES} bytes"
    return None


def why_no_key(key: str) -> str | None:
    """Return why a key cannot be a path, whatever its segments are."""
    if len(key) <= KEY_MAX_BYTES // 4:
        return None
    if len(key) > KEY_MAX_BYTES or len(key.encode("utf-8", "surrogatepass")) > KEY_MAX_BYTES:
        return f"a path longer than {KEY_MAX_BYTES:,} bytes"
    return None


def cut_key(key: str) -> str:
    """Shorten a key that is far too long; different keys stay different."""
    if len(key) <= KEY_MAX_BYTES + 1:
        return key
    return key[:KEY_MAX_BYTES] + _digest(key)


def printable_key(key: str) -> str:
    """Return a hidden key as printable text of bounded length, different for different keys."""
    text = key.encode("utf-8", "backslashreplace").decode()
    if len(key) <= KEY_MAX_BYTES:
        return text
    return f"{text[:_NOTE_CHARACTERS]}… [{_digest(key)}]"


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def encode(name: str) -> bytes:
    """Return the bytes of a name; bytes that are not UTF-8 are surrogates in it."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


# -- sizes, versions and times ------------------------------------------------------------
#
# A server can answer anything. A value that would break a reader later (an impossible size, a
# version that cannot be sent back) hides the object, with the reason. Impossible times are clamped.

_MAX = 2**63 - 1  # what SQLite, off_t and the kernel's times can hold
# An ETag has 34 characters, that of a multipart upload a few more.
_VERSION_MAX = 1024


def why_implausible(info: ObjectInfo) -> str | None:
    if not 0 <= info.size_bytes <= _MAX:
        return "a size that no file can have"
    version = info.version
    if len(version) > _VERSION_MAX:
        return f"a version (ETag) longer than {_VERSION_MAX:,} characters"
    # It is sent in an If-Match header, which cannot hold any other characters.
    if not (version.isascii() and version.isprintable()):
        return "a version (ETag) with characters that cannot be sent back"
    return None


def plausible_mtime_ns(info: ObjectInfo) -> int:
    """Return the time, clamped to what the kernel accepts: 1970 to 2262."""
    return min(max(info.mtime_ns, 0), _MAX)
