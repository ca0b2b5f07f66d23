"""The ways a store can fail, and what each makes of a good answer. Pure: no socket is touched here.

`spoil` turns an answer into steps: bytes to send, seconds to wait, and how the connection ends.
"""

import gzip
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape


class Fault(StrEnum):
    REFUSE = "refuse"  # reset before any byte of an answer, as a proxy does that is overloaded
    RESET = "reset"  # reset in the middle of the body
    SERVER_ERROR = "500"
    SLOW_DOWN = "503"
    STALL = "stall"  # not one byte for a while, then the right answer
    TRICKLE = "trickle"  # the right answer, a little at a time
    TRUNCATED = "truncated"  # closed in the middle of the body
    TOO_SHORT = "too-short"  # Content-Length, and the body with it, less than there is
    TOO_LONG = "too-long"  # Content-Length more than ever comes
    FLIPPED = "flipped"  # one bit of the body
    EXPIRED_TOKEN = "expired-token"
    NOT_HTTP = "not-http"
    ENDLESS_HEAD = "endless-head"
    ENDLESS_ERROR = "endless-error"  # a 500 whose text goes on and on
    GZIPPED = "gzipped"  # though nobody asked for that
    SURPLUS = "surplus"  # more bytes behind the body
    OTHER_RANGE = "other-range"  # Content-Range says that another part came
    WHOLE = "whole-for-part"  # 200 and the whole object, though a part was asked for
    REDIRECT = "redirect"  # to another host
    NOTHING = "empty-body"  # 200, and not one byte
    BARE_PAGE = "bare-page"  # of a listing: a page that holds nothing and says nothing of itself
    ERROR_PAGE = "error-with-200"  # an error's document instead of the page
    SAME_TOKEN = "same-token"  # the page goes on where it began itself
    LOST_PAGES = "lost-pages"  # the page claims to be the last, and is not


# What a client can mend by asking again, whoever it is.
PASSING = (
    Fault.REFUSE,
    Fault.RESET,
    Fault.SERVER_ERROR,
    Fault.SLOW_DOWN,
    Fault.STALL,
    Fault.TRICKLE,
    Fault.TRUNCATED,
    Fault.TOO_SHORT,
    Fault.TOO_LONG,
    Fault.FLIPPED,
)
# What no honest server says. It is not believed, and asking again helps.
LIES = (
    Fault.NOT_HTTP,
    Fault.ENDLESS_HEAD,
    Fault.ENDLESS_ERROR,
    Fault.GZIPPED,
    Fault.SURPLUS,
    Fault.OTHER_RANGE,
)
# What may be done to a listing. No bit of one is flipped: it would be another name, of which nobody
# can know.
LISTING_FAULTS = (*(fault for fault in PASSING if fault is not Fault.FLIPPED),)
LISTING_LIES = (
    Fault.NOT_HTTP,
    Fault.ENDLESS_HEAD,
    Fault.ENDLESS_ERROR,
    Fault.GZIPPED,
    Fault.SURPLUS,
    Fault.REDIRECT,
    Fault.NOTHING,
    Fault.BARE_PAGE,
    Fault.ERROR_PAGE,
    Fault.SAME_TOKEN,
    Fault.LOST_PAGES,
)
# A client does not repeat a request that got one of these: what it asked for fails at once.
FINAL_FOR_DATA = (Fault.REDIRECT,)
FINAL_FOR_LISTINGS = (
    Fault.TOO_SHORT,
    Fault.GZIPPED,
    Fault.REDIRECT,
    Fault.NOTHING,
    Fault.BARE_PAGE,
    Fault.SAME_TOKEN,
    Fault.LOST_PAGES,
)
_IN_THE_BODY = (
    Fault.RESET,
    Fault.TRICKLE,
    Fault.TRUNCATED,
    Fault.TOO_SHORT,
    Fault.TOO_LONG,
    Fault.FLIPPED,
    Fault.GZIPPED,
    Fault.SURPLUS,
    Fault.OTHER_RANGE,
    Fault.WHOLE,
    Fault.REDIRECT,
    Fault.NOTHING,
    Fault.BARE_PAGE,
    Fault.ERROR_PAGE,
    Fault.SAME_TOKEN,
    Fault.LOST_PAGES,
)
_OF_PARTS = (Fault.OTHER_RANGE, Fault.WHOLE)
_OF_LISTINGS = (Fault.BARE_PAGE, Fault.ERROR_PAGE, Fault.SAME_TOKEN, Fault.LOST_PAGES)
_ENDLESS_BYTES = 1 << 20  # more than anyone should read
_TRICKLE_PIECES = 20


class End(Enum):
    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of the store; Content-Length is not among the fields, the body tells it."""

    status: int
    reason: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    length: int | None = None  # of a HEAD: that of the body that is not sent
    target: str = ""  # that was asked for
    whole: bytes = b""  # all of the object, where a part was asked for

    @property
    def is_part(self) -> bool:
        return any(name.lower() == "content-range" for name, _ in self.fields)

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def is_listing(self) -> bool:
        return "list-type" in self.query

    def head(self, length: int | None = None) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.fields]
        known = len(self.body) if self.length is None else self.length
        lines += [f"Content-Length: {known if length is None else length}"]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


Step = bytes | float | End


def can_happen(fault: Fault, answer: Answer) -> bool:
    """Whether the answer can be spoilt so. Of a range no bit is flipped: S3 gives nothing to check
    a range by, so no client can notice (on the wire, TLS does)."""
    if fault is Fault.FLIPPED and (answer.is_part or answer.is_listing):
        return False
    if (fault in _OF_PARTS and not answer.is_part) or (fault is Fault.WHOLE and not answer.whole):
        return False
    if fault in _OF_LISTINGS and not answer.is_listing:
        return False
    if fault is Fault.SAME_TOKEN and "continuation-token" not in answer.query:
        return False  # the first page has no token, and nobody could tell a second one from it
    if fault is Fault.LOST_PAGES and b"<IsTruncated>true" not in answer.body:
        return False
    return fault not in _IN_THE_BODY or (answer.status in (200, 206) and len(answer.body) > 1)


def spoil(
    fault: Fault | None,
    answer: Answer,
    chance: random.Random,
    wait_s: float,
    elsewhere: str = "http://elsewhere.invalid",
) -> Iterator[Step]:
    """`elsewhere`: the address of a host that nobody asked for."""
    body, half = answer.body, len(answer.body) // 2
    match fault:
        case None:
            yield from (answer.head(), body, End.KEEP)
        case Fault.REFUSE:
            yield End.RESET
        case Fault.RESET:
            yield from (answer.head(), body[:half], End.RESET)
        case Fault.STALL:
            yield from (float(wait_s), answer.head(), body, End.KEEP)
        case Fault.TRICKLE:
            yield answer.head()
            size = -(-len(body) // _TRICKLE_PIECES)
            for at in range(0, len(body), size):
                yield from (wait_s / _TRICKLE_PIECES, body[at : at + size])
            yield End.KEEP
        case Fault.TRUNCATED:
            yield from (answer.head(), body[:half], End.CLOSE)
        case Fault.TOO_SHORT:
            # Complete, for a client: said, so that it sends nothing more on this connection.
            closing = b"\r\nConnection: close\r\n\r\n"
            head = answer.head(half).removesuffix(b"\r\n\r\n") + closing
            yield from (head, body[:half], End.CLOSE)
        case Fault.TOO_LONG:
            yield from (answer.head(len(body) + half), body, End.CLOSE)
        case Fault.FLIPPED:
            at = chance.randrange(len(body))
            bit = bytes([body[at] ^ 1 << chance.randrange(8)])
            yield from (answer.head(), body[:at] + bit + body[at + 1 :], End.KEEP)
        case Fault.NOT_HTTP:
            yield from (b"SSH-2.0-OpenSSH_9.2\r\n", End.CLOSE)
        case Fault.ENDLESS_HEAD:
            yield from (b"HTTP/1.1 200 OK\r\nX-Filler: ", bytes(_ENDLESS_BYTES), End.CLOSE)
        case Fault.ENDLESS_ERROR:
            yield from (b"HTTP/1.1 500 No\r\n\r\n", b"<Error>" * (_ENDLESS_BYTES // 7), End.CLOSE)
        case Fault.GZIPPED:
            small = replace(answer, body=gzip.compress(body))
            small = replace(small, fields=(*answer.fields, ("Content-Encoding", "gzip")))
            yield from (small.head(), small.body, End.KEEP)
        case Fault.SURPLUS:
            yield from (answer.head(), body + chance.randbytes(100), End.KEEP)
        case Fault.OTHER_RANGE:
            yield from (_of_another_range(answer).head(), body, End.KEEP)
        case Fault.WHOLE:
            fields = tuple(field for field in answer.fields if field[0].lower() != "content-range")
            whole = replace(answer, status=200, reason="OK", fields=fields, body=answer.whole)
            yield from (whole.head(), whole.body, End.KEEP)
        case Fault.REDIRECT:
            fields = (("Location", f"{elsewhere}{answer.target}"),)
            yield from (Answer(307, "Temporary Redirect", fields, b"").head(), End.KEEP)
        case Fault.NOTHING:
            yield from (replace(answer, body=b"").head(), End.KEEP)
        case Fault.BARE_PAGE | Fault.ERROR_PAGE | Fault.SAME_TOKEN | Fault.LOST_PAGES:
            page = replace(answer, body=_page_that_lies(fault, answer))
            yield from (page.head(), page.body, End.KEEP)
        case _:
            refusal = _refusal(fault)
            yield from (refusal.head(), refusal.body, End.KEEP)


def _page_that_lies(fault: Fault, answer: Answer) -> bytes:
    if fault is Fault.BARE_PAGE:
        return b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
    if fault is Fault.ERROR_PAGE:
        return _refusal(Fault.SERVER_ERROR).body
    markers = rb"<NextContinuationToken>.*?</NextContinuationToken>|<IsTruncated>\w+</IsTruncated>"
    more = b"<IsTruncated>false</IsTruncated>"
    if fault is Fault.SAME_TOKEN:
        token = escape(answer.query["continuation-token"]).encode()
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>%b</NextContinuationToken>"
        more %= token
    return re.sub(markers, b"", answer.body).replace(
        b"</ListBucketResult>", more + b"</ListBucketResult>"
    )


def _of_another_range(answer: Answer) -> Answer:
    fields = [
        (
            name,
            f"bytes 1{value.removeprefix('bytes ')}" if name.lower() == "content-range" else value,
        )
        for name, value in answer.fields
    ]
    return replace(answer, fields=tuple(fields))


_REFUSALS = {
    Fault.SERVER_ERROR: (500, "InternalError", "We encountered an internal error."),
    Fault.SLOW_DOWN: (503, "SlowDown", "Please reduce your request rate."),
    Fault.EXPIRED_TOKEN: (403, "ExpiredToken", "The provided token has expired."),
}


def _refusal(fault: Fault) -> Answer:
    status, code, message = _REFUSALS[fault]
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    )
    return Answer(status, code, (("Content-Type", "application/xml"),), body.encode())
