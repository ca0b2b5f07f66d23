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

_KEYS_HINT = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE, GOOGLE_*, AZURE_*), "
    "and that they may list and read this bucket; a public bucket needs --anonymous"
)

# First match wins. A test holds that every exception of obstore has its row.
TRANSLATIONS: tuple[tuple[type[Exception], type[PenstockError], str | None], ...] = (
    (NotFoundError, ObjectNotFound, None),
    (FileNotFoundError, ObjectNotFound, None),
    (PreconditionError, ObjectChanged, None),
    (NotModifiedError, ObjectChanged, None),
    (PermissionDeniedError, AccessDenied, _KEYS_HINT),
    (UnauthenticatedError, AccessDenied, _KEYS_HINT),
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
     "access denied", _KEYS_HINT),
    (r"NoSuchBucket|status code: 404", ObjectNotFound, "not found", None),
    (r"status code: (301|307|400)|PermanentRedirect", SourceError,
     "the endpoint refused the request", "check --region and --endpoint"),
    (r"status code: 40[5-9]|status code: 501|invalid list response|invalid XML|Deserialization|"
     r"[Ee]rror decoding|Error parsing|unexpected end", SourceError,
     "the endpoint does not answer as an object store does",
     "check --endpoint: it must be the address of the storage itself, not of its console; a web "
     "server that cannot list needs --manifest"),
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
                return kind(f"{where}: {what} ({_short(text)})", hint=hint)
    for known, kind, hint in TRANSLATIONS:
        if isinstance(error, known):
            return kind(f"{where}: {_short(text)}", hint=hint)
    raise AssertionError(f"no translation for {type(error)}") from error


def _short(text: str) -> str:
    """The first line, without the chain of wrappers and without query strings (signatures)."""
    line = text.split("\n", 1)[0]
    line = re.sub(r"\?[^\s\")]*", "", line)
    return line if len(line) <= 220 else line[:217] + "…"
