"""Memory that outlives a server: unanswered requests, and open files.

The journal is for kernels before 6.9, which cannot resend requests. The kernel itself writes each
request into a slot here (the buffer of the read), so a server that is killed at any moment loses
none. The next server finds the unanswered requests, and answers them. It may answer again what its
predecessor had just answered; the kernel takes the first reply.

Threading: any thread. Slots are taken from the end of a list, so few pages are ever touched.
"""

import mmap
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from penstock.fuse.protocol import IN_HEADER, IN_HEADER_BYTES

# The smallest buffer that the kernel accepts, and more than any request to a read-only file system
# needs.
_SLOT_BYTES = 8192
_SLOTS = 4096
_WORD_BYTES = 8
_FULL_WAIT_S = 0.001


class Unanswered(NamedTuple):
    unique: int
    request: bytearray  # a copy, marked as the kernel marks resent requests
    length: int


def new_journal() -> int:
    """Return the descriptor of an empty journal."""
    descriptor = os.memfd_create("penstock-journal")
    os.ftruncate(descriptor, _SLOTS * _SLOT_BYTES)
    return descriptor


class Journal:
    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, _SLOTS * _SLOT_BYTES))
        self._words = self._bytes.cast("Q")
        self._slots: dict[int, int] = {}  # unanswered requests
        self._free: list[int] = []
        for slot in reversed(range(_SLOTS)):
            if self._words[slot * _SLOT_BYTES // _WORD_BYTES]:
                unique = IN_HEADER.unpack_from(self._bytes, slot * _SLOT_BYTES)[2]
                self._slots[unique] = slot
            else:
                self._free.append(slot)

    def unanswered(self) -> Iterator[Unanswered]:
        """Return the requests that a previous server had read."""
        for unique, slot in list(self._slots.items()):
            start = slot * _SLOT_BYTES
            stated_bytes = IN_HEADER.unpack_from(self._bytes, start)[0]
            length = min(max(stated_bytes, IN_HEADER_BYTES), _SLOT_BYTES)
            request = bytearray(self._bytes[start : start + length])
            request[15] |= 0x80  # the highest bit of its number
            yield Unanswered(unique, request, length)

    def take_slot(self) -> tuple[int, memoryview]:
        """Return a slot for the next request. Waits while thousands are unanswered."""
        while True:
            try:
                slot = self._free.pop()
            except IndexError:
                time.sleep(_FULL_WAIT_S)
                continue
            return slot, self._bytes[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]

    def put_back(self, slot: int) -> None:
        """Free a slot, whatever it contains: one that starts with zeros holds no request."""
        self._words[slot * _SLOT_BYTES // _WORD_BYTES] = 0
        self._free.append(slot)

    def note(self, unique: int, slot: int) -> None:
        self._slots[unique] = slot

    def answered(self, unique: int) -> None:
        slot = self._slots.pop(unique, None)
        if slot is not None:
            self.put_back(slot)


_FIELDS = 4
INO, BACKING, USERS, DAEMON_OPENS = range(_FIELDS)
_RECORD_BYTES = _FIELDS * 8
_FIRST_RECORDS = 1024
_MOST = (1 << 32) - 1  # the largest count, and the largest number of a backing file


class Open(NamedTuple):
    slot: int
    ino: int
    backing: int
    users: int
    daemon_opens: int


def new_ledger() -> int:
    """Return the descriptor of an empty ledger."""
    descriptor = os.memfd_create("penstock-opens")
    os.ftruncate(descriptor, _FIRST_RECORDS * _RECORD_BYTES)
    return descriptor


class Ledger:
    """Which files the kernel has open, and on which backing files.

    The kernel rejects an open that does not fit the existing ones (another backing file, or through
    the server while one is passed through), and a new server cannot query those. So they are
    recorded in a memory file that the supervisor keeps open.

    A server may be killed between a step and its record. The order of steps is chosen so that a
    count can then only be too high: a file that stays registered for nothing costs a descriptor in
    the kernel, while one that is unregistered too early would fail a reader's open.

    Threading: slots are taken and freed under the caller's lock; words are written under the lock
    of their inode.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map()
        self._free = [slot for slot in range(self._records) if not self.read(slot, INO)]

    def opens(self) -> Iterator[Open]:
        for slot in range(self._records):
            record = tuple(self._words[slot * _FIELDS : (slot + 1) * _FIELDS])
            if record[INO] and max(record[BACKING:]) <= _MOST:
                yield Open(slot, *record)

    def enter(self, ino: int) -> int:
        """Return a slot for this inode, with all counts at 0."""
        if not self._free:
            before = self._records
            os.ftruncate(self._descriptor, 2 * before * _RECORD_BYTES)
            self._map()
            self._free = list(range(before, self._records))
        slot = self._free.pop()
        for field in (BACKING, USERS, DAEMON_OPENS):
            self.write(slot, field, 0)
        self.write(slot, INO, ino)  # last: it makes the record valid
        return slot

    def leave(self, slot: int) -> None:
        self.write(slot, INO, 0)
        self._free.append(slot)

    def read(self, slot: int, field: int) -> int:
        return self._words[slot * _FIELDS + field]

    def write(self, slot: int, field: int, value: int) -> None:
        self._words[slot * _FIELDS + field] = value  # one aligned store, so it is atomic

    def _map(self) -> None:
        size = os.fstat(self._descriptor).st_size
        # The smaller mapping is freed with its last reference, after any writer that still uses it.
        self._words = memoryview(mmap.mmap(self._descriptor, size)).cast("Q")
        self._records = size // _RECORD_BYTES
