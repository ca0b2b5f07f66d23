"""Which files the kernel has open, and on which backing file: in memory that outlives a server.

The kernel refuses an open that does not fit the ones it has (another backing file, or through
the server while one is passed through), and a new server cannot ask it which it has. So they are
noted in a memory file that the supervisor keeps open.

A server may be killed between a step and its note. Each order is chosen so that a count can only
be too high then: a file that stays registered for nothing costs a descriptor in the kernel,
one that is let go of too early would cost a reader its open.

Threading: slots are given out and taken back under the caller's lock; words are written by
whoever holds the lock of their inode.
"""

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

_FIELDS = 4
INO, BACKING, USERS, DAEMON_OPENS = range(_FIELDS)
_RECORD_BYTES = _FIELDS * 8
_FIRST_RECORDS = 1024


class Open(NamedTuple):
    slot: int
    ino: int
    backing: int
    users: int
    daemon_opens: int


def new_ledger() -> int:
    """The descriptor of an empty one."""
    descriptor = os.memfd_create("penstock-opens")
    os.ftruncate(descriptor, _FIRST_RECORDS * _RECORD_BYTES)
    return descriptor


class Ledger:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map()
        self._free = [slot for slot in range(self._records) if not self.read(slot, INO)]

    def opens(self) -> Iterator[Open]:
        for slot in range(self._records):
            record = tuple(self._words[slot * _FIELDS : (slot + 1) * _FIELDS])
            if record[INO]:
                yield Open(slot, *record)

    def enter(self, ino: int) -> int:
        """A slot for this inode, with all counts at 0."""
        if not self._free:
            before = self._records
            os.ftruncate(self._descriptor, 2 * before * _RECORD_BYTES)
            self._map()
            self._free = list(range(before, self._records))
        slot = self._free.pop()
        for field in (BACKING, USERS, DAEMON_OPENS):
            self.write(slot, field, 0)
        self.write(slot, INO, ino)  # last: now the others count
        return slot

    def leave(self, slot: int) -> None:
        self.write(slot, INO, 0)
        self._free.append(slot)

    def read(self, slot: int, field: int) -> int:
        return self._words[slot * _FIELDS + field]

    def write(self, slot: int, field: int, value: int) -> None:
        self._words[slot * _FIELDS + field] = value  # one aligned store: there, or not there

    def _map(self) -> None:
        size = os.fstat(self._descriptor).st_size
        # A mapping that has become too small is let go of by whoever still writes to it.
        self._words = memoryview(mmap.mmap(self._descriptor, size)).cast("Q")
        self._records = size // _RECORD_BYTES
