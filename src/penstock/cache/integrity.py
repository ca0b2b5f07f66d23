"""Checksums of what is stored: 8 bytes of xxh3 for each unit of 128 KiB. Pure."""

import struct

import xxhash
from typing_extensions import Buffer

from penstock.blocks import UNIT_BYTES

_SUM = struct.Struct("<Q")


def checksums(block: Buffer) -> bytes:
    view = memoryview(block)
    return b"".join(
        _SUM.pack(xxhash.xxh3_64_intdigest(view[start : start + UNIT_BYTES]))
        for start in range(0, len(view), UNIT_BYTES)
    )


def matches(data: memoryview, sums: bytes, first_unit: int) -> bool:
    """Do these whole units, the first of which is `first_unit`, match the block's checksums?"""
    if len(data) <= UNIT_BYTES and not first_unit and len(sums) == _SUM.size:
        # Most reads of small files: the same in one step.
        return _SUM.pack(xxhash.xxh3_64_intdigest(data)) == sums
    position = first_unit * _SUM.size
    if len(sums) < position + -(-len(data) // UNIT_BYTES) * _SUM.size:
        return False  # not the sums of this block: the index is damaged
    for start in range(0, len(data), UNIT_BYTES):
        (expected,) = _SUM.unpack_from(sums, position)
        if xxhash.xxh3_64_intdigest(data[start : start + UNIT_BYTES]) != expected:
            return False
        position += _SUM.size
    return True
