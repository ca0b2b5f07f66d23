"""Removes secrets from errors and log lines.

Code that reads credentials registers them here with `remember`; code that prints text from
elsewhere (a server repeats the key in a request, a library the URL that it signed) passes it
through `redact`.

Threading: any thread. The tuple of known values is replaced, never changed.
"""

import logging
import os
import re
import threading
from collections.abc import Mapping
from urllib.parse import quote

HIDDEN = "…"
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
# Shorter values occur in ordinary words, and are not secret.
_MIN_LENGTH = 6
_CLOUDS = ("AWS_", "OSS_", "BOS_", "BCE_", "ALIBABA_CLOUD_", "GOOGLE_", "AZURE_")
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SAS")
_PLACE_NAME = re.compile(r"_(FILE|URI|URL|PATH|ENDPOINT)$")

# Text that looks like a credential, also of other users: a presigned URL, or S3's explanation of a
# signature that does not match.
_PATTERNS = (
    (re.compile(r"(?i)((?:x-amz-(?:signature|credential|security-token)|signature|sig)=)[^&\s\"<]+"),
     rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(<(AWSAccessKeyId|StringToSign|CanonicalRequest|SignatureProvided|Token-0)>)"
                r".*?(</\2>|$)", re.DOTALL), rf"\1{HIDDEN}\3"),
    (re.compile(r"(?i)(authorization: ?)[^\r\n]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}"), HIDDEN),
)  # fmt: skip

_lock = threading.Lock()
_known: tuple[str, ...] = ()


def remember(*values: str | None) -> None:
    """Redact these values from now on."""
    global _known
    fresh = {value for value in values if value and len(value) >= _MIN_LENGTH}
    fresh |= {quote(value, safe="") for value in fresh}
    with _lock:
        # The longest first: one value may be a part of another.
        _known = tuple(sorted({*_known, *fresh}, key=len, reverse=True))


def remember_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Redact the keys of every cloud in an environment: this process's, or that of a child."""
    for name, value in environment.items():
        if name.startswith(_CLOUDS) and _SECRET_NAME.search(name) and not _PLACE_NAME.search(name):
            remember(value)


def redact(text: str) -> str:
    for value in _known:
        text = text.replace(value, HIDDEN)
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


# Every pattern contains one of these: text without any is processed seven times as fast (17
# against 120 MB/s), which matters to a job that prints a gigabyte.
_PATTERN_WORDS = (
    b"signature",
    b"sig=",
    b"x-amz-",
    b"awsaccesskeyid",
    b"stringtosign",
    b"canonicalrequest",
    b"token-0",
    b"authorization:",
    b"akia",
    b"asia",
)


def redact_bytes(data: bytes) -> bytes:
    """Redact output that may be large and need not be text."""
    known = _known
    lower = data.lower()
    if not any(word in lower for word in _PATTERN_WORDS):
        for value in known:
            data = data.replace(value.encode("utf-8", "surrogateescape"), HIDDEN.encode())
        return data
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class RedactingFormatter(logging.Formatter):
    """Redacts the whole line, tracebacks of libraries included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up_logging(
    handler: logging.Handler | None = None, *, prefix: str = "", level: str = "WARNING"
) -> None:
    """Log to `handler`, by default to stderr. Called once in each process of ours.

    $PENSTOCK_LOG comes before `level`. Only our own logger gets it: at DEBUG, botocore logs the
    headers of each request, tokens included.
    """
    handler = handler or logging.StreamHandler()
    text = LOG_FORMAT.replace("%(message)s", f"{prefix}%(message)s")
    handler.setFormatter(RedactingFormatter(text))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("penstock").setLevel(os.environ.get("PENSTOCK_LOG", level).upper())
