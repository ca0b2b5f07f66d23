"""Receives requests from /dev/fuse, passes them to the handlers, writes the replies.

Threading: one thread at a time receives requests (the receiver). It answers what memory or the
local cache has, and waits for nothing but the next event: a request, or a readable connection on
which an object arrives.

    request ──▶ cached? ──▶ reply
                  │ no
                  ├──▶ small object: send the GET, poll its connection with /dev/fuse (`_started`);
                  │    when the object is received, reply; store it when idle (`_to_store`)
                  ├──▶ any other fetch: let another thread receive requests, and fetch in this one
                  │    (`FetchReply`); a pool fetches if there are no more threads
                  ├──▶ slow on the local disk: a few pool threads do it (`BlockingReply`)
                  └──▶ the catalog is damaged: park the request until it is fixed (`retry_parked`)

There is one receiver, because several in one process only fight over the interpreter's lock;
several processes do not (ADR 1). A receiver that hangs in a disk is replaced, and the next one
answers its request (`replace_stuck_receivers`).

A request may be answered by another process than the one that received it (`serve`): the reply goes
to the clone of /dev/fuse from which the request came. Counts are kept by thread, so the hot path
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
from penstock.fuse.errno_table import MALFORMED, errno_of
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
# While requests arrive without a pause, started fetches are polled after every 16 of them.
_REQUESTS_BETWEEN_POLLS = 16
# How late the end of a started fetch can be noticed whose server does not answer at all.
_SWEEP_S = 0.25
_MOST_TO_STORE = 16
_STORE_WITHIN_S = 0.1  # how long a received object may wait while requests keep coming
# Requests whose handlers may wait until all received objects are stored.
_NEED_ALL_STORED = (Op.GETXATTR, Op.OPEN)
_READ = int(Op.READ)  # a plain number: comparing with an enum member costs four times as much


# Called once, from any thread, with the parts of a reply or with the error.
SendReply = Callable[[Sequence[Buffer] | Exception], None]


class FetchReply(NamedTuple):
    """A reply that needs a fetch. `start` returns at once: a job that fetches, or None if another
    thread does. `run` runs a job in another thread."""

    start: Callable[[SendReply], FetchJob | None]
    run: Callable[[FetchJob], object] = lambda job: job()


class BlockingReply(NamedTuple):
    """A reply that blocks on this machine: on the local disk, or on the server process. A few
    threads are reserved for these, so that they never queue behind storage that fails."""

    answer: Callable[[], Sequence[Buffer] | None]


Reply = Sequence[Buffer] | FetchReply | BlockingReply | None
Request = bytearray | memoryview
Handler = Callable[[int, Request, int], Reply]


class FuseError(Exception):
    """An expected errno as the reply (a missing name, for example)."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class RequestInfo(NamedTuple):
    """What the reply to a request needs."""

    unique: int
    opcode: int
    node: int
    descriptor: int  # the descriptor it was read from: the reply must go there


class _Parked(NamedTuple):
    """A request that waits for an undamaged catalog."""

    info: RequestInfo
    request: bytearray
    length: int
    since_s: float
    why: CatalogDamaged


class _Receiver:
    """A thread that receives and serves requests."""

    __slots__ = (
        "buffer",
        "has_turn",
        "is_replaced",
        "is_retry",
        "last_unique",
        "last_unique_s",
        "length",
        "unique",
    )

    def __init__(self, *, is_retry: bool = False) -> None:
        self.buffer: Request = bytearray()
        self.length = 0
        self.unique = 0  # the request it is serving; 0 while it waits for the next
        self.last_unique = 0  # `unique` at the last check
        self.last_unique_s = 0.0  # and since when
        self.is_replaced = False
        self.has_turn = True  # it is its turn to receive
        self.is_retry = is_retry  # its first request is one in which another receiver hangs


class Session:
    def __init__(
        self,
        descriptor: int,
        waiters: int,
        counters: Counters,
        journal: Journal | None = None,
        *,
        max_receivers: int = 1,
    ) -> None:
        """`journal`: for a kernel that cannot resend unanswered requests. `max_receivers`: threads
        that receive requests in turns, and run the fetches that these need."""
        self.descriptor = descriptor
        self._journal = journal
        self._unanswered: list[Unanswered] = []
        self._counters = counters
        self._counts: list[list[int]] = []
        self._read_bytes: list[list[int]] = []
        self._local = threading.local()
        self._handlers: dict[int, Handler] = {}
        self._receivers: list[_Receiver] = []
        self._unmounted = threading.Event()
        self._on_end: Callable[[], None] = lambda: None
        self._refuse_resent = False
        self._blocking_pool = Pool(waiters, "wait")
        # Receivers take turns: one reads /dev/fuse, the others fetch, or wait for their turn.
        self._lock = threading.Lock()
        self._turn: queue.SimpleQueue[None] = queue.SimpleQueue()  # in C, unlike a semaphore
        self._receiver_count = 1
        self._max_receivers = max_receivers
        self._idle_receivers = 0
        # Started fetches, by the descriptor of their connection; the receiver advances them between
        # requests.
        self._started: dict[int, StartedFetch] = {}
        self._ready: select.epoll | None = None
        self._sweep_s = 0.0
        # Received objects are stored when the receiver is idle: first it answers all waiting
        # readers, and requests what comes next from the store.
        self._to_store: deque[tuple[float, StartedFetch]] = deque()
        self._parked: deque[_Parked] = deque()
        self._retries = threading.Lock()
        self._requests_since_poll = 0
        self._stores = 0
        os.set_blocking(descriptor, True)  # until `start`

    def take_over(self, *, refuse_resent: bool) -> None:
        """Continue after a server that is gone: the requests that it read and did not answer come
        again."""
        self._refuse_resent = refuse_resent
        if self._journal is None:
            self.resend()
        else:
            self._unanswered = list(self._journal.unanswered())

    def resend(self) -> None:
        """Ask the kernel to resend all unanswered requests."""
        self._notify(Notify.RESEND, b"")

    def refuse_resent(self) -> None:
        """Answer requests that crashed every previous process with an error."""
        self._refuse_resent = True

    def set_handlers(self, handlers: dict[int, Handler]) -> None:
        """Set the handlers of a session that receives nothing itself: other processes hand requests
        to it (`serve`)."""
        self._handlers = handlers

    def receive_one(self) -> bool:
        """Receive one request in the caller's thread; False once the file system is unmounted."""
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
        """Another process has seen that the file system was unmounted."""
        self._unmounted.set()

    def start(self, handlers: dict[int, Handler], on_end: Callable[[], None]) -> None:
        """Start receiving. `on_end` is called once the file system is unmounted."""
        self._handlers = handlers
        self._on_end = on_end
        resent, self._unanswered = self._unanswered, []
        for unanswered in resent:
            # The request is marked as resent; the kernel knows it by the number without the mark.
            self.serve(unanswered.request, unanswered.length, unique=unanswered.unique)
        os.set_blocking(self.descriptor, False)
        self._ready = select.epoll()
        # Exclusive: a request wakes one of the processes that wait for the same mount.
        self._ready.register(self.descriptor, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._start_receiver(_Receiver())

    def _start_receiver(self, receiver: _Receiver, *again: Request) -> None:
        counts = [0] * OP_COUNT
        self._counts.append(counts)
        self._receivers.append(receiver)
        number = len(self._counts) - 1
        threading.Thread(
            target=self._receive_loop,
            args=(counts, receiver, *again),
            name=f"fuse-{number}",
            daemon=True,
        ).start()

    def join(self) -> None:
        """Wait until the file system is unmounted."""
        self._unmounted.wait()

    def replace_stuck_receivers(self, longer_than_s: float) -> None:
        """Replace receivers that have served one request for too long. The next receiver answers
        that request, and must not meet the same disk: the caller has taken it out of service."""
        now = time.monotonic()
        for receiver in self._receivers.copy():
            if receiver.is_retry or self._busy_for_s(receiver, now) < longer_than_s:
                continue
            unique, request = receiver.last_unique, bytearray(receiver.buffer[: receiver.length])
            receiver.is_replaced = True
            self._receivers.remove(receiver)
            if unique > 0 and receiver.unique == unique:
                log.warning("request %d hangs in a disk; serving it again", unique)
                self._start_receiver(_Receiver(is_retry=True), request)
            else:
                self._start_receiver(_Receiver())  # it has just come back

    def retry_parked(self, give_up_after_s: float) -> None:
        """Retry the requests that wait for an undamaged catalog, or fail those that have waited too
        long. Called now and then; returns at once."""
        if self._parked and self._retries.acquire(blocking=False):
            thread = threading.Thread(
                target=self._retry, args=(give_up_after_s,), name="parked", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no thread available: retry at the next call
                self._retries.release()
                log.warning("cannot retry requests that wait for a catalog: %s", error)

    def _retry(self, give_up_after_s: float) -> None:
        try:
            for _ in range(len(self._parked)):
                info, request, length, since_s, why = self._parked.popleft()
                if time.monotonic() - since_s > give_up_after_s:
                    self._reply_failure(info, why)
                else:
                    self.serve(request, length, info.descriptor, info.unique, since_s)
        finally:
            self._retries.release()

    def requests(self) -> dict[str, int]:
        """Return how many requests of each kind the kernel has sent."""
        sums = [sum(column) for column in zip(*self._counts, strict=True)]
        return {_name(opcode): count for opcode, count in enumerate(sums) if count}

    def read_bytes(self) -> int:
        """Return how many bytes READ replies have had."""
        return sum(count for (count,) in self._read_bytes)

    def stuck_for_s(self) -> float:
        """Return how long a receiver has served its current request. The time counts from the first
        call that sees that request, so call it repeatedly."""
        now = time.monotonic()
        return max((self._busy_for_s(receiver, now) for receiver in self._receivers), default=0.0)

    def _busy_for_s(self, receiver: _Receiver, now: float) -> float:
        unique = receiver.unique
        if not unique or unique != receiver.last_unique:
            receiver.last_unique, receiver.last_unique_s = unique, now
        return now - receiver.last_unique_s

    # -- the loop -----------------------------------------------------------------------

    def _receive_loop(self, counts: list[int], receiver: _Receiver, *again: Request) -> None:
        descriptor, journal = self.descriptor, self._journal
        self._local.receiver = receiver
        for request in again:
            self._serve_received(receiver, request, len(request))
        receiver.is_retry = False
        buffer: Request = bytearray(_REQUEST_BYTES)
        slot = 0
        while not receiver.is_replaced:
            if not receiver.has_turn:
                self._wait_for_turn()
                receiver.has_turn = True
            if self._started or self._to_store:
                self._requests_since_poll += 1
                if self._requests_since_poll >= _REQUESTS_BETWEEN_POLLS:
                    self._poll_started(receiver, wait=False)
            if journal is not None:
                slot, buffer = journal.take_slot()
            try:
                length = os.readv(descriptor, (buffer,))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    while self._to_store:
                        self._store_next(receiver)
                    self._unmounted.set()
                    self._on_end()
                    return  # unmounted
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    if journal is not None:
                        journal.put_back(slot)
                    if error.errno == errno.EAGAIN:
                        self._poll_started(receiver, wait=True)
                    continue  # interrupted before it was received
                raise
            if length < IN_HEADER_BYTES:
                # Too short to have the number that a reply needs.
                log.error("ignored a request of %d bytes", length)
                if journal is not None:
                    journal.put_back(slot)
                continue
            _, opcode, unique, *_ = IN_HEADER.unpack_from(buffer)
            if journal is not None:
                journal.note(unique, slot)
            counts[opcode if opcode < OP_COUNT else 0] += 1
            if self._to_store and opcode in _NEED_ALL_STORED:
                # From here on the request is in `receiver`: if a disk hangs, a replacement serves
                # it.
                receiver.buffer, receiver.length, receiver.unique = buffer, length, unique
                while self._to_store:
                    self._store_next(receiver)
            self._serve_received(receiver, buffer, length)

    def _serve_received(self, receiver: _Receiver, request: Request, length: int) -> None:
        receiver.buffer, receiver.length = request, length
        receiver.unique = IN_HEADER.unpack_from(request)[2]
        self.serve(request, length)
        receiver.unique = 0

    def serve(
        self,
        request: Request,
        length: int,
        descriptor: int | None = None,
        unique: int | None = None,
        since_s: float | None = None,
    ) -> None:
        """Answer a request, now or later. `descriptor`: where it came from, if not from this
        session's. `unique`: its number, if not the one in it. `since_s`: since when it has waited,
        if it has."""
        _, opcode, number, node, *_ = IN_HEADER.unpack_from(request)
        info = RequestInfo(
            number if unique is None else unique,
            opcode,
            node,
            self.descriptor if descriptor is None else descriptor,
        )
        if self._refuse_resent and is_resent(request):
            log.error("%s of inode %d crashed every previous server: rejected", _name(opcode), node)
            self._reply_error(info, errno.EIO)
            return
        handler = self._handlers.get(opcode)
        if handler is None:
            self._reply_error(info, errno.ENOSYS)
            return
        try:
            reply = handler(node, request, length)
            if isinstance(reply, FetchReply):
                job = reply.start(partial(self._answer, info))
                if job is not None:
                    self._run_job(job, reply)
            elif isinstance(reply, BlockingReply):
                self._blocking_pool.submit(partial(self._answer_from_disk, info, reply))
            else:
                self._reply(info, reply)
        except CatalogDamaged as error:
            since_s = time.monotonic() if since_s is None else since_s
            self._parked.append(_Parked(info, bytearray(request[:length]), length, since_s, error))
        except Exception as error:  # noqa: BLE001 - a failure costs one request, not the mount
            self._reply_failure(info, error)

    def _run_job(self, job: FetchJob, reply: FetchReply) -> None:
        """Run the job in the receiver's own thread if another can receive: the reader then does not
        wait for a thread to wake up."""
        receiver: _Receiver | None = getattr(self._local, "receiver", None)
        if receiver is None or not receiver.has_turn:
            reply.run(job)
        elif (started := job.begin()) is not None:
            self._started[started.fileno()] = started
            self._arm(started.fileno())
        elif self._pass_turn():
            receiver.has_turn = False
            receiver.unique = 0  # it may take as long as storage does
            job()
        else:
            reply.run(job)

    def _arm(self, descriptor: int) -> None:
        """Poll a connection once; it is armed again if more data must come."""
        ready, events = self._ready, select.EPOLLIN | select.EPOLLONESHOT
        assert ready is not None
        try:
            ready.modify(descriptor, events)
        except FileNotFoundError:  # a new connection
            ready.register(descriptor, events)

    def _poll_started(self, receiver: _Receiver, *, wait: bool) -> None:
        """Advance fetches whose connections are readable, or store received objects. `wait` for one
        of these, or for the next request."""
        ready = self._ready
        assert ready is not None
        self._requests_since_poll = 0
        timeout_s = 0.0 if not wait or self._to_store else _SWEEP_S if self._started else None
        events = ready.poll(timeout_s)
        for descriptor, _ in events:
            if descriptor != self.descriptor:
                self._advance(receiver, descriptor)
        if self._to_store and (
            not events or time.monotonic() - self._to_store[0][0] > _STORE_WITHIN_S
        ):
            self._store_next(receiver)
        while len(self._to_store) > _MOST_TO_STORE:
            self._store_next(receiver)
        if self._started and (now_s := time.monotonic()) > self._sweep_s:
            # Fetches whose server does not answer at all end at their own deadline.
            self._sweep_s = now_s + _SWEEP_S
            for descriptor in list(self._started):
                self._advance(receiver, descriptor)

    def _advance(self, receiver: _Receiver, descriptor: int) -> None:
        # No longer ours if a disk took so long that this receiver was replaced.
        started = None if receiver.is_replaced else self._started.pop(descriptor, None)
        if started is None:
            return
        try:
            if started.advance():
                self._to_store.append((time.monotonic(), started))
                return
            # Another one than before, once the shared tier has not had the object.
            descriptor = started.fileno()
            self._arm(descriptor)
        except Exception as error:  # a bug costs one reply, not the mount
            log.exception("a fetch failed")
            started.abandon(error)
        else:
            self._started[descriptor] = started

    def _store_next(self, receiver: _Receiver) -> None:
        # A hanging disk blocks here, so the receiver needs a number to be found stuck. Below zero:
        # the number of no request.
        request = receiver.unique
        self._stores -= 1
        receiver.unique = request or self._stores
        try:
            _, started = self._to_store.popleft()
            started.write_to_cache()
        except IndexError:
            pass  # the replacement has stored it
        except Exception:  # a bug costs one block in the cache
            log.exception("a block was not stored")
        receiver.unique = request

    def _pass_turn(self) -> bool:
        with self._lock:
            if self._idle_receivers:
                self._idle_receivers -= 1
                self._turn.put(None)
                return True
            if self._receiver_count >= self._max_receivers:
                return False
            self._receiver_count += 1
        try:
            self._start_receiver(_Receiver())
        except RuntimeError:  # no thread available
            with self._lock:
                self._receiver_count -= 1
            return False
        return True

    def _wait_for_turn(self) -> None:
        with self._lock:
            self._idle_receivers += 1
        self._turn.get()

    def _answer_from_disk(self, info: RequestInfo, waits: BlockingReply) -> None:
        try:
            self._reply(info, waits.answer())
        except Exception as error:  # noqa: BLE001 - as above
            self._reply_failure(info, error)

    def _answer(self, info: RequestInfo, answer: Sequence[Buffer] | Exception) -> None:
        if isinstance(answer, Exception):
            self._reply_failure(info, answer)
            return
        try:
            self._reply(info, answer)
        except OSError as error:
            self._reply_failure(info, error)

    def _reply_failure(self, info: RequestInfo, error: Exception) -> None:
        if isinstance(error, FuseError):
            self._reply_error(info, error.number)
            return
        number = errno_of(error)
        self._counters.add("errors", label=errno.errorcode.get(number, str(number)))
        if isinstance(error, (PenstockError, OSError, *MALFORMED)):
            log.warning("%s of inode %d: %s", _name(info.opcode), info.node, error)
        else:
            log.error("%s of inode %d failed: a bug", _name(info.opcode), info.node, exc_info=error)
        self._reply_error(info, number)

    def _reply(self, info: RequestInfo, parts: Sequence[Buffer] | None) -> None:
        if parts is None:  # no reply is expected, or another process sends it
            if self._journal is not None:
                self._journal.answered(info.unique)
            return
        length = OUT_HEADER_BYTES
        for part in parts:
            length += memoryview(part).nbytes
        self._write(info, (OUT_HEADER.pack(length, 0, info.unique), *parts))
        if info.opcode == _READ:
            self._note_read(length - OUT_HEADER_BYTES)

    def _note_read(self, length: int) -> None:
        try:
            count: list[int] = self._local.read_bytes
        except AttributeError:  # this thread's first reply
            count = self._local.read_bytes = [0]
            self._read_bytes.append(count)
        count[0] += length

    def _reply_error(self, info: RequestInfo, number: int) -> None:
        self._write(info, (OUT_HEADER.pack(OUT_HEADER_BYTES, -number, info.unique),))

    def _write(self, info: RequestInfo, parts: Sequence[Buffer]) -> None:
        try:
            os.writev(info.descriptor, parts)
        except OSError as error:
            # ENOENT: the reader was killed, or another process has answered. ENODEV: the file
            # system was unmounted.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        if self._journal is not None:
            self._journal.answered(info.unique)

    # -- telling the kernel -------------------------------------------------------------

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel drop this name, or its absence."""
        body = INVAL_ENTRY.pack(parent, len(name), 0) + name + b"\0"
        self._notify(Notify.INVAL_ENTRY, body)

    def invalidate_pages(self, ino: int) -> None:
        """Make the kernel drop the pages of a file, or a directory's listing."""
        self._notify(Notify.INVAL_INODE, INVAL_INODE.pack(ino, 0, -1))

    def store_pages(self, ino: int, offset: int, data: memoryview) -> bool:
        """Put bytes of a file into the kernel's page cache; False if the kernel does not hold the
        inode. Call it in a thread on which no reply depends: it waits for pages that are being
        read."""
        return store_pages(self.descriptor, ino, offset, data)

    def holds(self, ino: int) -> bool:
        """Whether the kernel holds this inode. Checked by storing no bytes in it."""
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
