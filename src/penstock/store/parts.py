"""How an object is cut up when it is written, and what its ETag must be then. Pure.

S3's ETag of an object that was written in one piece is its MD5; of one that came in parts, the MD5
of their MD5s and how many they were. Others do as they like (SSE-KMS, gateways): what looks like
an MD5 may be none.
"""

import hashlib
import re

from typing_extensions import Buffer

from penstock.units import MIB

# What one request carries. Objects up to this size are written with one, whole.
PART_BYTES = 8 * MIB
# S3 takes 10,000 parts at most, and nothing says that another store takes as many.
_MOST_PARTS = 9_000

_ETAG = re.compile(r"([0-9a-f]{32})(?:-([0-9]+))?")


def part_bytes(size_bytes: int) -> int:
    """The size of each part but the last; whole MiB, as some stores want it."""
    needed = -(-size_bytes // _MOST_PARTS)
    return max(PART_BYTES, -(-needed // MIB) * MIB)


class Digest:
    """The MD5 of what passes by: of an object of many parts by those, and as a whole only if
    somebody wants it (`whole`), since each takes 1.4 s of CPU for a GiB. One thread."""

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
        """Tells these bytes from all others."""
        self._finish()
        return self._by_parts()

    def contradicts(self, version: str) -> bool:
        """Is this the ETag of other bytes? False too where it cannot be told."""
        match = _ETAG.fullmatch(version)
        if match is None:
            return False
        self._finish()
        found, parts = match.groups()
        if parts is not None:
            # Cut up by somebody else, in another way: nothing can be said.
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


def is_md5(version: str) -> bool:
    match = _ETAG.fullmatch(version)
    return match is not None and match[2] is None
