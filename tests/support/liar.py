"""A small S3 server that can lie in any way that bytes on a socket can. Real HTTP, on the loopback.

It holds a few objects and answers truly about them, with pages, ranges, ETags and If-Match. A test
replaces its listing (`answer`), or gives it a `lie`: a function that makes of a request and the
true answer whatever is to be sent instead. `tests/store/test_lies.py` has the table of lies.

Threads: one accepts, one for each connection.
"""

import hashlib
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.faults import Answer, End, Step

Query = dict[str, str]
Page = Callable[[Query], str | bytes]

BODY = b"bytes"  # of every object, unless it holds others
ETAG = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
WHEN = "2024-01-01T00:00:00.000Z"
MODIFIED = "Mon, 01 Jan 2024 00:00:00 GMT"
_HEAD_BYTES = 64 << 10
_RESETS = struct.pack("ii", 1, 0)  # on closing, instead of an end


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def entry(key: str, size: str | int = len(BODY), etag: str = ETAG, when: str = WHEN) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{when}</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Contents>"
    )


def page(entries: Iterable[str], token: str | None = None, doctype: str = "") -> str:
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>{doctype}'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
        f"<Prefix></Prefix><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}"
        f"{''.join(entries)}</ListBucketResult>"
    )


@dataclass(frozen=True)
class Request:
    method: str
    target: str  # as it was asked for
    headers: dict[str, str]  # by their names in lower case

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> Query:
        found = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def is_listing(self) -> bool:
        return "list-type" in self.query

    @property
    def is_probe(self) -> bool:
        """Questions that are no listings: is a key the prefix of others, too?"""
        return self.query.get("max-keys") == "1"


Steps = Iterable[Step]
Lie = Callable[["Liar", Request, Answer], Steps]


class Liar:
    def __init__(self) -> None:
        self.endpoint = ""
        self.elsewhere = ""  # the address of a server that nobody asked for
        self.objects: dict[str, bytes] = {}
        self.page_keys = 1000
        # What it lists, if that is not what it holds; and when asked what comes behind a key.
        self.answer: Page | None = None
        self.after: Page = lambda _query: page([])
        self.cut = False  # the connection, in the middle of a listing
        self.always: Sequence[Any] = ()  # the status and the body for every request, if any
        self.lie: Lie | None = None
        self.lies: deque[Lie | None] = deque()  # for the next requests, one by one
        self.asked: list[str] = []
        self.requests: list[Request] = []
        self.connections = 0

    def respond(self, request: Request) -> Steps:
        self.requests.append(request)
        self.asked.append(request.target)
        truth = self._truth(request)
        lie = self.lies.popleft() if self.lies else self.lie
        if lie is not None:
            return lie(self, request, truth)
        if request.method == "HEAD":
            return (truth.head(), End.KEEP)
        if self.cut and request.is_listing and not request.is_probe:
            return (truth.head(), truth.body[: len(truth.body) // 2], End.CLOSE)
        return (truth.head(), truth.body, End.KEEP)

    # -- the truth --------------------------------------------------------------------------

    def _truth(self, request: Request) -> Answer:
        if self.always:
            status, body = self.always
            return _answer(status, body)
        if request.method not in ("GET", "HEAD"):
            return _answer(501, b"")
        if not request.is_listing:
            return self._object(request)
        if self.answer is None:
            return _answer(200, self._listing(request.query).encode())
        listing = self.after if "start-after" in request.query else self.answer
        found = page([]) if request.is_probe else listing(request.query)
        return _answer(200, found if isinstance(found, bytes) else found.encode())

    def _listing(self, query: Query) -> str:
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", self.page_keys))
        behind, token = query.get("start-after", ""), unquote(query.get("continuation-token", ""))
        names: dict[str, None] = {}  # in order
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > behind:
                rest, slash, _ = key[len(prefix) :].partition("/")
                names[f"{prefix}{rest}/" if slash and "delimiter" in query else key] = None
        rest_of = [name for name in names if name > token]
        entries = [self._entry(name) for name in rest_of[:most]]
        more = quote(rest_of[most - 1]) if len(rest_of) > most else None
        return page(["<EncodingType>url</EncodingType>", *entries], more)

    def _entry(self, name: str) -> str:
        if name.endswith("/"):
            return f"<CommonPrefixes><Prefix>{quote(name, safe='/')}</Prefix></CommonPrefixes>"
        return entry(quote(name, safe="/"), len(self.objects[name]), md5(self.objects[name]))

    def _object(self, request: Request) -> Answer:
        key = request.path.split("/", 2)[-1]
        data = self.objects.get(key) if self.objects else BODY
        if data is None:
            return _answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag = md5(data)
        if request.headers.get("if-match", f'"{tag}"') != f'"{tag}"':
            return _answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        fields = (("ETag", f'"{tag}"'), ("Last-Modified", MODIFIED))
        if (asked := request.headers.get("range")) is None:
            return Answer(200, "OK", fields, data)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = ("Content-Range", f"bytes {first}-{last}/{len(data)}")
        return Answer(206, "Partial Content", (*fields, part), data[first : last + 1])


def _answer(status: int, body: bytes) -> Answer:
    fields = (("ETag", f'"{ETAG}"'), ("Last-Modified", MODIFIED))
    return Answer(status, "Said So", fields, body)


@contextmanager
def serve_liar(tls: Callable[[], ssl.SSLContext] | None = None) -> Iterator[Liar]:
    """`tls`: makes what each connection is encrypted with; without it, none is."""
    liar = Liar()
    over = threading.Event()
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scheme = "http" if tls is None else "https"
        liar.endpoint = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            with suppress(OSError):  # closed: it is over
                while True:
                    client, _ = listener.accept()
                    liar.connections += 1
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        def serve(client: socket.socket) -> None:
            with suppress(OSError):  # a client that does not trust us ends it
                if tls is not None:
                    client = tls().wrap_socket(client, server_side=True)
                clients.append(client)
                answer(client)

        def answer(client: socket.socket) -> None:
            with client, client.makefile("rb") as requests:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (request := _read_request(requests)) is not None:
                    if not send(client, liar.respond(request)):
                        return

        def send(client: socket.socket, steps: Steps) -> bool:
            for step in steps:
                if over.is_set():
                    return False
                if isinstance(step, bytes):
                    client.sendall(step)
                elif isinstance(step, float):
                    over.wait(step)
                elif step is not End.KEEP:
                    if step is End.RESET:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                    return False
            return True

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield liar
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                with suppress(OSError):  # it is closed already
                    client.shutdown(socket.SHUT_RDWR)


def _read_request(requests: Any) -> Request | None:
    lines: list[str] = []
    while line := requests.readline(_HEAD_BYTES).decode("latin-1").rstrip("\r\n"):
        lines.append(line)
    if not lines:
        return None
    method, target, _ = lines[0].split(" ", 2)
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    requests.read(int(headers.get("content-length", "0")))  # what is written is not kept
    return Request(method, target, headers)


def object_paths(liar: Liar) -> list[str]:
    """The paths of the objects that were asked for."""
    return [request.path for request in liar.requests if not request.is_listing]


def first_keys(pages: Iterator[Sequence[Any]], count: int) -> list[str]:
    """The first keys of a listing that may not end."""
    return [info.key for info in islice((info for page in pages for info in page), count)]
