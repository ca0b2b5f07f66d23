"""Reads requests from /dev/fuse, hands them to the handlers, writes the answers.

Threading: a few takers run the plainest loop there is: read a request, answer it, read the
next. They never wait: what storage has to bring is answered by whoever brings it (`Later`), what
the disk has to say by one of a few waiters (`OnDisk`), so that a lookup is never stuck behind a
slow read. Few takers, because when the answers come from the
local cache more threads only fight over the interpreter's lock: eight readers of cached small
files got 7,000 files/s from 32 threads that all took requests, and 12,000 from two.
Counts are kept by thread, so the hot path takes no lock.
"""

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from typing_extensions import Buffer

from penstock.errors import PenstockError
from penstock.fuse.errno_table import errno_of
from penstock.fuse.journal import Journal, Unanswered
from penstock.fuse.protocol import (
    IN_HEADER,
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

_TAKERS = 2

NO_REPLY = None
_READ = int(Op.READ)  # a plain number: comparing with an enum's member costs four times as much


# Called once, from any thread, with the parts of an answer or with why there is none.
Answer = Callable[[Sequence[Buffer] | Exception], None]


class Later(NamedTuple):
    """An answer that someone else gives: `start` returns at once."""

    start: Callable[[Answer], None]


class OnDisk(NamedTuple):
    """An answer that has to be waited for, but for no longer than this machine's disk takes. A few
    threads of their own do that, so that it is never stuck behind storage that fails."""

    answer: Callable[[], Sequence[Buffer]]


Reply = Sequence[Buffer] | Later | OnDisk | None
Request = bytearray | memoryview
Handler = Callable[[int, Request, int], Reply]


class FuseError(Exception):
    """An answer that is an error number and no accident (a missing name, say)."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Session:
    def __init__(
        self, descriptor: int, waiters: int, counters: Counters, journal: Journal | None = None
    ) -> None:
        """`journal`: for a kernel that cannot send again what is unanswered."""
        self.descriptor = descriptor
        self._journal = journal
        self._left_over: list[Unanswered] = []
        self._waiters = waiters
        self._counters = counters
        self._counts: list[list[int]] = []
        self._read_bytes: list[list[int]] = []
        self._local = threading.local()
        self._takers: list[threading.Thread] = []
        # What each taker works on: the request's number; 0 while it waits for the next.
        self._in_hand: list[list[int]] = []
        self._stuck_on: list[int] = []
        self._stuck_since_s = 0.0
        self._refuse_resent = False
        self._waiting: queue.SimpleQueue[tuple[int, int, int, OnDisk]] = queue.SimpleQueue()

    def take_over(self, *, refuse_resent: bool) -> None:
        """Goes on where a server was that is gone: what that one had read and not answered comes
        again. Refused are they if they have crashed every server so far."""
        self._refuse_resent = refuse_resent
        if self._journal is None:
            self._notify(Notify.RESEND, b"")
        else:
            self._left_over = list(self._journal.unanswered())

    def start(self, handlers: dict[int, Handler], on_end: Callable[[], None]) -> None:
        """`on_end` is called once the file system is unmounted."""
        self._on_end = on_end
        left_over, self._left_over = self._left_over, []
        for unanswered in left_over:
            _, opcode, _, node, *_ = IN_HEADER.unpack_from(unanswered.request)
            self._dispatch(
                handlers, opcode, unanswered.unique, node, unanswered.request, unanswered.length
            )
        for number in range(self._waiters):
            name = f"wait-{number}"
            threading.Thread(target=self._answer_later, name=name, daemon=True).start()
        for number in range(_TAKERS):
            counts = [0] * OP_COUNT
            self._counts.append(counts)
            in_hand = [0]
            self._in_hand.append(in_hand)
            taker = threading.Thread(
                target=self._take, args=(handlers, counts, in_hand), name=f"fuse-{number}",
                daemon=True,
            )  # fmt: skip
            self._takers.append(taker)
            taker.start()

    def join(self) -> None:
        """Until the file system is unmounted."""
        for taker in self._takers:
            taker.join()

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the kernel has sent."""
        sums = [sum(column) for column in zip(*self._counts, strict=True)]
        return {_name(opcode): count for opcode, count in enumerate(sums) if count}

    def read_bytes(self) -> int:
        """How many bytes READ has been answered with."""
        return sum(count for (count,) in self._read_bytes)

    def stuck_for_s(self) -> float:
        """For how long the takers have been at the very requests they are at now. To be asked
        again and again."""
        now = time.monotonic()
        in_hand = [number for (number,) in self._in_hand if number]
        if not set(in_hand) & set(self._stuck_on):
            self._stuck_since_s = now
        self._stuck_on = in_hand
        return now - self._stuck_since_s

    # -- the loop -----------------------------------------------------------------------

    def _take(self, handlers: dict[int, Handler], counts: list[int], in_hand: list[int]) -> None:
        descriptor, journal = self.descriptor, self._journal
        buffer: Request = bytearray(_REQUEST_BYTES)
        slot = 0
        while True:
            in_hand[0] = 0
            if journal is not None:
                slot, buffer = journal.take_slot()
            try:
                length = os.readv(descriptor, (buffer,))
            except OSError as error:
                if error.errno == errno.ENODEV:
                    self._on_end()
                    return  # unmounted
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    if journal is not None:
                        journal.put_back(slot)
                    continue  # interrupted before we got it
                raise
            _, opcode, unique, node, *_ = IN_HEADER.unpack_from(buffer)
            if journal is not None:
                journal.note(unique, slot)
            in_hand[0] = unique
            counts[opcode if opcode < OP_COUNT else 0] += 1
            self._dispatch(handlers, opcode, unique, node, buffer, length)

    def _dispatch(
        self, handlers: dict[int, Handler], opcode: int, unique: int, node: int,
        request: Request, length: int,
    ) -> None:  # fmt: skip
        if self._refuse_resent and is_resent(request):
            log.error("%s of inode %d crashed every server: refused", _name(opcode), node)
            self._reply_error(unique, errno.EIO)
            return
        handler = handlers.get(opcode)
        if handler is None:
            self._reply_error(unique, errno.ENOSYS)
            return
        try:
            reply = handler(node, request, length)
            if isinstance(reply, Later):
                reply.start(partial(self._answer, unique, opcode, node))
            elif isinstance(reply, OnDisk):
                self._waiting.put((unique, opcode, node, reply))
            elif reply is not None:
                self._reply(unique, opcode, reply)
            elif self._journal is not None:
                self._journal.answered(unique)
        except Exception as error:  # noqa: BLE001 - a failure costs one request, not the mount
            self._reply_failure(unique, opcode, node, error)

    def _answer_later(self) -> None:
        while True:
            unique, opcode, node, waits = self._waiting.get()
            try:
                self._reply(unique, opcode, waits.answer())
            except Exception as error:  # noqa: BLE001 - as above
                self._reply_failure(unique, opcode, node, error)

    def _answer(
        self, unique: int, opcode: int, node: int, answer: Sequence[Buffer] | Exception
    ) -> None:
        if isinstance(answer, Exception):
            self._reply_failure(unique, opcode, node, answer)
            return
        try:
            self._reply(unique, opcode, answer)
        except OSError as error:
            self._reply_failure(unique, opcode, node, error)

    def _reply_failure(self, unique: int, opcode: int, node: int, error: Exception) -> None:
        if isinstance(error, FuseError):
            self._reply_error(unique, error.number)
            return
        number = errno_of(error)
        self._counters.add("errors", label=errno.errorcode.get(number, str(number)))
        if isinstance(error, (PenstockError, OSError)):
            log.warning("%s of inode %d: %s", _name(opcode), node, error)
        else:
            log.error("%s of inode %d failed: a bug", _name(opcode), node, exc_info=error)
        self._reply_error(unique, number)

    def _reply(self, unique: int, opcode: int, parts: Sequence[Buffer]) -> None:
        length = OUT_HEADER_BYTES
        for part in parts:
            length += memoryview(part).nbytes
        self._write(unique, (OUT_HEADER.pack(length, 0, unique), *parts))
        if opcode == _READ:
            self._note_read(length - OUT_HEADER_BYTES)

    def _note_read(self, length: int) -> None:
        try:
            count: list[int] = self._local.read_bytes
        except AttributeError:  # this thread's first answer
            count = self._local.read_bytes = [0]
            self._read_bytes.append(count)
        count[0] += length

    def _reply_error(self, unique: int, number: int) -> None:
        self._write(unique, (OUT_HEADER.pack(OUT_HEADER_BYTES, -number, unique),))

    def _write(self, unique: int, parts: Sequence[Buffer]) -> None:
        try:
            os.writev(self.descriptor, parts)
        except OSError as error:
            # ENOENT: the reader was killed meanwhile. ENODEV: unmounted meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        if self._journal is not None:
            self._journal.answered(unique)

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
