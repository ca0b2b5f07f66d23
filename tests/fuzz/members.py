"""What a member of the shared tier answers: to a request for a block, to others, and to a probe.

The first byte of an input picks the way in which values are written, and the block; the second how
many bytes arrive at first. The rest is the answer, after which the member hangs up.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from typing_extensions import Buffer

from penstock.cache import seal
from penstock.cache.identity import Block
from penstock.cache.members import Address
from penstock.cache.memcached import FAILURES, Answer, BlockRequest, Member, NotYet
from penstock.cache.seal import Packing, Sealing, piece_lengths
from tests.fuzz.target import Check, Target

_PIECE_BYTES = 8
_DATA = b"0123456789abcdefghi"
_WHOLE = Block(b"d" * 16, 0, 0, len(_DATA), True)
_PACKINGS = (Packing(), Sealing(b"a secret of a cluster"))
# One piece, and three.
_BLOCKS = (_WHOLE._replace(length=5), _WHOLE)
_ROOM_BYTES = 1 << 20
_SLOTS = 2


class _Liar(Member):
    """Has connections on which an answer lies ready; then the member hangs up."""

    def __init__(self, answer: bytes, first: int) -> None:
        super().__init__(Address("liar", 1), connections=_SLOTS)
        self.sockets: list[socket.socket] = []
        self._answer = answer
        self._first = first

    def _connect(self) -> socket.socket:
        ours, self.theirs = socket.socketpair()
        self.sockets += (ours, self.theirs)
        self.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        self.theirs.sendall(self._answer[: self._first])
        if self._first >= len(self._answer):
            self.theirs.shutdown(socket.SHUT_WR)
        return ours

    def go_on(self) -> None:
        self.theirs.sendall(self._answer[self._first :])
        self.theirs.shutdown(socket.SHUT_WR)

    def check_slots(self) -> None:
        for _ in range(_SLOTS):
            assert self._slots.acquire(blocking=False), "a connection was not given back"
        for _ in range(_SLOTS):
            self._slots.release()


@contextmanager
def _lying(answer: bytes, first: int | None = None) -> Iterator[_Liar]:
    liar = _Liar(answer, len(answer) if first is None else first)
    try:
        yield liar
        liar.check_slots()
    finally:
        for one in liar.sockets:
            one.close()


def _read_in_two(packing: Packing, block: Block, answer: bytes, first: int) -> None:
    with _lying(answer, first) as liar, suppress(*FAILURES):
        request = BlockRequest(liar, packing, block, _check_progress)
        request.send(liar.take()[0])
        try:
            found = request.advance()
        except NotYet:
            assert first < len(answer), "the member has hung up, and still more is waited for"
            liar.go_on()
            try:
                found = request.advance()
            except NotYet:
                raise AssertionError("the member has hung up") from None
        _check_found(block, *found)


def _check_progress(arrived: memoryview) -> None:
    assert _DATA.startswith(arrived), "bytes that nobody wrote"


def _check_found(block: Block, answer: Answer, data: Buffer | None) -> None:
    assert (answer is Answer.HIT) == (data is not None)
    if data is not None:
        assert bytes(data) == _DATA[: block.length], "bytes that nobody wrote"


@contextmanager
def _open(_folder: Path) -> Iterator[Check]:
    def check(data: bytes) -> None:
        choice, first, answer = data[0] if data else 0, data[1] if data[1:] else 0, data[2:]
        packing, block = _PACKINGS[choice & 1], _BLOCKS[choice >> 1 & 1]
        _read_in_two(packing, block, answer, min(first, len(answer)))
        with _lying(answer) as liar, suppress(*FAILURES):
            _check_found(block, *liar.read(packing, block))
        with _lying(answer) as liar, suppress(*FAILURES):
            assert len(liar.has(packing, _BLOCKS)) == len(_BLOCKS)
        with _lying(answer) as liar, suppress(*FAILURES):
            view = memoryview(_DATA)[: block.length]
            assert liar.store(packing, [(block, view)]) in ([], [block])
        with _lying(answer) as liar:
            liar.trip(OSError("gone"))
            assert liar.probe() == (liar.why_out is None) == answer.startswith(b"MN\r\n")

    with ExitStack() as stack:
        stack.enter_context(patch.object(seal, "PIECE_BYTES", _PIECE_BYTES))
        yield check


def _value(packing: Packing, block: Block, number: int) -> bytes:
    start = number * _PIECE_BYTES
    piece = memoryview(_DATA)[start : start + _lengths(block)[number]]
    # The same nonce each time: the same seeds make the same inputs.
    with patch.object(seal.os, "urandom", bytes):
        parts: Sequence[Buffer] = packing.pack(packing.name(block, number), piece)
    body = b"".join(bytes(part) for part in parts)
    return b"VA %d\r\n%s\r\n" % (len(body), body)


def _lengths(block: Block) -> list[int]:
    with patch.object(seal, "PIECE_BYTES", _PIECE_BYTES):
        return piece_lengths(block.length)


def _seeds() -> Iterator[bytes]:
    for choice in range(4):
        packing, block = _PACKINGS[choice & 1], _BLOCKS[choice >> 1]
        pieces = [_value(packing, block, number) for number in range(len(_lengths(block)))]
        yield bytes([choice, 9 * choice]) + b"".join(pieces)
    for line in (b"EN", b"VA 0 W\r\n", b"VA 0 Z\r\n", b"HD s21\r\nHD s0 Z", b"HD\r\nHD\r\nNS"):
        yield b"\0\2" + line + b"\r\n"
    yield b"\2\0MN\r\n"


ANSWER_TARGET = Target(
    "member-answer",
    "a member's answer is the bytes that were written, a miss or a failure, and nobody waits",
    _open,
    list(_seeds()),
    (
        b"VA ",
        b"VA 0 W\r\n\r\n",
        b"VA 99999999999999999999\r\n",
        b"EN\r\n",
        b"HD\r\n",
        b"HD s21\r\n",
        b"\r\n",
        b" W",
        b" Z",
        b" X",
        b"SERVER_ERROR out of memory\r\n",
        b"-1",
        b"9" * 3000,
    ),
)
