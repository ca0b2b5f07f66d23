"""HTTP/1.1, with bodies received straight into the buffer that readers are answered from.

obstore's client costs 180 us of CPU for a GET of 110 KiB and copies each body twice. A plain
socket costs 60 us: one call sends the request, one receives the head, and one waits in the kernel
for all of the body, without the interpreter's lock (2 cores, SeaweedFS: 3,700 against 5,300
objects/s; blocks of 8 MiB 1.8 against 2.3 GB/s).

Speaks only what object stores and web servers answer: a status, headers, and a body with a length
or in chunks. Heads, texts and waiting are bounded. Raises OSError or ProtocolError, never ours.
Follows no redirect: a request carries credentials, which belong to the host that was asked for
and to no other.

Threading: any thread. A connection belongs to one request until that is answered, and waits in
`_idle` between; `append` and `pop` of a list need no lock.
"""

import os
import re
import select
import socket
import ssl
import struct
import time
import weakref
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.store import Progress
from penstock.store.buffers import BUFFERS

_HEAD_BYTES = 4096  # most heads fit, and the first bytes of the body with them
_LONGEST_HEAD_BYTES = 64 * 1024
_ERROR_BODY_BYTES = 64 * 1024
_LONGEST_NUMBER = 18  # digits; Python refuses to read very long ones
_MOST_HINTS = 8
_SENT_BYTES = 256 * 1024  # of a request, at once
_PROGRESS_BYTES = 1024 * 1024  # what the kernel asks for at once
_SCRATCH_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
_LONGEST_LINE_BYTES = 1024  # of what stands around chunks
_MOST_TRAILERS = 100
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?")
# Servers close connections that are idle for longer; S3 after about 20 s.
_IDLE_S = 15.0
_FRESH_S = 0.1  # a connection that was used so lately is not looked at before it is used again
_MOST_IDLE = 512  # a plan has 256 objects on their way
_WHO = "User-Agent: penstock\r\n"  # some web servers refuse who does not say
_TIMEVAL = struct.Struct("@ll")
# Some servers refuse (411) a method that may have a body and does not say that it has none.
_WITH_LENGTH = ("PUT", "POST", "PROPFIND")
# Where systems keep the authorities that they trust. OpenSSL looks at one of them, which is not the
# system's where Python was built elsewhere, and at none once SSL_CERT_FILE names another.
_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)


class ProtocolError(Exception):
    """The server's answer is not HTTP, or of a kind that this client does not read."""


class ShortBody(ProtocolError):
    """The connection ended before the body did."""


class BodyTooLong(ProtocolError):
    """The body goes on behind the bound that was set for it."""


# Nothing has arrived yet, and the caller does not wait for it.
NotYet = (BlockingIOError, ssl.SSLWantReadError)


class HttpClient:
    """Requests to one host, over connections that are kept and reused."""

    def __init__(
        self,
        url: str,
        *,
        connect_s: float,
        idle_s: float,
        deadline_s: float,
        proxy: str | None = None,
    ) -> None:
        """`idle_s` bounds the time between two pieces of an answer, `deadline_s` all of it.
        `proxy`: the address of an HTTP proxy, perhaps with a name and a password in it."""
        self._idle: list[tuple[float, socket.socket]] = []
        # Nobody closes a store: it ends with its last user. Not by `__del__`, which comes after the
        # sockets' own where Python has to look for cycles.
        weakref.finalize(self, _close_all, self._idle).atexit = False
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._tls = _trusting_context() if parts.scheme == "https" else None
        self._address = (parts.hostname, parts.port or (443 if self._tls else 80))
        self.origin: Final = f"{parts.scheme}://{parts.netloc}"
        self.host: Final = parts.netloc
        self._proxy = None if proxy is None else urlsplit(proxy)
        is_relayed = self._proxy is not None and self._tls is None
        self._before_path = self.origin if is_relayed else ""
        self._proxy_header = _proxy_header(self._proxy) if self._proxy is not None else ""
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._deadline_s = deadline_s

    def get(self, path: str, headers: str) -> "Response":
        """Send a GET and wait for the head of its answer. `path` is encoded; `headers` are whole
        lines. The caller closes the response."""
        return self.request("GET", path, headers)

    def new_deadline(self) -> float:
        """When an answer that is asked for now has to be there."""
        return time.monotonic() + self._deadline_s

    def request(
        self,
        method: str,
        path: str,
        headers: str,
        body: bytes = b"",
        until_s: float | None = None,
    ) -> "Response":
        """The same with any method, and with a body of the request's own. `until_s`: where it is
        one of several that have one deadline together."""
        until_s = until_s or self.new_deadline()
        connection = self._take_idle() or self._connect()
        response = Response(self, connection, until_s, has_body=method != "HEAD")
        if body or method in _WITH_LENGTH:
            headers += f"Content-Length: {len(body)}\r\n"
        try:
            try:
                response.send(self._request(path, headers, method) + body, self._idle_s)
            except (BrokenPipeError, ConnectionResetError) as error:
                response.read_refusal(error)
            else:
                response.wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    def begin(self, path: str, headers: str) -> "Response | None":
        """Send a GET without waiting for anything; None if there is no connection to send it on."""
        connection = self._take_idle()
        if connection is None:
            return None
        response = Response(self, connection, self.new_deadline())
        response.limit_pauses(self._idle_s)
        try:
            response.send(self._request(path, headers), None)
        except OSError:
            response.close()
            return None
        return response

    def give_back(self, connection: socket.socket) -> None:
        """Keep a connection whose last answer was read to its end."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        _close_all(self._idle)

    def _request(self, path: str, headers: str, method: str = "GET") -> bytes:
        if self._before_path:
            path, headers = f"{self._before_path}{path}", f"{self._proxy_header}{headers}"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{_WHO}{headers}\r\n"
        return head.encode("latin-1")

    def _take_idle(self) -> socket.socket | None:
        while True:
            try:
                since_s, connection = self._idle.pop()
            except IndexError:
                return None
            idle_s = time.monotonic() - since_s
            if idle_s < _FRESH_S or (idle_s < _IDLE_S and not _has_something_to_read(connection)):
                return connection
            connection.close()

    def _connect(self) -> socket.socket:
        address, proxy = self._address, self._proxy
        if proxy is not None:
            address = proxy.hostname or "", proxy.port or 80
        connection = socket.create_connection(address, self._connect_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy is not None and self._tls is not None:
                self._open_tunnel(connection)
            if self._tls is not None:
                return self._tls.wrap_socket(connection, server_hostname=self._address[0])
            # A timeout in the kernel: Python's own would poll before each call, and a call could
            # not wait for all of a body.
            timeout = _TIMEVAL.pack(int(self._idle_s), int(self._idle_s % 1 * 1_000_000))
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_tunnel(self, connection: socket.socket) -> None:
        """Through a proxy that sees nothing of what is sent then."""
        host, port = self._address
        there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        request = f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n{self._proxy_header}\r\n"
        connection.sendall(request.encode("latin-1"))
        head = b""
        until_s = time.monotonic() + self._connect_s
        # Byte by byte: what follows the head belongs to TLS.
        while not head.endswith(b"\r\n\r\n"):
            if time.monotonic() > until_s:
                raise TimeoutError("the proxy did not answer in time")
            if len(head) > _HEAD_BYTES or not (byte := connection.recv(1)):
                raise ProtocolError("the proxy's answer cannot be understood")
            head += byte
        if not re.match(rb"HTTP/1\.\d 200\b", head):
            raise ProtocolError(f"the proxy refused: {head[:40]!r}")


def _trusting_context() -> ssl.SSLContext:
    """Trusts the system's authorities and those of SSL_CERT_FILE and SSL_CERT_DIR, which may be
    intermediate ones and need not have all that RFC 5280 asks for: so does obstore."""
    context = ssl.create_default_context()
    loaded = ssl.get_default_verify_paths().cafile  # None if there is none; each takes 30 ms
    for file in _SYSTEM_AUTHORITIES:
        if os.path.exists(file):
            if not loaded or not os.path.samefile(file, loaded):
                with suppress(OSError):  # not ours to read, or no certificates
                    context.load_verify_locations(file)
            break
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # on by default from Python 3.13
    return context


def _close_all(idle: list[tuple[float, socket.socket]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[1].close()


def _proxy_header(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    given = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Proxy-Authorization: Basic {b64encode(given.encode()).decode()}\r\n"


class Response:
    """The answer to a request that was sent. One thread at a time.

    Two ways to read it: `wait_for_head` and `read` block, `receive_head` and `receive` take what
    has arrived and raise one of NotYet if that is not all.
    """

    def __init__(
        self,
        client: HttpClient,
        connection: socket.socket,
        until_s: float,
        *,
        has_body: bool = True,
    ) -> None:
        self.status = 0  # 0 until the head is there
        self.headers: dict[str, str] = {}
        self.length = 0  # of the body
        self.has_length = True  # False: it comes in chunks, or until the connection ends
        self._has_body = has_body
        self._until_s = until_s
        self._client = client
        self._connection: socket.socket | None = connection
        self._is_tls = isinstance(connection, ssl.SSLSocket)
        self._head = b""  # then what came of the body with it
        self._unread = 0
        self._is_chunked = False
        self._hints = 0  # that came before the answer
        self._body = memoryview(b"")
        self._filled = 0
        self._idle_s: float | None = None
        self._idle_until_s = float("inf")

    def fileno(self) -> int:
        return -1 if self._connection is None else self._connection.fileno()

    def send(self, request: bytes, timeout_s: float | None) -> None:
        """With None nothing is waited for, neither now nor later."""
        connection = self._connected
        if self._is_tls:
            # Plain connections have their timeout in the kernel, and flags for each call.
            connection.settimeout(timeout_s or 0.0)
        if timeout_s is not None:
            view = memoryview(request)
            for start in range(0, len(view), _SENT_BYTES):  # each piece has that time
                connection.sendall(view[start : start + _SENT_BYTES])
            if len(view) > _SENT_BYTES:
                # An answer has all of its time, however long the request took.
                self._until_s = max(self._until_s, time.monotonic() + timeout_s)
        elif self._is_tls:
            connection.sendall(request)
        elif connection.send(request, socket.MSG_DONTWAIT) != len(request):
            raise BlockingIOError("the connection takes no more")

    def limit_pauses(self, idle_s: float) -> None:
        """For who does not wait in the kernel, which has that limit, too."""
        self._idle_s = idle_s
        self._idle_until_s = time.monotonic() + idle_s

    def wait_for_head(self) -> None:
        with _timeouts("the server did not answer in time"):
            self.receive_head(flags=0)

    def read_refusal(self, error: OSError) -> None:
        """The server has closed the connection before the request was sent: it may have said why,
        or the error is raised."""
        try:
            self.wait_for_head()
        except (ProtocolError, OSError):
            raise error from None
        self.headers["connection"] = "close"

    def receive_head(self, flags: int = socket.MSG_DONTWAIT) -> None:
        self._receive_one_head(flags)
        while 100 <= self.status < 200:  # "go on", "early hints": the answer comes behind it
            self._hints += 1
            if self._hints > _MOST_HINTS:
                raise ProtocolError("hints, and no answer")
            self.status = 0
            self.headers.clear()
            self.has_length, self._is_chunked = True, False
            self._receive_one_head(flags)
        self._unread = self.length if self.has_length else 1  # as long as its end has not come
        if not self._has_body or self.status == 204:
            self._unread = 0

    def _receive_one_head(self, flags: int) -> None:
        connection, flags = self._connected, 0 if self._is_tls else flags
        while (end := self._head.find(b"\r\n\r\n")) < 0:
            if len(self._head) > _LONGEST_HEAD_BYTES:
                raise ProtocolError("the head of the answer is too long")
            self._check_deadline()
            if not (more := connection.recv(_HEAD_BYTES, flags)):
                raise ConnectionResetError("the connection ended before the answer")
            self._head += more
        self._check_deadline()
        self._parse(self._head[:end].decode("latin-1"))
        self._head = self._head[end + 4 :]

    def read(self, length: int, skip: int = 0, progress: Progress | None = None) -> memoryview:
        """Return so many bytes of the body, from behind the first `skip`. `progress` is called
        with what has arrived of them, a megabyte at a time."""
        with _timeouts("the body stopped in the middle"):
            while skip:
                self.expect(min(skip, _SCRATCH_BYTES))
                skip -= len(self.receive(socket.MSG_WAITALL))
            self.expect(length)
            return self.receive(socket.MSG_WAITALL, progress)

    def expect(self, length: int) -> None:
        """Make room for the next bytes of the body, so many, for `receive`."""
        if length > self._unread:
            raise ShortBody(f"{self._unread} bytes are left of {length}")
        self._body, self._filled = BUFFERS.take(length), 0

    def receive(
        self, flags: int = socket.MSG_DONTWAIT, progress: Progress | None = None
    ) -> memoryview:
        """Return the bytes that were expected."""
        connection, flags = self._connected, 0 if self._is_tls else flags
        body, at, length = self._body, self._filled, len(self._body)
        if self._head and at < length:
            first = self._head[: length - at]
            body[at : at + len(first)] = first
            self._head = self._head[len(first) :]
            at = self._filled = at + len(first)
        until = length
        while at < length:
            if progress is not None:
                until = min(length, (at // _PROGRESS_BYTES + 1) * _PROGRESS_BYTES)
            # SSLSocket takes no flags, and returns a record of 16 KiB at a time.
            got = connection.recv_into(body[at:until], 0, flags)
            if not got:
                raise ShortBody(f"{at} bytes came of {length}")
            at = self._filled = at + got
            if progress is not None and at == until < length:
                progress(body[:at])
            if self._idle_s is not None:
                self.limit_pauses(self._idle_s)
            if at < length:
                self._check_deadline()
        self._unread -= length
        self._body = memoryview(b"")  # it is the caller's now
        return body

    def read_error(self, flags: int) -> str:
        """Return the beginning of a body that explains an error. Some servers send it in chunks:
        those are left as they are, for a person or a regular expression to read."""
        connection, flags = self._connected, 0 if self._is_tls else flags & socket.MSG_DONTWAIT
        most = min(self.length, _ERROR_BODY_BYTES) if self.has_length else _ERROR_BODY_BYTES
        try:
            while self._unread and len(self._head) < most:
                if self._is_chunked and self._head.endswith(b"0\r\n\r\n"):
                    break
                self._check_deadline()
                if not (more := connection.recv(_HEAD_BYTES, flags)):
                    break
                self._head += more
        except NotYet:
            if flags or self._is_tls:
                raise
        except OSError:
            pass  # the status says enough
        return self._head[:most].decode("utf-8", "replace")

    def read_text(self, most: int) -> bytes:
        """Return the whole body, however it is framed; raise BodyTooLong behind `most` bytes."""
        return b"".join(self.pieces(most))

    def pieces(self, most: int) -> Iterator[bytes]:
        """The same, a piece at a time."""
        if not self._unread:
            return
        if self.has_length:
            framed = self._framed_by_length()
        elif self._is_chunked:
            framed = self._framed_by_chunks()
        else:
            framed = self._framed_by_the_end()
        came = 0
        with _timeouts("the body stopped in the middle"):
            for piece in framed:
                came += len(piece)
                if came > most:
                    raise BodyTooLong(f"more than {most:,} bytes")
                yield piece

    def _framed_by_length(self) -> Iterator[bytes]:
        while self._unread:
            yield bytes(self.read(min(self._unread, _PIECE_BYTES)))
            self._check_deadline()

    def _framed_by_chunks(self) -> Iterator[bytes]:
        while True:
            if (found := _CHUNK_SIZE.fullmatch(self._read_line())) is None:
                raise ProtocolError("a chunk that does not say how long it is")
            left = int(found[1], 16)
            if not left:
                break
            while left:
                if not self._head:
                    self._receive_more()
                piece, self._head = self._head[:left], self._head[left:]
                left -= len(piece)
                yield piece
            if self._read_line():
                raise ProtocolError("a chunk that is longer than it says")
        for _ in range(_MOST_TRAILERS):
            if not self._read_line():
                self._unread = 0
                return
        raise ProtocolError("too many trailers")

    def _framed_by_the_end(self) -> Iterator[bytes]:
        if self._head:
            piece, self._head = self._head, b""
            yield piece
        while more := self._connected.recv(_PIECE_BYTES):
            yield more
            self._check_deadline()
        self._unread = 0

    def _read_line(self) -> bytes:
        while (end := self._head.find(b"\r\n")) < 0:
            if len(self._head) > _LONGEST_LINE_BYTES:
                raise ProtocolError("a chunk that does not say how long it is")
            self._receive_more()
        line, self._head = self._head[:end], self._head[end + 2 :]
        return line

    def _receive_more(self) -> None:
        self._check_deadline()
        if not (more := self._connected.recv(_PIECE_BYTES)):
            raise ShortBody("the connection ended before the last chunk")
        self._head += more

    def close(self) -> None:
        """Keep the connection if its answer was read to the end, else close it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        is_whole = self.status and not self._unread and not self._head
        self._body, self._head = memoryview(b""), b""  # whoever holds us may do so for long
        if is_whole and self.headers.get("connection", "").lower() != "close":
            self._client.give_back(connection)
        else:
            connection.close()

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() > min(self._until_s, self._idle_until_s)

    def _check_deadline(self) -> None:
        if self.is_overdue:
            raise TimeoutError("the answer took too long")

    @property
    def _connected(self) -> socket.socket:
        assert self._connection is not None, "closed"
        return self._connection

    def _parse(self, head: str) -> None:
        status_line, *lines = head.split("\r\n")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise ProtocolError(f"not an HTTP answer: {status_line[:40]!r}")
        headers = self.headers
        for line in lines:
            name, colon, value = line.partition(":")
            name, value = name.lower(), value.strip()
            if not colon or (name == "content-length" and headers.get(name, value) != value):
                raise ProtocolError(f"a header that cannot be understood: {line[:40]!r}")
            headers[name] = value
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        self.status, length = int(rest[:3]), headers.get("content-length", "")
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise ProtocolError(f"a body that is {headers['transfer-encoding'][:40]!r}")
            self.has_length, self._is_chunked = False, True
        elif length.isascii() and length.isdecimal():
            if len(length) > _LONGEST_NUMBER:
                raise ProtocolError("the answer says that it is too long")
            self.length = int(length)
        elif self._has_body and self.status not in (204, 304):
            self.has_length, headers["connection"] = False, "close"


@contextmanager
def _timeouts(what: str) -> Iterator[None]:
    """A blocking call ends so when the connection's timeout in the kernel has passed."""
    try:
        yield
    except NotYet:
        raise TimeoutError(what) from None


def _has_something_to_read(connection: socket.socket) -> bool:
    """True for an idle connection that the server has closed: nothing else can come on it."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
