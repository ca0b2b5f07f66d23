"""What an S3 ETag says about the bytes of an object, and the part sizes that it depends on.

The ETag of an object that was uploaded in one piece is its MD5; of a multipart upload, the MD5 of
the parts' MD5s and the number of parts. Other stores differ (SSE-KMS, gateways): what looks like an
MD5 may be something else.

Threading: a Digest belongs to one thread; a BodyCheck may be called from any thread.
"""

import hashlib
import logging
import re
from collections.abc import Mapping

from typing_extensions import Buffer

from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.units import MIB

log = logging.getLogger(__name__)

# The size of one part. Objects up to this size are uploaded with one request.
PART_BYTES = 8 * MIB
# S3 accepts at most 10,000 parts; another store may accept fewer.
_MAX_PARTS = 9_000

_ETAG = re.compile(r"([0-9a-f]{32})(?:-([0-9]+))?")


def part_bytes(size_bytes: int) -> int:
    """Return the size of each part but the last; whole MiB, as some stores require."""
    needed = -(-size_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-needed // MIB) * MIB)


def is_md5(version: str) -> bool:
    match = _ETAG.fullmatch(version)
    return match is not None and match[2] is None


class Digest:
    """Computes the MD5s that an object's ETag may be made of, while its bytes pass by.

    Of an object of several parts, the MD5 of the whole is computed only with `whole`: each of the
    two takes 1.4 s of CPU for a GiB.
    """

    def __init__(self, size_bytes: int, *, whole: bool = True) -> None:
        self._part_bytes = part_bytes(size_bytes)
        in_parts = size_bytes > PART_BYTES
        self._whole = hashlib.md5(usedforsecurity=False) if whole and in_parts else None
        self._part = hashlib.md5(usedforsecurity=False)
        self._filled = 0
        self._parts: list[bytes] = []

    def update(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        if self._whole is not None:
            self._whole.update(rest)
        while rest:
            piece = rest[: self._part_bytes - self._filled]
            self._part.update(piece)
            self._filled += len(piece)
            rest = rest[len(piece) :]
            if self._filled == self._part_bytes:
                self._end_part()

    def name(self) -> str:
        """Return a value that differs for different bytes."""
        self._finish()
        return self._by_parts()

    def contradicts(self, version: str) -> bool:
        """Return whether this is the ETag of other bytes; False also where nothing can be said."""
        match = _ETAG.fullmatch(version)
        if match is None:
            return False
        self._finish()
        found, parts = match.groups()
        if parts is not None:
            # Another number of parts: they were of another size, and the MD5s cannot be compared.
            return int(parts) == len(self._parts) and found != self._by_parts()
        if len(self._parts) == 1:
            return found != self._parts[0].hex()
        return self._whole is not None and found != self._whole.hexdigest()

    def _finish(self) -> None:
        if self._filled or not self._parts:
            self._end_part()

    def _by_parts(self) -> str:
        return hashlib.md5(b"".join(self._parts), usedforsecurity=False).hexdigest()

    def _end_part(self) -> None:
        self._parts.append(self._part.digest())
        self._part = hashlib.md5(usedforsecurity=False)
        self._filled = 0


# -- verifying bodies ---------------------------------------------------------------------
#
# An MD5 of 110 KiB takes 198 us of CPU, more than the request itself (60 us), though without the
# interpreter's lock. TLS already protects what it carries, so by default (`auto`) only bodies that
# came over plain HTTP are compared: TCP's own checksum lets one in 65,536 damaged segments pass.
#
# The form of an ETag and the headers of the answer decide whether it is an MD5, never the outcome
# of a comparison: one that fails is an error of that object, however often it fails.

VERIFY_MODES = ("auto", "always", "never")

# An object that is encrypted with a key other than the store's own has an ETag that looks like an
# MD5 and is none; so has one in OSS and BOS that was written piece by piece.
_ENCRYPTION = ("x-amz-server-side-encryption", "x-oss-server-side-encryption")
_CUSTOMER_KEY = "x-amz-server-side-encryption-customer-algorithm"
_OBJECT_TYPES = ("x-oss-object-type", "x-bce-object-type")


class BodyCheck:
    """Compares whole bodies with their ETag, where that is an MD5."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def __call__(self, where: str, etag: str, headers: Mapping[str, str], body: Buffer) -> None:
        """Raise StoreError if this is not the whole object that the ETag stands for."""
        if not has_md5_etag(etag, headers):
            return
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if digest == etag:
            return
        self._counters.add("store_mismatches")
        what = f"{where}: the received bytes have the MD5 {digest}, but the ETag is {etag}"
        log.warning("%s", what)
        raise StoreError(
            what,
            kind="mismatch",
            hint="the object was damaged in the store or on the way; if the ETags of this store "
            "are not MD5s, mount it with --verify-store never",
        )


def has_md5_etag(etag: str, headers: Mapping[str, str]) -> bool:
    """Return whether the ETag in an answer with these headers is the MD5 of the object."""
    return (
        is_md5(etag)
        and not any("kms" in headers.get(name, "").lower() for name in _ENCRYPTION)
        and _CUSTOMER_KEY not in headers
        and all(headers.get(name, "normal").lower() == "normal" for name in _OBJECT_TYPES)
    )


def is_verified(mode: str, identity: str) -> bool:
    """Return whether bodies of this store are compared with their ETags.

    Bodies of a web server only with `always`: nothing promises that its ETags are MD5s.
    """
    return mode == "always" or (mode == "auto" and "?endpoint=http://" in identity)
