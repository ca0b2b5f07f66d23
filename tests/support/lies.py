"""The table of lies that a store can tell, and what is promised for each of them."""

import gzip
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import ObjectChanged, ObjectNotFound, PenstockError, SourceError, StoreError
from penstock.store import Store
from tests.support.faults import Answer, End
from tests.support.liar import (
    Liar,
    Lie,
    Request,
    Steps,
    entry,
    md5,
    page,
)
from tests.support.waiting import wait_for_input

OBJECTS = {
    "a": b"alpha" * 100,
    "deep/b c": bytes(range(256)) * 40,
    "z": b"zed" * 1000,
}
KEY = "deep/b c"
DATA, ETAG = OBJECTS[KEY], md5(OBJECTS[KEY])
TOKEN = "a-session-token-of-the-caller"
DEADLINE_S = 0.6
MOST_BYTES = 64 << 20
PIECE = b"x" * 65536


# -- the three questions ------------------------------------------------------------------


def ask_list(store: Store) -> object:
    return {info.key: info.size_bytes for found in store.list_all("") for info in found}


def ask_get(store: Store) -> object:
    return bytes(store.get(KEY, ETAG, 0, len(DATA), len(DATA)))


def ask_part(store: Store) -> object:
    return bytes(store.get(KEY, ETAG, 100, 1000, len(DATA)))


def ask_begun(store: Store) -> object:
    """As a thread does that has other things to do; where that is not possible, `ask_get`."""
    pending = store.begin(KEY, ETAG, len(DATA))
    if pending is None:
        return ask_get(store)
    while not pending.advance():
        wait_for_input(pending, DEADLINE_S / 10)
    return bytes(pending.result())


TRUTH: dict[Callable[[Store], object], object] = {
    ask_list: {key: len(data) for key, data in OBJECTS.items()},
    ask_get: DATA,
    ask_part: DATA[100:1100],
    ask_begun: DATA,
}


# -- what is promised ---------------------------------------------------------------------


@dataclass(frozen=True)
class Fails:
    error: type[PenstockError]
    words: str  # in its text, or its kind


RIGHT = None
Outcome = Fails | None

REFUSED = Fails(SourceError, "redirects to")
NO_STORE = Fails(SourceError, "does not answer as an object store")
ENDLESS = Fails(SourceError, "is too long")
TIMEOUT = Fails(StoreError, "timeout")
RESET = Fails(StoreError, "reset")
SHORT = Fails(StoreError, "short_body")
NO_HTTP = Fails(StoreError, "other")
LENGTH = Fails(StoreError, "wrong_length")
BROKEN = Fails(StoreError, "server_error")
MISMATCH = Fails(StoreError, "mismatch")
NO_VERSION = Fails(StoreError, "no_version")
CHANGED = Fails(ObjectChanged, "rewritten")
REPEATS = Fails(SourceError, "repeats itself")


# -- lies ---------------------------------------------------------------------------------


def redirect(status: int, to: str, *more: tuple[str, str]) -> Lie:
    """`to`: with {elsewhere} for the other host's address."""

    def lie(liar: Liar, request: Request, _truth: Answer) -> Steps:
        target = to.format(elsewhere=liar.elsewhere, target=request.target)
        fields = (("Location", target), *more) if target else more
        return (Answer(status, "Moved", fields, b"").head(), End.KEEP)

    return lie


def within_the_host(_liar: Liar, request: Request, truth: Answer) -> Steps:
    if "hop=1" in request.target:
        return (truth.head(), truth.body, End.KEEP)
    path, _, query = request.target.partition("?")
    target = f"{path}?{query}&hop=1" if query else f"{path}?hop=1"
    return (Answer(307, "Moved", (("Location", target),), b"").head(), End.KEEP)


def raw(*steps: bytes | float | End) -> Lie:
    return lambda _liar, _request, _truth: steps


def forever(first: bytes, more: bytes = PIECE) -> Lie:
    return lambda _liar, _request, _truth: itertools.chain([first], itertools.repeat(more))


def framed(fields: str, body: Callable[[bytes], bytes] = lambda body: body) -> Lie:
    """The true answer with other headers around its body."""

    def lie(_liar: Liar, _request: Request, truth: Answer) -> Steps:
        head = truth.head().decode("latin-1").rstrip("\r\n").splitlines()
        kept = "\r\n".join(line for line in head if not line.startswith("Content-Length"))
        return (f"{kept}\r\n{fields}\r\n".encode("latin-1"), body(truth.body), End.CLOSE)

    return lie


def spoilt(change: Callable[[Answer], Answer]) -> Lie:
    """Another answer, well framed."""

    def lie(_liar: Liar, _request: Request, truth: Answer) -> Steps:
        answer = change(truth)
        return (answer.head(), answer.body, End.KEEP)

    return lie


def without(answer: Answer, *names: str) -> Answer:
    return replace(answer, fields=tuple(f for f in answer.fields if f[0] not in names))


def with_field(answer: Answer, name: str, value: str) -> Answer:
    return replace(without(answer, name), fields=(*without(answer, name).fields, (name, value)))


def drip(_liar: Liar, _request: Request, truth: Answer) -> Steps:
    for byte in truth.head() + truth.body:
        yield bytes([byte])
        yield 0.05


def drip_body(_liar: Liar, _request: Request, truth: Answer) -> Steps:
    yield truth.head()
    for byte in truth.body:
        yield bytes([byte])
        yield 0.05


def surplus(_liar: Liar, _request: Request, truth: Answer) -> Steps:
    return (truth.head(), truth.body + b"HTTP/1.1 200 OK\r\nsurplus", End.KEEP)


def chunked(body: bytes) -> bytes:
    pieces = [body[start : start + 100] for start in range(0, len(body), 100)]
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


def gzipped(truth: Answer) -> Answer:
    body = gzip.compress(truth.body)
    return with_field(replace(truth, body=body), "Content-Encoding", "gzip")


def flipped(truth: Answer) -> Answer:
    """Of a part S3 gives nothing to check it by, so nobody could notice."""
    if truth.is_part:
        return truth
    return replace(truth, body=bytes([truth.body[0] ^ 1]) + truth.body[1:])


def whole_for_a_part(_liar: Liar, _request: Request, truth: Answer) -> Steps:
    answer = replace(without(truth, "Content-Range"), status=200, body=DATA)
    if truth.status != 206:
        answer = truth
    return (answer.head(), answer.body, End.KEEP)


def listing(answer: Callable[[int], str | bytes]) -> Lie:
    """Lies about listings only: `answer` makes a page of a page's number."""

    def lie(_liar: Liar, request: Request, truth: Answer) -> Steps:
        if not request.is_listing:
            return (truth.head(), truth.body, End.KEEP)
        number = int(request.query.get("continuation-token", "0").rpartition("-")[2])
        made = answer(number)
        body = made if isinstance(made, bytes) else made.encode()
        return (replace(truth, body=body).head(), body, End.KEEP)

    return lie


def dav(files: Callable[[], Iterable[str]]) -> Lie:
    """What a server of WebDAV says that a folder holds; whoever asks for a page gets none."""

    def lie(_liar: Liar, request: Request, _truth: Answer) -> Steps:
        if request.method != "PROPFIND":
            return (Answer(404, "No", (), b"").head(), End.KEEP)
        head = b"HTTP/1.1 207 Multi-Status\r\nConnection: close\r\n\r\n"
        made = (one.encode() for one in files())
        return itertools.chain([head, b"<multistatus>"], made, [b"</multistatus>", End.CLOSE])

    return lie


def dav_file(name: str) -> str:
    return (
        f"<response><href>/{name}</href><propstat><prop><getcontentlength>4</getcontentlength>"
        '<getetag>"tag"</getetag></prop></propstat></response>'
    )


def truly() -> list[str]:
    return [entry(key, len(data), md5(data)) for key, data in OBJECTS.items()]


def new_keys(number: int) -> list[str]:
    return [entry(f"{number:06}-{one:03}") for one in range(10)]


BOMB = "<!DOCTYPE b [<!ENTITY a 'aaaaaaaaaa'>{}]>".format(
    "".join(f"<!ENTITY {b} '{f'&{a};' * 10}'>" for a, b in itertools.pairwise("abcdefghijk"))
)
CROWD = "".join(f"<of-no-use-{number}/>" for number in range(200))
OUTSIDE = "<!DOCTYPE x [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"
XML = 'HTTP/1.1 200 OK\r\nETag: "' + ETAG + '"\r\n'
CHUNKED = f"{XML}Transfer-Encoding: chunked\r\n\r\n".encode()
H2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
H2_GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8)

# The lie, and what comes of it: of a listing, of a whole object, of a part.
LIES: dict[str, tuple[Lie, Outcome, Outcome, Outcome]] = {
    "301 to another host": (redirect(301, "{elsewhere}{target}"), REFUSED, REFUSED, REFUSED),
    "302 to another host": (redirect(302, "{elsewhere}{target}"), REFUSED, REFUSED, REFUSED),
    "307 to another host": (redirect(307, "{elsewhere}{target}"), REFUSED, REFUSED, REFUSED),
    "308 without a scheme": (redirect(308, "//example.invalid/x"), REFUSED, REFUSED, REFUSED),
    "307 to a host with a long name": (
        redirect(307, f"http://{'x' * 60_000}/"), REFUSED, REFUSED, REFUSED,
    ),
    "an error with a long code": (
        raw(b"HTTP/1.1 500 No\r\n\r\n<Code>" + b"x" * 60_000 + b"</Code>", End.CLOSE),
        BROKEN, BROKEN, BROKEN,
    ),
    "307 to nowhere": (redirect(307, ""), REFUSED, REFUSED, REFUSED),
    "307 to what is no address": (redirect(307, "http://[::1"), REFUSED, REFUSED, REFUSED),
    "301 with a region, from one who is not AWS": (
        redirect(301, "{elsewhere}{target}", ("x-amz-bucket-region", "eu-west-1")),
        REFUSED, REFUSED, REFUSED,
    ),
    "307 on the same host": (within_the_host, RIGHT, RIGHT, RIGHT),
    "307 in a circle": (
        redirect(307, "{target}"), *[Fails(SourceError, "again and again")] * 3,
    ),
    "a head without end": (forever(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000), *[NO_HTTP] * 3),
    "a line without end": (forever(b"HTTP/1.1 200 "), *[NO_HTTP] * 3),
    "HTTP/2": (raw(H2_SETTINGS + H2_GOAWAY + b"\r\n\r\n", End.CLOSE), *[NO_HTTP] * 3),
    "HTTP/2 that ends at once": (raw(H2_GOAWAY, End.CLOSE), *[RESET] * 3),
    "a reset": (raw(End.RESET), *[RESET] * 3),
    "nothing": (raw(30.0), *[TIMEOUT] * 3),
    "100 Continue for ever": (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), *[NO_HTTP] * 3),
    "a drip": (drip, *[TIMEOUT] * 3),
    "a body that drips": (drip_body, *[TIMEOUT] * 3),
    "a 500 without end": (forever(b"HTTP/1.1 500 No\r\n\r\n"), *[BROKEN] * 3),
    "a 500 in chunks without end": (
        forever(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nxxxxx\r\n" * 9000),
        *[BROKEN] * 3,
    ),
    "a 404 of an exabyte": (
        forever(b"HTTP/1.1 404 No\r\nContent-Length: 999999999999999999\r\n\r\n"),
        Fails(SourceError, "no such bucket"), *[Fails(ObjectNotFound, "not found")] * 2,
    ),
    "a 200 without end": (forever(XML.encode() + b"\r\n<a>"), NO_STORE, NO_HTTP, LENGTH),
    "a 200 in chunks without end": (
        forever(CHUNKED, b"10000\r\n" + PIECE + b"\r\n"),
        NO_STORE, NO_HTTP, LENGTH,
    ),
    "a listing without end": (
        forever(XML.encode() + b"\r\n<ListBucketResult>", b"<Name>" + PIECE[:1000] + b"</Name>"),
        ENDLESS, NO_HTTP, LENGTH,
    ),
    "a tag without end": (
        forever(XML.encode() + b"\r\n<ListBucketResult ", b"a" * 1000), NO_STORE, NO_HTTP, LENGTH,
    ),
    "an exabyte": (
        forever(XML.encode() + b"Content-Length: 999999999999999999\r\n\r\n<a>"),
        NO_STORE, LENGTH, LENGTH,
    ),
    "a length of 5,000 digits": (framed(f"Content-Length: {'9' * 5000}\r\n"), *[NO_HTTP] * 3),
    "two lengths": (framed("Content-Length: 5\r\nContent-Length: 6\r\n"), *[NO_HTTP] * 3),
    "a length that is too long": (
        lambda _liar, _request, truth: (truth.head(len(truth.body) + 5), truth.body, End.CLOSE),
        SHORT, LENGTH, LENGTH,
    ),
    "half a body": (
        lambda _liar, _request, truth: (truth.head(), truth.body[:50], End.CLOSE), *[SHORT] * 3,
    ),
    "a reset in the body": (
        lambda _liar, _request, truth: (truth.head(), truth.body[:50], End.RESET),
        *[Fails(StoreError, "reset|short_body")] * 3,
    ),
    "in chunks, and true": (
        framed("Transfer-Encoding: chunked\r\n", chunked), RIGHT, RIGHT, RIGHT,
    ),
    "in chunks that are cut": (
        framed("Transfer-Encoding: chunked\r\n", lambda body: chunked(body)[:60]), *[SHORT] * 3,
    ),
    "until the connection ends": (framed(""), RIGHT, RIGHT, RIGHT),
    "bytes behind the body": (surplus, RIGHT, RIGHT, RIGHT),
    "gzip": (spoilt(gzipped), NO_STORE, LENGTH, LENGTH),
    "an empty answer": (
        spoilt(lambda truth: replace(truth, body=b"")), NO_STORE, LENGTH, LENGTH,
    ),
    "a web page": (
        spoilt(lambda truth: replace(truth, body=b"<html><body>log in</body></html>")),
        NO_STORE, LENGTH, LENGTH,
    ),
    # -- of objects
    "a bit that is flipped, always the same": (spoilt(flipped), NO_STORE, MISMATCH, RIGHT),
    "another ETag": (
        spoilt(lambda truth: with_field(truth, "ETag", '"other"')), RIGHT, CHANGED, CHANGED,
    ),
    "no ETag": (
        spoilt(lambda truth: without(truth, "ETag")), RIGHT, NO_VERSION, NO_VERSION,
    ),
    "no ETag and no range": (
        spoilt(lambda truth: without(truth, "ETag", "Content-Range")),
        RIGHT, NO_VERSION, NO_VERSION,
    ),
    "200 and the whole for a part": (whole_for_a_part, RIGHT, RIGHT, RIGHT),
    "206 without a range": (
        spoilt(lambda truth: without(truth, "Content-Range")), RIGHT, RIGHT, LENGTH,
    ),
    "another range": (
        spoilt(lambda truth: with_field(truth, "Content-Range", "bytes 5-1004/10240")),
        RIGHT, LENGTH, LENGTH,
    ),
    "a range of another size": (
        spoilt(lambda truth: with_field(truth, "Content-Range", "bytes 100-1099/9")),
        RIGHT, LENGTH, LENGTH,
    ),
    "a range of thousands of digits": (
        spoilt(lambda truth: with_field(truth, "Content-Range", f"bytes 0-1/{'9' * 5000}")),
        RIGHT, RIGHT, LENGTH,
    ),
    "time that goes backwards": (
        spoilt(lambda t: with_field(t, "Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT")),
        RIGHT, RIGHT, RIGHT,
    ),
    # -- of listings
    "the same token, and new keys": (
        listing(lambda number: page(new_keys(number), "!-1")), REPEATS, RIGHT, RIGHT,
    ),
    "tokens in a circle, and new keys": (
        listing(lambda number: page(new_keys(number), f"!-{(number + 1) % 7}")),
        REPEATS, RIGHT, RIGHT,
    ),
    "empty pages for ever": (
        listing(lambda number: page([], f"!-{number + 1}")), REPEATS, RIGHT, RIGHT,
    ),
    "keys that come on two pages": (
        listing(lambda number: page(truly(), None if number else "!-1")), RIGHT, RIGHT, RIGHT,
    ),
    "more, and no word of where": (
        listing(lambda _: page(truly()).replace("false", "true")),
        Fails(SourceError, "no continuation token"), RIGHT, RIGHT,
    ),
    "no word of whether there is more": (
        listing(lambda _: page(truly()).replace("<IsTruncated>false</IsTruncated>", "")),
        NO_STORE, RIGHT, RIGHT,
    ),
    "neither more nor the end": (
        listing(lambda _: page(truly()).replace(">false<", ">perhaps<")), NO_STORE, RIGHT, RIGHT,
    ),
    "the end, and more": (
        listing(lambda _: page(["<IsTruncated>true</IsTruncated>", *truly()])),
        NO_STORE, RIGHT, RIGHT,
    ),
    "a billion laughs": (
        listing(lambda _: page([entry("&k;")], doctype=BOMB)), NO_STORE, RIGHT, RIGHT,
    ),
    "a file of this machine": (
        listing(lambda _: page([entry("&x;")], doctype=OUTSIDE)), NO_STORE, RIGHT, RIGHT,
    ),
    "a billion laughs in UTF-16": (
        listing(lambda _: page([entry("&k;")], doctype=BOMB).encode("utf-16")),
        NO_STORE, RIGHT, RIGHT,
    ),
    "UTF-16": (
        listing(lambda _: page(truly()).encode("utf-16")), RIGHT, RIGHT, RIGHT,
    ),
    "tags in tags": (listing(lambda _: "<a>" * 1_000_000), NO_STORE, RIGHT, RIGHT),
    "fields without end": (
        listing(lambda _: "<ListBucketResult><Contents>" + "".join(
            f"<f{number}/>" for number in range(5000))), NO_STORE, RIGHT, RIGHT,
    ),
    "a size below zero": (listing(lambda _: page([entry("x", "-1")])), NO_STORE, RIGHT, RIGHT),
    "a size of thousands of digits": (
        listing(lambda _: page([entry("x", "9" * 5000)])), NO_STORE, RIGHT, RIGHT,
    ),
    "a time that is none": (
        listing(lambda _: page([entry("x", when="9999-99-99T00:00:00Z")])), NO_STORE, RIGHT, RIGHT,
    ),
}  # fmt: skip


class Memory:
    """How much more memory than before this process has held at once."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forget the most that there ever was
        self._before = self._status("VmRSS")

    @property
    def most_bytes(self) -> int:
        return self._status("VmHWM") - self._before

    @staticmethod
    def _status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) << 10
