"""Requests that were read and are not answered yet, in memory that outlives a server.

For kernels before 6.9, which cannot send them again. The kernel itself writes each request into
a slot here (it is the buffer of the read), so there is no moment at which a server could be killed
and one be lost. The next server finds what was not answered, and answers it. It may answer twice
what its predecessor had just answered; the kernel takes the first.

Threading: any thread. Slots are handed out from the end of a list, so few pages are ever touched.
"""

import mmap
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from penstock.fuse.protocol import IN_HEADER, IN_HEADER_BYTES

# The least that the kernel reads into, and more than any request to a read-only file system needs.
_SLOT_BYTES = 8192
_SLOTS = 4096
_WORD_BYTES = 8
_FULL_WAIT_S = 0.001


class Unanswered(NamedTuple):
    unique: int
    request: bytearray  # a copy, marked as the kernel marks what it sends again
    length: int


def new_journal() -> int:
    """The descriptor of an empty one."""
    descriptor = os.memfd_create("penstock-journal")
    os.ftruncate(descriptor, _SLOTS * _SLOT_BYTES)
    return descriptor


class Journal:
    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, _SLOTS * _SLOT_BYTES))
        self._words = self._bytes.cast("Q")
        self._slots: dict[int, int] = {}  # of what is unanswered
        self._free: list[int] = []
        for slot in reversed(range(_SLOTS)):
            if self._words[slot * _SLOT_BYTES // _WORD_BYTES]:
                unique = IN_HEADER.unpack_from(self._bytes, slot * _SLOT_BYTES)[2]
                self._slots[unique] = slot
            else:
                self._free.append(slot)

    def unanswered(self) -> Iterator[Unanswered]:
        """What a server before us had read."""
        for unique, slot in list(self._slots.items()):
            start = slot * _SLOT_BYTES
            length = IN_HEADER.unpack_from(self._bytes, start)[0]
            request = bytearray(self._bytes[start : start + max(length, IN_HEADER_BYTES)])
            request[15] |= 0x80  # the highest bit of its number
            yield Unanswered(unique, request, length)

    def take_slot(self) -> tuple[int, memoryview]:
        """A place for the next request. Waits while thousands are unanswered."""
        while True:
            try:
                slot = self._free.pop()
            except IndexError:
                time.sleep(_FULL_WAIT_S)
                continue
            return slot, self._bytes[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES]

    def put_back(self, slot: int) -> None:
        self._free.append(slot)

    def note(self, unique: int, slot: int) -> None:
        self._slots[unique] = slot

    def answered(self, unique: int) -> None:
        slot = self._slots.pop(unique, None)
        if slot is not None:
            # Its length and kind: a slot that starts with zeros holds no request.
            self._words[slot * _SLOT_BYTES // _WORD_BYTES] = 0
            self._free.append(slot)
