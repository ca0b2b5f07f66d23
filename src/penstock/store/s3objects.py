"""Objects of S3 and of web servers over plain sockets: the data path of s3, oss, bos, http and
https sources, and the requests of their listings.

obstore serves the few sources that this client cannot: directory buckets (which need session
credentials), and sources behind other proxies than HTTP ones. That is decided before the first
request: no answer of a server leads to another client.

Credentials go to the configured host only. A redirect is followed on that host, or to the endpoint
of the region that AWS names, and nowhere else.

Threading: any thread. Every call but `begin` blocks until it has the bytes or an error.
"""

import logging
import math
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from typing_extensions import Buffer

from penstock.errors import PenstockError, SourceError, StoreError
from penstock.store import Progress
from penstock.store.etags import BodyCheck
from penstock.store.http import HttpClient, NotYet, ProtocolError, Response, ShortBody
from penstock.store.s3headers import NO_HEADERS, S3Headers
from penstock.store.sigv4 import Signer
from penstock.store.translate import translate_status
from penstock.store.versions import (
    BY_SIZE,
    BY_TIME,
    check_version,
    parse_date,
    version_of,
)

if TYPE_CHECKING:
    from obstore.store import S3Credential

log = logging.getLogger(__name__)

# Exception, label that retries are counted by, message. First match wins.
_FAILURES: tuple[tuple[type[Exception], str, str], ...] = (
    (ssl.SSLCertVerificationError, "untrusted", "the endpoint's certificate is not trusted"),
    (socket.gaierror, "unresolved", "the endpoint's name cannot be resolved"),
    (ConnectionRefusedError, "refused", "no server accepts connections at its endpoint"),
    (TimeoutError, "timeout", "storage did not answer in time"),
    (ConnectionError, "reset", "storage closed the connection"),
    (ShortBody, "short_body", "the answer ended too early"),
    (ProtocolError, "other", "the endpoint does not answer as an object store does"),
    (OSError, "other", "storage cannot be reached"),
)
_SAID = ("unresolved", "refused", "timeout")  # the library's own text says no more
_REDIRECTED = "check --region and --endpoint; or mount that address itself"
_UNTRUSTED_HINT = (
    "name the authority that signed it in SSL_CERT_FILE; if that is a public one, another server "
    "may be answering instead of the storage"
)
# After an answer that only `get` can handle (chunked, without a length, a redirect), `begin` is not
# used for so long: the server may always answer so, or only once.
_BEGIN_PAUSE_S = 60.0
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MAX_HOPS = 5
_QUERY = "/~%!$&'()*+,;=:@?-_."
_REGION = re.compile(r"[a-z]{2,8}(-[a-z]{2,16}){1,3}-[0-9]{1,2}")
_NO_ETAG = (BY_TIME, BY_SIZE, "W/")
_HEADER_TEXT = re.compile(r"[!-~ ]*")


class RedirectRefused(SourceError):
    """The server redirects to another host."""


class _Endpoint(NamedTuple):
    """A client for one endpoint, and the signer for it."""

    client: HttpClient
    signer: Signer | None  # None for public data


class S3Objects:
    def __init__(
        self,
        endpoint: _Endpoint,
        root: str,
        *,
        check: BodyCheck | None = None,
        in_region: Callable[[str], _Endpoint] | None = None,
        extra: S3Headers = NO_HEADERS,
    ) -> None:
        """`root`: the part of the path before a key, encoded. `in_region`: returns the endpoint of
        another region; only for AWS itself."""
        self.root = root
        self._endpoint = endpoint
        self._check = check
        self._in_region = in_region
        self._extra = extra
        self._begin_paused_s = -math.inf  # time of the last answer that only `get` can handle

    def ask(
        self,
        where: str,
        path: str,
        query: str = "",
        headers: str = "",
        method: str = "GET",
        body: bytes = b"",
    ) -> Response:
        """Send a request; return an answer that is no error, which the caller closes.

        `path` and `query` are encoded. Raises PenstockErrors, and what penstock.store.http raises.
        """
        until_s = self._endpoint.client.new_deadline()
        extra = self._extra.of(method, query)
        for _ in range(_MAX_HOPS):
            client, signer = self._endpoint
            signed = "" if signer is None else signer.headers(path, query, method, body, extra)
            target = f"{path}?{query}" if query else path
            response = client.request(method, target, signed + headers, body, until_s)
            if 200 <= response.status < 300:
                return response
            try:
                if not (elsewhere := self._redirected(response, where, path, query)):
                    raise refusal(response, where)
            except BaseException:
                response.close()
                raise
            response.close()
            path, query = elsewhere
        raise SourceError(f"{where}: the endpoint redirects again and again", hint=_REDIRECTED)

    def _redirected(
        self, response: Response, where: str, path: str, query: str
    ) -> tuple[str, str] | None:
        """Return the new path and query of a redirect that may be followed; None if it is none."""
        status, headers, endpoint = response.status, response.headers, self._endpoint
        if status not in (301, 302, 303, 307, 308, 400):
            return None
        region = headers.get("x-amz-bucket-region", "")
        if self._in_region is not None and _REGION.fullmatch(region):
            moved = self._in_region(region)
            if moved.client.origin != endpoint.client.origin:
                log.info("%s: its bucket is in %s", where, region)
                self._endpoint = moved
                return path, query
        if status == 400:
            return None
        target = headers.get("location", "")
        try:
            to = urlsplit(urljoin(f"{endpoint.client.origin}{path}", target))
        except ValueError:
            target, to = "", urlsplit("")
        if target and f"{to.scheme}://{to.netloc}" == endpoint.client.origin:
            return quote(to.path or "/", safe="/~%!$&'()*+,;=:@"), quote(to.query, safe=_QUERY)
        raise RedirectRefused(
            f"{where}: the server redirects to {to.netloc[:100] or 'another address'}; redirects "
            "to other hosts are not followed",
            hint=_REDIRECTED,
        )

    def get(
        self,
        where: str,
        key: str,
        version: str,
        start: int,
        length: int,
        size_bytes: int,
        progress: Progress | None = None,
    ) -> Buffer:
        """Return the bytes. `where` names the object in errors."""
        headers = _version_header(version)
        if length != size_bytes:
            headers += f"Range: bytes={start}-{start + length - 1}\r\n"
        try:
            with self.ask(where, self.path(key), headers=headers) as response:
                skip = _check(response, where, version, start, length, size_bytes)
                if response.has_length:
                    data = response.read(length, skip, progress)
                else:
                    data = response.read_text(length)
                if self._check is not None and length == size_bytes:
                    self._check(where, version, response.headers, data)
                return data
        except (ProtocolError, OSError) as error:
            raise failure(error, where) from error

    def begin(self, where: str, key: str, version: str, size_bytes: int) -> "PendingObject | None":
        """Send the request for a whole object; None where `get` has to be called instead."""
        client, signer = self._endpoint
        is_ready = signer is None or signer.is_ready
        if not is_ready or time.monotonic() < self._begin_paused_s + _BEGIN_PAUSE_S:
            return None
        path = self.path(key)
        signed = "" if signer is None else signer.headers(path, extra=self._extra.read)
        response = client.begin(path, signed + _version_header(version))
        if response is None:
            return None
        return PendingObject(self, response, where, version, size_bytes, self._check)

    def pause_begin(self) -> None:
        """Do not use `begin` for a while: an answer could not be received without blocking."""
        self._begin_paused_s = time.monotonic()

    def path(self, key: str) -> str:
        return f"{self.root}/{quote(key, safe='/~', errors='surrogateescape')}"


class PendingObject:
    """A GET of a whole object in flight: see penstock.store.Pending."""

    def __init__(
        self,
        objects: S3Objects,
        response: Response,
        where: str,
        version: str,
        size_bytes: int,
        check: BodyCheck | None,
    ) -> None:
        self._objects = objects
        self._check = check
        self._response = response
        self._where = where
        self._version = version
        self._size_bytes = size_bytes
        self._is_checked = False  # the head is right; the body follows
        self._result: Buffer | Exception | None = None

    def fileno(self) -> int:
        return self._response.fileno()

    def advance(self) -> bool:
        response, where, size_bytes = self._response, self._where, self._size_bytes
        try:
            if not response.status:
                response.receive_head()
            if not self._is_checked:
                only_get_can = response.status < 300 and not response.has_length
                if only_get_can or 300 <= response.status < 400:
                    self._objects.pause_begin()
                    raise ProtocolError("an answer that needs a blocking request")
                if not 200 <= response.status < 300:
                    raise refusal(response, where, socket.MSG_DONTWAIT)
                _check(response, where, self._version, 0, size_bytes, size_bytes)
                response.expect(size_bytes)
                self._is_checked = True
            self._result = response.receive()
        except NotYet:
            if not response.is_overdue:
                return False
            self._result = failure(TimeoutError("the answer took too long"), where)
        except PenstockError as error:
            self._result = error
        except (ProtocolError, OSError) as error:
            self._result = failure(error, where)
        response.close()
        return True

    def result(self) -> Buffer:
        assert self._result is not None, "still in flight"
        if isinstance(self._result, Exception):
            # Without the old frames: they refer to this object, and it refers to the error.
            raise self._result.with_traceback(None)
        if self._check is not None:
            self._check(self._where, self._version, self._response.headers, self._result)
        return self._result

    def retry(self, error: Exception) -> Buffer:
        raise error


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one request may take; see HttpClient."""

    connect_s: float
    idle_s: float
    deadline_s: float


def open_s3_objects(
    endpoint: str,
    bucket: str,
    *,
    virtual_hosted: bool,
    region: str,
    credentials: "Callable[[], S3Credential] | None",
    limits: Limits,
    check: BodyCheck | None = None,
    region_endpoint: str | None = None,
    extra: S3Headers = NO_HEADERS,
) -> S3Objects | None:
    """Return a client; None where only obstore can be used.

    With `virtual_hosted` the endpoint's host already contains the bucket's name. `region_endpoint`:
    the template of regional endpoints, with `{region}` in it.
    """
    if bucket.endswith("--x-s3"):
        return None
    proxy = find_proxy(endpoint)
    if proxy is not None and not proxy.startswith("http://"):
        return None

    def at(endpoint: str, region: str) -> _Endpoint:
        client = HttpClient(
            endpoint,
            connect_s=limits.connect_s,
            idle_s=limits.idle_s,
            deadline_s=limits.deadline_s,
            proxy=find_proxy(endpoint),
        )
        signer = None if credentials is None else Signer(client.host, region, credentials)
        return _Endpoint(client, signer)

    @cache
    def in_region(region: str) -> _Endpoint:
        assert region_endpoint is not None
        return at(region_endpoint.format(region=region), region)

    path = urlsplit(endpoint).path.rstrip("/")
    return S3Objects(
        at(endpoint, region),
        quote(path, safe="/~%") + ("" if virtual_hosted else f"/{bucket}"),
        check=check,
        in_region=None if region_endpoint is None else in_region,
        extra=extra,
    )


def open_web_objects(address: str, limits: Limits, check: BodyCheck | None) -> S3Objects | None:
    """Return a client for a web server: a bucket without a name and without keys."""
    return open_s3_objects(
        address, "", virtual_hosted=True, region="", credentials=None, limits=limits, check=check
    )


def find_proxy(endpoint: str) -> str | None:
    """Return the proxy that the environment configures for this address."""
    parts, proxies = urlsplit(endpoint), getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or proxy_bypass(parts.hostname or ""):
        return None
    return found if "://" in found else f"http://{found}"


def _version_header(version: str) -> str:
    # A version that no header can hold came from a wrong listing; no answer has that ETag either.
    if version.startswith(_NO_ETAG) or _HEADER_TEXT.fullmatch(version) is None:
        return ""
    return f'If-Match: "{version}"\r\n'


def failure(error: Exception, where: str) -> StoreError:
    kind, what = next((row[1], row[2]) for row in _FAILURES if isinstance(error, row[0]))
    hint = _UNTRUSTED_HINT if kind == "untrusted" else None
    text = f"{where}: {what}" if kind in _SAID else f"{where}: {what} ({error})"
    return StoreError(text, kind=kind, hint=hint)


def _check(
    response: Response, where: str, version: str, start: int, length: int, size_bytes: int
) -> int:
    """Return how many bytes of the body come before the requested ones; raise if the answer is for
    another object, version or range."""
    headers = response.headers
    part = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    size = response.length if response.has_length else size_bytes
    if part is not None:
        size = int(part[3])
    if "etag" not in headers and not version.startswith((BY_TIME, BY_SIZE)):
        raise StoreError(f"{where}: the answer has no ETag", kind="no_version")
    modified_s = 0.0
    if "etag" not in headers and (date := headers.get("last-modified")):
        try:
            modified_s = parse_date(date)
        except ValueError:
            raise StoreError(f"{where}: {date[:40]!r} is not a date", kind="other") from None
    found = version_of(headers.get("etag"), modified_s, size)
    check_version(where, version, size_bytes, found, size)
    if part is None:
        # Some servers ignore Range and answer with the whole object.
        if response.status == 206 or (length != size_bytes and not response.has_length):
            raise StoreError(
                f"{where}: the answer does not say which part it is", kind="wrong_length"
            )
        return start
    is_whole = not response.has_length or response.length == length
    if (int(part[1]), int(part[2])) != (start, start + length - 1) or not is_whole:
        raise StoreError(
            f"{where}: the answer is not the part {start} to {start + length - 1}",
            kind="wrong_length",
        )
    return 0


def refusal(response: Response, where: str, flags: int = socket.MSG_WAITALL) -> PenstockError:
    """Return the error of an answer with an error status."""
    text = response.read_error(flags)  # raises NotYet until a pending answer has arrived
    code = found[1] if (found := _CODE.search(text)) is not None else ""
    status = response.status
    return translate_status(status, code, where, f"status {status} {code}".rstrip())
