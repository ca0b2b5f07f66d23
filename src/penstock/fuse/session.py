"""Reads requests from /dev/fuse, hands them to the handlers, writes the answers.

Threading: each thread runs the plainest loop there is: read a request, do it (blocking), write
the answer. Threads that wait cost nothing; there are as many as reads that may block at once
in object storage. Counts are kept by thread, so the hot path takes no lock.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence

from typing_extensions import Buffer

from penstock.errors import PenstockError
from penstock.fuse.errno_table import errno_of
from penstock.fuse.protocol import (
    IN_HEADER,
    INVAL_ENTRY,
    INVAL_INODE,
    OP_COUNT,
    OUT_HEADER,
    OUT_HEADER_BYTES,
    Notify,
    Op,
)
from penstock.metrics import Counters

log = logging.getLogger(__name__)

# Requests to a read-only file system are small; the kernel demands at least 8 KiB.
_REQUEST_BYTES = 64 * 1024

NO_REPLY = None
Reply = Sequence[Buffer] | None
Handler = Callable[[int, bytearray, int], Reply]


class FuseError(Exception):
    """An answer that is an error number and no accident (a missing name, say)."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Session:
    def __init__(self, descriptor: int, threads: int, counters: Counters) -> None:
        self.descriptor = descriptor
        self._threads = threads
        self._counters = counters
        self._counts: list[list[int]] = []
        self._workers: list[threading.Thread] = []

    def start(self, handlers: dict[int, Handler]) -> None:
        for number in range(self._threads):
            counts = [0] * OP_COUNT
            self._counts.append(counts)
            worker = threading.Thread(
                target=self._serve, args=(handlers, counts), name=f"fuse-{number}", daemon=True
            )
            self._workers.append(worker)
            worker.start()

    def join(self) -> None:
        """Until the file system is unmounted."""
        for worker in self._workers:
            worker.join()

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the kernel has sent."""
        sums = [sum(column) for column in zip(*self._counts, strict=True)]
        return {_name(opcode): count for opcode, count in enumerate(sums) if count}

    # -- the loop -----------------------------------------------------------------------

    def _serve(self, handlers: dict[int, Handler], counts: list[int]) -> None:
        descriptor = self.descriptor
        buffer = bytearray(_REQUEST_BYTES)
        into = [buffer]
        while True:
            try:
                length = os.readv(descriptor, into)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # unmounted
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue  # interrupted before we got it
                raise
            _, opcode, unique, node, *_ = IN_HEADER.unpack_from(buffer)
            counts[opcode if opcode < OP_COUNT else 0] += 1
            handler = handlers.get(opcode)
            try:
                if handler is None:
                    self._reply_error(unique, errno.ENOSYS)
                    continue
                reply = handler(node, buffer, length)
            except FuseError as error:
                self._reply_error(unique, error.number)
            except (PenstockError, OSError) as error:
                number = errno_of(error)
                self._counters.add("errors", label=errno.errorcode.get(number, str(number)))
                log.warning("%s of inode %d: %s", _name(opcode), node, error)
                self._reply_error(unique, number)
            except Exception:
                self._counters.add("errors", label="EIO")
                log.exception("%s of inode %d failed", _name(opcode), node)
                self._reply_error(unique, errno.EIO)
            else:
                if reply is not None:
                    self._reply(unique, reply)

    def _reply(self, unique: int, parts: Sequence[Buffer]) -> None:
        length = OUT_HEADER_BYTES
        for part in parts:
            length += memoryview(part).nbytes
        self._write((OUT_HEADER.pack(length, 0, unique), *parts))

    def _reply_error(self, unique: int, number: int) -> None:
        self._write((OUT_HEADER.pack(OUT_HEADER_BYTES, -number, unique),))

    def _write(self, parts: Sequence[Buffer]) -> None:
        try:
            os.writev(self.descriptor, parts)
        except OSError as error:
            # ENOENT: the reader was killed meanwhile. ENODEV: unmounted meanwhile.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    # -- telling the kernel -------------------------------------------------------------

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """The kernel must ask again for this name (and for its absence)."""
        body = INVAL_ENTRY.pack(parent, len(name), 0) + name + b"\0"
        self._notify(Notify.INVAL_ENTRY, body)

    def invalidate_pages(self, ino: int) -> None:
        """The kernel must drop what it keeps of this inode: pages, or a directory's listing."""
        self._notify(Notify.INVAL_INODE, INVAL_INODE.pack(ino, 0, -1))

    def _notify(self, code: Notify, body: bytes) -> None:
        header = OUT_HEADER.pack(OUT_HEADER_BYTES + len(body), code, 0)
        try:
            os.write(self.descriptor, header + body)
        except OSError as error:
            # ENOENT: the kernel does not hold it, so there is nothing to drop.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
                raise


def _name(opcode: int) -> str:
    try:
        return Op(opcode).name
    except ValueError:
        return f"OP{opcode}"
