"""A scripted API server on loopback: answers in the order a test queues them, or by a function."""

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock.kubernetes.connection import Connection

Json = dict[str, Any]


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True)
class Answer:
    """An answer. With `events` it is a watch, which ends after them unless it `hangs` or `breaks`.

    Without events, `breaks` closes the connection instead of answering.
    """

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    events: list[Json] | None = None
    breaks: bool = False
    hangs: bool = False


def refusal(status: int, reason: str = "", message: str = "", **headers: str) -> Answer:
    """A Status object, as the API server sends it."""
    body = {"kind": "Status", "code": status, "reason": reason, "message": message}
    return Answer(body, status, {name.replace("_", "-"): text for name, text in headers.items()})


class ApiServer:
    def __init__(self) -> None:
        self.received: list[Received] = []
        self.queue: deque[Answer] = deque()
        self.respond: Callable[[Received], Answer] = lambda _: self.queue.popleft()
        self.released = threading.Event()  # ends watches that hang
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                server.answer(self)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def connection(self, token: Callable[[], str | None] = lambda: None) -> Connection:
        return Connection(server=self.address, tls=None, token=token)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        one = Received(
            str(handler.command),
            url.path,
            query,
            dict(handler.headers),
            json.loads(body) if body else {},
        )
        self.received.append(one)
        answer = self.respond(one)
        if answer.breaks and answer.events is None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response(answer.status)
        for name, text in answer.headers.items():
            handler.send_header(name, text)
        if answer.events is not None:
            self._stream(handler, answer)
            return
        content = json.dumps(answer.body).encode()
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _stream(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for event in answer.events or []:
            line = json.dumps(event).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if answer.hangs:
            self.released.wait()
        if answer.breaks:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            handler.wfile.write(b"0\r\n\r\n")


@contextmanager
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    try:
        yield server
    finally:
        server.stop()


def listing(*items: Json, version: str = "100", token: str = "") -> Answer:
    """A list, or a page of one: `token` says that another follows."""
    return Answer({"metadata": {"resourceVersion": version, "continue": token}, "items": [*items]})


def an_object(name: str, version: str = "1", namespace: str = "default", **fields: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    return {"metadata": metadata, **fields}


def event(type_: str, found: Json) -> Json:
    return {"type": type_, "object": found}
