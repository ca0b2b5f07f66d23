"""obstore's exceptions become ours, here and nowhere else."""

import re

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

_KEYS = "the keys of this cloud"  # stands for the hint that fits the scheme
_KEYS_HINTS = {
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "oss": "check OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET",
    "bos": "check BOS_ACCESS_KEY_ID and BOS_SECRET_ACCESS_KEY",
    "http": "this server wants a password, which we cannot give it",
    "https": "this server wants a password, which we cannot give it",
}
_KEYS_HINT_S3 = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

# First match wins. A test holds that every exception of obstore has its row.
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

# GenericError holds everything else that HTTP can answer; its text is all that tells them apart.
_GENERIC: tuple[tuple[str, type[PenstockError], str, str | None], ...] = (
    (r"status code: 40[13]|SignatureDoesNotMatch|InvalidAccessKeyId", AccessDenied,
     "access denied", _KEYS),
    (r"token request|service account|[Cc]redential|Access Key|Account must be", AccessDenied,
     "no credentials that work", _KEYS),
    (r"NoSuchBucket|status code: 404", ObjectNotFound, "not found", None),
    (r"status code: (301|307|400)|PermanentRedirect", SourceError,
     "the endpoint refused the request", "check --region and --endpoint"),
    (r"status code: 40[5-9]|status code: 501|invalid list response|invalid XML|Deserialization|"
     r"[Ee]rror decoding|Error parsing|unexpected end", SourceError,
     "the endpoint does not answer as an object store does",
     "check --endpoint: it must be the address of the storage itself, not of its console; a web "
     "server that cannot list needs --manifest"),
    (r"certificate|UnknownIssuer|CertificateRequired", StoreError,
     "the endpoint's certificate is not trusted", "name its authority in SSL_CERT_FILE"),
    (r"dns error|failed to lookup|Name or service", StoreError,
     "the endpoint's name cannot be resolved", "check --endpoint and the network"),
    (r"[Cc]onnection refused|tcp connect|error sending request|[Tt]imed? ?out|timeout",
     StoreError, "storage cannot be reached", "check --endpoint and the network"),
)  # fmt: skip


def translate(error: Exception, where: str) -> PenstockError:
    text = str(error)
    if isinstance(error, GenericError):
        for pattern, kind, what, hint in _GENERIC:
            if re.search(pattern, text):
                return kind(f"{where}: {what} ({_short(text)})", hint=_hint(hint, where))
    for known, kind, hint in TRANSLATIONS:
        if isinstance(error, known):
            return kind(f"{where}: {_short(text)}", hint=_hint(hint, where))
    raise AssertionError(f"no translation for {type(error)}") from error


def _hint(hint: str | None, where: str) -> str | None:
    if hint is not _KEYS:
        return hint
    keys = _KEYS_HINTS.get(where.split("://")[0], _KEYS_HINT_S3)
    return f"{keys}, and that they may list and read here; public data needs --anonymous"


def _short(text: str) -> str:
    """The first line, without the chain of wrappers and without query strings (signatures)."""
    line = text.split("\n", 1)[0]
    line = re.sub(r"\?[^\s\")]*", "", line)
    return line if len(line) <= 220 else line[:217] + "…"
