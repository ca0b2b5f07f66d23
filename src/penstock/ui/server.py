"""HTTP on the loopback interface: who may ask, and what each address answers.

    /?token=TOKEN        sets the cookie, and redirects to the page
    /HOME/               the page; page.css, page.js and icon.svg below it
    /HOME/overview       the values that it shows, as JSON
    /HOME/log            lines of a job's log: uid, instance, from
    /HOME/runs/ID/PATH   a file of a benchmark run

Other users of this machine can connect to the port, and so can pages of other sites that the user
looks at. So every request but the first needs a cookie with a random value, and a Host that a
foreign name cannot have. A browser sends the cookies of one host to all of its ports: HOME is
random too, so that other servers of this machine, maybe of other users, are not sent it.

Threading: a thread for each connection. `Pages` is called by all of them.
"""

import json
import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.api.jobs import jobs
from penstock.api.log_parts import read_log, redact
from penstock.errors import PenstockError, UsageError
from penstock.ui.overview import overview
from penstock.ui.results import Results

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
_COOKIE = "penstock"
_REQUEST_WITHIN_S = 30.0
_NEWER_THAN_S = 0.5  # several tabs that ask at once get the same answer
_LONGEST_QUERY = 4096

# Scripts and styles come from here only, and no string becomes HTML or a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# A report has its styles in itself, and may have been made by anybody: it runs no script.
_POLICY_OF_REPORTS = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-same-origin"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HTML, _JSON, _TEXT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "application/json", "text/plain")
)
_PARTS = {
    "": ("index.html", _HTML),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_NO_ENTRY = "This page needs its token: open the address that `penstock ui` has printed.\n"
# With an icon, or the browser would ask for one that there is not.
_AGAIN = b"""<!doctype html>
<meta http-equiv="refresh" content="0">
<link rel="icon" href="icon.svg">
<title>Penstock</title>
"""


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    body: bytes
    kind: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, text.encode())


def _json(value: Any) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(value).encode(), _JSON)


class Pages:
    """What is answered, for a path below HOME."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._lock = threading.Lock()
        self._latest: tuple[float, Answer] | None = None

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        if path in _PARTS:
            name, kind = _PARTS[path]
            content = files("penstock.ui").joinpath("page", name).read_bytes()
            return Answer(HTTPStatus.OK, content, kind)
        if path == "overview":
            return self._overview()
        if path == "log":
            return _log(query)
        first, _, rest = path.partition("/")
        if first == "runs" and rest:
            return self._file(*rest.partition("/")[::2])
        return _not_found()

    def _overview(self) -> Answer:
        with self._lock:
            if self._latest is None or time.monotonic() - self._latest[0] > _NEWER_THAN_S:
                self._latest = (time.monotonic(), _json(overview(self._results)))
            return self._latest[1]

    def _file(self, run: str, path: str) -> Answer:
        found = self._results.read(run, path)
        if found is None:
            return _not_found()
        content = redact(found.content.decode(errors="replace")).encode()
        if not found.is_report:
            return Answer(HTTPStatus.OK, content)
        policy = {"Content-Security-Policy": _POLICY_OF_REPORTS}
        return Answer(HTTPStatus.OK, content, _HTML, policy)


def _log(query: Mapping[str, str]) -> Answer:
    # By uid: a later job of the same name has other logs.
    found = next((one for one in jobs() if one.uid == query.get("uid")), None)
    start = query.get("from", "")
    if found is None or (start and not start.isdecimal()):
        return _not_found()
    try:
        part = read_log(found, query.get("instance"), start=int(start) if start else None)
    except UsageError:  # it has no such instance
        return _not_found()
    return _json(
        {
            "text": part.text,
            "rest": part.rest,
            "end": part.end,
            "begins_anew": part.begins_anew,
            "phase": found.phase,
        }
    )


def _not_found() -> Answer:
    return _text(HTTPStatus.NOT_FOUND, "There is nothing here.\n")


class PageServer(ThreadingHTTPServer):
    """Serves the page until it is closed. Raises UsageError if the port is in use."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, port: int, results: Results) -> None:
        self.token = secrets.token_urlsafe(24)
        self.home = f"/{secrets.token_hex(6)}/"
        self.pages = Pages(results)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} of {ADDRESS} cannot be used: {error.strerror}",
                hint="penstock ui --port 0 takes any port that is free",
            ) from error

    @property
    def address(self) -> str:
        """What to open, with the token in it."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a mistake of ours; a browser that went away is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("the page could not be served", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _REQUEST_WITHIN_S

    @property
    def _of(self) -> PageServer:
        return cast(PageServer, self.server)

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body is not read, and must not be taken for a request
        try:
            answer = self._answer()
        except PenstockError as error:
            answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, redact(f"{error}\n"))
        self._send(answer)

    def _refuse(self) -> None:
        self.close_connection = True  # its body is not read
        status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(Answer(status, b"This page only shows.\n", headers={"Allow": "GET"}))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = _refuse

    def _answer(self) -> Answer:
        if not _is_local(self.headers.get("Host", "")):
            return _text(HTTPStatus.FORBIDDEN, "This page is not served under that name.\n")
        try:
            address = urlsplit(self.path)
        except ValueError:
            return _text(HTTPStatus.BAD_REQUEST, "This is no address.\n")
        if len(address.query) > _LONGEST_QUERY:
            return _not_found()
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        if address.path == "/" and "token" in query:
            return self._enter(query["token"])
        if not self._has_cookie():
            return self._refuse_entry(address.path)
        if not address.path.startswith(self._of.home):
            return _not_found()
        return self._of.pages.answer(unquote(address.path[len(self._of.home) :]), query)

    def _enter(self, token: str) -> Answer:
        if not secrets.compare_digest(token.encode(), self._of.token.encode()):
            return _text(HTTPStatus.FORBIDDEN, _NO_ENTRY)
        home = self._of.home
        cookie = f"{_COOKIE}={self._of.token}; Path={home}; HttpOnly; SameSite=Strict"
        return Answer(HTTPStatus.SEE_OTHER, b"", headers={"Location": home, "Set-Cookie": cookie})

    def _has_cookie(self) -> bool:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        value = "" if found is None else found.value
        return secrets.compare_digest(value.encode(), self._of.token.encode())

    def _refuse_entry(self, path: str) -> Answer:
        """Refuse a request without the cookie. A browser that came by a link on another site (a
        terminal in the browser, say) sends it only with a request that this page makes."""
        if path == self._of.home and self.headers.get("Sec-Fetch-Site") == "cross-site":
            return Answer(HTTPStatus.OK, _AGAIN, _HTML)
        return _text(HTTPStatus.FORBIDDEN, _NO_ENTRY)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server itself refuses: a malformed request, an unknown method."""
        self.close_connection = True
        self._send(_text(HTTPStatus(code), f"{HTTPStatus(code).phrase}.\n"))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {**_HEADERS, **answer.headers, "Content-Type": answer.kind}
        for name, value in {**headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        return "penstock"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name there)
        """Log nothing: the first request has the token in its line."""


def _is_local(host: str) -> bool:
    """Whether a Host header names this machine itself. The port may be that of a tunnel."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def serve(server: PageServer, opened: Callable[[], None]) -> None:
    """Serve until KeyboardInterrupt; `opened` is called once the page can be opened."""
    with server:
        opened()
        server.serve_forever()
