"""Translates the exceptions of obstore, and S3's error codes, into PenstockErrors."""

import re
from datetime import UTC, datetime

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    InvalidPathError,
    JoinError,
    NotFoundError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from penstock.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectNotFound,
    OptionError,
    PenstockError,
    SourceError,
    StoreError,
)
from penstock.store.redaction import redact

_KEYS = "the keys of this cloud"  # stands for the hint that fits the scheme
_KEYS_HINTS = {
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "oss": "check OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET",
    "bos": "check BOS_ACCESS_KEY_ID and BOS_SECRET_ACCESS_KEY",
    "http": "this server asks for a password, which penstock does not support",
    "https": "this server asks for a password, which penstock does not support",
}
_KEYS_HINT_S3 = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

# First match wins. A test checks that every exception of obstore has a row.
TRANSLATIONS: tuple[tuple[type[Exception], type[PenstockError], str | None], ...] = (
    (NotFoundError, ObjectNotFound, None),
    (FileNotFoundError, ObjectNotFound, None),
    (PreconditionError, ObjectChanged, None),
    (NotModifiedError, ObjectChanged, None),
    (PermissionDeniedError, AccessDenied, _KEYS),
    (UnauthenticatedError, AccessDenied, _KEYS),
    (UnknownConfigurationKeyError, OptionError, None),
    (InvalidPathError, SourceError, None),
    (NotSupportedError, SourceError, "this store cannot do that; for https give --manifest"),
    (AlreadyExistsError, StoreError, None),
    (JoinError, StoreError, None),
    (GenericError, StoreError, None),
    (BaseError, StoreError, None),
    (OSError, StoreError, None),
)

# GenericError is everything else that HTTP can answer; only its text says what happened.
_GENERIC: tuple[tuple[str, type[PenstockError], str, str | None], ...] = (
    (r"status code: 40[13]|SignatureDoesNotMatch|InvalidAccessKeyId", AccessDenied,
     "access denied", _KEYS),
    (r"ExpiredToken|TokenRefreshRequired|InvalidToken|RequestExpired", AccessDenied,
     "access denied, the credentials have expired", _KEYS),
    (r"token request|service account|[Cc]redential|Access Key|Account must be", AccessDenied,
     "no credentials that work", _KEYS),
    (r"status code: 416|InvalidRange", ObjectChanged, "the object became shorter", None),
    (r"NoSuchBucket|status code: 4(04|10)", ObjectNotFound, "not found", None),
    # A server that honours If-Match answers 412 first; rclone's only sees that the range is gone.
    (r"status code: (301|307|400)|PermanentRedirect", SourceError,
     "the endpoint refused the request", "check --region and --endpoint"),
    (r"status code: 40[5679]|status code: 501|invalid list response|invalid XML|Deserialization|"
     r"[Ee]rror decoding|Error parsing|unexpected end", SourceError,
     "the endpoint does not answer as an object store does",
     "check --endpoint: it must be the address of the storage itself, not of its console; a web "
     "server that cannot list needs --manifest"),
    (r"status code: 4(?!08|12|25|29)\d\d", SourceError, "the endpoint refused the request", None),
    (r"certificate|UnknownIssuer|CertificateRequired", StoreError,
     "the endpoint's certificate is not trusted", "name its authority in SSL_CERT_FILE"),
    (r"dns error|failed to lookup|Name or service", StoreError,
     "the endpoint's name cannot be resolved", "check --endpoint and the network"),
    (r"[Cc]onnection refused|tcp connect|error sending request|[Tt]imed? ?out|timeout",
     StoreError, "storage cannot be reached", "check --endpoint and the network"),
)  # fmt: skip

# The label that retries are counted by. First match wins.
_KINDS: tuple[tuple[str, str], ...] = (
    (r"status code: (429|503)|SlowDown|TooManyRequests", "slow_down"),
    (r"status code: 408|TimedOut|kind: Timeout|timed out", "timeout"),
    (r"status code: 5", "server_error"),
    (r"[Cc]onnection ?[Rr]efused", "refused"),
    (r"dns error|failed to lookup|Name or service", "unresolved"),
    (r"IncompleteBody|UnexpectedEof|end of file", "short_body"),
    (r"ConnectionReset|[Cc]onnection reset|IncompleteMessage|BrokenPipe|closed", "reset"),
)

_SKEWED = "RequestTimeTooSkewed"
_ADDRESS = re.compile(r"https?://\S+|for path .*?: |retry_timeout: \S+")


def translate(error: Exception, where: str) -> PenstockError:
    text = str(error)
    # Addresses contain keys, which may be called `credentials/timeout`.
    plain = _ADDRESS.sub("", text)
    if re.search(_SKEWED, plain):
        return _clock_skew(where)
    if isinstance(error, GenericError):
        for pattern, kind, what, hint in _GENERIC:
            if re.search(pattern, plain):
                return _error(kind, f"{where}: {what} ({_short(text)})", _hint(hint, where), plain)
    for known, kind, hint in TRANSLATIONS:
        if isinstance(error, known):
            return _error(kind, f"{where}: {_short(text)}", _hint(hint, where), plain)
    raise AssertionError(f"no translation for {type(error)}") from error


def translate_status(status: int, code: str, where: str, text: str) -> PenstockError:
    """Translate an answer of S3, by its status and code."""
    plain = f"status code: {status} {code}"
    if re.search(_SKEWED, plain):
        return _clock_skew(where)
    for pattern, kind, what, hint in _GENERIC:
        if re.search(pattern, plain):
            return _error(kind, f"{where}: {what} ({_short(text)})", _hint(hint, where), plain)
    kind = ObjectChanged if status == 412 else StoreError
    return _error(kind, f"{where}: {_short(text)}", None, plain)


def _error(kind: type[PenstockError], what: str, hint: str | None, plain: str) -> PenstockError:
    if issubclass(kind, StoreError):
        word = next((word for pattern, word in _KINDS if re.search(pattern, plain)), "other")
        return kind(what, hint=hint, kind=word)
    return kind(what, hint=hint)


def _clock_skew(where: str) -> StoreError:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return StoreError(
        f"{where}: this machine's clock differs too much from the store's; here it is {now} UTC",
        hint="set the clock (timedatectl set-ntp true, or chronyc makestep)",
        kind="clock_skew",
    )


def _hint(hint: str | None, where: str) -> str | None:
    if hint is not _KEYS:
        return hint
    keys = _KEYS_HINTS.get(where.split("://")[0], _KEYS_HINT_S3)
    return f"{keys}, and that they may list and read here; public data needs --anonymous"


def _short(text: str) -> str:
    """Return the first line, without wrapped errors and query strings (signatures); of an answer in
    XML, its code."""
    line = text.split("\n", 1)[0].split("<?xml", 1)[0].rstrip(" :")
    line = redact(re.sub(r"\?[^\s\")]*", "", line))
    if (code := re.search(r"<Code>(\w+)</Code>", text)) and code[1] not in line:
        line = f"{line[:180]}: {code[1]}"
    return line if len(line) <= 220 else line[:217] + "…"
