"""Which keys can be files, and why the others cannot. Pure.

An object store's key is any string; a file's path is not. What has no path is never dropped
in silence: it gets a reason, which `penstock doctor` lists.
"""

import hashlib

from penstock.store import ObjectInfo

NAME_MAX_BYTES = 255
# What the kernel takes as one path (PATH_MAX, less its NUL). No real key is longer: S3 and GCS
# end at 1024 bytes, Azure at 1024 characters, folders of this machine here.
KEY_MAX_BYTES = 4095
_NOTE_CHARACTERS = 200

COVERED = "another source is mounted there"
DOUBLE_ROLE = "also a directory: other keys lie below it"
MARKER_WITH_DATA = "a directory marker that holds data"
NOT_UTF8 = "its name is not UTF-8"


def why_no_name(name: str) -> str | None:
    """Why one segment of a key cannot be a file's or a directory's name."""
    if not name:
        return "an empty segment in its path"
    if name in (".", ".."):
        return f"a `{name}` segment in its path"
    if "\0" in name:
        return "a NUL in its name"
    # At most 4 bytes a character: short names need no encoding to be sure.
    if not name.isascii() or len(name) > NAME_MAX_BYTES // 4:
        try:
            length = len(encode(name))
        except UnicodeEncodeError:
            return NOT_UTF8  # half of a surrogate pair, as JSON can write it
        if length > NAME_MAX_BYTES:
            return f"a name longer than {NAME_MAX_BYTES} bytes"
    return None


def why_no_key(key: str) -> str | None:
    """Why a key cannot be a path, before its segments are looked at."""
    if len(key) <= KEY_MAX_BYTES // 4:
        return None
    if len(key) > KEY_MAX_BYTES or len(key.encode("utf-8", "surrogatepass")) > KEY_MAX_BYTES:
        return f"a path longer than {KEY_MAX_BYTES:,} bytes"
    return None


def cut(key: str) -> str:
    """A key that is far too long as one that is just too long: other keys stay other keys."""
    if len(key) <= KEY_MAX_BYTES + 1:
        return key
    return key[:KEY_MAX_BYTES] + _digest(key)


def note_of(key: str) -> str:
    """A key as it is noted among the hidden: text that can be printed and kept, of bounded
    length, and still another one for another key."""
    text = key.encode("utf-8", "backslashreplace").decode()
    if len(key) <= KEY_MAX_BYTES:
        return text
    return f"{text[:_NOTE_CHARACTERS]}… [{_digest(key)}]"


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def encode(name: str) -> bytes:
    """Bytes that are not UTF-8 come in as surrogates and go out as they were."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


# What a listing may say of an object besides its key: what is believed, and what is not. Pure.
#
# A server can answer anything. What would break a reader later (a size that no file has, a
# version that cannot be sent back) hides the object, with the reason; a time that cannot be right
# is bent.

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
