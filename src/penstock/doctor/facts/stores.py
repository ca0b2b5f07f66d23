"""Facts about one store: whether it exists, whether its keys work, how fast it answers.

Sends the requests that a mount sends, with the same keys, but without retries. Each step has a
deadline, all of them have one too, and the first step that fails ends the look.
"""

import http.client
import re
import socket
import ssl
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.catalog.names import why_implausible, why_no_key, why_no_name
from penstock.doctor.findings import TooSlow, within
from penstock.errors import AccessDenied, ObjectNotFound, PenstockError, StoreError
from penstock.metrics import Counters
from penstock.settings import Part
from penstock.store import ObjectInfo, Store
from penstock.store.connect import open_store
from penstock.store.credentials import Keys
from penstock.store.source import Source
from penstock.units import KIB, MIB

# -- the way to a store, without keys: its name, a connection, TLS, an answer ------------------
#
# A library that fails reports at best which of these failed; here each is tried by itself.

_DIAL_S = 3.0
_ENDPOINT = re.compile(r"\?endpoint=(\S+)$")
# Some servers write that a request came without TLS.
_WANTS_TLS = re.compile(r"HTTP request (was sent )?to (an )?HTTPS", re.IGNORECASE)
_IS_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class Address(NamedTuple):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    address: str
    step: str  # the last one tried: name, connection, tls, answer
    error: str | None = None  # why it failed
    other_scheme: str | None = None  # the scheme that it speaks instead
    connect_ms: float | None = None
    status: int | None = None
    skew_s: float | None = None  # our clock minus the store's


def address_of(source: Source, identity: str, region: str | None) -> Address | None:
    """Return where requests are sent; None where only the library knows."""
    if match := _ENDPOINT.search(identity):
        url = match[1]
    elif source.scheme in ("http", "https"):
        url = f"{source.scheme}://{source.bucket}"
    elif source.scheme == "s3":
        url = f"https://s3.{region or 'us-east-1'}.amazonaws.com"
    elif source.scheme == "gs":
        url = "https://storage.googleapis.com"
    else:
        return None
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Address(parts.scheme, parts.hostname or "", port)


def look_at_endpoint(address: Address) -> EndpointFacts:
    seen = EndpointFacts(str(address), "name")
    try:
        # The resolver has no deadline of its own: 10 s and more for a name server that is down.
        within(_DIAL_S, lambda: socket.getaddrinfo(address.host, address.port))
    except TooSlow:
        return replace(seen, error=f"no answer within {_DIAL_S:g} s")
    except OSError as error:
        return replace(seen, error=error.strerror or str(error))
    seen = replace(seen, step="connection")
    began_s = time.monotonic()
    try:
        connection = socket.create_connection((address.host, address.port), timeout=_DIAL_S)
    except OSError as error:
        return replace(seen, error=error.strerror or str(error))
    with connection:
        seen = replace(seen, connect_ms=1000 * (time.monotonic() - began_s))
        if address.scheme == "https":
            seen = replace(seen, step="tls")
            try:
                secured = ssl.create_default_context().wrap_socket(
                    connection, server_hostname=address.host
                )
            except OSError as error:
                return _failed_tls(seen, error)
            with secured:
                return _answer(secured, address, seen)
        return _answer(connection, address, seen)


def _failed_tls(seen: EndpointFacts, error: OSError) -> EndpointFacts:
    text = str(error)
    if isinstance(error, ssl.SSLError):
        # The store's client also trusts a private authority through SSL_CERT_FILE.
        text = getattr(error, "verify_message", None) or error.reason or text
        if any(word in text.replace(" ", "_").upper() for word in _IS_PLAIN):
            return replace(seen, error=text, other_scheme="http")
    return replace(seen, error=text)


def _answer(connection: socket.socket, address: Address, seen: EndpointFacts) -> EndpointFacts:
    seen = replace(seen, step="answer")
    request = f"GET / HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n\r\n"
    sent_s = time.time()
    try:
        connection.sendall(request.encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read(500).decode("utf-8", "replace")
    except TimeoutError:
        return replace(seen, error=f"no answer within {_DIAL_S:g} s")
    except (OSError, http.client.HTTPException) as error:
        # Other servers send an alert or just hang up: try whether they want TLS.
        if address.scheme == "http" and _speaks_tls(address):
            return replace(seen, error="it speaks TLS", other_scheme="https")
        return replace(seen, error=str(error) or type(error).__name__)
    middle_s = (sent_s + time.time()) / 2
    if response.status == 400 and _WANTS_TLS.search(body):
        return replace(seen, error="it speaks TLS", other_scheme="https", status=400)
    return replace(seen, status=response.status, skew_s=_skew(response.headers["Date"], middle_s))


def _speaks_tls(address: Address) -> bool:
    """Whether a TLS handshake succeeds, with any certificate; no data is sent."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=_DIAL_S) as connection,
            context.wrap_socket(connection, server_hostname=address.host),
        ):
            return True
    except OSError:
        return False


def _skew(date: str | None, now_s: float) -> float | None:
    try:
        return now_s - parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


_STEP_S = 4.0
PROBE_S = 20.0
_SMALL_GETS, _SMALL_BYTES = 5, 4 * KIB
_LARGE_BYTES, _LEAST_LARGE_BYTES = 8 * MIB, MIB

_CODE = re.compile(
    r"<Code>(\w+)</Code>|\b(AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId|ExpiredToken|"
    r"RequestTimeTooSkewed|NoSuchBucket|PermanentRedirect|AuthorizationHeaderMalformed)\b"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why listing with its keys failed."""

    kind: str  # denied, missing, unreachable, other
    code: str | None  # S3's error code
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    source: str
    path: str  # of the part; "" for the whole mount
    endpoint: EndpointFacts | None = None  # None: a folder of this machine, or not known
    refusal: Refusal | None = None
    has_keys: bool = True  # its own, or from the environment
    objects: int | None = None  # on the first page of the listing; None: not listed
    get_ms: tuple[float, ...] = ()  # small ranged GETs
    large_bytes: int = 0
    large_s: float = 0.0
    too_slow: bool = False  # all steps together took longer than PROBE_S

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.get_ms) if self.get_ms else None

    @property
    def bytes_per_s(self) -> float | None:
        return self.large_bytes / self.large_s if self.large_bytes and self.large_s else None


def look_at_store(part: Part) -> StoreFacts:
    """Look at the store of one part, for no longer than PROBE_S."""
    seen = StoreFacts(str(part.source), part.path)
    try:
        return within(PROBE_S, lambda: _look(part, seen))
    except TooSlow:
        return replace(seen, too_slow=True)


def with_keys_of(part: Part, environment: Mapping[str, str]) -> Part:
    """Return the part with the keys from its server's environment, if it has none of its own.

    The user who runs the doctor may have other keys, or none.
    """
    names = _VARIABLES.get(part.source.scheme)
    if names is None or part.store.keys is not None or part.store.anonymous:
        return part
    found = [
        next((environment[name] for name in some if name in environment), None) for some in names
    ]
    if not all(found[:2]):
        return part
    if part.source.scheme == "az":
        keys = Keys(account_name=found[0], account_key=found[1])
    else:
        keys = Keys(access_key_id=found[0], secret_access_key=found[1], session_token=found[2])
    endpoint = part.store.endpoint or found[-1]
    return replace(part, store=replace(part.store, keys=keys, endpoint=endpoint))


_VARIABLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "s3": (("AWS_ACCESS_KEY_ID",), ("AWS_SECRET_ACCESS_KEY",), ("AWS_SESSION_TOKEN",),
           ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")),
    "oss": (("OSS_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
            ("OSS_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "AWS_SECRET_ACCESS_KEY"),
            ("AWS_SESSION_TOKEN",), ("OSS_ENDPOINT",)),
    "bos": (("BOS_ACCESS_KEY_ID", "BCE_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
            ("BOS_SECRET_ACCESS_KEY", "BCE_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
            ("AWS_SESSION_TOKEN",), ("BOS_ENDPOINT",)),
    "az": (("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
           ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"), (), ()),
}  # fmt: skip


def _look(part: Part, seen: StoreFacts) -> StoreFacts:
    if part.source.scheme == "file":
        return _look_at_folder(part, seen)
    options = replace(part.store, deadline_s=_STEP_S)
    if options.keys is not None:
        options.keys.remember()
    try:
        store = open_store(part.source, options, Counters())
    except PenstockError as error:
        is_missing = isinstance(error, AccessDenied)
        return replace(seen, refusal=_refusal(error), has_keys=not is_missing)
    address = address_of(part.source, store.identity, options.region)
    if address is not None:
        endpoint = look_at_endpoint(address)
        seen = replace(seen, endpoint=endpoint)
        if endpoint.error is not None:
            return seen
    try:
        page = next(iter(store.list_all("")), list[ObjectInfo]())
    except PenstockError as error:
        return replace(seen, refusal=_refusal(error))
    return _measure(store, page, replace(seen, objects=len(page)))


def _look_at_folder(part: Part, seen: StoreFacts) -> StoreFacts:
    try:
        count = sum(1 for _ in Path(part.source.prefix).iterdir())
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "denied"
        return replace(seen, refusal=Refusal(kind, None, f"{part.source}: {error.strerror}"))
    return replace(seen, objects=count)


def _measure(store: Store, page: list[ObjectInfo], seen: StoreFacts) -> StoreFacts:
    """Time small reads of several objects, one after the other, then one large read."""
    readable = [one for one in page if _is_readable(store, one)]
    if not readable:
        return seen
    times: list[float] = []
    try:
        for number in range(_SMALL_GETS):
            times.append(1000 * _time(store, readable[number % len(readable)], _SMALL_BYTES))
        seen = replace(seen, get_ms=tuple(times))
        largest = max(readable, key=lambda one: one.size_bytes)
        length = min(_LARGE_BYTES, largest.size_bytes)
        if length >= _LEAST_LARGE_BYTES:
            seen = replace(seen, large_bytes=length, large_s=_time(store, largest, length))
    except PenstockError as error:
        return replace(seen, refusal=_refusal(error))
    return seen


def _is_readable(store: Store, one: ObjectInfo) -> bool:
    """Whether a mount would read it: keys of a bucket may be anything, such as `../etc`."""
    if not one.size_bytes or why_implausible(one) is not None:
        return False
    if why_no_key(one.key) is not None or store.why_unreadable(one.key) is not None:
        return False
    return all(why_no_name(name) is None for name in one.key.split("/"))


def _time(store: Store, one: ObjectInfo, most_bytes: int) -> float:
    began_s = time.monotonic()
    store.get(one.key, one.version, 0, min(most_bytes, one.size_bytes), one.size_bytes)
    return time.monotonic() - began_s


def _refusal(error: PenstockError) -> Refusal:
    # The library's own text has the error code, which our message leaves out if it is long.
    match = _CODE.search(f"{error.__cause__ or ''} {error}")
    code = next((group for group in match.groups() if group), None) if match else None
    if isinstance(error, StoreError) and error.kind == "clock_skew":
        kind, code = "denied", "RequestTimeTooSkewed"
    elif isinstance(error, AccessDenied):
        kind = "denied"
    elif isinstance(error, ObjectNotFound) or "no such bucket" in str(error):
        kind = "missing"
    elif isinstance(error, StoreError):
        kind = "unreachable"
    else:
        kind = "other"
    return Refusal(kind, code, str(error), error.hint)
