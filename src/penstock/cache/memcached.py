"""One member of a shared tier: a memcached server, over plain sockets and its meta protocol.

A block is one value or several, all with the same member, so one connection reads a block: the
first piece, and then the others, which are all requested at once. Each piece is received straight
into the memory that answers the reader. (2 cores, loopback, 110 KiB: 23 us of CPU for a value;
pymemcache takes 67.)

    mg NAME N5 v   ──▶  VA size, value      a hit
                   ──▶  VA 0 W              a miss, and the caller may fetch for 5 s: a lease
                   ──▶  VA 0 Z              another client has the lease
    ms NAME size   ──▶  HD                  stored; ends the lease

A member that does not answer in time, or answers nonsense, is out of service until a probe succeeds
(`trip`, `probe`). So its failure costs the requests that were in flight, once. A value that does
not match is only a miss: the next fetch replaces it.

Threading: any thread. A connection belongs to one block until that is answered.
"""

import logging
import math
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

from typing_extensions import Buffer

from penstock.cache.identity import Block
from penstock.cache.members import Address
from penstock.cache.seal import Packing, piece_lengths
from penstock.store import Progress
from penstock.store.buffers import BUFFERS
from penstock.store.http import has_something_to_read

log = logging.getLogger(__name__)

CONNECT_S = 0.5
# Between two parts of an answer. A member answers within a millisecond or two; one that is swapped
# out, stopped or cut off does not.
ANSWER_S = 1.0
_LEAST_BYTES_PER_S = 10_000_000  # a slower one costs more than it saves
# After the winner of a lease died, others wait so long.
LEASE_S = 5
# Of one process to one member. 16 values in flight fill any network, and 1,024 connections, the
# default limit of memcached, are enough for 64 processes. Workers of a mount share them.
MOST_CONNECTIONS = 16
LEAST_CONNECTIONS = 4
_FRESH_S = 1.0  # a connection used so recently is not checked before it is used again
_FIRST_PROBE_S, _LONGEST_PROBE_S = 1.0, 30.0
_TIMEVAL = struct.Struct("@ll")
_MOST_GIVEN_UP = 64  # more than a member has connections
_LINE_BYTES = 2048
_MOST_PARTS = 64  # of one sendmsg; the kernel's limit is 1,024

NotYet = BlockingIOError


class Answer(Enum):
    HIT = "hit"
    CLAIMED = "claimed"  # a miss; the caller holds the lease
    TAKEN = "taken"  # a miss; another client holds the lease
    MISS = "miss"
    DAMAGED = "damaged"  # what is there is not what was written


class AllBusy(Exception):
    """No connection is free, or the member failed while the caller waited for one. No failure of
    this request."""


class BadAnswer(Exception):
    """The member does not speak memcached's meta protocol, or has an error of its own."""


# What a member may fail with. Each is a miss.
FAILURES = (OSError, BadAnswer)


class Member:
    def __init__(
        self,
        address: Address,
        now: Callable[[], float] = time.monotonic,
        connections: int = MOST_CONNECTIONS,
        deadline_s: float = 60.0,
    ) -> None:
        """`deadline_s`: of readers, who must have time left for the store after this one failed."""
        self.address = address
        self.name = str(address).encode()
        self.why_out: str | None = None  # why it is out of service
        self.answer_s = min(ANSWER_S, deadline_s / 8)
        self._most_s = deadline_s / 2
        self._now = now
        self._next_probe_s = 0.0
        self._back_s = -math.inf  # when a probe last succeeded
        self._pause_s = _FIRST_PROBE_S
        self._idle: list[tuple[float, socket.socket]] = []
        self._slots = threading.Semaphore(connections)
        # Names that were requested, and not answered: the latest.
        self._given_up: deque[bytes] = deque(maxlen=_MOST_GIVEN_UP)

    # -- connections ----------------------------------------------------------------------

    def take_idle(self) -> socket.socket | None:
        """Return a connection if that needs no waiting."""
        if not self._idle or not self._slots.acquire(blocking=False):
            return None
        connection = self._pop_idle()
        if connection is None:
            self._slots.release()
        return connection

    def take(self, *, fresh: bool = False) -> tuple[socket.socket, bool]:
        """Return a connection, and whether it was used before. Raises OSError or AllBusy."""
        if not self._slots.acquire(timeout=self.answer_s):
            raise AllBusy
        try:
            if self.why_out is not None and not fresh:
                raise AllBusy
            connection = None if fresh else self._pop_idle()
            if connection is not None:
                return connection, True
            return self._connect(), False
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, connection: socket.socket) -> None:
        """Keep a connection whose last answer was read completely."""
        self._idle.append((time.monotonic(), connection))
        if self.why_out is not None:  # after it: `trip` may run at the same time
            self.close()
        self._slots.release()

    def discard(self, connection: socket.socket) -> None:
        connection.close()
        self._slots.release()

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):  # several threads do so at once when a member fails
            while True:
                self._idle.pop()[1].close()

    def retire(self) -> None:
        """Close all connections, those in use as soon as they are given back."""
        self.why_out = "it is no longer a member"
        self.close()

    def time_for(self, size_bytes: int) -> float:
        """Return how long so many bytes may take, in either direction."""
        return min(self.answer_s + size_bytes / _LEAST_BYTES_PER_S, self._most_s)

    def _pop_idle(self) -> socket.socket | None:
        while True:
            try:
                since_s, connection = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since_s < _FRESH_S or not has_something_to_read(connection):
                return connection
            connection.close()  # the member has closed it

    def _connect(self) -> socket.socket:
        address = self.address
        within_s = min(CONNECT_S, self.answer_s)
        connection = socket.create_connection((address.host, address.port), within_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # In the kernel: Python's own timeouts would poll before each call.
        timeout = _TIMEVAL.pack(int(self.answer_s), int(self.answer_s % 1 * 1_000_000))
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        return connection

    # -- the breaker ------------------------------------------------------------------------

    def trip(self, error: Exception) -> None:
        """Take the member out of service: it failed."""
        if self.why_out is None:
            log.warning("shared tier: %s: %s; reading without it", self.address, error)
            # One that answers probes and nothing else must not cost a request each second.
            again = self._now() - self._back_s < _LONGEST_PROBE_S
            self._pause_s = min(_LONGEST_PROBE_S, 2 * self._pause_s) if again else _FIRST_PROBE_S
            self._next_probe_s = self._now() + self._pause_s
        self.why_out = str(error) or type(error).__name__
        self.close()

    @property
    def wants_probe(self) -> bool:
        return self.why_out is not None and self._now() >= self._next_probe_s

    def probe(self) -> bool:
        """Put the member back into service if it answers; else wait longer for the next probe."""
        try:
            connection, _ = self.take(fresh=True)
            try:
                self._send_all(connection, [b"mn\r\n"])
                if self._read_lines(connection, 1) != [b"MN"]:
                    raise BadAnswer("it does not speak memcached's meta protocol")
                self._take_back_leases(connection)
            finally:
                self.discard(connection)
        except (*FAILURES, AllBusy) as error:
            self.why_out = str(error) or type(error).__name__
            self._pause_s = min(_LONGEST_PROBE_S, 2 * self._pause_s)
            self._next_probe_s = self._now() + self._pause_s
            return False
        log.info("shared tier: %s answers again", self.address)
        self._back_s = self._now()
        self.why_out = None
        return True

    def note_given_up(self, name: bytes) -> None:
        """Note a request that is read later, perhaps, by a member that has stopped."""
        self._given_up.append(name)

    def _take_back_leases(self, connection: socket.socket) -> None:
        """Remove the leases of requests that nobody waits for any more: a member that goes on after
        a while has read them all the same. Readers were seen to wait 4.6 s for their end."""
        names = [self._given_up.popleft() for _ in range(len(self._given_up))]
        self._send_all(connection, [b"mg %s s\r\n" % name for name in names])
        lines = self._read_lines(connection, len(names))
        answers = zip(names, lines, strict=True)
        leases = [name for name, line in answers if line.startswith(b"HD s0")]  # an empty value
        self._send_all(connection, [b"md %s\r\n" % name for name in leases])
        self._read_lines(connection, len(leases))

    # -- requests that block ------------------------------------------------------------------

    def read(
        self, packing: Packing, block: Block, progress: Progress | None = None
    ) -> tuple[Answer, Buffer | None]:
        """Return what the member has of the block. Raises one of FAILURES."""
        while True:
            request = BlockRequest(self, packing, block, progress)
            connection, was_used = self.take()
            try:
                request.send(connection)
                return request.wait()
            except ConnectionError:
                # The member may have been restarted since the connection was used last.
                if not was_used or request.has_received:
                    raise
                self.close()

    def has(self, packing: Packing, blocks: Sequence[Block]) -> list[bool]:
        """Return which of the blocks are there. Raises one of FAILURES."""
        names = (packing.name(block, 0) for block in blocks)
        request = b"".join(b"mg %s s\r\n" % name for name in names)
        lines = self._exchange([request], len(blocks))
        # A lease has another size: it is an empty value.
        sizes = (packing.value_bytes(piece_lengths(block.length)[0]) for block in blocks)
        return [line == b"HD s%d" % size for line, size in zip(lines, sizes, strict=True)]

    def store(self, packing: Packing, blocks: Sequence[tuple[Block, memoryview]]) -> list[Block]:
        """Store blocks; return those that were refused. Raises one of FAILURES."""
        sizes: list[int] = []
        parts: list[Buffer] = []
        for block, data in blocks:
            # The first piece last: it ends the lease, and readers look for it first.
            pieces = list(_pieces(data))
            for number in reversed(range(len(pieces))):
                name = packing.name(block, number)
                value = packing.pack(name, pieces[number])
                size = sum(memoryview(part).nbytes for part in value)
                parts += [b"ms %s %d\r\n" % (name, size), *value, b"\r\n"]
            sizes.append(len(pieces))
        lines = self._exchange(parts, sum(sizes))
        refused: list[Block] = []
        for (block, _), size in zip(blocks, sizes, strict=True):
            answers, lines = lines[:size], lines[size:]
            if any(answer != b"HD" for answer in answers):
                refused.append(block)
        return refused

    def delete(self, packing: Packing, blocks: Sequence[Block]) -> None:
        """Remove blocks, or end their leases. Raises one of FAILURES."""
        names = (packing.name(block, 0) for block in blocks)
        self._exchange([b"".join(b"md %s\r\n" % name for name in names)], len(blocks))

    def _exchange(self, parts: Sequence[Buffer], count: int) -> list[bytes]:
        """Send a request and return that many lines of its answer."""
        while True:
            connection, was_used = self.take()
            is_whole = False
            try:
                self._send_all(connection, parts)
                lines = self._read_lines(connection, count)
                is_whole = True
                return lines
            except ConnectionError:
                if not was_used:
                    raise
                self.close()  # as in `read`; all of these requests may be made twice
            finally:
                (self.give_back if is_whole else self.discard)(connection)

    def _send_all(self, connection: socket.socket, parts: Sequence[Buffer]) -> None:
        left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        until_s = time.monotonic() + self.time_for(sum(map(len, left)))
        try:
            while left:
                if time.monotonic() > until_s:
                    raise TimeoutError("it takes what it is sent too slowly")
                left = _behind(left, connection.sendmsg(left[:_MOST_PARTS]))
        except NotYet:
            raise TimeoutError("it takes nothing more") from None

    def _read_lines(self, connection: socket.socket, count: int) -> list[bytes]:
        received = b""
        until_s = time.monotonic() + self.answer_s
        try:
            while received.count(b"\r\n") < count:
                if len(received) > count * _LINE_BYTES or time.monotonic() > until_s:
                    raise BadAnswer("an answer without an end")
                if not (more := connection.recv(_LINE_BYTES * 8)):
                    raise ConnectionResetError("the connection ended before the answer")
                received += more
        except NotYet:
            raise TimeoutError(f"no answer within {self.answer_s:g} s") from None
        return received.split(b"\r\n")[:count]


class BlockRequest:
    """A block that is being read from a member. One thread at a time.

    `advance` takes what has arrived and raises NotYet if that is not everything; `wait` blocks.
    From `send` on the connection belongs to the request: whatever ends it also gives the
    connection back, or closes it. All memory is allocated before that.
    """

    _connection: socket.socket
    _until_s: float
    _is_open = False  # the connection is ours

    def __init__(
        self,
        member: Member,
        packing: Packing,
        block: Block,
        progress: Progress | None = None,
    ) -> None:
        self._member = member
        self._packing = packing
        self._block = block
        self._progress = progress
        self._lengths = piece_lengths(block.length)
        self._target = BUFFERS.take(block.length) if len(self._lengths) > 1 else None
        self._filled = 0
        self.has_received = False
        self._expect(0)

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() > self._until_s

    def send(self, connection: socket.socket, flags: int = 0) -> None:
        """Request the first piece. Raises OSError, and closes the connection then."""
        self._connection, self._is_open = connection, True
        self._until_s = time.monotonic() + self._member.time_for(self._block.length)
        request = b"mg %s N%d v\r\n" % (self._packing.name(self._block, 0), LEASE_S)
        try:
            if connection.send(request, flags) != len(request):
                raise NotYet("the connection takes no more")
        except BaseException:
            self.abandon()
            raise

    def wait(self) -> tuple[Answer, Buffer | None]:
        """Return the answer. Raises one of FAILURES."""
        try:
            return self.advance(0)
        except NotYet:
            self.abandon()
            raise TimeoutError(f"no answer within {self._member.answer_s:g} s") from None

    def abandon(self) -> None:
        """Close the connection of a request that is not answered."""
        self._is_open = False
        if not self._number:  # the first piece: the one with the lease
            self._member.note_given_up(self._packing.name(self._block, 0))
        self._member.discard(self._connection)

    def __del__(self) -> None:
        """A started fetch may be dropped together with its request, by a bug or at an end."""
        if self._is_open:
            self.abandon()

    def advance(self, flags: int = socket.MSG_DONTWAIT) -> tuple[Answer, Buffer | None]:
        """Return the answer once all of it has arrived. Raises NotYet, or one of FAILURES."""
        try:
            answer, data = self._advance(flags)
        except NotYet:
            raise
        except BaseException:
            self.abandon()
            raise
        # After a damaged piece, answers to the other pieces may still be on their way.
        if answer is Answer.DAMAGED:
            self.abandon()
        else:
            self._is_open = False
            self._member.give_back(self._connection)
        return answer, data

    # -- inside -------------------------------------------------------------------------

    def _expect(self, number: int) -> None:
        """Prepare the memory for a piece. Its length is known, so where each byte belongs is known
        before the first one arrives."""
        self._number = number
        packing, length = self._packing, self._lengths[number]
        tail = packing.tail_bytes
        self._line = b"VA %d\r\n" % packing.value_bytes(length)
        self._head = memoryview(bytearray(len(self._line) + packing.head_bytes))
        if self._target is not None and not tail:
            self._body = self._target[self._filled : self._filled + length]
        else:
            self._body = memoryview(bytearray(length + tail))
        self._end = memoryview(bytearray(2))
        self._left = [self._head, self._body, self._end]
        self._got = 0
        self._is_hit = False

    def _advance(self, flags: int) -> tuple[Answer, Buffer | None]:
        while True:
            self._receive_piece(flags)
            if not self._is_hit:
                return self._miss()
            name = self._packing.name(self._block, self._number)
            if self._end.tobytes() != b"\r\n":
                raise BadAnswer("a value without its end")
            piece = self._packing.unpack(name, self._head[len(self._line) :], self._body)
            if piece is None:
                return Answer.DAMAGED, None
            if self._target is None:
                return Answer.HIT, piece
            length = self._lengths[self._number]
            if self._packing.tail_bytes:
                self._target[self._filled : self._filled + length] = piece
            self._filled += length
            if self._number + 1 == len(self._lengths):
                return Answer.HIT, self._target
            if self._progress is not None:
                self._progress(self._target[: self._filled])
            if self._number == 0:
                self._request_rest()
            self._expect(self._number + 1)

    def _request_rest(self) -> None:
        names = (self._packing.name(self._block, one) for one in range(1, len(self._lengths)))
        # Short of the socket's buffer: 16 names of 45 bytes for a block of 8 MiB.
        try:
            self._connection.sendall(b"".join(b"mg %s v\r\n" % name for name in names))
        except NotYet:  # it would look like an answer that is still on its way
            raise TimeoutError("it takes nothing more") from None

    def _receive_piece(self, flags: int) -> None:
        """Receive the answer for one piece: all of a value, or the line of a miss."""
        while self._left:
            if self.is_overdue:
                raise TimeoutError("the answer took too long")
            got = self._connection.recvmsg_into(self._left, 0, flags)[0]
            if not got:
                raise ConnectionResetError("the connection ended before the answer")
            self.has_received = True
            self._got += got
            self._left = _behind(self._left, got)
            if not self._is_hit:
                line = bytes(self._head[: min(self._got, len(self._head))])
                end = line.find(b"\r\n")
                if end < 0:
                    if len(line) == len(self._head):
                        return  # no line of memcached is that long, but for one of an error
                    continue
                self._is_hit = line.startswith(self._line)
                # `VA 0 W` has an empty value behind it.
                if not self._is_hit and self._got >= end + (4 if line.startswith(b"VA") else 2):
                    return
            if self._is_hit and not flags:
                flags = socket.MSG_WAITALL  # the rest is on its way, and its length is known

    def _miss(self) -> tuple[Answer, None]:
        received = bytes(self._head[: min(self._got, len(self._head))])
        line, end, _ = received.partition(b"\r\n")
        if self._number:
            # A later piece is not there, or another one: answers are still on their way.
            return Answer.DAMAGED, None
        code, *rest = line.split(b" ")
        if not end or code not in (b"EN", b"VA"):
            raise BadAnswer(f"it answered {line[:40]!r}")
        size, *flags = rest or [b""]
        # A lease is an empty value with one of these flags. One without them is no lease, and
        # never ends.
        is_lease = size == b"0" and (b"W" in flags or b"Z" in flags)
        if code == b"VA" and not is_lease:
            return Answer.DAMAGED, None
        if self._got != len(line) + (4 if is_lease else 2):
            raise BadAnswer("it answered more than it was asked for")
        if code == b"EN":
            return Answer.MISS, None
        return Answer.CLAIMED if b"W" in flags else Answer.TAKEN, None


def _pieces(data: memoryview) -> list[memoryview]:
    pieces: list[memoryview] = []
    for length in piece_lengths(len(data)):
        pieces.append(data[:length])
        data = data[length:]
    return pieces


def _behind(parts: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of the parts behind the first `done` bytes."""
    left = parts
    while left and done >= len(left[0]):
        done -= len(left[0])
        left = left[1:]
    return [left[0][done:], *left[1:]] if done else left
