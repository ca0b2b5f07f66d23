"""The sixteen readers of the soak: threads that read, judge what they got, and note what was wrong.

A mapped file is read in a process of its own: a page that cannot be had ends it with SIGBUS.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.model.world import BusError, read_mapped
from tests.soak.contents import LARGE, NAMES, SMALL, describe, make, size_of, state_in
from tests.soak.stage import Actor, Stage

ROLES = (
    "small whole", "small whole", "small whole", "small mapped",
    "large whole", "large whole", "large random", "large mapped",
)  # fmt: skip
_STEP_BYTES = 256 << 10


@dataclass(frozen=True)
class Error:
    """An error that a reader saw."""

    kind: str  # as in errno, or SIGBUS
    name: str
    promised: bool  # by the states that the file had meanwhile
    began_s: float
    ended_s: float
    clock: str


class Reader(Actor):
    def __init__(self, stage: Stage, stop: threading.Event, number: int) -> None:
        super().__init__(stage, stop, f"reader {number}")
        self._mount, role = divmod(number, len(ROLES))
        files, how = ROLES[role].split()
        self._folder, self._ledger = stage.mounts[self._mount], stage.ledger
        self._files = SMALL if files == "small" else LARGE
        self._mapped = how == "mapped"
        self._how: Callable[[int, int], bytes] = (
            self._read_at_random if how == "random" else _read_whole
        )
        self.operations = self.bytes = 0
        self.longest_pause_s = 0.0
        self.wrong: list[str] = []
        self.errors: list[Error] = []

    def work(self) -> None:
        # Two cores serve 16 readers, the servers, the store and the trouble; a process for each
        # mapped file takes most.
        most_s = 0.3 if self._mapped else 0.002 if self._files is SMALL else 0.02
        while self.pause(0.0, most_s):
            file = self.chance.choice(self._files)
            floor = self._ledger.floors[self._mount][file]
            began_s = time.monotonic()
            try:
                if self._files is SMALL and self.chance.random() < 0.02:
                    self._list(file)
                else:
                    self._read(file, floor)
            except BusError:
                self._note("SIGBUS", file, self._ledger.latest[file] > floor, began_s)
            except OSError as error:
                promised = {
                    errno.ENOENT: False in self._ledger.there(floor, file),
                    errno.ESTALE: self._ledger.latest[file] > floor,
                }  # and EIO while the store is away
                number = error.errno or 0
                kind = errno.errorcode.get(number, str(number))
                self._note(kind, file, promised.get(number, False), began_s)
            self.operations += 1
            self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began_s)

    def _read(self, file: int, floor: int) -> None:
        name = NAMES[file]
        data = read_mapped(self._folder / name) if self._mapped else self._read_open(name)
        self.bytes += len(data)
        self._judge(data, file, floor)

    def _read_open(self, name: str) -> bytes:
        descriptor = os.open(self._folder / name, os.O_RDONLY)
        try:
            data = self._how(descriptor, os.fstat(descriptor).st_size)
            if self.chance.random() < 0.5:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return data

    def _list(self, file: int) -> None:
        first = file // 20 * 20
        files = range(first, first + 20)
        floors = {file: self._ledger.floors[self._mount][file] for file in files}
        found = set(os.listdir((self._folder / NAMES[first]).parent))
        for file in files:
            listed = os.path.basename(NAMES[file]) in found
            if self._ledger.there(floors[file], file) == {not listed}:
                self.wrong.append(f"{NAMES[file]}: listed: {listed}")

    def _judge(self, data: bytes, file: int, floor: int) -> None:
        name, state = NAMES[file], state_in(data)
        if state is None or state > self._ledger.latest[file] or size_of(name, state) is None:
            self.wrong.append(f"{name}: no state of this file: {describe(data)}")
        elif data != make(name, state):
            what = f"{len(data)} bytes, not those of state {state}: {describe(data)}"
            self.wrong.append(f"{name}: {what}")
        elif state < floor:
            self.wrong.append(f"{name}: state {state} after a refresh showed {floor}")

    def _note(self, kind: str, file: int, promised: bool, began_s: float) -> None:
        ended_s, clock = time.monotonic(), time.strftime("%T")
        self.errors.append(Error(kind, NAMES[file], promised, began_s, ended_s, clock))

    def _read_at_random(self, descriptor: int, size: int) -> bytes:
        """All of it, in pieces, in any order."""
        data = bytearray(size)
        starts = list(range(0, size, _STEP_BYTES))
        self.chance.shuffle(starts)
        for start in starts:
            piece = os.pread(descriptor, _STEP_BYTES, start)
            data[start : start + len(piece)] = piece
        return bytes(data)


def _read_whole(descriptor: int, _size: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, _STEP_BYTES), b""))
