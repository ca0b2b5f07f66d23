"""Ranges and block arithmetic. Pure.

An object consists of blocks (what one GET fetches and the cache fills), a block of units
(what one checksum covers). The last block and the last unit may be short.
"""

from typing import NamedTuple

from penstock.units import KIB, MIB

# What one checksum covers. The kernel's requests are mostly multiples of it, so a read verifies
# little more than it needs; 8 bytes for each 128 KiB take hardly any space.
UNIT_BYTES = 128 * KIB

# What one GET fetches of a large object. Smaller ones pay more request overhead (rclone's S3
# server: one reader got 856 MB/s of 4 MiB, 1,161 of 8 MiB), larger ones wait longer for a byte.
DEFAULT_BLOCK_BYTES = 8 * MIB


class Span(NamedTuple):
    """The part of one block that a range covers; `start` and `stop` are offsets in the block."""

    number: int
    start: int
    stop: int


def block_count(size_bytes: int, block_bytes: int) -> int:
    return -(-size_bytes // block_bytes)


def block_length(size_bytes: int, block_bytes: int, index: int) -> int:
    return min(block_bytes, size_bytes - index * block_bytes)


def spans(offset: int, length: int, size_bytes: int, block_bytes: int) -> list[Span]:
    """Return the parts of blocks that [offset, offset + length) covers, up to the object's end."""
    end = min(offset + length, size_bytes)
    found: list[Span] = []
    while offset < end:
        number = offset // block_bytes
        base = number * block_bytes
        stop = min(end - base, block_bytes)
        found.append(Span(number, offset - base, stop))
        offset = base + stop
    return found


def unit_bounds(start: int, stop: int, length: int) -> tuple[int, int]:
    """Return the smallest range of whole units that covers [start, stop) of a block."""
    low = start - start % UNIT_BYTES
    high = min(-(-stop // UNIT_BYTES) * UNIT_BYTES, length)
    return low, high
