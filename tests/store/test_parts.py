"""Parts, and the ETags that come of them."""

import hashlib
import random

import pytest

from penstock.store.parts import PART_BYTES, Digest, is_md5, part_bytes
from penstock.units import GIB, MIB


def digest_of(data: bytes, piece: int = 1_000_003) -> Digest:
    digest = Digest(len(data))
    for start in range(0, len(data), piece):
        digest.update(data[start : start + piece])
    return digest


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, 70 * GIB, 5000 * GIB])
def test_no_object_has_more_parts_than_a_store_takes(size: int) -> None:
    part = part_bytes(size)
    assert part % MIB == 0
    assert -(-size // part) <= 9_000


def test_an_etag_of_one_piece_is_compared_with_the_md5() -> None:
    data = bytes(100_000)
    etag = hashlib.md5(data).hexdigest()
    assert is_md5(etag)
    assert not digest_of(data).contradicts(etag)
    assert digest_of(data[:-1] + b"x").contradicts(etag)


def test_an_etag_of_parts_is_compared_with_the_md5_of_their_md5s() -> None:
    data = random.Random(1).randbytes(2 * PART_BYTES + 17)
    parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    etag = f"{hashlib.md5(joined).hexdigest()}-3"
    assert not is_md5(etag)
    assert not digest_of(data).contradicts(etag)
    assert digest_of(b"x" + data[:-1]).contradicts(etag)


@pytest.mark.parametrize("version", ["mtime-1-2", "size-3", "W/abc", f"{'0' * 32}-7", "0x8D"])
def test_what_says_nothing_of_the_bytes_contradicts_nothing(version: str) -> None:
    assert not digest_of(b"abc").contradicts(version)
