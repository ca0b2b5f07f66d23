"""The way to a store, step by step and without keys: its name, a connection, TLS, an answer.

A library that fails says at best which of these it was; here each is tried by itself.
"""

import http.client
import re
import socket
import ssl
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.resources.diagnosis.deadline import TooSlow, within
from penstock.store.source import Source

_STEP_S = 3.0
_ENDPOINT = re.compile(r"\?endpoint=(\S+)$")
# Some servers say in words that they were spoken to without TLS.
_WANTS_TLS = re.compile(r"HTTP request (was sent )?to (an )?HTTPS", re.IGNORECASE)
_IS_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class Address(NamedTuple):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: str
    step: str  # the last that was tried: name, connection, tls, answer
    error: str | None = None  # why that failed
    other_scheme: str | None = None  # it speaks this one instead
    connect_ms: float | None = None
    status: int | None = None
    skew_s: float | None = None  # our clock less the store's


def address_of(source: Source, identity: str, region: str | None) -> Address | None:
    """Where requests go; None where only the library knows."""
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


def look_at_endpoint(address: Address) -> Endpoint:
    seen = Endpoint(str(address), "name")
    try:
        # The resolver has no deadline of its own: 10 s and more for a name server that is away.
        within(_STEP_S, lambda: socket.getaddrinfo(address.host, address.port))
    except TooSlow:
        return replace(seen, error=f"no answer within {_STEP_S:g} s")
    except OSError as error:
        return replace(seen, error=error.strerror or str(error))
    seen = replace(seen, step="connection")
    began_s = time.monotonic()
    try:
        connection = socket.create_connection((address.host, address.port), timeout=_STEP_S)
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


def _failed_tls(seen: Endpoint, error: OSError) -> Endpoint:
    text = str(error)
    if isinstance(error, ssl.SSLError):
        # A private authority is trusted by the store's client through SSL_CERT_FILE, as here.
        text = getattr(error, "verify_message", None) or error.reason or text
        if any(word in text.replace(" ", "_").upper() for word in _IS_PLAIN):
            return replace(seen, error=text, other_scheme="http")
    return replace(seen, error=text)


def _answer(connection: socket.socket, address: Address, seen: Endpoint) -> Endpoint:
    seen = replace(seen, step="answer")
    asked = f"GET / HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n\r\n"
    sent_s = time.time()
    try:
        connection.sendall(asked.encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read(500).decode("utf-8", "replace")
    except TimeoutError:
        return replace(seen, error=f"no answer within {_STEP_S:g} s")
    except (OSError, http.client.HTTPException) as error:
        # Others send an alert, or just hang up: whether it is TLS that they want is soon tried.
        if address.scheme == "http" and _speaks_tls(address):
            return replace(seen, error="it speaks TLS", other_scheme="https")
        return replace(seen, error=str(error) or type(error).__name__)
    middle_s = (sent_s + time.time()) / 2
    if response.status == 400 and _WANTS_TLS.search(body):
        return replace(seen, error="it speaks TLS", other_scheme="https", status=400)
    return replace(seen, status=response.status, skew_s=_skew(response.headers["Date"], middle_s))


def _speaks_tls(address: Address) -> bool:
    """Whoever it is: nothing is sent to it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=_STEP_S) as connection,
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
