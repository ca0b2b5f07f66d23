"""Bodies are compared with their ETag, where that says something."""

import hashlib

import pytest

from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store.patience import PatientStore
from penstock.store.verified import VerifiedStore, is_verified
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


@pytest.mark.parametrize("version", [f"{MD5}-2", "mtime-1-4", "size-4", MD5.upper()])
def test_what_is_no_md5_is_not_compared(version: str) -> None:
    store, _, _ = verified(b"1234")
    assert store.get("key", version, 0, 4, 4) == b"1234"


def test_a_part_of_an_object_is_not_compared() -> None:
    store, _, _ = verified(b"1234")
    assert store.get("key", MD5, 4, 4, 8) == b"1234"


def test_by_default_only_what_comes_without_tls_is_compared() -> None:
    plain, tls = "s3://b/p?endpoint=http://127.0.0.1:9000", "s3://b?endpoint=https://minio"
    assert [is_verified("auto", name) for name in (plain, tls, "s3://b", "http://web/x")] == [
        True, False, False, True,
    ]  # fmt: skip
    assert is_verified("always", tls)
    assert not is_verified("never", plain)
