"""Reads requests from /dev/fuse, hands them to the handlers, writes the answers.

Threading: one thread at a time takes requests (the taker). It answers what is at hand, and waits
for nothing but the next event: a request, or a connection on which an object arrives.

    request ──▶ at hand? ──▶ answer
                  │ no
                  ├──▶ small object: send the GET, wait for it beside /dev/fuse (`_begun`);
                  │    when it arrives, answer, and store it when nobody waits (`_landed`)
                  ├──▶ anything else that is fetched: let another thread take requests, and fetch
                  │    it here (`FetchReply`); a pool does it if there are no more threads
                  ├──▶ slow on this machine's disk: a few waiters do it (`DiskReply`)
                  └──▶ the catalog is damaged: it waits until another is there (`retry_parked`)

One taker, because several in one process only fight over the interpreter's lock; several processes
do not (ADR 1). A taker that hangs in a disk is replaced, and the next one answers its request
(`replace_stuck_receivers`).

A request may be answered by another process than the one that took it (`serve`): the answer goes
to the clone of /dev/fuse that the request came from. Counts are kept by thread, so the hot path
takes no lock.
"""

import errno
import logging
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.cache.fetch import FetchJob, StartedFetch
from penstock.cache.pool import Pool
from penstock.errors import CatalogDamaged, PenstockError
from penstock.fuse.errno_table import NO_REQUEST, errno_of
from penstock.fuse.journal import Journal, Unanswered
from penstock.fuse.protocol import (
    IN_HEADER,
    IN_HEADER_BYTES,
    INVAL_ENTRY,
    INVAL_INODE,
    OP_COUNT,
    OUT_HEADER,
    OUT_HEADER_BYTES,
    STORE,
    Notify,
    Op,
    is_resent,
)
from penstock.metrics import Counters

log = logging.getLogger(__name__)

# Requests to a read-only file system are small; the kernel demands at least 8 KiB.
_REQUEST_BYTES = 64 * 1024

NO_REPLY = None
# While requests come one after the other, those that were begun are looked after so often.
_REQUESTS_BETWEEN_LOOKS = 16
_SWEEP_S = 1.0
_MOST_LANDED = 16
_LANDED_S = 0.1  # so long, at most, while there is always something else to do
# Requests whose handlers may wait until what was fetched is stored.
_AFTER_ALL_IS_STORED = (Op.GETXATTR, Op.OPEN)
_READ = int(Op.READ)  # a plain number: comparing with an enum's member costs four times as much


# Called once, from any thread, with the parts of an answer or with why there is none.
SendReply = Callable[[Sequence[Buffer] | Exception], None]


class FetchReply(NamedTuple):
    """An answer that has to be fetched. `start` returns at once: a job that brings it, or None if
    someone else does. `run` has a job done by another thread."""

    start: Callable[[SendReply], FetchJob | None]
    run: Callable[[FetchJob], object] = lambda job: job()


class DiskReply(NamedTuple):
    """An answer that has to be waited for, but for no longer than this machine's disk takes. A few
    threads of their own do that, so that it is never stuck behind storage that fails."""

    answer: Callable[[], Sequence[Buffer] | None]


Reply = Sequence[Buffer] | FetchReply | DiskReply | None
Request = bytearray | memoryview
Handler = Callable[[int, Request, int], Reply]


class FuseError(Exception):
    """An answer that is an error number and no accident (a missing name, say)."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class RequestInfo(NamedTuple):
    """A request, as its answer needs it."""

    unique: int
    opcode: int
    node: int
    descriptor: int  # where it came from: the answer must go there


class _Parked(NamedTuple):
    """A request that nobody can answer at the moment."""

    asked: RequestInfo
    request: bytearray
    length: int
    since_s: float
    why: CatalogDamaged


class _Receiver:
    """A thread that works on one request after the other."""

    __slots__ = (
        "buffer",
        "is_replaced",
        "is_second",
        "length",
        "seen",
        "seen_s",
        "takes",
        "unique",
    )

    def __init__(self, *, is_second: bool = False) -> None:
        self.buffer: Request = bytearray()
        self.length = 0
        self.unique = 0  # of the request that it works on; 0 while it waits for the next
        self.seen = 0  # the same when it was last looked at
        self.seen_s = 0.0  # and since when
        self.is_replaced = False
        self.takes = True  # it is its turn
        self.is_second = is_second  # it began with a request in which another hangs


class Session:
    def __init__(
        self,
        descriptor: int,
        waiters: int,
        counters: Counters,
        journal: Journal | None = None,
        *,
        most_takers: int = 1,
    ) -> None:
        """`journal`: for a kernel that cannot send again what is unanswered. `most_takers`: threads
        that may take requests, in turns, and fetch what those need."""
        self.descriptor = descriptor
        self._journal = journal
        self._left_over: list[Unanswered] = []
        self._counters = counters
        self._counts: list[list[int]] = []
        self._read_bytes: list[list[int]] = []
        self._local = threading.local()
        self._handlers: dict[int, Handler] = {}
        self._hands: list[_Receiver] = []
        self._over = threading.Event()
        self._on_end: Callable[[], None] = lambda: None
        self._refuse_resent = False
        self._waiting = Pool(waiters, "wait")
        # Takers take turns: one reads /dev/fuse, the others fetch, or stand by.
        self._lock = threading.Lock()
        self._turn: queue.SimpleQueue[None] = queue.SimpleQueue()  # in C, unlike a semaphore
        self._takers = 1
        self._most_takers = most_takers
        self._standing_by = 0
        # Fetches that were begun, by the descriptor of their connection: whoever takes requests
        # advances them meanwhile.
        self._begun: dict[int, StartedFetch] = {}
        self._ready: select.epoll | None = None
        self._sweep_s = 0.0
        # What has landed is stored when there is nothing better to do: first everybody who
        # waits is answered, and the store is asked for what comes next.
        self._landed: deque[tuple[float, StartedFetch]] = deque()
        self._parked: deque[_Parked] = deque()
        self._retries = threading.Lock()
        self._looked_after = 0  # requests ago
        self._put_away_count = 0
        os.set_blocking(descriptor, True)  # until `start`

    def take_over(self, *, refuse_resent: bool) -> None:
        """Goes on where a server was that is gone: what that one had read and not answered comes
        again."""
        self._refuse_resent = refuse_resent
        if self._journal is None:
            self.resend()
        else:
            self._left_over = list(self._journal.unanswered())

    def resend(self) -> None:
        """Asks the kernel to send again what nobody has answered."""
        self._notify(Notify.RESEND, b"")

    def refuse_resent(self) -> None:
        """Requests that have crashed every process so far are answered with an error."""
        self._refuse_resent = True

    def set_handlers(self, handlers: dict[int, Handler]) -> None:
        """For a session that takes nothing itself: others hand over to it (`serve`)."""
        self._handlers = handlers

    def receive_one(self) -> bool:
        """Takes one request, in the caller's thread; False once the file system is unmounted."""
        buffer = bytearray(_REQUEST_BYTES)
        while True:
            try:
                self.serve(buffer, os.readv(self.descriptor, (buffer,)))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return False
                if error.errno not in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    raise
            else:
                return True

    def end(self) -> None:
        """The file system was unmounted, as another process has seen."""
        self._over.set()

    def start(self, handlers: dict[int, Handler], on_end: Callable[[], None]) -> None:
        """`on_end` is called once the file system is unmounted."""
        self._handlers = handlers
        self._on_end = on_end
        left_over, self._left_over = self._left_over, []
        for unanswered in left_over:
            # Marked as sent again, which the kernel knows nothing of: it knows the number it gave.
            self.serve(unanswered.request, unanswered.length, unique=unanswered.unique)
        os.set_blocking(self.descriptor, False)
        self._ready = select.epoll()
        # Of all processes that wait for the same mount a request wakes one.
        self._ready.register(self.descriptor, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._start_taker(_Receiver())

    def _start_taker(self, hand: _Receiver, *again: Request) -> None:
        counts = [0] * OP_COUNT
        self._counts.append(counts)
        self._hands.append(hand)
        number = len(self._counts) - 1
        threading.Thread(
            target=self._take, args=(counts, hand, *again), name=f"fuse-{number}", daemon=True
        ).start()

    def join(self) -> None:
        """Until the file system is unmounted."""
        self._over.wait()

    def replace_stuck_receivers(self, longer_than_s: float) -> None:
        """Replaces takers that have been at one request for so long. What they work on is answered
        by the next, which must not meet the same disk: whoever calls this has taken that out."""
        now = time.monotonic()
        for hand in self._hands.copy():
            if hand.is_second or self._works_for_s(hand, now) < longer_than_s:
                continue
            unique, request = hand.seen, bytearray(hand.buffer[: hand.length])
            hand.is_replaced = True
            self._hands.remove(hand)
            if unique > 0 and hand.unique == unique:
                log.warning("request %d hangs in a disk; asked again", unique)
                self._start_taker(_Receiver(is_second=True), request)
            else:
                self._start_taker(_Receiver())  # it has just come back

    def retry_parked(self, give_up_after_s: float) -> None:
        """Answers what waits for another catalog, with an error if it has waited for so long. To be
        called now and then; returns at once."""
        if self._parked and self._retries.acquire(blocking=False):
            thread = threading.Thread(
                target=self._retry, args=(give_up_after_s,), name="parked", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the machine has no room for one: at the next call
                self._retries.release()
                log.warning("requests that wait for a catalog: %s", error)

    def _retry(self, give_up_after_s: float) -> None:
        try:
            for _ in range(len(self._parked)):
                asked, request, length, since_s, why = self._parked.popleft()
                if time.monotonic() - since_s > give_up_after_s:
                    self._reply_failure(asked, why)
                else:
                    self.serve(request, length, asked.descriptor, asked.unique, since_s)
        finally:
            self._retries.release()

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the kernel has sent."""
        sums = [sum(column) for column in zip(*self._counts, strict=True)]
        return {_name(opcode): count for opcode, count in enumerate(sums) if count}

    def read_bytes(self) -> int:
        """How many bytes READ has been answered with."""
        return sum(count for (count,) in self._read_bytes)

    def stuck_for_s(self) -> float:
        """For how long a taker has been at the very request it is at now. To be asked again and
        again."""
        now = time.monotonic()
        return max((self._works_for_s(hand, now) for hand in self._hands), default=0.0)

    def _works_for_s(self, hand: _Receiver, now: float) -> float:
        unique = hand.unique
        if not unique or unique != hand.seen:
            hand.seen, hand.seen_s = unique, now
        return now - hand.seen_s

    # -- the loop -----------------------------------------------------------------------

    def _take(self, counts: list[int], hand: _Receiver, *again: Request) -> None:
        descriptor, journal = self.descriptor, self._journal
        self._local.hand = hand
        for request in again:
            self._work_on(hand, request, len(request))
        hand.is_second = False
        buffer: Request = bytearray(_REQUEST_BYTES)
        slot = 0
        while not hand.is_replaced:
            if not hand.takes:
                self._stand_by()
                hand.takes = True
            if self._begun or self._landed:
                self._looked_after += 1
                if self._looked_after >= _REQUESTS_BETWEEN_LOOKS:
                    self._look_after_begun(hand, wait=False)
            if journal is not None:
                slot, buffer = journal.take_slot()
            try:
                length = os.readv(descriptor, (buffer,))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    while self._landed:
                        self._put_away(hand)
                    self._over.set()
                    self._on_end()
                    return  # unmounted
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    if journal is not None:
                        journal.put_back(slot)
                    if error.errno == errno.EAGAIN:
                        self._look_after_begun(hand, wait=True)
                    continue  # interrupted before we got it
                raise
            if length < IN_HEADER_BYTES:
                # Not even a number that it could be answered by.
                log.error("a request of %d bytes: passed over", length)
                if journal is not None:
                    journal.put_back(slot)
                continue
            _, opcode, unique, *_ = IN_HEADER.unpack_from(buffer)
            if journal is not None:
                journal.note(unique, slot)
            counts[opcode if opcode < OP_COUNT else 0] += 1
            if self._landed and opcode in _AFTER_ALL_IS_STORED:
                # Ours from here on: if a disk hangs, whoever is put in our place serves it.
                hand.buffer, hand.length, hand.unique = buffer, length, unique
                while self._landed:
                    self._put_away(hand)
            self._work_on(hand, buffer, length)

    def _work_on(self, hand: _Receiver, request: Request, length: int) -> None:
        hand.buffer, hand.length = request, length
        hand.unique = IN_HEADER.unpack_from(request)[2]
        self.serve(request, length)
        hand.unique = 0

    def serve(
        self,
        request: Request,
        length: int,
        descriptor: int | None = None,
        unique: int | None = None,
        since_s: float | None = None,
    ) -> None:
        """Answers a request, or has it answered. `descriptor`: where it came from, if that is not
        this session's. `unique`: its number, if that is not the one in it. `since_s`: since when it
        has waited, if it has."""
        _, opcode, number, node, *_ = IN_HEADER.unpack_from(request)
        asked = RequestInfo(
            number if unique is None else unique,
            opcode,
            node,
            self.descriptor if descriptor is None else descriptor,
        )
        if self._refuse_resent and is_resent(request):
            log.error("%s of inode %d crashed every server: refused", _name(opcode), node)
            self._reply_error(asked, errno.EIO)
            return
        handler = self._handlers.get(opcode)
        if handler is None:
            self._reply_error(asked, errno.ENOSYS)
            return
        try:
            reply = handler(node, request, length)
            if isinstance(reply, FetchReply):
                job = reply.start(partial(self._answer, asked))
                if job is not None:
                    self._do(job, reply)
            elif isinstance(reply, DiskReply):
                self._waiting.submit(partial(self._answer_from_disk, asked, reply))
            else:
                self._reply(asked, reply)
        except CatalogDamaged as error:
            since_s = time.monotonic() if since_s is None else since_s
            self._parked.append(_Parked(asked, bytearray(request[:length]), length, since_s, error))
        except Exception as error:  # noqa: BLE001 - a failure costs one request, not the mount
            self._reply_failure(asked, error)

    def _do(self, job: FetchJob, reply: FetchReply) -> None:
        """In the taker's own thread, if another can take its place: whoever waits for the answer
        does not wait for a thread to wake up."""
        hand: _Receiver | None = getattr(self._local, "hand", None)
        if hand is None or not hand.takes:
            reply.run(job)
        elif (begun := job.begin()) is not None:
            self._begun[begun.fileno()] = begun
            self._wait_for(begun.fileno())
        elif self._pass_on():
            hand.takes = False
            hand.unique = 0  # it may take as long as storage does
            job()
        else:
            reply.run(job)

    def _wait_for(self, descriptor: int) -> None:
        """Once: it is armed again if that was not all."""
        ready, events = self._ready, select.EPOLLIN | select.EPOLLONESHOT
        assert ready is not None
        try:
            ready.modify(descriptor, events)
        except FileNotFoundError:  # a new connection
            ready.register(descriptor, events)

    def _look_after_begun(self, hand: _Receiver, *, wait: bool) -> None:
        """Advance the fetches whose connections have something to receive, or store what was
        received. `wait` for one of these, or for the next request."""
        ready = self._ready
        assert ready is not None
        self._looked_after = 0
        timeout_s = 0.0 if not wait or self._landed else _SWEEP_S if self._begun else None
        events = ready.poll(timeout_s)
        for descriptor, _ in events:
            if descriptor != self.descriptor:
                self._advance(hand, descriptor)
        if self._landed and (not events or time.monotonic() - self._landed[0][0] > _LANDED_S):
            self._put_away(hand)
        while len(self._landed) > _MOST_LANDED:
            self._put_away(hand)
        if self._begun and (now_s := time.monotonic()) > self._sweep_s:
            # Those whose server does not answer at all end by their own deadline.
            self._sweep_s = now_s + _SWEEP_S
            for descriptor in list(self._begun):
                self._advance(hand, descriptor)

    def _advance(self, hand: _Receiver, descriptor: int) -> None:
        # Not ours any more if a disk took so long that another was put in our place.
        begun = None if hand.is_replaced else self._begun.pop(descriptor, None)
        if begun is None:
            return
        try:
            if begun.advance():
                self._landed.append((time.monotonic(), begun))
                return
            self._wait_for(descriptor)
        except Exception as error:  # a bug costs one answer, and not the mount
            log.exception("a fetch failed")
            begun.abandon(error)
        else:
            self._begun[descriptor] = begun

    def _put_away(self, hand: _Receiver) -> None:
        # A disk that hangs is met here. Below zero: the number of no request.
        request = hand.unique
        self._put_away_count -= 1
        hand.unique = request or self._put_away_count
        try:
            _, begun = self._landed.popleft()
            begun.write_to_cache()
        except IndexError:
            pass  # whoever was put in our place was faster
        except Exception:  # a bug costs one block in the cache
            log.exception("a block was not stored")
        hand.unique = request

    def _pass_on(self) -> bool:
        with self._lock:
            if self._standing_by:
                self._standing_by -= 1
                self._turn.put(None)
                return True
            if self._takers >= self._most_takers:
                return False
            self._takers += 1
        try:
            self._start_taker(_Receiver())
        except RuntimeError:  # this machine has no more threads to give
            with self._lock:
                self._takers -= 1
            return False
        return True

    def _stand_by(self) -> None:
        with self._lock:
            self._standing_by += 1
        self._turn.get()

    def _answer_from_disk(self, asked: RequestInfo, waits: DiskReply) -> None:
        try:
            self._reply(asked, waits.answer())
        except Exception as error:  # noqa: BLE001 - as above
            self._reply_failure(asked, error)

    def _answer(self, asked: RequestInfo, answer: Sequence[Buffer] | Exception) -> None:
        if isinstance(answer, Exception):
            self._reply_failure(asked, answer)
            return
        try:
            self._reply(asked, answer)
        except OSError as error:
            self._reply_failure(asked, error)

    def _reply_failure(self, asked: RequestInfo, error: Exception) -> None:
        if isinstance(error, FuseError):
            self._reply_error(asked, error.number)
            return
        number = errno_of(error)
        self._counters.add("errors", label=errno.errorcode.get(number, str(number)))
        if isinstance(error, (PenstockError, OSError, *NO_REQUEST)):
            log.warning("%s of inode %d: %s", _name(asked.opcode), asked.node, error)
        else:
            log.error(
                "%s of inode %d failed: a bug", _name(asked.opcode), asked.node, exc_info=error
            )
        self._reply_error(asked, number)

    def _reply(self, asked: RequestInfo, parts: Sequence[Buffer] | None) -> None:
        if parts is None:  # nobody waits for an answer, or another process gives it
            if self._journal is not None:
                self._journal.answered(asked.unique)
            return
        length = OUT_HEADER_BYTES
        for part in parts:
            length += memoryview(part).nbytes
        self._write(asked, (OUT_HEADER.pack(length, 0, asked.unique), *parts))
        if asked.opcode == _READ:
            self._note_read(length - OUT_HEADER_BYTES)

    def _note_read(self, length: int) -> None:
        try:
            count: list[int] = self._local.read_bytes
        except AttributeError:  # this thread's first answer
            count = self._local.read_bytes = [0]
            self._read_bytes.append(count)
        count[0] += length

    def _reply_error(self, asked: RequestInfo, number: int) -> None:
        self._write(asked, (OUT_HEADER.pack(OUT_HEADER_BYTES, -number, asked.unique),))

    def _write(self, asked: RequestInfo, parts: Sequence[Buffer]) -> None:
        try:
            os.writev(asked.descriptor, parts)
        except OSError as error:
            # ENOENT: the reader was killed meanwhile, or another process has answered. ENODEV:
            # unmounted meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        if self._journal is not None:
            self._journal.answered(asked.unique)

    # -- telling the kernel -------------------------------------------------------------

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """The kernel must ask again for this name (and for its absence)."""
        body = INVAL_ENTRY.pack(parent, len(name), 0) + name + b"\0"
        self._notify(Notify.INVAL_ENTRY, body)

    def invalidate_pages(self, ino: int) -> None:
        """The kernel must drop what it keeps of this inode: pages, or a directory's listing."""
        self._notify(Notify.INVAL_INODE, INVAL_INODE.pack(ino, 0, -1))

    def store_pages(self, ino: int, offset: int, data: memoryview) -> bool:
        """Puts bytes of a file into the kernel's page cache, before anyone asks for them; False if
        the kernel does not hold the inode. From a thread that nobody's answer depends on: it
        waits for pages that are being read at the moment."""
        return store_pages(self.descriptor, ino, offset, data)

    def holds(self, ino: int) -> bool:
        """Does the kernel hold this inode? Asked by storing nothing in it."""
        return self.store_pages(ino, 0, memoryview(b""))

    def _notify(self, code: Notify, body: bytes) -> None:
        header = OUT_HEADER.pack(OUT_HEADER_BYTES + len(body), code, 0)
        try:
            os.write(self.descriptor, header + body)
        except OSError as error:
            # ENOENT: the kernel does not hold it, so there is nothing to drop.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
                raise


def store_pages(descriptor: int, ino: int, offset: int, data: memoryview) -> bool:
    """See Session.store_pages. For any process that has the mount's descriptor."""
    length = OUT_HEADER_BYTES + STORE.size + len(data)
    header = OUT_HEADER.pack(length, Notify.STORE, 0)
    try:
        os.writev(descriptor, (header, STORE.pack(ino, offset, len(data), 0), data))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOMEM):
            return False
        raise
    return True


def _name(opcode: int) -> str:
    try:
        return Op(opcode).name
    except ValueError:
        return f"OP{opcode}"
