"""An S3 server that lists what it is told to, true or not. Real HTTP, on the loopback."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Query = dict[str, str]
Answer = Callable[[Query], str | bytes]

BODY = b"bytes"  # of every object
ETAG = "5d41402abc4b2a76b9719d911017c592"


def entry(
    key: str, size: str | int = len(BODY), etag: str = ETAG, when: str = "2024-01-01T00:00:00.000Z"
) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>{when}</LastModified>"
        f"<ETag>&quot;{etag}&quot;</ETag><Size>{size}</Size></Contents>"
    )


def page(entries: list[str], token: str | None = None, doctype: str = "") -> str:
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>{doctype}'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
        f"<Prefix></Prefix><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}"
        f"{''.join(entries)}</ListBucketResult>"
    )


@dataclass
class Hostile:
    endpoint: str = ""
    answer: Answer = lambda _query: page([])
    after: Answer = lambda _query: page([])  # when asked what comes behind a key
    cut: bool = False  # the connection, in the middle of a listing
    always: Sequence[Any] = ()  # the status and the body for every request, if there are any
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def hostile_s3() -> Iterator[Hostile]:
    hostile = Hostile()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            target = urlsplit(self.path)
            query = {name: found[0] for name, found in parse_qs(target.query).items()}
            hostile.asked.append(self.path)
            if hostile.always:
                status, body = hostile.always
                self._send(body, status)
                return
            if "list-type" not in query:
                self._send(BODY, 200)
                return
            answer = hostile.after if "start-after" in query else hostile.answer
            # Questions that are no listings: are there keys with a leading slash, and is a key
            # the prefix of others, too?
            probe = query.get("prefix") == "/" or query.get("max-keys") == "1"
            listing = page([]) if probe else answer(query)
            data = listing if isinstance(listing, bytes) else listing.encode()
            self._send(data, 200, cut=hostile.cut and not probe)

        do_HEAD = do_PROPFIND = do_GET

        def _send(self, data: bytes, status: int, cut: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{ETAG}"')
            self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    hostile.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hostile
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def object_paths(hostile: Hostile) -> list[str]:
    """The paths of the objects that were asked for."""
    paths = [urlsplit(asked) for asked in hostile.asked]
    return [unquote(path.path) for path in paths if "list-type" not in path.query]
