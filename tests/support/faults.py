"""The ways a store can fail, and what each makes of a good answer. Pure: no socket is touched here.

`spoil` turns an answer into steps: bytes to send, seconds to wait, and how the connection ends.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum


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


# What a client can mend by asking again, whoever it is.
PASSING = (
    Fault.REFUSE, Fault.RESET, Fault.SERVER_ERROR, Fault.SLOW_DOWN, Fault.STALL, Fault.TRICKLE,
    Fault.TRUNCATED, Fault.TOO_SHORT, Fault.TOO_LONG, Fault.FLIPPED,
)  # fmt: skip
_IN_THE_BODY = (
    Fault.RESET, Fault.TRICKLE, Fault.TRUNCATED, Fault.TOO_SHORT, Fault.TOO_LONG, Fault.FLIPPED,
)  # fmt: skip
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

    @property
    def is_part(self) -> bool:
        return any(name.lower() == "content-range" for name, _ in self.fields)

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
    if fault is Fault.FLIPPED and answer.is_part:
        return False
    return fault not in _IN_THE_BODY or (answer.status in (200, 206) and len(answer.body) > 1)


def spoil(
    fault: Fault | None, answer: Answer, chance: random.Random, wait_s: float
) -> Iterator[Step]:
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
        case _:
            refusal = _refusal(fault)
            yield from (refusal.head(), refusal.body, End.KEEP)


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
