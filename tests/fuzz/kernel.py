"""What the kernel writes: requests, and the memory in which a server leaves them to the next."""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

from penstock.catalog.tree import ROOT
from penstock.fuse import journal, session
from penstock.fuse import protocol as p
from penstock.fuse.backing import BackingFiles
from penstock.fuse.handlers import Handlers, KernelOptions
from penstock.fuse.journal import Journal, Ledger, new_journal, new_ledger
from penstock.fuse.session import Session
from penstock.metrics import Counters
from tests.fuzz.target import Check, Target, watching
from tests.support.gated_set import BLOCK, Set
from tests.support.waiting import wait_until

FILES = {"d/small": b"x" * 600, "d/large": b"y" * (2 * BLOCK + 7), "empty": b""}
_OPTIONS = KernelOptions(uid=0, gid=0)
_HANGS_AFTER_S = 60
_SILENT = (p.Op.FORGET, p.Op.BATCH_FORGET, p.Op.INTERRUPT)
_MOST_ERRNO = 511  # the kernel takes no answer with a higher one
_SLOTS, _SLOT_BYTES = 16, 8192


def request(op: int, node: int = ROOT, body: bytes = b"", unique: int = 7) -> bytes:
    length = p.IN_HEADER_BYTES + len(body)
    return p.IN_HEADER.pack(length, op, unique, node, 0, 0, 0, 0, 0) + body


REQUESTS = [
    request(p.Op.INIT, 0, p.INIT_IN.pack(7, 40, 1 << 17, (1 << 32) - 1) + bytes(48)),
    request(p.Op.LOOKUP, ROOT, b"d\0"),
    request(p.Op.GETATTR, 2),
    *(request(p.Op.READ, node, p.READ_IN.pack(0, 0, 4096)) for node in (2, 3, 4, 5)),
    *(
        request(op, ROOT, p.READ_IN.pack(0, 0, 4096))
        for op in (p.Op.READDIR, p.Op.READDIRPLUS, p.Op.OPENDIR)
    ),
    *(request(op, 3, bytes(8)) for op in (p.Op.OPEN, p.Op.RELEASE, p.Op.STATFS, p.Op.FORGET)),
    request(p.Op.GETXATTR, 3, p.GETXATTR_IN.pack(100, 0) + b"user.penstock.version\0"),
    request(p.Op.LISTXATTR, 3, p.GETXATTR_IN.pack(100, 0)),
    request(p.Op.WRITE, 3),
    request(63, 3),
]


class _NoBackingFiles:
    """Calls on a /dev/fuse that knows no backing file."""

    def clone(self, fuse: int) -> int:
        raise OSError(errno.EINVAL, f"{fuse} is a socket")

    def open_backing(self, fuse: int, file: int) -> int:
        raise OSError(errno.ENOENT, f"no backing file {file} for {fuse}")

    def close_backing(self, fuse: int, number: int) -> None:
        raise OSError(errno.ENOENT, f"no backing file {number} of {fuse}")


class Kernel:
    """The other end of a session's descriptor, which keeps messages apart as /dev/fuse does."""

    def __init__(self, folder: Path) -> None:
        self._set = Set(folder, FILES, 100 * BLOCK, ())
        self._end, self._peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peer.settimeout(_HANGS_AFTER_S)
        self.descriptor = self._end.fileno()
        self._ledger = new_ledger()
        backings = self.backings(self._ledger)
        self.table = Handlers(self._set.files, _OPTIONS, backings, lambda _agreed: None).table()
        self.session = Session(self.descriptor, 1, Counters())

    def backings(self, ledger: int) -> BackingFiles:
        made = BackingFiles(
            self.descriptor, self._set.files, lambda _ino: None, Ledger(ledger), _NoBackingFiles()
        )
        made.enabled = False  # a socket knows nothing of backing files
        return made

    def ask(self, data: bytes) -> None:
        """Raises if there is another number of answers than one, if it is none that the kernel
        would take, or if nobody answers what comes next."""
        opcode, unique = 0, 0
        if len(data) >= p.IN_HEADER_BYTES:
            _, opcode, unique, *_ = p.IN_HEADER.unpack_from(data)
        awaited = {unique ^ 1}
        if len(data) >= p.IN_HEADER_BYTES and opcode not in _SILENT:
            awaited.add(unique)
        self._peer.send(data)
        self._peer.send(request(p.Op.STATFS, unique=unique ^ 1))
        while awaited:
            awaited.remove(self.receive())
        self._set.store.asked.clear()

    def receive(self) -> int:
        answer = self._peer.recv(1 << 20)
        length, error, unique = p.OUT_HEADER.unpack_from(answer)
        assert length == len(answer)
        assert -_MOST_ERRNO <= error <= 0
        assert not error or length == p.OUT_HEADER_BYTES
        return unique

    def drain(self) -> None:
        self._peer.setblocking(False)
        try:
            while True:
                self.receive()
        except BlockingIOError:
            pass
        self._set.store.asked.clear()

    def unmount(self) -> None:
        self._peer.close()

    def close(self) -> None:
        self._end.close()
        os.close(self._ledger)
        self._set.cache.close()
        self._set.tree.close()


@contextmanager
def _unmounting() -> Iterator[None]:
    """A socket has only its end for what /dev/fuse says with ENODEV."""
    read = os.readv

    def readv(descriptor: int, buffers: tuple[bytearray, ...]) -> int:
        if length := read(descriptor, buffers):
            return length
        raise OSError(errno.ENODEV, "unmounted")

    with mock.patch.object(session.os, "readv", readv):
        yield


@contextmanager
def _open_requests(folder: Path) -> Iterator[Check]:
    with watching() as bugs, _unmounting():
        kernel = Kernel(folder)
        kernel.session.start(kernel.table, lambda: None)

        def check(data: bytes) -> None:
            if data:  # an empty message is the end of the mount
                try:
                    kernel.ask(data)
                finally:
                    bugs.check()

        yield check
        kernel.unmount()
        kernel.session.join()
        kernel.close()


@contextmanager
def _open_journal(folder: Path) -> Iterator[Check]:
    with watching() as bugs, mock.patch.object(journal, "_SLOTS", _SLOTS):
        kernel = Kernel(folder)
        kernel.session.set_handlers(kernel.table)

        def check(data: bytes) -> None:
            with _memory(new_journal(), data) as descriptor:
                _answer_all(kernel.session, Journal(descriptor))
                left = list(Journal(descriptor).unanswered())
            bugs.check()
            kernel.drain()
            # Of two with one number, which the kernel never gives, one is answered.
            if len(_numbers(data)) == len(set(_numbers(data))):
                assert not left, "requests that nobody would ever answer"

        yield check
        kernel.unmount()
        kernel.close()


def _answer_all(session: Session, found: Journal) -> None:
    session._journal = found
    for one in found.unanswered():
        assert len(one.request) == one.length <= _SLOT_BYTES, "more than one request"
        session.serve(one.request, one.length, unique=one.unique)
    wait_until(lambda: not list(found.unanswered()))


@contextmanager
def _open_ledger(folder: Path) -> Iterator[Check]:
    with watching() as bugs:
        kernel = Kernel(folder)

        def check(data: bytes) -> None:
            with _memory(new_ledger(), data) as descriptor:
                found = kernel.backings(descriptor)
                handle, _, _ = found.open(3)
                found.release(3, handle, resent=False)
            bugs.check()

        yield check
        kernel.unmount()
        kernel.close()


@contextmanager
def _memory(descriptor: int, data: bytes) -> Iterator[int]:
    with closing(os.fdopen(descriptor, "r+b", buffering=0)) as file:
        size = os.fstat(descriptor).st_size
        os.pwrite(descriptor, data[:size], 0)
        yield file.fileno()


def _numbers(data: bytes) -> list[bytes]:
    """Of the requests in a journal: a slot that starts with zeros holds none."""
    slots = [data[at : at + 16].ljust(16, b"\0") for at in range(0, len(data), _SLOT_BYTES)]
    return [slot[8:] for slot in slots if any(slot[:8])]


def _in_slots(requests: list[bytes]) -> bytes:
    return b"".join(one.ljust(_SLOT_BYTES, b"\0") for one in requests[:_SLOTS])


def _numbered(ops: Callable[[int], bytes]) -> list[bytes]:
    return [ops(number) for number in range(4)]


REQUEST_TARGET = Target(
    "requests",
    "each request is answered once, with an errno at worst, and the next one is served",
    _open_requests,
    REQUESTS,
)
JOURNAL_TARGET = Target(
    "journal",
    "a server that takes over answers all that is in it, and leaves it empty",
    _open_journal,
    [
        _in_slots(_numbered(lambda n: request(p.Op.READ, 3, p.READ_IN.pack(0, 0, 9), n + 1))),
        *REQUESTS,
    ],
)
LEDGER_TARGET = Target(
    "ledger",
    "a server that takes over starts, opens a file and lets go of it",
    _open_ledger,
    [b"".join(n.to_bytes(8, "little") for n in row) for row in ((3, 1, 2, 0), (3, 0, 1, 1) * 3)],
)
