"""The version of an object: its ETag, or what else changes when its bytes do. Pure.

An ETag is kept without its quotes: some servers (rclone's) quote it in an answer and not in a
listing. The other two kinds of version begin with a word, so that they are never sent as an ETag.
"""

from email.utils import parsedate_to_datetime

from penstock.errors import ObjectChanged, StoreError

BY_TIME = "mtime-"
BY_SIZE = "size-"
_MAX_DIGITS = 18  # Python refuses to read very long numbers


def version_of(etag: str | None, modified_s: float, size_bytes: int) -> str:
    """Return the version of an object; without an ETag it is made of its time and size."""
    if etag:
        return etag.replace('"', "")
    return f"{BY_TIME}{int(modified_s):x}-{size_bytes:x}"


def parse_date(text: str) -> float:
    """Return the seconds that a date in an HTTP header stands for. Raises ValueError."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except OverflowError as error:
        raise ValueError(str(error)) from None


def parse_size(text: str) -> int:
    """Return a number of bytes that a server wrote. Raises ValueError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ValueError(f"{text[:40]!r} is not a size")
    return int(text)


def check_version(where: str, version: str, size_bytes: int, found: str, found_bytes: int) -> None:
    """Raise unless an answer is for the object of this version and size.

    Not every server honours If-Match.
    """
    if found_bytes != size_bytes if version.startswith(BY_SIZE) else found != version:
        raise ObjectChanged(f"{where}: rewritten while it was read")
    if found_bytes != size_bytes:
        # The same ETag, so the same object: this answer is wrong, the next may be right.
        raise StoreError(
            f"{where}: the answer announces {found_bytes} bytes, expected {size_bytes}",
            kind="wrong_length",
        )
