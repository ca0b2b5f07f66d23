"""GETs of S3 objects, signed, over plain sockets: the data path of s3, oss and bos sources.

Listings and uploads go through obstore. It also gets objects where this client cannot: behind a
proxy, in directory buckets (which want session credentials), and where an answer has no length.

Threading: any thread. A call blocks until it has the bytes or knows why they do not come.
"""

import logging
import os
import re
import socket
import ssl
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from typing_extensions import Buffer

from penstock.errors import PenstockError, SourceError, StoreError
from penstock.store.http import HttpClient, NotYet, ProtocolError, Response, ShortBody
from penstock.store.sigv4 import Signer
from penstock.store.translate import translate_status
from penstock.store.versions import BY_SIZE, BY_TIME, check_version, version_of

if TYPE_CHECKING:
    from obstore.store import S3Credential

log = logging.getLogger(__name__)

# The word that retries are counted by, and what a person reads. First match wins.
_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (socket.gaierror, "unresolved", "the endpoint's name cannot be resolved"),
    (ConnectionRefusedError, "refused", "storage cannot be reached"),
    (TimeoutError, "timeout", "storage did not answer in time"),
    (ConnectionError, "reset", "storage closed the connection"),
    (ShortBody, "short_body", "the answer ended too early"),
    (ProtocolError, "other", "the endpoint does not answer as an object store does"),
    (OSError, "other", "storage cannot be reached"),
)
# Variables that obstore reads, and makes headers of.
_OTHER_HEADERS = ("AWS_REQUEST_PAYER", "AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")


class S3Objects:
    def __init__(self, client: HttpClient, root: str, signer: Signer | None) -> None:
        """`root`: what stands before a key in the path, encoded. `signer`: None for public data."""
        self._client = client
        self._root = root
        self._signer = signer
        self._untrusted = False
        self._begins_nothing = False

    def get(
        self, where: str, key: str, version: str, start: int, length: int, size_bytes: int
    ) -> Buffer | None:
        """Return the bytes, or None if the other client has to get them. `where` names the object
        in errors."""
        if self._untrusted:
            return None
        headers = _version_header(version)
        if length != size_bytes:
            headers += f"Range: bytes={start}-{start + length - 1}\r\n"
        try:
            with self._client.get(*self._signed(key, headers)) as response:
                _require_success(response, where)
                skip = _check(response, where, version, start, length, size_bytes)
                return response.read(length, skip)
        except ssl.SSLCertVerificationError as error:
            # obstore may know other authorities; if not, its error says what to do.
            log.info("%s: %s; using the other client", where, error)
            self._untrusted = True
            return None
        except (ProtocolError, OSError) as error:
            if type(error) is ProtocolError:
                log.debug("%s: %s; using the other client", where, error)
                return None
            raise _failure(error, where) from error

    def begin(self, where: str, key: str, version: str, size_bytes: int) -> "PendingObject | None":
        """Send the request for a whole object; None where `get` has to be called instead."""
        is_ready = self._signer is None or self._signer.is_ready
        if self._untrusted or self._begins_nothing or not is_ready:
            return None
        response = self._client.begin(*self._signed(key, _version_header(version)))
        if response is None:
            return None
        return PendingObject(self, response, where, version, size_bytes)

    def begin_no_more(self) -> None:
        """Its answers are not of the kind that can be received piece by piece."""
        self._begins_nothing = True

    def _signed(self, key: str, headers: str) -> tuple[str, str]:
        path = f"{self._root}/{quote(key, safe='/~')}"
        return path, headers if self._signer is None else self._signer.headers(path) + headers


class PendingObject:
    """A whole object on its way: see penstock.store.Pending."""

    def __init__(
        self, objects: S3Objects, response: Response, where: str, version: str, size_bytes: int
    ) -> None:
        self._objects = objects
        self._response = response
        self._where = where
        self._version = version
        self._size_bytes = size_bytes
        self._is_checked = False  # it is what was asked for; its body is on its way
        self._result: Buffer | Exception | None = None

    def fileno(self) -> int:
        return self._response.fileno()

    def advance(self) -> bool:
        response, where, size_bytes = self._response, self._where, self._size_bytes
        try:
            if not response.status:
                response.receive_head()
            if not self._is_checked:
                _require_success(response, where, socket.MSG_DONTWAIT)
                _check(response, where, self._version, 0, size_bytes, size_bytes)
                response.expect(size_bytes)
                self._is_checked = True
            self._result = response.receive()
        except NotYet:
            if not response.is_overdue:
                return False
            self._result = _failure(TimeoutError("the answer took too long"), where)
        except PenstockError as error:
            self._result = error
        except (ProtocolError, OSError) as error:
            if type(error) is ProtocolError:
                self._objects.begin_no_more()
            self._result = _failure(error, where)
        response.close()
        return True

    def result(self) -> Buffer:
        assert self._result is not None, "it is still on its way"
        if isinstance(self._result, Exception):
            # Without the frames of before: they refer to this object, and it to the error.
            raise self._result.with_traceback(None)
        return self._result

    def retry(self, error: Exception) -> Buffer:
        raise error


def open_s3_objects(
    endpoint: str, bucket: str, *, virtual_hosted: bool, region: str,
    credentials: "Callable[[], S3Credential] | None", connect_s: float, idle_s: float,
    deadline_s: float,
) -> S3Objects | None:  # fmt: skip
    """None where only the other client can get objects. With `virtual_hosted` the endpoint's host
    has the bucket's name in it already."""
    parts = urlsplit(endpoint)
    proxies = getproxies()
    is_behind_proxy = (parts.scheme in proxies or "all" in proxies) and not proxy_bypass(
        parts.hostname or ""
    )
    asks_for_more = any(name.startswith(_OTHER_HEADERS) for name in os.environ)
    if bucket.endswith("--x-s3") or is_behind_proxy or asks_for_more:
        return None
    client = HttpClient(endpoint, connect_s=connect_s, idle_s=idle_s, deadline_s=deadline_s)
    root = quote(parts.path.rstrip("/"), safe="/~%") + ("" if virtual_hosted else f"/{bucket}")
    signer = None if credentials is None else Signer(client.host, region, credentials)
    return S3Objects(client, root, signer)


def _version_header(version: str) -> str:
    return "" if version.startswith((BY_TIME, BY_SIZE, "W/")) else f'If-Match: "{version}"\r\n'


def _failure(error: Exception, where: str) -> StoreError:
    kind, what = next((row[1], row[2]) for row in _FAILURES if isinstance(error, row[0]))
    return StoreError(f"{where}: {what} ({error})", kind=kind)


def _check(
    response: Response, where: str, version: str, start: int, length: int, size_bytes: int
) -> int:
    """Return how many bytes of the body come before those that were asked for; raise if it is of
    another object, version or range."""
    headers = response.headers
    part = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    size = int(part[3]) if part is not None else response.length
    modified_s = 0.0
    if "etag" not in headers and (date := headers.get("last-modified")):
        try:
            modified_s = parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise StoreError(f"{where}: {date!r} is not a date", kind="other") from None
    found = version_of(headers.get("etag"), modified_s, size)
    check_version(where, version, size_bytes, found, size)
    if part is None:
        # Some servers answer with the whole object, whatever they were asked for.
        if response.status == 206:
            raise StoreError(f"{where}: it is not said which part came", kind="wrong_length")
        return start
    if (int(part[1]), int(part[2])) != (start, start + length - 1) or response.length != length:
        raise StoreError(f"{where}: another part came than {start} to {start + length - 1}",
                         kind="wrong_length")  # fmt: skip
    return 0


def _require_success(response: Response, where: str, flags: int = socket.MSG_WAITALL) -> None:
    status = response.status
    if status in (200, 206):
        return
    if 300 <= status < 400:
        to = urlsplit(response.headers.get("location", "")).netloc or "another address"
        raise SourceError(
            f"{where}: the endpoint sends us to {to}, and the credentials are not for that",
            hint="check --region and --endpoint",
        )
    text = response.read_error(flags)  # a begun one is not judged before that has come
    code = found[1] if (found := _CODE.search(text)) is not None else ""
    raise translate_status(status, code, where, f"status {status} {code}".rstrip())
