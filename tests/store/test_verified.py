"""Bodies and uploads are compared with their ETag, where that says something."""

import hashlib
import random

import pytest

from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store.parts import PART_BYTES, Digest, is_md5, part_bytes
from penstock.store.patience import PatientStore
from penstock.store.verified import VerifiedStore, is_verified
from penstock.units import GIB, MIB
from tests.support.scripted_store import Clock, Scripted

DATA = b"data"
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()


def verified(*answers: bytes) -> tuple[VerifiedStore, Scripted, Counters]:
    counters = Counters()
    store = Scripted(*answers)
    return VerifiedStore(store, counters), store, counters


def test_a_damaged_body_is_fetched_again() -> None:
    store, scripted, counters = verified(b"dat4", DATA)
    patient = PatientStore(store, Counters(), deadline_s=60, time=Clock().time)
    assert patient.get("key", MD5, 0, 4, 4) == DATA
    assert scripted.asked == 2
    assert counters.total("store_mismatches") == 1


def test_a_body_damaged_differently_each_time_is_never_given() -> None:
    store, _, counters = verified(b"1234", b"5678", b"1234")
    for _ in range(3):
        with pytest.raises(StoreError) as raised:
            store.get("key", MD5, 0, 4, 4)
        assert raised.value.kind == "mismatch"
    assert counters.total("store_mismatches") == 3


def test_an_etag_that_is_evidently_no_md5_is_not_compared_any_more() -> None:
    store, _, counters = verified(b"1234")
    with pytest.raises(StoreError):
        store.get("key", MD5, 0, 4, 4)
    assert store.get("key", MD5, 0, 4, 4) == b"1234"
    assert store.get("other", MD5, 0, 4, 4) == b"1234"
    assert counters.total("store_mismatches") == 1


def test_what_is_no_md5_and_what_is_only_a_part_is_not_compared() -> None:
    store, _, _ = verified(b"1234")
    for version in (f"{MD5}-2", "mtime-1-4", "size-4", MD5.upper()):
        assert store.get("key", version, 0, 4, 4) == b"1234"
    assert store.get("key", MD5, 4, 4, 8) == b"1234"


def test_by_default_only_what_comes_without_tls_is_compared() -> None:
    plain, tls = "s3://b/p?endpoint=http://127.0.0.1:9000", "s3://b?endpoint=https://minio"
    assert [is_verified("auto", name) for name in (plain, tls, "s3://b", "http://web/x")] == [
        True, False, False, True,
    ]  # fmt: skip
    assert is_verified("always", tls)
    assert not is_verified("never", plain)


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


def test_an_etag_is_the_md5_or_for_parts_the_md5_of_their_md5s() -> None:
    assert is_md5(MD5)
    assert not digest_of(DATA).contradicts(MD5)
    assert digest_of(b"dat4").contradicts(MD5)
    data = random.Random(1).randbytes(2 * PART_BYTES + 17)
    parts = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    etag = f"{hashlib.md5(joined).hexdigest()}-3"
    assert not is_md5(etag)
    assert not digest_of(data).contradicts(etag)
    assert digest_of(b"x" + data[:-1]).contradicts(etag)
    for version in ("mtime-1-2", "W/abc", f"{'0' * 32}-7", "0x8D"):
        assert not digest_of(DATA).contradicts(version), "it says nothing of the bytes"
