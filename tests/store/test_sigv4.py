"""Signatures of GETs, beside those that botocore makes of the same requests."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.store.sigv4 import Signer, canonical_query

HOST = "127.0.0.1:9000"
NOW_S = datetime(2026, 11, 18, 5, 7, 9, tzinfo=UTC).timestamp()


def signature(text: str) -> str:
    found = re.search(r"Signature=([0-9a-f]{64})", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize(
    "extra", [{}, {"x-amz-request-payer": "requester", "x-amz-server-side": "b c"}]
)
@pytest.mark.parametrize("token", [None, "a+token/of=a session"])
@pytest.mark.parametrize(
    "key", ["a.bin", "deep/c d+e%41#?.txt", "d\u00e9j\u00e0/~\u00e9t\u00e9.txt"]
)
@pytest.mark.parametrize(
    ("method", "parameters", "body"),
    [
        ("GET", {}, b""),
        ("GET", {"prefix": "a b/+~é", "list-type": "2", "start-after": "x=&y/\udce9"}, b""),
        ("DELETE", {"uploadId": "id=="}, b""),
        ("PUT", {"partNumber": "1"}, b"body"),
    ],
)
def test_a_request_is_signed_as_botocore_signs_it(
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    token: str | None,
    method: str,
    parameters: dict[str, str],
    body: bytes,
    extra: dict[str, str],
) -> None:
    path, query = f"/bucket/{quote(key, safe='/~')}", canonical_query(parameters)
    signer = Signer(
        HOST,
        "eu-west-1",
        lambda: {
            "access_key_id": "KEY",
            "secret_access_key": "SECRET",
            "token": token,
            "expires_at": None,
        },
        now=lambda: NOW_S,
    )
    ours = signer.headers(path, query, method, body, extra)

    at = datetime.fromtimestamp(NOW_S, UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_: at, raising=False)
    monkeypatch.setattr(botocore.auth, "datetime", _Now, raising=False)
    request = AWSRequest(method, f"http://{HOST}{path}?{query}", headers=extra)
    auth: Any = botocore.auth.S3SigV4Auth(Credentials("KEY", "SECRET", token), "s3", "eu-west-1")
    auth.payload = lambda _request: hashlib.sha256(body).hexdigest()
    auth.add_auth(request)
    assert signature(request.headers["Authorization"]) == signature(ours)
    assert f"x-amz-date: {request.headers['X-Amz-Date']}\r\n" in ours
    assert (token is not None) == ("x-amz-security-token:" in ours)


class _Now:
    """In the place of botocore's `datetime`, where that is how it asks for the time."""

    class datetime:
        @staticmethod
        def utcnow() -> datetime:
            return datetime.fromtimestamp(NOW_S, UTC)

        @staticmethod
        def now(*_: object) -> datetime:
            return datetime.fromtimestamp(NOW_S, UTC)


def test_credentials_are_read_again_after_a_minute_on_expiry_and_on_the_next_day() -> None:
    now = [NOW_S]
    asked: list[float] = []
    expires: list[datetime | None] = [None]

    def credentials() -> Any:
        asked.append(now[0])
        return {
            "access_key_id": f"KEY{len(asked)}",
            "secret_access_key": "SECRET",
            "token": None,
            "expires_at": expires[0],
        }

    signer = Signer(HOST, "us-east-1", credentials, now=lambda: now[0])
    for seconds, times in ((0, 1), (59, 1), (60, 2), (61, 2)):
        now[0] = NOW_S + seconds
        signer.headers("/b/k")
        assert len(asked) == times
    expires[0] = datetime.fromtimestamp(NOW_S + 130, UTC)
    now[0] = NOW_S + 121
    assert "Credential=KEY3/20261118/us-east-1/s3/aws4_request" in signer.headers("/b/k")
    now[0] = NOW_S + 131
    signer.headers("/b/k")
    assert len(asked) == 4
    now[0] = datetime(2026, 11, 19, tzinfo=UTC).timestamp() - 1
    signer.headers("/b/k")
    now[0] += 1
    assert "Credential=KEY6/20261119/" in signer.headers("/b/k")
