"""What stands for an object's bytes as they are: its ETag, or the next best. Pure.

An ETag is kept without its quotes: some servers (rclone's) quote it in an answer and not in a
listing. The other two begin with a word, so that they are never sent as an ETag.
"""

import hashlib
import logging
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from typing_extensions import Buffer

from penstock.errors import ObjectChanged, StoreError
from penstock.metrics import Counters
from penstock.store import ObjectInfo
from penstock.store.parts import is_md5

BY_TIME = "mtime-"
BY_SIZE = "size-"
_LONGEST_NUMBER = 18  # digits; Python refuses to read very long ones


def version_of(etag: str | None, modified_s: float, size_bytes: int) -> str:
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
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        raise ValueError(f"{text[:40]!r} is no size")
    return int(text)


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


# Compares whole bodies with their ETag, where that is an MD5.
#
# An MD5 of 110 KiB takes 198 us of CPU, more than the request itself (60 us), though without the
# interpreter's lock. TLS already protects what it carries, so by default (`auto`) only what came
# over plain HTTP is compared: TCP's own checksum lets one in 65,536 damaged segments pass.
#
# Whether an ETag is an MD5 is told by its form and by the headers of the answer, never by how a
# comparison ends: one that fails is an error of that object, however often it fails.
#
# Threading: any thread.

WAYS = ("auto", "always", "never")

log = logging.getLogger(__name__)

# Encrypted with a key that is not the store's own, an object has an ETag that looks like an MD5
# and is none; so has one in OSS and BOS that was written piece by piece.
_ENCRYPTION = ("x-amz-server-side-encryption", "x-oss-server-side-encryption")
_CUSTOMER_KEY = "x-amz-server-side-encryption-customer-algorithm"
_KINDS = ("x-oss-object-type", "x-bce-object-type")


class BodyCheck:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def __call__(self, where: str, etag: str, headers: Mapping[str, str], body: Buffer) -> None:
        """Raise if this is not the whole object that the ETag stands for."""
        if not has_md5_etag(etag, headers):
            return
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if digest == etag:
            return
        self._counters.add("store_mismatches")
        what = f"{where}: what came has the MD5 {digest}, and its ETag is {etag}"
        log.warning("%s", what)
        raise StoreError(
            what,
            kind="mismatch",
            hint="the object is damaged, or on its way here; if the ETags of this store are no "
            "MD5s, mount it with --verify-store never",
        )


def has_md5_etag(etag: str, headers: Mapping[str, str]) -> bool:
    """Is this the MD5 of the object that an answer with these headers is of?"""
    return (
        is_md5(etag)
        and not any("kms" in headers.get(name, "").lower() for name in _ENCRYPTION)
        and _CUSTOMER_KEY not in headers
        and all(headers.get(name, "normal").lower() == "normal" for name in _KINDS)
    )


def is_verified(way: str, identity: str) -> bool:
    """Are bodies of this store compared? Of a web server only if the user says so: nothing
    promises that what looks like an MD5 there is one."""
    return way == "always" or (way == "auto" and "?endpoint=http://" in identity)
