"""Which keys can be files, and why the others cannot. Pure.

An object store's key is any string; a file's path is not. What has no path is never dropped
in silence: it gets a reason, which `penstock doctor` lists.
"""

NAME_MAX_BYTES = 255

DOUBLE_ROLE = "also a directory: other keys lie below it"
MARKER_WITH_DATA = "a directory marker that holds data"


def why_no_name(name: str) -> str | None:
    """Why one segment of a key cannot be a file's or a directory's name."""
    if not name:
        return "an empty segment in its path"
    if name in (".", ".."):
        return f"a `{name}` segment in its path"
    if "\0" in name:
        return "a NUL in its name"
    # At most 4 bytes a character: short names need no encoding to be sure.
    if len(name) > NAME_MAX_BYTES // 4 and len(encode(name)) > NAME_MAX_BYTES:
        return f"a name longer than {NAME_MAX_BYTES} bytes"
    return None


def encode(name: str) -> bytes:
    """Bytes that are not UTF-8 come in as surrogates and go out as they were."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
