"""Bodies and uploads are compared with their ETag, where that says something."""

import hashlib
import random

import pytest

from penstock.errors import StoreError
from penstock.metrics import Counters
from penstock.store.etags import (
    PART_BYTES,
    BodyCheck,
    Digest,
    has_md5_etag,
    is_md5,
    is_verified,
    part_bytes,
)
from penstock.units import GIB, MIB

DATA = b"data"
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()


def check(etag: str, body: bytes = DATA, headers: dict[str, str] | None = None) -> None:
    BodyCheck(Counters())("s3://b/key", etag, headers or {}, body)


def test_a_body_that_does_not_match_is_an_error_however_often_it_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    wrong = hashlib.md5(b"1234", usedforsecurity=False).hexdigest()
    for _ in range(3):
        with pytest.raises(StoreError, match=f"{wrong}.*{MD5}") as raised:
            BodyCheck(counters)("s3://b/key", MD5, {}, b"1234")
        assert raised.value.kind == "mismatch"
        assert "--verify-store never" in str(raised.value.hint)
    assert counters.total("store_mismatches") == 3
    assert caplog.text.count(wrong) == 3
    assert caplog.text.count(MD5) == 3
    check(MD5)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-server-side-encryption": "aws:kms:dsse"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
        {"x-oss-server-side-encryption": "KMS"},
        {"x-oss-object-type": "Appendable"},
        {"x-bce-object-type": "Appendable"},
    ],
)
def test_an_etag_is_not_an_md5_where_the_answer_says_so(headers: dict[str, str]) -> None:
    assert not has_md5_etag(MD5, headers)
    check(MD5, b"1234", headers)


@pytest.mark.parametrize(
    "headers", [{}, {"x-amz-server-side-encryption": "AES256"}, {"x-oss-object-type": "Normal"}]
)
def test_an_etag_is_an_md5_unless_the_answer_contradicts(headers: dict[str, str]) -> None:
    with pytest.raises(StoreError):
        check(MD5, b"1234", headers)


def test_an_etag_that_is_not_an_md5_is_not_compared() -> None:
    for version in (f"{MD5}-2", "mtime-1-4", "size-4", MD5.upper()):
        check(version, b"1234")


def test_by_default_only_plain_http_bodies_of_a_bucket_are_compared() -> None:
    plain, tls = "s3://b/p?endpoint=http://127.0.0.1:9000", "s3://b?endpoint=https://minio"
    assert [is_verified("auto", name) for name in (plain, tls, "s3://b", "http://web/x")] == [
        True,
        False,
        False,
        False,
    ]
    assert is_verified("always", tls)
    assert is_verified("always", "http://web/x")
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


def test_an_etag_is_the_md5_or_the_md5_of_the_md5s_of_the_parts() -> None:
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
