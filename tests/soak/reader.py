"""One reader of the soak: a process that reads, judges what it got, and notes what was not right.

`python -m tests.soak.reader FOLDER LEDGER NOTES MOUNT-NUMBER ROLE SEED` appends JSON lines to
NOTES.events: whatever is wrong, and counts each second. NOTES.mapping says what is being mapped: a
page that cannot be read ends the process. Single-threaded.
"""

import errno
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak.contents import LARGE, NAMES, SMALL, describe, make, size_of, state_in
from tests.soak.ledger import Ledger

ROLES = (
    "small whole", "small whole", "small whole", "small mapped",
    "large sequential", "large sequential", "large random", "large mapped",
)  # fmt: skip
_STEP_BYTES = 256 << 10


class Reader:
    def __init__(
        self, folder: Path, ledger: Ledger, notes: str, mount: int, role: str, seed: str
    ) -> None:
        self._folder = folder
        self._mapping = os.open(f"{notes}.mapping", os.O_WRONLY | os.O_CREAT)
        self._events = open(f"{notes}.events", "a", buffering=1)  # noqa: SIM115 - until the end
        self._ledger = ledger
        self._mount = mount
        self._files = SMALL if role.startswith("small") else LARGE
        self._how: Callable[[int, int], bytes] = {
            "whole": _read_whole, "sequential": _read_whole,
            "random": self._read_at_random, "mapped": _read_mapped,
        }[role.split()[1]]  # fmt: skip
        self._mapped = role.endswith("mapped")
        self._chance = random.Random(seed)
        self._operations = self._bytes = 0
        self._longest_s = 0.0

    def run(self) -> None:
        noted_s = time.monotonic()
        while not self._ledger.stopping:
            if self._files is SMALL and self._chance.random() < 0.02:
                self._list()
            else:
                self._read(self._chance.choice(self._files))
            # Two cores serve 16 readers, the server, the store and the trouble.
            time.sleep(0.001 if self._files is SMALL else 0.01)
            if time.monotonic() - noted_s > 1:
                noted_s = time.monotonic()
                self._note_counts()
        self._note_counts()

    def _read(self, file: int) -> None:
        name = NAMES[file]
        floor = self._ledger.floor(self._mount, file)
        began_s = time.monotonic()
        if self._mapped:
            os.pwrite(self._mapping, json.dumps([file, floor, began_s]).ljust(80).encode(), 0)
        descriptor = -1
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY)
            size = os.fstat(descriptor).st_size
            data = self._how(descriptor, size)
            if self._chance.random() < 0.5:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            self._judge_error(error, file, floor, began_s)
            return
        finally:
            self._took(began_s)
            if descriptor >= 0:
                os.close(descriptor)
        self._bytes += len(data)
        self._judge_data(data, size, file, floor)

    def _list(self) -> None:
        first = self._chance.choice(self._files) // 20 * 20
        files = range(first, first + 20)
        floors = {file: self._ledger.floor(self._mount, file) for file in files}
        began_s = time.monotonic()
        try:
            found = set(os.listdir((self._folder / NAMES[first]).parent))
        except OSError as error:
            self._judge_error(error, first, floors[first], began_s)
            return
        finally:
            self._took(began_s)
        for file in files:
            name = os.path.basename(NAMES[file])
            states = range(floors[file], self._ledger.latest(file) + 1)
            there = {size_of(NAMES[file], state) is not None for state in states}
            if there == {name not in found}:
                self._note(kind="wrong", name=NAMES[file], what=f"listed: {name in found}")

    # -- judging --------------------------------------------------------------------------

    def _judge_data(self, data: bytes, size: int, file: int, floor: int) -> None:
        name, latest = NAMES[file], self._ledger.latest(file)
        state = state_in(data)
        if state is None or not 0 <= state <= latest or size_of(name, state) is None:
            self._note(kind="wrong", name=name, what="no state of this file", pages=describe(data))
        elif data != make(name, state):
            self._note(
                kind="wrong", name=name, pages=describe(data),
                what=f"{len(data)} bytes of {size}, not those of state {state}",
            )  # fmt: skip
        elif state < floor:
            self._note(
                kind="wrong", name=name, what=f"state {state} after a refresh showed {floor}"
            )

    def _judge_error(self, error: OSError, file: int, floor: int, began_s: float) -> None:
        if error.errno == errno.ENOENT:
            promised = self._ledger.may_be_absent(floor, file)
        elif error.errno == errno.ESTALE:
            promised = self._ledger.latest(file) > floor
        else:
            promised = False  # EIO is judged by who knows when the store was away
        self._note(
            kind="error", errno=error.errno, promised=promised, name=NAMES[file],
            began_s=began_s, ended_s=time.monotonic(), clock=time.strftime("%T"),
        )  # fmt: skip

    def _took(self, began_s: float) -> None:
        self._operations += 1
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)

    def _note_counts(self) -> None:
        """What came since the last note."""
        self._note(
            kind="counts", operations=self._operations, bytes=self._bytes,
            longest_s=self._longest_s,
        )  # fmt: skip
        self._operations = self._bytes = 0

    def _note(self, **fields: Any) -> None:
        self._events.write(json.dumps(fields) + "\n")

    # -- ways to read ---------------------------------------------------------------------

    def _read_at_random(self, descriptor: int, size: int) -> bytes:
        """All of it, in pieces, in any order."""
        data = bytearray(size)
        starts = list(range(0, size, _STEP_BYTES))
        self._chance.shuffle(starts)
        for start in starts:
            piece = os.pread(descriptor, _STEP_BYTES, start)
            data[start : start + len(piece)] = piece
        return bytes(data)


def _read_whole(descriptor: int, size: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, _STEP_BYTES), b""))


def _read_mapped(descriptor: int, size: int) -> bytes:
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as pages:
        return bytes(pages)


def main() -> None:
    folder, ledger, notes, mount, role, seed = sys.argv[1:]
    Reader(Path(folder), Ledger(Path(ledger)), notes, int(mount), role, seed).run()


if __name__ == "__main__":
    main()
