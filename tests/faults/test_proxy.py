"""What each fault makes of a good answer, and which requests fail. Pure: no socket is used.

tests/faults/test_store_fails.py has each fault over the real proxy.
"""

import random

import pytest

from tests.support.faults import Answer, End, Fault, can_happen, spoil
from tests.support.faulty_proxy import FaultyProxy

BODY = bytes(range(256)) * 40
HALF = len(BODY) // 2
ANSWER = Answer(200, "OK", (("ETag", '"1"'),), BODY)


@pytest.mark.parametrize(
    ("fault", "status", "promised", "sent", "end"),
    [
        (None, 200, len(BODY), BODY, End.KEEP),
        (Fault.RESET, 200, len(BODY), BODY[:HALF], End.RESET),
        (Fault.STALL, 200, len(BODY), BODY, End.KEEP),
        (Fault.TRICKLE, 200, len(BODY), BODY, End.KEEP),
        (Fault.TRUNCATED, 200, len(BODY), BODY[:HALF], End.CLOSE),
        (Fault.TOO_SHORT, 200, HALF, BODY[:HALF], End.CLOSE),
        (Fault.TOO_LONG, 200, len(BODY) + HALF, BODY, End.CLOSE),
        (Fault.SERVER_ERROR, 500, None, b"<Code>InternalError</Code>", End.KEEP),
        (Fault.SLOW_DOWN, 503, None, b"<Code>SlowDown</Code>", End.KEEP),
        (Fault.EXPIRED_TOKEN, 403, None, b"<Code>ExpiredToken</Code>", End.KEEP),
    ],
)
def test_each_fault_is_what_its_name_says(
    fault: Fault | None, status: int, promised: int | None, sent: bytes, end: End
) -> None:
    *steps, last = spoil(fault, ANSWER, random.Random(1), wait_s=0.1)
    head, _, body = b"".join(s for s in steps if isinstance(s, bytes)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Length: %d" % (len(body) if promised is None else promised) in head
    assert body == sent if promised is not None else sent in body
    assert last is end
    waits_s = sum(step for step in steps if isinstance(step, float))
    assert waits_s == pytest.approx(0.1 if fault in (Fault.STALL, Fault.TRICKLE) else 0)


def test_one_bit_is_flipped_but_never_in_a_range() -> None:
    """S3 gives nothing to check a range by, so no client could notice."""
    head, body, _ = spoil(Fault.FLIPPED, ANSWER, random.Random(1), wait_s=0.1)
    assert head == ANSWER.head()
    assert isinstance(body, bytes)
    assert sum((one ^ other).bit_count() for one, other in zip(body, BODY, strict=True)) == 1
    part = Answer(206, "Partial Content", (("Content-Range", "bytes 0-9/99"),), BODY[:10])
    assert not can_happen(Fault.FLIPPED, part)


def test_the_same_seed_gives_the_same_faults_whatever_the_order() -> None:
    targets = [f"/bucket/{number % 20}" for number in range(60)]

    def faults(seed: int, order: list[str]) -> dict[str, list[Fault | None]]:
        with FaultyProxy("http://127.0.0.1:1", seed=seed) as proxy:
            proxy.inject(dict.fromkeys((Fault.SERVER_ERROR, Fault.SLOW_DOWN), 0.2))
            found: dict[str, list[Fault | None]] = {}
            for target in order:
                found.setdefault(target, []).append(proxy._draw(target, b"GET", ANSWER)[0])
            return found

    first = faults(7, targets)
    assert first == faults(7, targets[::-1])
    assert first != faults(8, targets)
    drawn = {fault for many in first.values() for fault in many}
    assert drawn == {None, Fault.SERVER_ERROR, Fault.SLOW_DOWN}
