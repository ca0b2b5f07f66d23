"""Requests and answers of a session, over a socket pair. The test plays the kernel."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Self

import pytest

from penstock.errors import CatalogDamaged, ObjectChanged
from penstock.fuse import protocol as p
from penstock.fuse import session as module
from penstock.fuse.journal import Journal, new_journal
from penstock.fuse.session import (
    BlockingReply,
    FetchReply,
    FuseError,
    Handler,
    Reply,
    RequestInfo,
    SendReply,
    Session,
)
from penstock.metrics import Counters
from tests.support.waiting import PATIENCE_S, wait_for_input, wait_until

NODE = 77
Received = tuple[int, int, bytes]  # unique, error, body


class Kernel:
    """The other end of a session's descriptor. Like /dev/fuse, it keeps messages apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peer.settimeout(PATIENCE_S)
        self.counters = Counters()
        self.session = Session(self.end.fileno(), 1, self.counters)
        self.gate = threading.Event()  # for handlers that block; open when the test is over
        self.interruptions: Iterator[int] = iter(())  # errors of the next reads
        self.is_served = False
        self.ended: list[bool] = []
        read = os.readv

        def readv(descriptor: int, buffers: tuple[bytearray, ...]) -> int:
            if number := next(self.interruptions, 0):
                raise OSError(number, "interrupted")
            if length := read(descriptor, buffers):
                return length
            raise OSError(errno.ENODEV, "unmounted")  # a socket has only the end of file for that

        monkeypatch.setattr(module.os, "readv", readv)

    def serve(self, handlers: dict[int, Handler]) -> None:
        self.is_served = True
        self.session.start(handlers, lambda: self.ended.append(True))

    def send(self, op: int, unique: int, body: bytes = b"") -> None:
        self.peer.send(request(op, unique, body))

    def receive(self) -> Received:
        message = self.peer.recv(1 << 16)
        length, error, unique = p.OUT_HEADER.unpack_from(message)
        assert length == len(message)
        return unique, error, message[p.OUT_HEADER_BYTES :]

    def ask(self, op: int, unique: int, body: bytes = b"") -> Received:
        self.send(op, unique, body)
        return self.receive()

    def unmount(self) -> None:
        self.gate.set()
        self.peer.shutdown(socket.SHUT_WR)
        if self.is_served:
            self.session.join()


def request(op: int, unique: int, body: bytes = b"") -> bytes:
    return p.IN_HEADER.pack(p.IN_HEADER_BYTES + len(body), op, unique, NODE, 0, 0, 0, 0, 0) + body


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel(monkeypatch)
    with made.end, made.peer:
        yield made
        made.unmount()
        wait_until(lambda: made.ended == [True] * made.is_served)
        made.peer.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing was answered twice
            made.peer.recv(1)


def echo(node: int, request: module.Request, length: int) -> Reply:
    return node.to_bytes(1, "little"), memoryview(bytes(request[p.IN_HEADER_BYTES : length]))


def test_an_answer_carries_the_number_of_its_request_and_is_counted(kernel: Kernel) -> None:
    kernel.interruptions = iter([errno.ENOENT, errno.EINTR, errno.EAGAIN])
    kernel.serve({p.Op.READ: echo, p.Op.LOOKUP: echo})
    assert kernel.ask(p.Op.READ, 10, b"four") == (10, 0, b"\x4dfour")
    assert kernel.ask(p.Op.LOOKUP, 2**40, b"a name\0") == (2**40, 0, b"\x4da name\0")
    assert kernel.ask(p.Op.READ, 14) == (14, 0, b"\x4d"), "nothing of the request before"
    assert kernel.ask(p.Op.FLUSH, 16) == (16, -errno.ENOSYS, b""), "without a handler"
    assert kernel.ask(4096, 18) == (18, -errno.ENOSYS, b"")
    assert kernel.session.requests() == {"READ": 2, "LOOKUP": 1, "FLUSH": 1, "OP0": 1}
    kernel.unmount()  # bytes are counted after they are sent
    assert kernel.session.read_bytes() == 6
    assert kernel.counters.by_label("errors") == {}


def test_a_handler_that_returns_none_sends_no_reply(kernel: Kernel) -> None:
    kernel.serve({p.Op.FORGET: lambda *_: None, p.Op.RELEASE: lambda *_: ()})
    kernel.send(p.Op.FORGET, 10)
    assert kernel.ask(p.Op.RELEASE, 12) == (12, 0, b""), "an empty answer is one"


def test_a_request_that_meets_a_damaged_catalog_waits_for_a_new_one_within_a_limit(
    kernel: Kernel,
) -> None:
    damaged = True

    def look_up(node: int, request: module.Request, length: int) -> Reply:
        if damaged:
            raise CatalogDamaged("catalog x: 1 of its 9 pages is damaged")
        return echo(node, request, length)

    kernel.serve({p.Op.LOOKUP: look_up, p.Op.READ: echo})
    kernel.send(p.Op.LOOKUP, 10, b"one\0")
    kernel.send(p.Op.LOOKUP, 12, b"two\0")
    assert kernel.ask(p.Op.READ, 14, b"ok") == (14, 0, b"\x4dok"), "others do not wait"
    kernel.session.retry_parked(give_up_after_s=60)
    damaged = False
    answers = [wait_for_answer(kernel, give_up_after_s=60) for _ in range(2)]
    assert sorted(answers) == [(10, 0, b"\x4done\0"), (12, 0, b"\x4dtwo\0")]
    damaged = True
    kernel.send(p.Op.LOOKUP, 16, b"three\0")
    assert wait_for_answer(kernel, give_up_after_s=0) == (16, -errno.EIO, b"")
    assert kernel.counters.by_label("errors") == {"EIO": 1}


def wait_for_answer(kernel: Kernel, give_up_after_s: float) -> Received:
    """As the beat of a server does it: again and again."""

    def has_answer() -> bool:
        kernel.session.retry_parked(give_up_after_s)
        return wait_for_input(kernel.peer, 0)

    wait_until(has_answer, "nothing is answered")
    return kernel.receive()


def later(work: Callable[[], Reply]) -> Reply:
    def start(answer: SendReply) -> None:
        try:
            answer(work())  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - handed on
            answer(error)

    return FetchReply(start)


@pytest.mark.parametrize(
    "way", [lambda work: work(), later, BlockingReply], ids=["now", "later", "disk"]
)
def test_an_error_is_answered_with_its_number_and_counted_unless_expected(
    kernel: Kernel, way: Callable[[Callable[[], Reply]], Reply]
) -> None:
    errors = iter([FuseError(errno.ENODATA), ObjectChanged("x"), ValueError("a bug")])

    def fail() -> Reply:
        raise next(errors)

    kernel.serve({p.Op.READ: lambda *_: way(fail), p.Op.LOOKUP: lambda *_: way(lambda: (b"ok",))})
    numbers = [kernel.ask(p.Op.READ, unique)[:2] for unique in (10, 12, 14)]
    assert numbers == [(10, -errno.ENODATA), (12, -errno.ESTALE), (14, -errno.EIO)]
    assert kernel.counters.by_label("errors") == {"ESTALE": 1, "EIO": 1}
    assert kernel.ask(p.Op.LOOKUP, 16) == (16, 0, b"ok")
    assert kernel.session.read_bytes() == 0


def test_answers_that_wait_for_storage_or_disk_block_no_other(kernel: Kernel) -> None:
    waiting: list[SendReply] = []

    def wait_for_disk() -> tuple[bytes]:
        assert kernel.gate.wait(PATIENCE_S)
        return (b"opened",)

    kernel.serve(
        {
            p.Op.READ: lambda *_: FetchReply(waiting.append),
            p.Op.OPEN: lambda *_: BlockingReply(wait_for_disk),
            p.Op.LOOKUP: echo,
        }
    )
    for number in range(1, 5):  # more than there are threads
        kernel.send(p.Op.OPEN, number)
        kernel.send(p.Op.READ, 10 * number)
    wait_until(lambda: len(waiting) == 4)
    assert kernel.ask(p.Op.LOOKUP, 7) == (7, 0, b"\x4d")
    for answer in waiting:
        answer((b"by", b"tes"))
    assert {kernel.receive() for _ in waiting} == {(n, 0, b"bytes") for n in (10, 20, 30, 40)}
    assert kernel.session.read_bytes() == 20
    kernel.gate.set()
    assert {kernel.receive() for _ in waiting} == {(n, 0, b"opened") for n in (1, 2, 3, 4)}


def test_a_thread_that_fetches_lets_another_take_the_next_request(kernel: Kernel) -> None:
    session = kernel.session = Session(kernel.end.fileno(), 1, kernel.counters, max_receivers=3)
    fetching: list[threading.Thread] = []
    left_to_others: list[Callable[[], object]] = []

    class FetchJob:
        def __init__(self, answer: SendReply) -> None:
            self.answer = answer

        def __call__(self) -> None:
            fetching.append(threading.current_thread())
            assert kernel.gate.wait(PATIENCE_S)
            self.answer((b"bytes",))

        def begin(self) -> None:
            return None

    def fetch(answer: SendReply) -> FetchJob:
        return FetchJob(answer)

    kernel.serve(
        {p.Op.READ: lambda *_: FetchReply(fetch, left_to_others.append), p.Op.LOOKUP: echo}
    )
    for number in (10, 12):
        kernel.send(p.Op.READ, number)
    wait_until(lambda: len(fetching) == 2)
    assert kernel.ask(p.Op.LOOKUP, 14) == (14, 0, b"\x4d")
    assert session.stuck_for_s() == 0, "who fetches may take as long as storage does"
    kernel.send(p.Op.READ, 16)
    wait_until(lambda: left_to_others)
    assert kernel.ask(p.Op.LOOKUP, 18) == (18, 0, b"\x4d"), "the last of them takes on"
    assert len(set(fetching)) == 2
    kernel.gate.set()
    left_to_others.pop()()
    assert {kernel.receive()[0] for _ in range(3)} == {10, 12, 16}
    for number in range(20, 40, 2):
        wait_until(lambda: session._idle_receivers == 2)
        assert kernel.ask(p.Op.READ, number) == (number, 0, b"bytes")
    assert len(session._receivers) == 3, "those that were started take turns"


class Arriving:
    """A fetch that can be begun. What arrives for it is answered; "stop" is its last word."""

    def __init__(self, answer: SendReply, events: list[str]) -> None:
        self.answer = answer
        self.events = events
        self.store, self.connection = socket.socketpair()
        self.connection.setblocking(False)
        self.came = b""

    def __call__(self) -> None:
        raise AssertionError("it can be begun")

    def begin(self) -> Self:
        return self

    def fileno(self) -> int:
        return self.connection.fileno()

    def advance(self) -> bool:
        with suppress(BlockingIOError):
            self.came += self.connection.recv(100)
        if not self.came.endswith(b"stop"):
            return False
        self.events.append("answered")
        self.answer((self.came,))
        return True

    def abandon(self, error: Exception) -> None:
        self.answer(error)

    def write_to_cache(self) -> None:
        self.events.append("put away")
        self.store.close()
        self.connection.close()


def test_a_started_fetch_is_answered_piecewise_while_requests_are_taken(kernel: Kernel) -> None:
    begun: list[Arriving] = []
    events: list[str] = []

    def start(answer: SendReply) -> Arriving:
        begun.append(Arriving(answer, events))
        return begun[-1]

    def ask_for_what_is_stored(*_: object) -> Reply:
        events.append("asked")
        return ()

    kernel.serve(
        {
            p.Op.READ: lambda *_: FetchReply(start),
            p.Op.LOOKUP: echo,
            p.Op.GETXATTR: ask_for_what_is_stored,
        }
    )
    for number in (10, 12, 14):
        kernel.send(p.Op.READ, number)
    assert kernel.ask(p.Op.LOOKUP, 16) == (16, 0, b"\x4d"), "one thread, and it waits for nobody"
    first, second, third = begun
    second.store.send(b"so far")
    wait_until(lambda: second.came)
    assert kernel.ask(p.Op.LOOKUP, 18) == (18, 0, b"\x4d")
    first.store.send(b"stop")
    assert kernel.receive() == (10, 0, b"stop")
    second.store.send(b"stop")
    assert kernel.receive() == (12, 0, b"so farstop")
    wait_until(lambda: events.count("put away") == 2)
    kernel.session._to_store.append((monotonic(), third))  # as if it had not been stored yet
    del events[:]
    assert kernel.ask(p.Op.GETXATTR, 20) == (20, 0, b"")
    assert events == ["put away", "asked"], "a handler may wait for what is stored"
    assert len(kernel.session._receivers) == 1
    kernel.session._started.clear()


def test_a_bug_in_a_started_fetch_costs_one_answer_and_not_the_mount(kernel: Kernel) -> None:
    begun: list[Arriving] = []

    def start(answer: SendReply) -> Arriving:
        begun.append(Arriving(answer, []))
        begun[-1].advance = lambda: 1 // 0  # type: ignore[method-assign]
        return begun[-1]

    kernel.serve({p.Op.READ: lambda *_: FetchReply(start), p.Op.LOOKUP: echo})
    kernel.send(p.Op.READ, 10)
    wait_until(lambda: begun)
    begun[0].store.send(b"stop")
    assert kernel.receive() == (10, -errno.EIO, b"")
    assert kernel.ask(p.Op.LOOKUP, 12) == (12, 0, b"\x4d")
    begun[0].write_to_cache()


@pytest.mark.parametrize("refuse", [True, False])
def test_a_resent_request_is_rejected_only_if_it_crashed_every_server(
    kernel: Kernel, *, refuse: bool
) -> None:
    kernel.session.take_over(refuse_resent=refuse)
    assert kernel.receive() == (0, p.Notify.RESEND, b""), "the kernel is asked to send again"
    kernel.serve({p.Op.READ: echo})
    resent = 10 | p.UNIQUE_RESENT
    expected = (resent, -errno.EIO, b"") if refuse else (resent, 0, b"\x4d")
    assert kernel.ask(p.Op.READ, resent) == expected
    assert kernel.ask(p.Op.READ, 12) == (12, 0, b"\x4d")


@pytest.mark.parametrize("refuse", [True, False])
def test_unanswered_requests_of_the_journal_are_answered_or_rejected_first(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, *, refuse: bool
) -> None:
    monkeypatch.setattr("penstock.fuse.journal._SLOTS", 4)
    with os.fdopen(new_journal()) as memory:
        before = Journal(memory.fileno())
        slot, buffer = before.take_slot()
        left = request(p.Op.READ, 10, b"left")
        buffer[: len(left)] = left
        before.note(10, slot)
        journal = Journal(memory.fileno())
        kernel.session = Session(kernel.end.fileno(), 1, kernel.counters, journal)
        kernel.session.take_over(refuse_resent=refuse)
        kernel.interruptions = iter([errno.EINTR] * 9)  # each gives its slot back
        kernel.serve({p.Op.READ: echo, p.Op.FORGET: lambda *_: None})
        assert kernel.receive() == ((10, -errno.EIO, b"") if refuse else (10, 0, b"\x4dleft"))
        kernel.send(p.Op.FORGET, 12)
        assert kernel.ask(p.Op.READ, 14, b"new") == (14, 0, b"\x4dnew")
        kernel.unmount()
        assert list(Journal(memory.fileno()).unanswered()) == []


def test_the_kernel_is_told_what_to_invalidate_and_what_to_store(kernel: Kernel) -> None:
    kernel.session.invalidate_entry(5, b"name")
    assert kernel.receive() == (0, 3, struct.pack("<QII", 5, 4, 0) + b"name\0")
    kernel.session.invalidate_pages(6)
    assert kernel.receive() == (0, 2, struct.pack("<Qqq", 6, 0, -1))
    assert kernel.session.store_pages(7, 4096, memoryview(b"pages"))
    assert kernel.receive() == (0, 4, struct.pack("<QQII", 7, 4096, 5, 0) + b"pages")
    assert kernel.session.holds(8)
    assert kernel.receive() == (0, 4, struct.pack("<QQII", 8, 0, 0, 0))


def test_invalidating_an_uncached_entry_is_no_error(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [errno.ENOENT, errno.ENODEV, errno.EINVAL]
    asked = RequestInfo(10, p.Op.READ, NODE, kernel.end.fileno())

    def fail(_descriptor: int, _data: object) -> int:
        raise OSError(numbers[0], "refused")

    monkeypatch.setattr(module, "os", SimpleNamespace(write=fail, writev=fail))
    while numbers[0] != errno.EINVAL:
        assert not kernel.session.holds(7)
        kernel.session.invalidate_pages(7)
        kernel.session._reply_error(asked, errno.EIO)  # its reader was killed
        del numbers[0]
    for tell in (kernel.session.holds, kernel.session.invalidate_pages):
        with pytest.raises(OSError, match="refused"):
            tell(7)


# -- takers that hang -----------------------------------------------------------------------


class Time:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


class Disk:
    """Hangs in the first so many reads, until the test is over."""

    def __init__(self, kernel: Kernel, hangs: int) -> None:
        self.kernel = kernel
        self.hangs = hangs
        self.asked: list[bytes] = []
        self.takers: list[threading.Thread] = []

    def read(self, _node: int, request: module.Request, length: int) -> Reply:
        self.takers.append(threading.current_thread())
        self.asked.append(bytes(request[p.IN_HEADER_BYTES : length]))
        if len(self.asked) <= self.hangs:
            assert self.kernel.gate.wait(PATIENCE_S)
            return (b"late",)
        return (b"bytes",)


def test_a_session_is_stuck_while_a_receiver_stays_at_one_request(
    kernel: Kernel, time: Time
) -> None:
    disk, session = Disk(kernel, hangs=1), kernel.session
    kernel.serve({p.Op.READ: disk.read})
    assert session.stuck_for_s() == 0
    time.now_s += 5
    assert session.stuck_for_s() == 0, "idle"
    kernel.send(p.Op.READ, 10)
    wait_until(lambda: disk.asked)
    assert session.stuck_for_s() == 0, "since now"
    time.now_s += 5
    assert session.stuck_for_s() == 5
    kernel.gate.set()
    assert kernel.receive() == (10, 0, b"late")
    wait_until(lambda: session.stuck_for_s() == 0)
    assert kernel.ask(p.Op.READ, 12) == (12, 0, b"bytes")
    time.now_s += 5
    wait_until(lambda: session.stuck_for_s() == 0, "another request is another")


@pytest.mark.parametrize("with_journal", [False, True])
def test_a_hung_receiver_is_replaced_and_its_request_answered_once_more(
    kernel: Kernel, time: Time, *, with_journal: bool
) -> None:
    with os.fdopen(new_journal()) as memory:
        journal = Journal(memory.fileno()) if with_journal else None
        session = kernel.session = Session(kernel.end.fileno(), 1, kernel.counters, journal)
        disk = Disk(kernel, hangs=1)
        kernel.serve({p.Op.READ: disk.read, p.Op.LOOKUP: echo})
        kernel.send(p.Op.READ, 10, b"this")
        kernel.send(p.Op.LOOKUP, 12)
        wait_until(lambda: disk.asked)
        session.replace_stuck_receivers(5)
        time.now_s += 4.5
        session.replace_stuck_receivers(5)
        assert len(disk.asked) == 1, "not yet"
        time.now_s += 0.5
        session.replace_stuck_receivers(5)
        assert [kernel.receive(), kernel.receive()] == [(10, 0, b"bytes"), (12, 0, b"\x4d")]
        assert disk.asked == [b"this", b"this"]
        wait_until(lambda: not any(receiver.unique for receiver in session._receivers))
        time.now_s += 100
        session.replace_stuck_receivers(5)
        assert session.stuck_for_s() == 0, "who waits for a request does not hang"
        kernel.gate.set()
        assert kernel.receive() == (10, 0, b"late"), "the kernel knows this number no more"
        disk.takers[0].join(PATIENCE_S)
        assert not disk.takers[0].is_alive(), "it takes nothing more"
        assert kernel.ask(p.Op.READ, 14) == (14, 0, b"bytes")
        assert disk.takers[1] is disk.takers[2]
        assert session.requests() == {"READ": 2, "LOOKUP": 1}, "as the kernel has sent them"
        kernel.unmount()
        if with_journal:
            assert list(Journal(memory.fileno()).unanswered()) == []


def test_a_request_that_hangs_again_is_not_retried_a_third_time(kernel: Kernel, time: Time) -> None:
    """What hangs is no disk then, and whoever asks how long it is stuck has to act."""
    disk, session = Disk(kernel, hangs=2), kernel.session
    kernel.serve({p.Op.READ: disk.read})
    kernel.send(p.Op.READ, 10)
    wait_until(lambda: disk.asked)
    for tries in range(1, 5):
        session.replace_stuck_receivers(5)
        wait_until(lambda tries=tries: len(disk.asked) == min(2, tries))
        time.now_s += 5
    assert session.stuck_for_s() == 0, "since now"
    time.now_s += 5
    assert session.stuck_for_s() == 5
    kernel.gate.set()
    assert [kernel.receive(), kernel.receive()] == [(10, 0, b"late")] * 2
    assert kernel.ask(p.Op.READ, 12) == (12, 0, b"bytes")
    kernel.gate.clear()
    disk.hangs = 4
    kernel.send(p.Op.READ, 14)
    wait_until(lambda: len(disk.asked) == 4)
    session.replace_stuck_receivers(5)
    time.now_s += 5
    session.replace_stuck_receivers(5)
    wait_until(lambda: len(disk.asked) == 5)
    assert kernel.receive() == (14, 0, b"bytes")
    kernel.gate.set()
    assert kernel.receive() == (14, 0, b"late")


# -- requests that another process has taken -----------------------------------------------------


@pytest.mark.parametrize(
    "way", [lambda work: work(), later, BlockingReply], ids=["now", "later", "disk"]
)
def test_an_answer_goes_to_the_source_of_its_request(
    kernel: Kernel, way: Callable[[Callable[[], Reply]], Reply]
) -> None:
    answers = iter([(b"ok",), FuseError(errno.ENODATA)])

    def answer() -> Reply:
        if isinstance(found := next(answers), Exception):
            raise found
        return found

    kernel.serve({p.Op.READ: lambda *_: way(answer)})
    end, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with end, peer:
        peer.settimeout(PATIENCE_S)
        for op, number in ((p.Op.READ, 0), (p.Op.READ, errno.ENODATA), (p.Op.FLUSH, errno.ENOSYS)):
            asked = bytearray(request(op, 10))
            kernel.session.serve(asked, len(asked), end.fileno())
            length, error, unique = p.OUT_HEADER.unpack_from(message := peer.recv(1 << 16))
            assert (unique, error, length) == (10, -number, len(message))
    assert kernel.session.requests() == {}, "counted by whoever took it"


def test_a_passive_session_takes_single_requests_and_ends_on_demand(
    kernel: Kernel,
) -> None:
    kernel.interruptions = iter([errno.ENOENT, errno.EINTR, errno.EAGAIN])
    kernel.session.set_handlers({p.Op.INIT: echo})
    kernel.send(p.Op.INIT, 10)
    kernel.send(p.Op.INIT, 12)
    assert kernel.session.receive_one()
    assert kernel.receive() == (10, 0, b"\x4d")
    kernel.peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        kernel.peer.recv(1)
    kernel.peer.settimeout(PATIENCE_S)
    assert kernel.session.receive_one()
    assert kernel.receive() == (12, 0, b"\x4d")
    kernel.peer.shutdown(socket.SHUT_WR)
    assert not kernel.session.receive_one(), "unmounted"
    kernel.interruptions = iter([errno.EINVAL])
    with pytest.raises(OSError, match="interrupted"):
        kernel.session.receive_one()
    kernel.session.end()
    kernel.session.join()


def test_a_request_blocked_by_a_hanging_disk_is_served_by_the_next_receiver(
    kernel: Kernel, time: Time
) -> None:
    """It was taken, and what has landed before it is being stored."""
    session = kernel.session
    stored = threading.Event()

    class Hanging(Arriving):
        def write_to_cache(self) -> None:
            super().write_to_cache()
            stored.set()
            kernel.gate.wait(PATIENCE_S)

    begun: list[Hanging] = []

    def start(answer: SendReply) -> Hanging:
        begun.append(Hanging(answer, []))
        return begun[-1]

    kernel.serve({p.Op.READ: lambda *_: FetchReply(start), p.Op.GETXATTR: lambda *_: (b"now",)})
    kernel.send(p.Op.READ, 10)
    wait_until(lambda: begun)
    begun[0].store.send(b"stop")
    kernel.send(p.Op.GETXATTR, 12)
    assert kernel.receive() == (10, 0, b"stop")
    assert stored.wait(PATIENCE_S)
    session.replace_stuck_receivers(5)
    time.now_s += 5
    session.replace_stuck_receivers(5)
    assert kernel.receive() == (12, 0, b"now")
    kernel.gate.set()
    if session.requests().get("GETXATTR") == 1 and len(session._receivers) == 1:
        wait_until(lambda: not any(receiver.unique for receiver in session._receivers))
    kernel.peer.settimeout(0.5)
    with suppress(TimeoutError):
        assert kernel.receive() == (12, 0, b"now"), "again, which the kernel does not mind"
