"""What a server answers: a status, headers, a body, in as many pieces as it likes. To a GET, to a
question of WebDAV, to an upload; and where a redirect leads.

An input of the last three is a row of answers, which `_NEXT` separates: one for each request.
"""

import re
import socket
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.errors import PenstockError
from penstock.metrics import Counters
from penstock.store import ObjectInfo, s3objects, s3uploads
from penstock.store.http import HttpClient
from penstock.store.s3objects import S3Objects
from penstock.store.s3uploads import S3Uploads
from penstock.store.source import SourcePrefix
from penstock.store.versions import BY_SIZE, BY_TIME
from penstock.store.weblisting import WebListing
from tests.fuzz.target import Check, Target

_BODY = b"0123456789"
_VERSIONS = ("v", f"{BY_TIME}6a000000-a", f"{BY_SIZE}10")
_ROOM_BYTES = 1 << 20


_NEXT = b"\n--\n"
_MOST_ANSWERS = 8


class _Liar(HttpClient):
    """Has connections on which answers lie ready. After each the server hangs up."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__("http://liar", connect_s=5, idle_s=5, deadline_s=5)
        self._answers = deque(answers[:_MOST_ANSWERS])
        self._theirs: list[socket.socket] = []
        self._all: list[socket.socket] = []
        weakref.finalize(self, _close, self._all)

    def _take_idle(self) -> socket.socket:
        if not self._answers:
            raise ConnectionRefusedError("there is no answer left")
        ours, theirs = socket.socketpair()
        self._all += (ours, theirs)
        self._theirs.append(theirs)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        theirs.sendall(self._answers.popleft())
        theirs.shutdown(socket.SHUT_WR)
        return ours

    def give_back(self, connection: socket.socket) -> None:
        connection.close()

    def requests(self) -> list[bytes]:
        """What was asked on each connection."""
        return [_received(theirs) for theirs in self._theirs]


def _received(theirs: socket.socket) -> bytes:
    with suppress(BlockingIOError, ConnectionResetError):
        return theirs.recv(_ROOM_BYTES, socket.MSG_DONTWAIT)
    return b""


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _asking(*answers: bytes) -> S3Objects:
    return S3Objects(s3objects._Endpoint(_Liar(*answers), None), "/b")


@contextmanager
def _open_answers(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        version, start = _VERSIONS[data[0] % 3 if data else 0], data[1] % 2 if data[1:] else 0
        length = len(_BODY) - start
        try:
            got = _asking(data[2:]).get("s3://b/k", "k", version, start, length, len(_BODY))
            # One that is shorter is refused by RemoteStore, whatever client it came from.
            assert got is None or len(memoryview(got)) <= length
        except PenstockError:
            pass
        pending = _asking(data[2:]).begin("s3://b/k", "k", version, len(_BODY))
        assert pending is not None
        assert pending.advance(), "the server has hung up, and still more is waited for"
        with suppress(PenstockError):
            assert len(memoryview(pending.result())) == len(_BODY)

    yield check


_HIDDEN = ObjectInfo("f", 0, 0, "elsewhere")


class _Inline(ThreadPoolExecutor):
    """Has no threads: whoever submits does it."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised again by who asks for the result
            future.set_exception(error)
        return future


@contextmanager
def _open_webdav(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        objects = S3Objects(s3objects._Endpoint(_Liar(*data.split(_NEXT)), None), "")
        index = WebListing(objects, SourcePrefix("http://liar/set", "set"), Counters())
        index._speaks_dav = True  # else an error makes it ask for a page
        index._pool = _Inline()  # threads would take the answers as they come
        with suppress(PenstockError):
            level = index.list_level("f")
            if level is None or level.objects == [_HIDDEN]:
                return  # too large for a level, or the folder itself leads to another server
            for key in (*level.prefixes, *(info.key for info in level.objects)):
                assert key.startswith("f/"), "not in the folder"
                name = key.removeprefix("f/")
                assert name not in ("", ".", ".."), "no name"
                assert "/" not in name, "not directly in the folder"
            for info in level.objects:
                assert isinstance(info.size_bytes, int)
                assert info.size_bytes >= 0
                assert isinstance(info.mtime_ns, int)
                assert isinstance(info.version, str)

    yield check


@contextmanager
def _open_uploads(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        way, answers = data[:1], data[1:].split(_NEXT)
        uploads = S3Uploads(_asking(*answers), Counters())
        with suppress(PenstockError):
            if way == b"d":
                uploads.delete("s3://b/k", "k")
            elif way == b"a":
                uploads.abort_uploads("s3://b/k", "k")
            else:
                written = uploads.put_file("s3://b/k", "k", lambda: iter([_BODY]), len(_BODY))
                assert isinstance(written, str)
                assert written, "written, and no version"

    # One part, as if it were the first of many: threads would take the answers as they come.
    with patch.object(s3uploads, "PART_BYTES", 1):
        yield check


_FIRST_LINE = re.compile(rb"GET /[!-~]* HTTP/1\.1")
_HEADERS = {b"host", b"user-agent", b"accept", b"accept-encoding", b"if-match", b"range"}
_HEADERS |= {b"connection"}


@contextmanager
def _open_redirects(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        liar = _Liar(*data.split(_NEXT))
        objects = S3Objects(s3objects._Endpoint(liar, None), "/b")
        with suppress(PenstockError):
            objects.get("s3://b/k", "k", "v", 0, len(_BODY), len(_BODY))
        for request in liar.requests():
            first, *lines = request.split(b"\r\n")
            assert _FIRST_LINE.fullmatch(first), first[:200]
            assert lines[-2:] == [b"", b""], "one request, and nothing behind it"
            headers = {line.partition(b":")[0].lower() for line in lines[:-2]}
            assert headers <= _HEADERS, f"a header that the server has sent: {headers - _HEADERS}"
            assert b"Host: liar" in lines

    yield check


def _answer(status: str, *headers: str, body: bytes = _BODY, choice: bytes = b"\0\0") -> bytes:
    lines = "".join(f"{one}\r\n" for one in headers)
    return choice + f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


ANSWER_TARGET = Target(
    "http-answer",
    "an answer is the bytes that were asked for, or an error of ours, and nobody waits for more",
    _open_answers,
    [
        _answer("200 OK", 'ETag: "v"', "Content-Length: 10"),
        _answer(
            "206 Partial Content",
            'ETag: "v"',
            "Content-Range: bytes 1-9/10",
            "Content-Length: 9",
            body=_BODY[1:],
            choice=b"\0\1",
        ),
        _answer(
            "200 OK",
            "Last-Modified: Sun, 15 Nov 2026 10:00:00 GMT",
            "Content-Length: 10",
            choice=b"\1\0",
        ),
        _answer("200 OK", "Transfer-Encoding: chunked", body=b"a\r\n0123456789\r\n0\r\n\r\n"),
        _answer("503 Slow", "Content-Length: 31", body=b"<Error><Code>SlowDown</Code></Error>"),
        _answer("404 No", body=b"<Code>NoSuchKey</Code>"),
        _answer("307 There", "Location: http://[::1/x", "Content-Length: 0", body=b""),
    ],
    (
        b"Content-Range: bytes 0-9/" + b"9" * 5000,
        b"Last-Modified: ",
        b"Mon, 01 Jan 0001",
        b"Connection: close\r\n",
        b"\r\n\r\n",
        b"HTTP/1.0 200",
        b"-0000",
        b"9" * 20,
        b"Content-Length: 10\r\n",
        b"Location: http://[",
        b"99:99:99 +9999",
    ),
)
_RESPONSE = (
    "<d:response><d:href>{href}</d:href><d:propstat><d:prop>{more}<d:getetag>&quot;e&quot;"
    "</d:getetag><d:getlastmodified>Sun, 15 Nov 2026 10:00:00 GMT</d:getlastmodified></d:prop>"
    "<d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>"
)
_LENGTH = "<d:getcontentlength>10</d:getcontentlength>"
_FOLDER = "<d:resourcetype><d:collection/></d:resourcetype>"


def _dav(*responses: tuple[str, str]) -> bytes:
    text = "".join(_RESPONSE.format(href=href, more=more) for href, more in responses)
    body = f'<?xml version="1.0"?><d:multistatus xmlns:d="DAV:">{text}</d:multistatus>'.encode()
    return _answer("207 Multi-Status", f"Content-Length: {len(body)}", body=body, choice=b"")


_HEAD = _answer("200 OK", "Content-Length: 10", 'ETag: "v"', body=b"", choice=b"")
WEBDAV_TARGET = Target(
    "webdav",
    "an answer of WebDAV names only what lies directly in its folder, or is an error of ours",
    _open_webdav,
    [
        _dav(("/set/f/", _FOLDER), ("/set/f/x.bin", _LENGTH), ("/set/f/sub/", _FOLDER)),
        _NEXT.join([_dav(("/set/f/a", ""), ("http://liar/set/f/b%20c", "")), _HEAD, _HEAD]),
        _answer("207 Multi-Status", "Transfer-Encoding: chunked", body=b"3\r\n<a/\r\n", choice=b""),
        _answer("404 No", "Content-Length: 0", body=b"", choice=b""),
        _answer("307 There", "Location: /set/g/", "Content-Length: 0", body=b"", choice=b""),
    ],
    (
        b"<d:response><d:href>",
        b"</d:href>",
        b"../",
        b"%2e%2e%2f",
        b"%2f",
        b"//host/",
        b"http://[",
        b"&#xD800;",
        b"&#10;",
        b"<d:getcontentlength>-1</d:getcontentlength>",
        b"9" * 5000,
        b"<!DOCTYPE x [<!ENTITY a 'aa'>]>",
        b"Mon, 99 Feb 0000 99:99:99 GMT",
        _NEXT,
    ),
)
_EMPTY = _answer("200 OK", 'ETag: "v"', "Content-Length: 0", body=b"", choice=b"")


def _document(name: str, content: str) -> bytes:
    body = f"<{name} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{content}</{name}>".encode()
    return _answer("200 OK", f"Content-Length: {len(body)}", body=body, choice=b"")


_BEGUN = _document("InitiateMultipartUploadResult", "<UploadId>u&amp;1</UploadId>")
_ENDED = _document("CompleteMultipartUploadResult", '<ETag>"v-1"</ETag>')
UPLOAD_TARGET = Target(
    "upload-answer",
    "what is written has a version, or there is an error of ours",
    _open_uploads,
    [
        b"p" + _NEXT.join([_BEGUN, _EMPTY, _ENDED, _HEAD]),
        b"p" + _NEXT.join([_BEGUN, _EMPTY, _document("Error", "<Code>InternalError</Code>")]),
        b"p" + _NEXT.join([_answer("503 Slow", "Content-Length: 0", body=b"", choice=b"")]),
        b"d" + _answer("204 Gone", body=b"", choice=b""),
        b"a"
        + _NEXT.join(
            [
                _document(
                    "ListMultipartUploadsResult",
                    "<Upload><Key>k</Key><UploadId>u</UploadId></Upload><Upload><Key>kk</Key></Upload>",
                ),
                _EMPTY,
            ]
        ),
    ],
    (
        b"<UploadId>",
        b"</UploadId>",
        b"<Error><Code>",
        b"ETag: ",
        b"\xff",
        b"&#13;&#10;",
        b"Content-Length: 9999999999999999999\r\n",
        b"<!DOCTYPE x [<!ENTITY a 'aa'>]>",
        _NEXT,
    ),
)


def _sent_on(*locations: str) -> bytes:
    last = _answer("200 OK", 'ETag: "v"', "Content-Length: 10", choice=b"")
    moved = [
        _answer("307 There", f"Location: {to}", "Content-Length: 0", body=b"", choice=b"")
        for to in locations
    ]
    return _NEXT.join([*moved, last])


REDIRECT_TARGET = Target(
    "redirect",
    "each request goes to the host that was asked for, and says nothing that a server made up",
    _open_redirects,
    [
        _sent_on("/b/other?x=1"),
        _sent_on("http://liar/b/k2", "?y=%0d%0a", "../up"),
        _sent_on("http://elsewhere/b/k"),
        _sent_on("//liar:80/b/k"),
        _sent_on(*["/again"] * 6),
    ],
    (
        b"Location: ",
        b"http://liar",
        b"http://liar@elsewhere/",
        b"http://[::1",
        b"//",
        b"\\",
        b"\t",
        b"\x0b",
        b"\x85",
        b"\xff",
        b" HTTP/1.1",
        b"%0d%0aX-Made-Up: 1",
        b"x-amz-bucket-region: eu-west-1\r\n",
        b"#",
        b"?",
        _NEXT,
    ),
)
