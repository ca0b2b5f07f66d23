"""Names of cached objects and blocks, and checksums of their bytes. Pure.

The version is part of the identity: a rewritten object can never hit old bytes. The hash keeps any
key from naming a path outside the cache.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

import xxhash
from typing_extensions import Buffer

from penstock.blocks import UNIT_BYTES, block_length


@dataclass(frozen=True, slots=True)
class CachedObject:
    source: str
    key: str
    version: str
    size_bytes: int
    digest: bytes


def identify(
    source: str, key: str, version: str, size_bytes: int, block_bytes: int
) -> CachedObject:
    # The block size is part of the name of an object of many blocks: two mounts with different
    # block sizes keep different files.
    cut = block_bytes if size_bytes > block_bytes else 0
    text = f"{source}\0{key}\0{version}\0{size_bytes}\0{cut}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return CachedObject(source, key, version, size_bytes, digest)


class Block(NamedTuple):
    digest: bytes
    number: int
    start: int  # its offset in the object
    length: int
    whole: bool  # it is the whole object


def block_of(obj: CachedObject, number: int, block_bytes: int) -> Block:
    length = block_length(obj.size_bytes, block_bytes, number)
    return Block(obj.digest, number, number * block_bytes, length, length == obj.size_bytes)


def object_path(digest: bytes) -> str:
    name = digest.hex()
    return f"objects/{name[:2]}/{name}"


# Checksums: 8 bytes of xxh3 for each unit of 128 KiB.

_SUM = struct.Struct("<Q")


def checksums(block: Buffer) -> bytes:
    view = memoryview(block)
    return b"".join(
        _SUM.pack(xxhash.xxh3_64_intdigest(view[start : start + UNIT_BYTES]))
        for start in range(0, len(view), UNIT_BYTES)
    )


def matches(data: memoryview, sums: bytes, first_unit: int) -> bool:
    """Whether these whole units, the first of which is `first_unit`, match the block's
    checksums."""
    if len(data) <= UNIT_BYTES and not first_unit and len(sums) == _SUM.size:
        # A shortcut for most reads of small files.
        return _SUM.pack(xxhash.xxh3_64_intdigest(data)) == sums
    position = first_unit * _SUM.size
    if len(sums) < position + -(-len(data) // UNIT_BYTES) * _SUM.size:
        return False  # not the checksums of this block: the index is damaged
    for start in range(0, len(data), UNIT_BYTES):
        (expected,) = _SUM.unpack_from(sums, position)
        if xxhash.xxh3_64_intdigest(data[start : start + UNIT_BYTES]) != expected:
            return False
        position += _SUM.size
    return True
