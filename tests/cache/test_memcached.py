"""A member's answers, byte by byte: cut anywhere, late, or no answers of memcached at all."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from typing_extensions import Buffer

from penstock.cache import memcached, seal
from penstock.cache.identity import Block
from penstock.cache.members import Address
from penstock.cache.memcached import FAILURES, AllBusy, Answer, BlockRequest, Member, NotYet
from penstock.cache.seal import Packing, Sealing, piece_lengths

PACKINGS = [Packing(), Sealing(b"a secret of a cluster")]
PIECE = 16
WHOLE = Block(b"d" * 16, 0, 0, 2 * PIECE + 5, True)
DATA = bytes(range(WHOLE.length))

packed_both_ways = pytest.mark.parametrize("packing", PACKINGS, ids=["plain", "sealed"])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "PIECE_BYTES", PIECE)


class Scripted(Member):
    """A member at the other end of a socket pair, which the test plays."""

    def __init__(self, connections: int = 2) -> None:
        super().__init__(Address("scripted", 1), connections=connections)
        self.connections = connections
        self.ends: list[socket.socket] = []
        self.script: list[bytes] = []

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, memcached._TIMEVAL.pack(0, 50_000))
        self.ends.append(theirs)
        if self.script:
            theirs.sendall(self.script.pop(0))
        return ours

    @property
    def free_slots(self) -> int:
        taken = 0
        while self._slots.acquire(blocking=False):
            taken += 1
        for _ in range(taken):
            self._slots.release()
        return taken


@contextmanager
def scripted(*script: bytes) -> Iterator[Scripted]:
    """A member whose connections give these answers. In the end all slots must be free."""
    member = Scripted()
    member.script = list(script)
    try:
        yield member
        assert member.free_slots == member.connections
    finally:
        member.close()
        for end in member.ends:
            end.close()


@contextmanager
def requested(packing: Packing, block: Block = WHOLE) -> Iterator[tuple[BlockRequest, Scripted]]:
    with scripted() as member:
        request = BlockRequest(member, packing, block)
        connection, _ = member.take()
        request.send(connection)
        yield request, member


def value(packing: Packing, number: int, data: bytes = DATA) -> bytes:
    """The answer that carries a piece."""
    length = piece_lengths(len(data))[number]
    piece = data[number * PIECE : number * PIECE + length]
    parts: list[Buffer] = [*packing.pack(packing.name(WHOLE, number), memoryview(piece))]
    body = b"".join(bytes(part) for part in parts)
    return b"VA %d\r\n%s\r\n" % (len(body), body)


def whole_answer(packing: Packing) -> bytes:
    return b"".join(value(packing, number) for number in range(3))


ANSWERS = {
    b"EN\r\n": Answer.MISS,
    b"VA 0 W\r\n\r\n": Answer.CLAIMED,
    b"VA 0 Z\r\n\r\n": Answer.TAKEN,
    b"VA 0\r\n\r\n": Answer.DAMAGED,  # an empty value that nobody is about to replace
}


@packed_both_ways
def test_a_block_that_arrives_byte_by_byte_is_whole(packing: Packing) -> None:
    with requested(packing) as (request, member):
        for byte in whole_answer(packing)[:-1]:
            with pytest.raises(NotYet):
                request.advance()
            member.ends[0].send(bytes([byte]))
        with pytest.raises(NotYet):
            request.advance()
        member.ends[0].send(b"\n")
        answer, data = request.advance()
        assert answer is Answer.HIT
        assert data is not None
        assert bytes(data) == DATA
        connection = member.take_idle()
        assert connection is not None, "it is used again"
        member.give_back(connection)


@pytest.mark.parametrize("line", ANSWERS, ids=repr)
def test_any_other_answer_that_arrives_byte_by_byte_is_understood(line: bytes) -> None:
    with requested(PACKINGS[0]) as (request, member):
        for byte in line:
            with pytest.raises(NotYet):
                request.advance()
            member.ends[0].send(bytes([byte]))
        assert request.advance() == (ANSWERS[line], None)


@packed_both_ways
def test_an_answer_that_is_cut_at_any_byte_is_a_failure_and_frees_its_slot(
    packing: Packing,
) -> None:
    answer = whole_answer(packing)
    for cut in range(len(answer)):
        for blocks in (False, True):
            with requested(packing) as (request, member):
                member.ends[0].sendall(answer[:cut])
                member.ends[0].close()
                with pytest.raises(ConnectionError):
                    request.wait() if blocks else request.advance()
                assert request.has_received == (cut > 0)


@packed_both_ways
def test_an_answer_that_stops_at_any_byte_is_given_up(
    packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = whole_answer(packing)
    for cut in range(0, len(answer), 7):
        with requested(packing) as (request, member):
            member.ends[0].sendall(answer[:cut])
            with pytest.raises(NotYet):
                request.advance()
            monkeypatch.setattr(request, "_until_s", 0.0)
            with pytest.raises(TimeoutError):
                request.advance()


def test_a_value_of_another_length_is_damaged() -> None:
    with requested(PACKINGS[0]) as (request, member):
        member.ends[0].sendall(b"VA 3\r\nabc\r\n")
        assert request.advance() == (Answer.DAMAGED, None)


@packed_both_ways
def test_pieces_in_the_wrong_order_are_damaged(packing: Packing) -> None:
    with requested(packing) as (request, member):
        member.ends[0].sendall(value(packing, 1) + value(packing, 0) + value(packing, 2))
        assert request.advance() == (Answer.DAMAGED, None)


def test_a_later_piece_that_is_gone_is_damage_and_ends_the_connection() -> None:
    with requested(PACKINGS[0]) as (request, member):
        member.ends[0].sendall(value(PACKINGS[0], 0) + b"EN\r\n" + value(PACKINGS[0], 2))
        assert request.advance() == (Answer.DAMAGED, None)
        assert member.take_idle() is None


@pytest.mark.parametrize(
    "text",
    [
        b"SERVER_ERROR out of memory storing object for a while\r\n",
        b"CLIENT_ERROR bad command line format\r\n",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
        b"x" * 100,
    ],
)
def test_a_line_that_is_longer_than_any_of_memcached_is_refused_at_once(text: bytes) -> None:
    with requested(PACKINGS[0]) as (request, member):
        member.ends[0].sendall(text)
        with pytest.raises(memcached.BadAnswer, match=text[:10].decode()):
            request.advance()


def test_more_than_an_answer_ends_the_connection() -> None:
    """What follows would be taken for the answer to the next request."""
    with requested(PACKINGS[0]) as (request, member):
        member.ends[0].sendall(b"EN\r\nEN\r\n")
        with pytest.raises(memcached.BadAnswer):
            request.advance()
        assert member.take_idle() is None


def test_a_probe_whose_answer_is_cut_in_two_succeeds() -> None:
    with scripted(b"M") as member:
        member.trip(OSError("gone"))

        class Late(socket.socket):
            """Sends the rest once the beginning was received."""

            def recv(self, *args: int) -> bytes:
                try:
                    return super().recv(*args)
                finally:
                    with suppress(OSError):
                        member.ends[0].sendall(b"N\r\n")

        connection = member._connect()
        late = Late(fileno=connection.detach())
        member._connect = lambda: late  # type: ignore[method-assign]
        assert member.probe()
        assert member.why_out is None


@pytest.mark.parametrize("answer", [b"", b"M", b"ERROR\r\n", b"x" * 10_000, b"MN\n"])
def test_a_probe_of_something_else_fails_and_says_why(answer: bytes) -> None:
    with scripted(answer) as member:
        member.trip(OSError("gone"))
        assert not member.probe()
        assert member.why_out not in (None, "gone")
        assert "Resource temporarily" not in str(member.why_out)


def test_lines_of_an_answer_may_be_cut_anywhere() -> None:
    blocks = [WHOLE, WHOLE._replace(number=1), WHOLE._replace(number=2)]
    stored = len(value(PACKINGS[0], 0).split(b"\r\n", 1)[1]) - 2
    answer = b"HD s%d\r\nEN\r\nHD s0\r\n" % stored
    for cut in range(len(answer)):
        with scripted(answer[:cut]) as member, suppress(*FAILURES):
            member.has(PACKINGS[0], blocks)
            raise AssertionError("it was cut")
    with scripted(answer) as member:
        assert member.has(PACKINGS[0], blocks) == [True, False, False]


def test_a_value_of_another_size_is_not_there() -> None:
    with scripted(b"HD s5\r\n") as member:
        assert member.has(PACKINGS[0], [WHOLE]) == [False]


def test_many_threads_may_close_the_idle_connections_at_once() -> None:
    """`trip` closes them, and several fetches fail at the same moment."""

    class Vanishing(list[tuple[float, socket.socket]]):
        def __bool__(self) -> bool:
            return True  # and then another thread takes the last one

    with scripted() as member:
        member._idle = Vanishing()
        member.trip(OSError("gone"))
    assert member.why_out == "gone"


def test_a_request_that_cannot_be_prepared_holds_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_length: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(memcached.BUFFERS, "take", no_memory)
    with scripted() as member:
        with pytest.raises(MemoryError):
            member.read(PACKINGS[0], WHOLE)
        assert member.free_slots == member.connections


def test_who_waited_for_a_connection_of_a_member_that_failed_meanwhile_fails_at_once() -> None:
    with scripted() as member:
        member.trip(OSError("gone"))
        with pytest.raises(AllBusy):
            member.read(PACKINGS[0], WHOLE)
        assert not member.ends, "no connection was made"


def test_a_connection_that_the_member_has_closed_is_no_failure_of_the_member() -> None:
    for answer, ask in (
        (b"EN\r\n", lambda: member.has(PACKINGS[0], [WHOLE]) == [False]),
        (b"HD\r\n" * 3, lambda: member.store(PACKINGS[0], [(WHOLE, memoryview(DATA))]) == []),
        (b"NF\r\n", lambda: member.delete(PACKINGS[0], [WHOLE]) is None),
        (b"EN\r\n", lambda: member.read(PACKINGS[0], WHOLE) == (Answer.MISS, None)),
    ):
        with scripted(b"", answer) as member:
            member.give_back(member.take()[0])
            member.ends[0].close()  # it was restarted
            assert ask()
            assert len(member.ends) == 2


def test_a_block_counts_as_refused_if_one_of_its_pieces_is() -> None:
    other = WHOLE._replace(number=1)
    with scripted(b"HD\r\nHD\r\nHD\r\nHD\r\nSERVER_ERROR no\r\nHD\r\n") as member:
        some = [(WHOLE, memoryview(DATA)), (other, memoryview(DATA))]
        assert member.store(PACKINGS[0], some) == [other]


@pytest.mark.parametrize("deadline_s", [1.0, 5.0, 60.0, 3600.0])
def test_whatever_a_member_does_a_reader_has_time_left_for_the_store(deadline_s: float) -> None:
    member = Member(Address("any", 1), deadline_s=deadline_s)
    for_a_connection = member.answer_s + min(memcached.CONNECT_S, member.answer_s)
    assert for_a_connection + member.time_for(1024**3) <= deadline_s * 3 / 4


def test_a_member_that_takes_bytes_too_slowly_fails() -> None:
    with scripted() as member:
        member.time_for = lambda _size: -1.0  # type: ignore[method-assign]
        with pytest.raises(TimeoutError, match="too slowly"):
            member.store(PACKINGS[0], [(WHOLE, memoryview(DATA))])


def test_a_member_that_is_no_longer_one_keeps_no_connection() -> None:
    with scripted() as member:
        connection, _ = member.take()
        member.retire()
        member.give_back(connection)
        assert connection.fileno() == -1


def test_a_member_that_fails_again_soon_is_probed_less_and_less_often() -> None:
    now_s = 0.0
    member = Scripted()
    member._now = lambda: now_s
    pauses: list[float] = []
    for _ in range(4):
        member.trip(OSError("gone"))
        began_s = now_s
        while not member.wants_probe:
            now_s += 0.5
        pauses.append(now_s - began_s)
        member.script = [b"MN\r\n"]
        assert member.probe()
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    now_s += 100.0
    member.trip(OSError("gone"))
    assert not member.wants_probe
    now_s += 1.0
    assert member.wants_probe
    for end in member.ends:
        end.close()
