"""Parses sources such as s3://bucket/prefix. Pure: opens nothing, sends nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import SourceError

OBJECT_SCHEMES = ("s3", "oss", "bos", "gs", "az")
SCHEMES = (*OBJECT_SCHEMES, "https", "http", "file")


@dataclass(frozen=True, slots=True)
class Source:
    scheme: str
    bucket: str  # the container for az, the host for http(s), "" for file
    # Without a leading or trailing slash, and decoded; for file, the absolute directory.
    prefix: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.prefix}"
        prefix = self.prefix
        if self.scheme in ("http", "https"):
            prefix = quote(prefix, safe="/~!$&'()*+,;=:@", errors="surrogateescape")
        return f"{self.scheme}://{self.bucket}/{prefix}".rstrip("/")


def parse_source(text: str) -> Source:
    if "://" not in text:
        hint = f"for a folder of this machine write file://{text}" if text[:1] == "/" else None
        raise SourceError(
            f"{text!r} is not a source",
            hint=hint or "write it like s3://bucket/prefix; schemes: " + ", ".join(SCHEMES),
        )
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES:
        raise SourceError(
            f"{text!r}: unknown scheme {scheme!r}", hint="known schemes: " + ", ".join(SCHEMES)
        )
    if scheme == "file":
        path = unquote(rest.removeprefix("localhost"))
        if not path.startswith("/"):
            raise SourceError(f"{text!r}: the path must be absolute", hint="file:///data/imagenet")
        return Source("file", "", path.rstrip("/") or "/")
    if scheme in ("http", "https"):
        parts = urlsplit(text)
        if not parts.hostname:
            raise SourceError(f"{text!r} names no host", hint="https://host/path")
        if parts.username or parts.password:
            raise SourceError(
                f"{scheme}://…@{parts.hostname}: credentials do not belong in a URL",
                hint="every user sees them in the process list; protect the server in another way",
            )
        return Source(
            scheme, parts.netloc, unquote(parts.path, errors="surrogateescape").strip("/")
        )
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise SourceError(f"{text!r} names no bucket", hint=f"{scheme}://bucket/prefix")
    if "@" in bucket or ":" in bucket:
        raise SourceError(
            f"{scheme}://…: {'credentials do' if '@' in bucket else 'a port does'} not belong in "
            "the bucket's name",
            hint="keys go into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a host into --endpoint",
        )
    prefix = prefix.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise SourceError(f"{text!r}: the prefix has an empty, `.` or `..` segment")
    return Source(scheme, bucket, prefix)


@dataclass(frozen=True, slots=True)
class SourcePrefix:
    """Converts keys between their form in the store and their form below a source's prefix."""

    identity: str
    prefix: str  # without a slash at its ends

    def full(self, key: str) -> str:
        return f"{self.prefix}/{key}".rstrip("/") if self.prefix else key

    def relative(self, key: str) -> str:
        return key.removeprefix(self.prefix).removeprefix("/") if self.prefix else key

    def check_below(self, below: str, keys: Iterable[str]) -> None:
        """Raise SourceError for a key from elsewhere: its name would stand for another object."""
        if not below:
            return
        start = f"{below}/"
        for key in keys:
            if not key.startswith(start) and key != below:
                raise SourceError(
                    f"{self.identity}: the endpoint lists {key[:100]!r}, which is not below "
                    f"{start[-100:]!r}",
                    hint="check --endpoint: it must be the address of the storage itself, and "
                    "list by prefix",
                )

    def not_found(self) -> SourceError:
        return SourceError(
            f"{self.identity}: no such bucket, container or folder",
            hint="check its name, --endpoint and --region",
        )
