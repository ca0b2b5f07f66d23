"""AWS Signature Version 4. Pure, apart from the clock it is given.

The signer of botocore costs 150 us a request, this one 12: the signing key changes once a day, and
only the date and the path differ between GETs.
"""

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from obstore.store import S3Credential

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
# Credentials are requested again after this time. Those of roles are renewed minutes before they
# expire, so a minute is often enough.
_CREDENTIALS_S = 60.0


class _Key(NamedTuple):
    """The signing key of one day and one set of credentials."""

    day: str
    until_s: float
    access_key_id: str
    token: str | None
    signing_key: bytes


def _day(now_s: float) -> str:
    return time.strftime("%Y%m%d", time.gmtime(now_s))


def canonical_query(parameters: Mapping[str, str]) -> str:
    """Return the query as it is sent and signed: names and values encoded, in order."""

    def encoded(text: str) -> str:
        return quote(text, safe="~", errors="surrogateescape")

    pairs = sorted((encoded(name), encoded(value)) for name, value in parameters.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


class Signer:
    """Signs requests for one host. Any thread may call it."""

    def __init__(
        self,
        host: str,
        region: str,
        credentials: Callable[[], "S3Credential"],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._region = region
        self._credentials = credentials
        self._now = now
        self._lock = threading.Lock()
        self._key: _Key | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `headers` returns at once: requesting credentials may take seconds."""
        key, now_s = self._key, self._now()
        return key is not None and now_s < key.until_s and _day(now_s) == key.day

    def headers(
        self,
        path: str,
        query: str = "",
        method: str = "GET",
        body: bytes = b"",
        extra: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Return the header lines that sign a request, together with the `extra` ones.

        Their names must be in lower case and sort behind `x-amz-date`. `path` is encoded, `query`
        comes from `canonical_query`.
        """
        digest_of_body = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256
        now_s = self._now()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        key = self._key
        if key is None or now_s >= key.until_s or stamp[:8] != key.day:
            key = self._renew(stamp[:8], now_s)
        names, lines, sent = "host;x-amz-content-sha256;x-amz-date", "", ""
        more = list(extra.items()) if extra else []
        if key.token:
            more.append(("x-amz-security-token", key.token))
        for name, value in sorted(more):
            names += f";{name}"
            lines += f"{name}:{value}\n"
            sent += f"{name}: {value}\r\n"
        request = (
            f"{method}\n{path}\n{query}\nhost:{self._host}\nx-amz-content-sha256:{digest_of_body}\n"
            f"x-amz-date:{stamp}\n{lines}\n{names}\n{digest_of_body}"
        )
        scope = f"{key.day}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(key.signing_key, text.encode(), "sha256").hex()
        return (
            f"x-amz-content-sha256: {digest_of_body}\r\nx-amz-date: {stamp}\r\n{sent}"
            f"Authorization: AWS4-HMAC-SHA256 Credential={key.access_key_id}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}\r\n"
        )

    def _renew(self, day: str, now_s: float) -> _Key:
        with self._lock:
            key = self._key
            if key is not None and key.day == day and now_s < key.until_s:
                return key  # another thread was faster
            found = self._credentials()
            until_s = now_s + _CREDENTIALS_S
            if (expires := found.get("expires_at")) is not None:
                until_s = min(until_s, expires.astimezone(UTC).timestamp())
            signing_key = f"AWS4{found['secret_access_key']}".encode()
            for word in (day, self._region, "s3", "aws4_request"):
                signing_key = hmac.digest(signing_key, word.encode(), "sha256")
            self._key = _Key(day, until_s, found["access_key_id"], found.get("token"), signing_key)
            return self._key
