"""S3 headers that the environment configures: requester pays and server-side encryption. Pure.

The variables are those of obstore, which serves directory buckets: AWS_REQUEST_PAYER,
AWS_SERVER_SIDE_ENCRYPTION and AWS_SSE_….
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import NamedTuple

Headers = Mapping[str, str]  # names in lower case, as they are signed

_SSE = "x-amz-server-side-encryption"
_MODES = ("AES256", "aws:kms", "aws:kms:dsse", "sse-c")
_TRUE = ("1", "true", "on", "yes", "y")


class S3Headers(NamedTuple):
    """The headers for each kind of request."""

    always: Headers
    read: Headers  # objects and parts of uploads: the customer's own key
    written: Headers  # objects, and initiated uploads

    def of(self, method: str, query: str) -> Headers:
        """Return the headers of a request; a listing has none of those for objects."""
        if "list-type=" in query or method == "DELETE":
            return self.always
        if method == "POST":
            return self.written if query == "uploads=" else self.always
        if method == "PUT" and "partNumber=" not in query:
            return self.written
        return self.always if "uploads=" in query else self.read


NO_HEADERS = S3Headers({}, {}, {})


def headers_of_environment(environment: Mapping[str, str]) -> S3Headers:
    """Return the configured headers. Raises ValueError for an unknown encryption or a bad key."""
    always: dict[str, str] = {}
    if environment.get("AWS_REQUEST_PAYER", "").lower() in _TRUE:
        always["x-amz-request-payer"] = "requester"
    mode = environment.get("AWS_SERVER_SIDE_ENCRYPTION", "")
    if not mode:
        return S3Headers(always, always, always)
    if mode not in _MODES:
        raise ValueError(f"AWS_SERVER_SIDE_ENCRYPTION is not one of {', '.join(_MODES)}")
    if mode == "sse-c":
        with_key = always | _customer_key(environment.get("AWS_SSE_CUSTOMER_KEY_BASE64", ""))
        return S3Headers(always, with_key, with_key)
    written = always | {_SSE: mode}
    if mode != "AES256" and (key := environment.get("AWS_SSE_KMS_KEY_ID")):
        written[f"{_SSE}-aws-kms-key-id"] = key
    if (enabled := environment.get("AWS_SSE_BUCKET_KEY_ENABLED", "")) and mode != "AES256":
        written[f"{_SSE}-bucket-key-enabled"] = str(enabled.lower() in _TRUE).lower()
    return S3Headers(always, always, written)


def _customer_key(text: str) -> dict[str, str]:
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b""
    if not key:  # never the value itself: it is a secret
        raise ValueError("AWS_SSE_CUSTOMER_KEY_BASE64 is not a key in base64")
    digest = hashlib.md5(key, usedforsecurity=False).digest()
    return {
        f"{_SSE}-customer-algorithm": "AES256",
        f"{_SSE}-customer-key": text,
        f"{_SSE}-customer-key-md5": b64encode(digest).decode(),
    }
